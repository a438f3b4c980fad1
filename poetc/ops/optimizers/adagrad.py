"""Adagrad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._registry import register
from poetc.ops.optimizers._optimizer import (
    EPSILON,
    Optimizer,
    Rule,
    declare,
)
from poetc.ops.optimizers._update import Update, decayed


@register
class Adagrad(Update):
    """Duchi et al. 2011: h accumulates squared gradients."""

    summary = "h += g², w -= lr · g / (sqrt(h) + epsilon) in place from (w, h, g, lr); epsilon, weight_decay"
    must_alias = ((0, 0), (1, 1))
    states = 2
    flops = 24

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, h, g, lr = inputs
        g = decayed(op, w, g)
        h = h + np.square(g)
        return w - lr.reshape(()) * g / (np.sqrt(h) + w.dtype.type(op.get_float("epsilon", 1e-10))), h

    def kernel(self, op: Bound) -> Kernel:
        floats = (op.get_float("epsilon", 1e-10), op.get_float("weight_decay"))
        return Kernel("poetc_op_adagrad", Elements(op.inputs[0].elements), floats)


def _rule(options: Any, type: TensorType) -> Rule:
    del type
    return Rule("Adagrad", ("sum",), {"epsilon": options.epsilon})


declare(
    Optimizer(
        name="adagrad",
        help="g divided by the root of the sum of squares",
        state="one tensor",
        rule=_rule,
        options=(EPSILON,),
        defaults={"epsilon": 1e-10},
    )
)
