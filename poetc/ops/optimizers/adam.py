"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    EPSILON,
    Optimizer,
    Rule,
    declare,
)
from poetc.ops.optimizers._update import Update, decayed


@dataclass(frozen=True, slots=True)
class _Decoupled(Elements):
    is_decoupled: bool


@register
class Adam(Update):
    """Kingma and Ba 2015, epsilon outside the corrected root: w -= lr · m̂ / (sqrt(v̂) + epsilon)."""

    summary = "Adam in place from (w, m, v, g, lr, step); beta1, beta2, epsilon, weight_decay, decoupled (AdamW)"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3
    scalars = 2
    flops = 30

    step_input = 5

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, m, v, g, lr, step = inputs
        real, t = w.dtype.type, int(step.reshape(()))
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.999)
        lr = lr.reshape(())
        if not op.get_int("decoupled"):
            g = decayed(op, w, g)
        elif op.get_float("weight_decay"):
            w = w - lr * real(op.get_float("weight_decay")) * w
        m = real(beta1) * m + real(1 - beta1) * g
        v = real(beta2) * v + real(1 - beta2) * np.square(g)
        root = np.sqrt(v / real(1 - beta2**t)) + real(op.get_float("epsilon", 1e-8))
        return w - lr / real(1 - beta1**t) * m / root, m, v

    def kernel(self, op: Bound) -> Kernel:
        """1 - beta is passed beside beta: in f32 it cannot be recovered from it to full precision."""
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.999)
        epsilon, decay = op.get_float("epsilon", 1e-8), op.get_float("weight_decay")
        parameters = _Decoupled(op.inputs[0].elements, bool(op.get_int("decoupled")))
        return Kernel("poetc_op_adam", parameters, (beta1, 1 - beta1, beta2, 1 - beta2, epsilon, decay))


def _rule(options: Any, type: TensorType) -> Rule:
    del type
    betas = {"beta1": options.beta1, "beta2": options.beta2}
    return Rule("Adam", ("m", "v"), {**betas, "epsilon": options.epsilon, "decoupled": options.optimizer == "adamw"})


for _name, _help in (
    ("adam", "Adam with bias correction"),
    ("adamw", "Adam with decoupled weight decay"),
):
    declare(
        Optimizer(
            name=_name, help=_help, state="two tensors", rule=_rule, options=(BETA1, BETA2, EPSILON), counts_steps=True
        )
    )
