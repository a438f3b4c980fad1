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

_KINDS = {"mse": "MeanSquaredError", "l1": "MeanAbsoluteError", "huber": "Huber", "bce": "BceWithLogits"}


def _plan(output: Output) -> LossPlan:
    source, loss = output.name, output.loss
    if loss == "bce" and output.last is not None and output.last.kind == "Sigmoid":
        source = output.last.inputs[0]
    attributes: dict[str, Attribute] = {"delta": output.options.huber_delta} if loss == "huber" else {}
    return LossPlan(_KINDS[loss], source, TensorType(output.graph.tensors[source].shape), attributes, output.note)


def _of_odds(output: Output) -> LossPlan:
    """The binary cross-entropy of probabilities, each for itself."""
    graph, name, note = output.graph, output.name, output.note
    fact = graph.fact("probability", name)
    note += "; of its probabilities" + (f", {fact.evidence}" if fact is not None else "")
    target = TensorType(graph.tensors[name].shape)
    return LossPlan("BceWithLogits", name, target, {}, note, of_probabilities=True)


_SAME, _SHARE = "in the shape of the output", "0 to 1, in the shape of the output"

declare(
    Loss(name="bce", help="binary cross-entropy of a sigmoid", target=_SHARE, plan=_plan, may_be_auto=True),
    Loss(
        name="bce-probabilities",
        help="binary cross-entropy of an output of probabilities",
        target=_SHARE,
        plan=_of_odds,
        may_be_auto=True,
    ),
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
