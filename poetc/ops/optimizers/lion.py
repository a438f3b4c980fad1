"""Lion."""

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
    BETA1,
    BETA2,
    Optimizer,
    Rule,
    declare,
)
from poetc.ops.optimizers._update import Update


@register
class Lion(Update):
    """Chen et al. 2023, algorithm 2: the weight moves by the sign of a blend of the mean gradient and the gradient."""

    summary = "w -= lr · (sign(beta1 · m + (1 - beta1) · g) + weight_decay · w), m follows g by beta2; (w, m, g, lr)"
    must_alias = ((0, 0), (1, 1))
    states = 2
    flops = 9
    cost_like = "Momentum"

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, m, g, lr = inputs
        real, lr = w.dtype.type, lr.reshape(())
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.99)
        move = np.sign(real(beta1) * m + real(1 - beta1) * g)
        kept = w - lr * real(op.get_float("weight_decay")) * w
        return kept - lr * move, real(beta2) * m + real(1 - beta2) * g

    def kernel(self, op: Bound) -> Kernel:
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.99)
        floats = (beta1, 1 - beta1, beta2, 1 - beta2, op.get_float("weight_decay"))
        return Kernel("poetc_op_lion", Elements(op.inputs[0].elements), floats)


def _rule(options: Any, type: TensorType) -> Rule:
    del type
    return Rule("Lion", ("m",), {"beta1": options.beta1, "beta2": options.beta2})


declare(
    Optimizer(
        name="lion",
        help="the sign of an average of gradients",
        state="one tensor",
        rule=_rule,
        options=(BETA1, BETA2),
        defaults={"beta2": 0.99},
    )
)
