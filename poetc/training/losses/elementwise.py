"""Losses that are a mean over elements."""

from __future__ import annotations

from poetc.declare import LARGEST_FLOAT, Number, Option
from poetc.graph import Attribute, TensorType
from poetc.training.losses._loss import Loss, LossPlan, Output, declare

HUBER_DELTA = Option(
    name="huber_delta",
    values=Number(above=True, below=LARGEST_FLOAT),
    group="loss",
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
