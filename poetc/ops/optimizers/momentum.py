"""Gradient descent with a velocity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poetc.graph import TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._registry import register
from poetc.ops.optimizers._optimizer import (
    MOMENTUM,
    Optimizer,
    Rule,
    declare,
)
from poetc.ops.optimizers._update import Update, decayed


@dataclass(frozen=True, slots=True)
class _Nesterov(Elements):
    is_nesterov: bool


@register
class Momentum(Update):
    summary = "v = momentum · v + g, w -= lr · v in place from (w, v, g, lr); momentum, nesterov, weight_decay"
    must_alias = ((0, 0), (1, 1))
    states = 2
    flops = 4

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, v, g, lr = inputs
        momentum = w.dtype.type(op.get_float("momentum"))
        g = decayed(op, w, g)
        v = momentum * v + g
        return w - lr.reshape(()) * (g + momentum * v if op.get_int("nesterov") else v), v

    def kernel(self, op: Bound) -> Kernel:
        parameters = _Nesterov(op.inputs[0].elements, bool(op.get_int("nesterov")))
        return Kernel("poetc_op_momentum", parameters, (op.get_float("momentum"), op.get_float("weight_decay")))


def _rule(options: Any, type: TensorType) -> Rule:
    del type
    return Rule("Momentum", ("velocity",), {"momentum": options.momentum, "nesterov": False})


declare(
    Optimizer(
        name="momentum", help="v = momentum v + g; w -= lr v", state="one tensor", rule=_rule, options=(MOMENTUM,)
    )
)
