"""Adafactor: the mean square of a matrix as one number a row and one a column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.declare import LARGEST_FLOAT, Number, Option
from poetc.graph import TensorType
from poetc.kernels import Kernel, Parameters
from poetc.ops._bound import Bound
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops.optimizers._optimizer import Optimizer, Rule, declare
from poetc.ops.optimizers._update import Update, check_step

_EPSILON = float(np.finfo(np.float32).eps)  # of the mean square, as PyTorch has it
_LEAST_SCALE = 1e-3  # of a weight, on which the size of its update depends


@dataclass(frozen=True, slots=True)
class _Matrices(Parameters):
    """`count` matrices, one after the other; a vector has 0 columns."""

    count: int
    rows: int
    columns: int


def _matrices(weight: TensorType) -> _Matrices:
    shape = weight.shape
    if len(shape) < 2:
        return _Matrices(1, weight.elements, 0)
    return _Matrices(math.prod(shape[:-2]), shape[-2], shape[-1])


def _state_types(weight: TensorType) -> tuple[TensorType, ...]:
    """A mean square a row and a column of the last two axes; of a vector one an element."""
    shape = weight.shape
    if len(shape) < 2:
        return (weight,)
    return TensorType(shape[:-1]), TensorType((*shape[:-2], shape[-1]))


class _Factored(Update):
    """Shazeer and Stern 2018 as PyTorch has it: the update is clipped by its root mean square.

    Its size follows the root mean square of the weight, and at most `lr` of that.
    """

    scalars = 2
    flops = 40
    cost_like = "Adam"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != self.states + 3:
            raise ValueError(f"{self.kind} takes {self.states + 3} inputs, not {len(op.inputs)}")
        weight, *state, gradient, rate, step = op.inputs
        if tuple(state) != _state_types(weight) or gradient != weight:
            raise ValueError(f"{self.kind}: state and gradient do not fit a weight of shape {list(weight.shape)}")
        if rate.elements != 1 or step.elements != 1:
            raise ValueError(f"{self.kind}: the learning rate and the step have one element")
        check_step(step)
        return op.inputs[: self.states]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, *means, g, lr, step = inputs
        real, t = w.dtype.type, int(step.reshape(()))
        lr = lr.reshape(())
        new = real(t ** op.get_float("beta2_decay", -0.8))
        rate = max(_LEAST_SCALE, math.sqrt(np.square(w).mean())) * min(float(lr), t**-0.5)
        if w.ndim < 2:
            means = [means[0] + new * (np.square(g) - means[0])]
            square = means[0]
        else:
            row, column = (
                old + new * (np.square(g).mean(axis=axis) - old) for old, axis in zip(means, (-1, -2), strict=True)
            )
            means = [row, column]
            whole = np.maximum(row.mean(axis=-1), real(_EPSILON))[..., None, None]
            square = row[..., :, None] * column[..., None, :] / whole
        move = g / np.sqrt(np.maximum(square, real(_EPSILON**2)))
        most = max(1.0, math.sqrt(np.square(move).mean()) / op.get_float("update_limit", 1.0))
        kept = w - lr * real(op.get_float("weight_decay")) * w
        return (kept - real(rate / most) * move, *means)

    def work(self, op: Bound) -> Work:
        return Work(flops=self.flops * op.inputs[0].elements, bytes_moved=6 * op.inputs[0].size_bytes)

    cuts = OpSpec.cuts  # none: the root mean square of the whole update comes before its first element

    def kernel(self, op: Bound) -> Kernel:
        floats = (
            *(op.get_float("beta2_decay", -0.8), op.get_float("update_limit", 1.0)),
            *(op.get_float("weight_decay"), _EPSILON, _LEAST_SCALE),
        )
        return Kernel("poetc_op_adafactor", _matrices(op.inputs[0]), floats)


@register
class Adafactor(_Factored):
    summary = "Adafactor of matrices from (w, row, column, g, lr, step); beta2_decay, update_limit, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3


@register
class AdafactorVector(_Factored):
    summary = "Adafactor of a vector, in place from (w, v, g, lr, step); beta2_decay, update_limit, weight_decay"
    must_alias = ((0, 0), (1, 1))
    states = 2


BETA2_DECAY = Option(
    name="beta2_decay",
    values=Number(-LARGEST_FLOAT, 0.0),
    default_text="-0.8",
    help="The step number to this power is the share of a new square in the mean square.",
)
UPDATE_LIMIT = Option(
    name="update_limit",
    values=Number(above=True, below=LARGEST_FLOAT),
    default_text="1",
    help="The largest root mean square of an update before the rate; a larger one is scaled to it.",
)


def _rule(options: Any, type: TensorType) -> Rule:
    names = ("row", "column") if len(type.shape) > 1 else ("v",)
    own = {"beta2_decay": options.beta2_decay, "update_limit": options.update_limit}
    return Rule(
        "Adafactor" if len(type.shape) > 1 else "AdafactorVector",
        names,
        {name: value for name, value in own.items() if value is not None},
        dict(zip(names, _state_types(type), strict=True)),
    )


declare(
    Optimizer(
        name="adafactor",
        help="g divided by a root mean square made of its rows and columns; decoupled weight decay",
        state="one number a row and one a column",
        rule=_rule,
        options=(BETA2_DECAY, UPDATE_LIMIT),
        counts_steps=True,
    )
)
