"""Losses of classes that are there or not, each by itself: cross-entropy of a sigmoid, and focal."""

from __future__ import annotations

from poetc.declare import Number, Option
from poetc.errors import UsageError
from poetc.graph import Attribute, TensorType
from poetc.training.losses._loss import Loss, LossPlan, Output, declare
from poetc.training.losses.cross_entropy import CLASS_WEIGHTS, FOCAL_GAMMA

FOCAL_ALPHA = Option(
    name="focal_alpha",
    values=Number(most=1.0),
    group="loss",
    default_text="both weigh 1",
    help="Weight of positive targets; 1 less that is the weight of the others.",
)


def _plan(output: Output) -> LossPlan:
    options, source, note = output.options, output.name, output.note
    of_probabilities = output.loss == "bce-probabilities"
    if of_probabilities:
        fact = output.graph.fact("probability", source)
        note += "; of its probabilities" + (f", {fact.evidence}" if fact is not None else "")
    elif output.last is not None and output.last.kind == "Sigmoid":
        source = output.last.inputs[0]
    shape = output.graph.tensors[source].shape
    attributes: dict[str, Attribute] = {}
    if output.loss == "binary-focal":
        attributes["gamma"] = 2.0 if options.focal_gamma is None else options.focal_gamma
        if options.focal_alpha is not None:
            attributes["alpha"] = options.focal_alpha
    if options.class_weights:
        axis = 1 if len(shape) == 4 else max(len(shape) - 1, 0)
        columns = shape[axis] if shape else 1
        weights = tuple(float(w) for w in options.class_weights)
        if len(weights) not in (1, columns):
            raise UsageError(
                f"--class-weights: {len(weights)} weights are given for output {output.name!r} {list(shape)}; --loss "
                f"{output.loss} takes one, or one for each of {columns} columns along axis {axis}"
            )
        attributes |= {"pos_weight": weights, "axis": axis}
        note += "; --class-weights weighs positive targets" + (f", along axis {axis}" if len(weights) > 1 else "")
    return LossPlan("BceWithLogits", source, TensorType(shape), attributes, note, of_probabilities=of_probabilities)


_SHARE = "0 to 1, in the shape of the output"

declare(
    *(
        Loss(name=name, help=help, target=_SHARE, plan=_plan, options=(CLASS_WEIGHTS,), may_be_auto=True)
        for name, help in (
            ("bce", "binary cross-entropy of a sigmoid"),
            ("bce-probabilities", "binary cross-entropy of an output of probabilities"),
        )
    ),
    Loss(
        name="binary-focal",
        help="binary cross-entropy times (1 - p)^gamma (`--focal-gamma`), for rare positives (`--focal-alpha`)",
        target=_SHARE,
        plan=_plan,
        options=(FOCAL_GAMMA, FOCAL_ALPHA, CLASS_WEIGHTS),
    ),
)
