"""Losses that are a mean over elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from poetc.declare import LARGEST_FLOAT, Number, Option
from poetc.graph import Attribute, TensorType
from poetc.ops._bound import Bound
from poetc.ops._registry import register
from poetc.ops.losses._loss import Loss, LossPlan, Output, declare
from poetc.ops.losses._operators import Pointwise, PointwiseGrad


@register
class MeanSquaredError(Pointwise):
    summary = "Mean of (prediction - target)²"
    symbol = "poetc_op_mean_squared_error"

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        return np.square(x - t)


@register
class MeanSquaredErrorGrad(PointwiseGrad):
    summary = "Gradient of MeanSquaredError from (prediction, target, [gradient of the loss])"
    symbol = "poetc_op_mean_squared_error_grad"

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        return 2 * (x - t)


@register
class MeanAbsoluteError(Pointwise):
    summary = "Mean of |prediction - target| (L1)"
    symbol = "poetc_op_mean_absolute_error"

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        return np.abs(x - t)


@register
class MeanAbsoluteErrorGrad(PointwiseGrad):
    summary = "Gradient of MeanAbsoluteError from (prediction, target, [gradient of the loss]); 0 where they are equal"
    symbol = "poetc_op_mean_absolute_error_grad"

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        return np.sign(x - t)


@register
class Huber(Pointwise):
    summary = "Mean of d²/2 where |d| ≤ delta, else delta · (|d| - delta/2), d = prediction - target; delta"
    symbol = "poetc_op_huber"
    flops = 5

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        delta = x.dtype.type(op.get_float("delta", 1.0))
        d = np.abs(x - t)
        half = x.dtype.type(0.5)
        return np.where(d <= delta, half * d * d, delta * (d - half * delta))


@register
class HuberGrad(PointwiseGrad):
    summary = "Gradient of Huber from (prediction, target, [gradient of the loss]); delta"
    symbol = "poetc_op_huber_grad"

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        delta = x.dtype.type(op.get_float("delta", 1.0))
        return np.clip(x - t, -delta, delta)


HUBER_DELTA = Option(
    name="huber_delta",
    values=Number(above=True, below=LARGEST_FLOAT),
    default=1.0,
    help="The error where squared becomes linear.",
)

_KINDS = {"mse": "MeanSquaredError", "l1": "MeanAbsoluteError", "huber": "Huber"}


def _plan(output: Output) -> LossPlan:
    source, loss = output.name, output.loss
    attributes: dict[str, Attribute] = {"delta": output.options.huber_delta} if loss == "huber" else {}
    return LossPlan(_KINDS[loss], source, TensorType(output.graph.tensors[source].shape), attributes, output.note)


_SAME = "in the shape of the output"

declare(
    Loss(name="mse", help="mean of the squared errors", target=_SAME, plan=_plan, may_be_auto=True),
    Loss(name="l1", help="mean of the absolute errors", target=_SAME, plan=_plan, may_be_auto=True),
    Loss(
        name="huber",
        help="squared below `--huber-delta`, linear above",
        target=_SAME,
        plan=_plan,
        options=(HUBER_DELTA,),
    ),
)
