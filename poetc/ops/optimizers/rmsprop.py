"""RMSProp."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from poetc.declare import Number, Option, Switch
from poetc.graph import Attribute, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._registry import register
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


def _register_kind(is_centered: bool, has_velocity: bool) -> None:
    """A kind for each pair of flags, since the number of states is part of a kind."""
    name = _name(is_centered, has_velocity)
    states = 2 + is_centered + has_velocity
    by = "RMSProp by the variance" if is_centered else "RMSProp"
    inputs = f"(w, s, {'m, ' * is_centered}{'v, ' * has_velocity}g, lr)"
    fields = {
        "kind": name,
        "summary": f"{by}{', with momentum' * has_velocity}, in place from {inputs}; alpha, epsilon,"
        f"{' momentum,' * has_velocity} weight_decay",
        "must_alias": tuple((i, i) for i in range(states)),
        "states": states,
        "centered": is_centered,
        "velocity": has_velocity,
    }
    register(type(name, (_MeanSquare,), fields))


def _name(is_centered: bool, has_velocity: bool) -> str:
    return f"RmsProp{'Centered' * is_centered}{'Momentum' * has_velocity}"


for _centered, _velocity in itertools.product((False, True), repeat=2):
    _register_kind(_centered, _velocity)


ALPHA = Option(
    name="alpha",
    values=Number(below=1.0),
    default_text="0.99",
    help="Share of the mean square that stays from step to step.",
)
CENTERED = Option(
    name="centered",
    values=Switch(),
    help="Divide by the standard deviation, not by the root of the mean square.",
)


def _rule(options: Any, type: TensorType) -> Rule:
    del type
    kind = _name(bool(options.centered), bool(options.momentum))
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
