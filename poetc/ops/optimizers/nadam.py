"""NAdam."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.declare import LARGEST_FLOAT, Number, Option
from poetc.graph import Attribute, TensorType
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
    Shared,
    declare,
)
from poetc.ops.optimizers._update import OfUpdatingSteps, Update, check_step, decayed


def _momentum_exponent(op: Bound) -> float:
    """The exponent of e in the schedule of NAdam's momentum, a step: 0.96^(step · momentum_decay) as a power of e."""
    return op.get_float("momentum_decay", 4e-3) * math.log(0.96)


def _momentum_at(op: Bound, step: int) -> float:
    return op.get_float("beta1", 0.9) * (1 - 0.5 * math.exp(step * _momentum_exponent(op)))


@register
class Nadam(Update):
    """Dozat 2016, algorithm 2, as PyTorch has it: Adam with Nesterov's momentum, which grows from step to step.

    `product`: the product of the momentums of all steps so far, which NadamSchedule computes.
    """

    summary = "NAdam in place from (w, m, v, g, lr, step, product); beta1, beta2, epsilon, momentum_decay, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3
    scalars = 3
    flops = 34
    cost_like = "Adam"

    step_input = 5

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, m, v, g, lr, step, product = inputs
        real, t = w.dtype.type, int(step.reshape(()))
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.999)
        lr, product = lr.reshape(()), product.reshape(())
        now, following = real(_momentum_at(op, t)), real(_momentum_at(op, t + 1))
        g = decayed(op, w, g)
        m = real(beta1) * m + real(1 - beta1) * g
        v = real(beta2) * v + real(1 - beta2) * np.square(g)
        root = np.sqrt(v / real(1 - beta2**t)) + real(op.get_float("epsilon", 1e-8))
        move = lr * (1 - now) / (1 - product) * g + lr * following / (1 - product * following) * m
        return w - move / root, m, v

    def kernel(self, op: Bound) -> Kernel:
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.999)
        epsilon, decay = op.get_float("epsilon", 1e-8), op.get_float("weight_decay")
        floats = (beta1, 1 - beta1, beta2, 1 - beta2, epsilon, decay, _momentum_exponent(op))
        return Kernel("poetc_op_nadam", Elements(op.inputs[0].elements), floats)


@register
class NadamSchedule(OfUpdatingSteps):
    summary = "The product of NAdam's momentums, in place from (product, step): of this step too; beta1, momentum_decay"
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.inputs[0].elements != 1 or op.inputs[1].elements != 1:
            raise ValueError("the product and the step have one element")
        check_step(op.inputs[1])
        return op.inputs[:1]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        product, step = inputs
        return (product * product.dtype.type(_momentum_at(op, int(step.reshape(())))),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_nadam_schedule", floats=(op.get_float("beta1", 0.9), _momentum_exponent(op)))


MOMENTUM_DECAY = Option(
    name="momentum_decay",
    values=Number(below=LARGEST_FLOAT),
    default_text="0.004",
    help="Speed at which its momentum grows to beta1.",
)


def _decay(options: Any) -> dict[str, Attribute]:
    return {} if options.momentum_decay is None else {"momentum_decay": options.momentum_decay}


def _rule(options: Any, type: TensorType) -> Rule:
    del type
    betas = {"beta1": options.beta1, "beta2": options.beta2}
    return Rule("Nadam", ("m", "v"), {**betas, "epsilon": options.epsilon, **_decay(options)})


def _shared(options: Any) -> Shared:
    """The product of the momentums of the steps up to the one that runs."""
    return Shared("momentum_product", "NadamSchedule", {"beta1": options.beta1, **_decay(options)})


declare(
    Optimizer(
        name="nadam",
        help="Adam with Nesterov's momentum, which grows from step to step",
        state="two tensors",
        rule=_rule,
        options=(BETA1, BETA2, EPSILON, MOMENTUM_DECAY),
        counts_steps=True,
        shared=_shared,
    )
)
