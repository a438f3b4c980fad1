"""Gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from poetc.graph import TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._registry import OpSpec, Work, register, spec
from poetc.ops.gather import gather_layout
from poetc.ops.optimizers._optimizer import (
    Optimizer,
    Rule,
    declare,
)
from poetc.ops.optimizers._update import Update, decayed


@register
class Sgd(Update):
    summary = "w - lr · g in place from (w, g, lr); weight_decay"
    must_alias = ((0, 0),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, g, lr = inputs
        return (w - lr.reshape(()) * decayed(op, w, g),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_sgd", Elements(op.inputs[0].elements), (op.get_float("weight_decay"),))


@register
class SgdSlices(OpSpec):
    summary = "Sgd of the slices of w along `axis` that the indices name, from (w, indices, g, lr); weight_decay"
    recomputable = False
    must_alias = ((0, 0),)
    cost_like: ClassVar[str] = "Sgd"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 4 or op.inputs[3].elements != 1:
            raise ValueError(f"{self.kind} takes the weight, indices, the gradient and the learning rate")
        return spec("PutSlices").infer(Bound(op.attributes, op.inputs[:3]))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, indices, g, lr = inputs
        (part,) = spec("Gather").evaluate(Bound(op.attributes, op.inputs[:2], (op.inputs[2],)), [w, indices])
        moved = part - lr.reshape(()) * decayed(op, part, g)
        return spec("PutSlices").evaluate(Bound(op.attributes, op.inputs[:3], (op.inputs[0],)), [w, indices, moved])

    def work(self, op: Bound) -> Work:
        g = op.inputs[2]
        return Work(flops=2 * g.elements, bytes_moved=3 * g.size_bytes + op.inputs[1].size_bytes)

    def kernel(self, op: Bound) -> Kernel:
        slices = gather_layout(op, op.inputs[0], op.inputs[1])
        return Kernel("poetc_op_sgd_slices", slices, (op.get_float("weight_decay"),))


declare(Optimizer(name="sgd", help="w -= lr g", state="none", rule=lambda options, type: Rule("Sgd")))
