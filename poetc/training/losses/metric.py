"""Losses of embeddings: distances between the rows of a batch."""

from __future__ import annotations

from poetc.declare import LARGEST_FLOAT, Number, Option
from poetc.errors import UsageError
from poetc.graph import Attribute, DType, TensorType
from poetc.training.losses._loss import Loss, LossPlan, Output, declare

MARGIN = Option(
    name="margin",
    values=Number(below=LARGEST_FLOAT),
    group="loss",
    metavar="D",
    default_text="1",
    help="The distance that is to be between two classes.",
)


def _plan(output: Output) -> LossPlan:
    graph, name, note, options, loss = output.graph, output.name, output.note, output.options, output.loss
    shape = graph.tensors[name].shape
    if len(shape) != 2 or shape[0] < 2:
        raise UsageError(
            f"--loss {loss}: output {name!r} {list(shape)} is not [batch, width] with a batch of at least 2"
        )
    attributes: dict[str, Attribute] = {"margin": 1.0 if options.margin is None else options.margin}
    return LossPlan(loss.capitalize(), name, TensorType(shape[:1], DType.I32), attributes, note)


_INDEX = "an index of a class"

declare(
    Loss(
        name="triplet",
        help="distances between the rows of a batch: one class nearer than others by `--margin`",
        target=_INDEX,
        plan=_plan,
        options=(MARGIN,),
        compares_rows=True,
    ),
    Loss(
        name="contrastive",
        help="distances between all pairs of a batch, up to `--margin`",
        target=_INDEX,
        plan=_plan,
        options=(MARGIN,),
        compares_rows=True,
    ),
)
