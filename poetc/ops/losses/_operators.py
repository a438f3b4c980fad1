"""The operators of losses: parts that a loss and its gradient share.

A gradient kind reads (prediction, target) and, as an optional third input, the gradient of the loss itself. A loss that
is the root of the training graph has gradient 1 and needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from poetc.graph import Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, Range
from poetc.ops._registry import Gradients, OpSpec
from poetc.ops.losses import _means as means


class LossKind(OpSpec):
    """A scalar of a prediction and a target. The kind `<kind>Grad` is its gradient in the prediction."""

    has_classes: ClassVar[bool] = False  # the prediction has a score of each class, along `axis`
    is_of_labels: ClassVar[bool] = False  # the target has another shape than the prediction, and is no class of it

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.check(op)
        return (TensorType((), op.inputs[0].dtype),)

    def check(self, op: Bound) -> None:
        """Raise ValueError where prediction and target do not fit."""
        raise NotImplementedError

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        """grads[0] None stands for 1: the loss is the root."""
        if not needed[0]:
            return [None, None]
        inputs = [*op.inputs, *([grads[0]] if grads[0] is not None else [])]
        return [b.emit1(f"{op.kind}Grad", inputs, op.attributes, hint=f"{op.inputs[0]}.grad"), None]


class InBlocks(OpSpec):
    """A loss, or its gradient, whose blocks know of the whole mean."""

    def samples(self, op: Bound) -> int:
        """Of how many samples its loss is the mean."""
        return op.inputs[0].elements

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        return means.block_of_mean(op, cut, ranges, self.samples(op))


class LossOfEqualShapes(InBlocks, LossKind):
    def check(self, op: Bound) -> None:
        if op.inputs[0].shape != op.inputs[1].shape:
            raise ValueError(f"the prediction has shape {op.inputs[0].shape}, the target {op.inputs[1].shape}")


class LossGradient(InBlocks):
    aliases: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0),)

    def check(self, op: Bound) -> None:
        """Raise ValueError where prediction and target do not fit."""

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.check(op)
        if len(op.inputs) > 2 and op.inputs[2].elements != 1:
            raise ValueError(f"the gradient of a loss is a scalar, not of shape {op.inputs[2].shape}")
        return (op.inputs[0],)


def upstream(inputs: Sequence[Any]) -> Any:
    return inputs[2].reshape(()) if len(inputs) > 2 else inputs[0].dtype.type(1)


@dataclass(frozen=True, slots=True)
class _PointwiseLoss(Elements):
    has_upstream: bool
    mean_of: int
    part: int


class Pointwise(LossOfEqualShapes):
    """Mean over all elements of a function of prediction and target."""

    flops = 3
    symbol = ""

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (self.value(op, *inputs).mean(),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return means.summed([means.of_elements(op)])

    def kernel(self, op: Bound) -> Kernel:
        return _pointwise_kernel(op, self.symbol, False)


class PointwiseGrad(LossGradient):
    flops = 3
    symbol = ""

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x = inputs[0]
        return (self.slope(op, x, inputs[1]) * (upstream(inputs) / x.dtype.type(means.mean_of(op, x.size))),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return (means.of_elements(op),)

    def kernel(self, op: Bound) -> Kernel:
        return _pointwise_kernel(op, self.symbol, len(op.inputs) > 2)


def _pointwise_kernel(op: Bound, symbol: str, has_upstream: bool) -> Kernel:
    elements = op.inputs[0].elements
    parameters = _PointwiseLoss(elements, has_upstream, means.mean_of(op, elements), means.part_of(op))
    return Kernel(symbol, parameters, (op.get_float("delta", 1.0),), means.sums_bytes(op))
