"""Updates of parameters by an optimizer. State goes in and out in place and an update runs exactly once in a step.

`lr` is an f32 tensor of one element. `step` is an i32 tensor of one element with the number of the current step, 1 in
the first. Conventions are PyTorch's: weight decay is added to the gradient. If `decoupled` (AdamW, Loshchilov and
Hutter 2019), it takes lr · weight_decay of the weight. Lion's weight decay is always decoupled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, flat
from poetc.ops._registry import OpSpec, register


class OfUpdatingSteps(OpSpec):
    """A kind that runs in steps that update parameters, and not in those that only add up gradients."""

    recomputable = False


class Update(OfUpdatingSteps):
    """Inputs: `states` tensors of one shape, the gradient in that shape, then `scalars` tensors of one element."""

    states = 1
    scalars = 1
    step_input = 0  # the number of the step, of a kind that reads it
    flops = 2  # an element

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != self.states + 1 + self.scalars:
            raise ValueError(f"{self.kind} takes {self.states + 1 + self.scalars} inputs, not {len(op.inputs)}")
        shapes = [t.shape for t in op.inputs[: self.states + 1]]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"{self.kind}: the shapes of weight, state and gradient differ: {shapes}")
        if any(t.elements != 1 for t in op.inputs[self.states + 1 :]):
            raise ValueError(f"{self.kind}: the learning rate and the step have one element")
        if self.step_input:
            check_step(op.inputs[self.step_input])
        return op.inputs[: self.states]

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Each element by itself."""
        return (flat(op, self.states + 1),)


def decayed(op: Bound, w: Any, g: Any) -> Any:
    decay = op.get_float("weight_decay")
    return g + w.dtype.type(decay) * w if decay else g


def check_step(step: TensorType) -> None:
    if step.dtype is not DType.I32:
        raise ValueError(f"the step is i32, not {step.dtype}")


@register
class StepCount(OfUpdatingSteps):
    summary = "step + 1 in place, i32: the number of the step now running"
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.inputs[0].elements != 1 or op.inputs[0].dtype is not DType.I32:
            raise ValueError("the step is one i32")
        return op.inputs

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (inputs[0] + inputs[0].dtype.type(1),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_step_count")
