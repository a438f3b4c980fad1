"""Gradients that are added up over several steps, and updates that run in the last of them only.

`left` is one i32: the steps before the next update, 0 in the step that updates. `every` is their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, flat
from poetc.ops._registry import OpSpec, Work, register, registry
from poetc.ops.optimizers import OfUpdatingSteps

GATED = "Gated"


@dataclass(frozen=True, slots=True)
class _Accumulated(Elements):
    every: int


def _check(left: TensorType) -> None:
    if left.dtype is not DType.I32 or left.elements != 1:
        raise ValueError(f"the number of steps that are left is one i32, not {left}")


@register
class StepsLeft(OpSpec):
    summary = "left - 1 in place, every - 1 after 0: the steps before the next update; every"
    recomputable = False
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check(op.inputs[0])
        return op.inputs

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        (left,) = inputs
        return ((left - 1) % left.dtype.type(op.get_int("every")),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_steps_left", Elements(op.get_int("every")))


@register
class Accumulate(OpSpec):
    summary = "total + g in place, g in the first of `every` steps, from (total, g, left); every"
    recomputable = False
    must_alias = ((0, 0),)
    flops = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        total, g, left = op.inputs
        if total != g:
            raise ValueError(f"the total has type {total}, the gradient {g}")
        _check(left)
        return op.inputs[:1]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        total, g, left = inputs
        return (g.copy() if int(left.reshape(())) == op.get_int("every") - 1 else total + g,)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Any range of elements: the sum is element by element."""
        return (flat(op, 2),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_accumulate", _Accumulated(op.inputs[0].elements, op.get_int("every")))


class _Gated(OpSpec):
    """An update behind a gate: its inputs after `left`, and its attributes. State stays as it is unless `left` is 0."""

    recomputable = False
    of: ClassVar[OpSpec]

    def inner(self, op: Bound) -> Bound:
        return replace(op, inputs=op.inputs[1:])

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check(op.inputs[0])
        return self.of.infer(self.inner(op))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        left, *rest = inputs
        if int(left.reshape(())):
            return tuple(rest[i].copy() for i, _ in self.of.must_alias)
        return self.of.evaluate(self.inner(op), rest)

    def work(self, op: Bound) -> Work:
        """The work of the step that updates: a deadline has to hold in that one too."""
        return self.of.work(self.inner(op))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Those of the update, with the gate whole in each block."""
        return tuple(_behind_gate(cut) for cut in self.of.cuts(self.inner(op)))

    def kernel(self, op: Bound) -> Kernel:
        kernel = self.of.kernel(self.inner(op))
        return replace(kernel, symbol=kernel.symbol.replace("poetc_op_", "poetc_op_gated_"))


def _behind_gate(cut: Cut) -> Cut:
    within = None if cut.within is None else _behind_gate(cut.within)
    return replace(cut, parts=(None, *cut.parts), within=within)


for _kind, _spec in registry().items():
    if isinstance(_spec, OfUpdatingSteps):
        _attributes = {
            "kind": f"{GATED}{_kind}",
            "summary": f"{_kind} of the inputs after the first (left), if that is 0; else nothing changes",
            "must_alias": tuple((i + 1, o) for i, o in _spec.must_alias),
            "cost_like": _spec.cost_like or _kind,
            "of": _spec,
            "__module__": __name__,
        }
        register(type(f"{GATED}{_kind}", (_Gated,), _attributes))
