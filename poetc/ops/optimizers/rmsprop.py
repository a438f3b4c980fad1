"""RMSProp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from poetc.declare import Number, Option, Switch
from poetc.graph import Attribute, TensorType
from poetc.ops._bound import Bound
from poetc.ops._registry import register
from poetc.ops.kernels import Kernel
from poetc.ops.kernels.rows import Elements
from poetc.ops.optimizers._optimizer import (
    EPSILON,
    MOMENTUM,
    Optimizer,
    Rule,
    declare,
)
from poetc.ops.optimizers._update import Update, decayed


@dataclass(frozen=True, slots=True)
class _RmsProp(Elements):
    is_centered: bool
    has_velocity: bool


class _MeanSquare(Update):
    """RMSProp as PyTorch has it (Tieleman and Hinton 2012; centered: Graves 2013, eq. 38), epsilon outside the root.

    States after w: s, the mean square; m, the mean gradient, if `centered`; v, the velocity, with `velocity`. A
    variance that rounding makes negative counts as zero (PyTorch takes its root).
    """

    centered: ClassVar[bool] = False
    velocity: ClassVar[bool] = False
    cost_like = "Adam"
    flops = 26

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, s, *more, g, lr = inputs
        real, alpha = w.dtype.type, op.get_float("alpha", 0.99)
        g = decayed(op, w, g)
        s = real(alpha) * s + real(1 - alpha) * np.square(g)
        states, variance = [s], s
        if self.centered:
            mean = real(alpha) * more[0] + real(1 - alpha) * g
            variance = np.maximum(s - np.square(mean), 0)
            states.append(mean)
        move = g / (np.sqrt(variance) + real(op.get_float("epsilon", 1e-8)))
        if self.velocity:
            move = real(op.get_float("momentum")) * more[-1] + move
            states.append(move)
        return (w - lr.reshape(()) * move, *states)

    def kernel(self, op: Bound) -> Kernel:
        alpha, epsilon = op.get_float("alpha", 0.99), op.get_float("epsilon", 1e-8)
        floats = (alpha, 1 - alpha, epsilon, op.get_float("momentum"), op.get_float("weight_decay"))
        parameters = _RmsProp(op.inputs[0].elements, self.centered, self.velocity)
        return Kernel("poetc_op_rms_prop", parameters, floats)


@register
class RmsProp(_MeanSquare):
    kind = "RmsProp"
    summary = "RMSProp in place from (w, s, g, lr); alpha, epsilon, weight_decay"
    must_alias = ((0, 0), (1, 1))
    states = 2


@register
class RmsPropCentered(_MeanSquare):
    kind = "RmsPropCentered"
    summary = "RMSProp by the variance, in place from (w, s, m, g, lr); alpha, epsilon, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3
    centered = True


@register
class RmsPropMomentum(_MeanSquare):
    kind = "RmsPropMomentum"
    summary = "RMSProp with momentum in place from (w, s, v, g, lr); alpha, epsilon, momentum, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3
    velocity = True


@register
class RmsPropCenteredMomentum(_MeanSquare):
    kind = "RmsPropCenteredMomentum"
    summary = "RMSProp by the variance, with momentum, from (w, s, m, v, g, lr); alpha, epsilon, momentum, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2), (3, 3))
    states = 4
    centered = velocity = True


ALPHA = Option(
    name="alpha",
    values=Number(below=1.0),
    group="optimizer",
    default_text="0.99",
    help="Share of the mean square that stays from step to step.",
)
CENTERED = Option(
    name="centered",
    values=Switch(),
    group="optimizer",
    help="Divide by the standard deviation, not by the root of the mean square.",
)


def _rule(options: Any, type: TensorType) -> Rule:
    del type
    kind = f"RmsProp{'Centered' if options.centered else ''}{'Momentum' if options.momentum else ''}"
    states = ("v", *(("m",) if options.centered else ()), *(("velocity",) if options.momentum else ()))
    more: dict[str, Attribute] = {"momentum": options.momentum} if options.momentum else {}
    if options.alpha is not None:
        more["alpha"] = options.alpha
    return Rule(kind, states, {"epsilon": options.epsilon, **more})


declare(
    Optimizer(
        name="rmsprop",
        help="g divided by a running root mean square, with `--centered` by the deviation",
        state="one to three tensors",
        rule=_rule,
        options=(ALPHA, CENTERED, MOMENTUM, EPSILON),
        defaults={"momentum": 0.0},
    )
)
