"""Cross-entropies of classes: of an index or a distribution, focal, and of probabilities."""

from __future__ import annotations

from typing import Any

from poetc.declare import LARGEST, LARGEST_FLOAT, Number, Numbers, Option, Whole
from poetc.errors import UsageError
from poetc.graph import Attribute, DType, Graph, Operator, TensorType
from poetc.training.losses._loss import Loss, LossPlan, Output, declare

LABEL_SMOOTHING = Option(
    name="label_smoothing",
    values=Number(below=1.0),
    group="loss",
    default=0.0,
    help="Share of a target that is spread over all classes.",
)
IGNORE_INDEX = Option(
    name="ignore_index",
    values=Whole(-LARGEST - 1),
    group="loss",
    metavar="CLASS",
    help="The class whose targets count for nothing.",
)
CLASS_AXIS = Option(
    name="class_axis",
    values=Whole(-8, 7),
    group="loss",
    metavar="AXIS",
    default_text="that of its Softmax, or of the last layer's units; poetc train asks the target's shape where "
    "they leave it open",
    help="Axis of the output that holds the classes.",
)
CLASS_WEIGHTS = Option(
    name="class_weights",
    values=Numbers(),
    group="loss",
    default=(),
    metavar="W,W,...|FILE",
    help="Weight of a target of each class, or a text file of such numbers.",
)
FOCAL_GAMMA = Option(
    name="focal_gamma",
    values=Number(below=LARGEST_FLOAT),
    group="loss",
    default_text="2",
    help="The exponent of 1 - p, which is the weight of a sample.",
)


def own_cross_entropy(graph: Graph, name: str, op: Operator, options: Any, *, is_focal: bool) -> LossPlan:
    """The model ends in its loss: that one is trained, and the input that held the labels is the target."""
    scores, labels = op.inputs
    loss = "focal" if is_focal else "cross-entropy"
    attributes = {**op.attributes, **_class_attributes(options, graph.tensors[scores].shape[_axis(op)], loss)}
    if is_focal:
        attributes.pop("label_smoothing", None)
    note = f"loss {loss} of {scores!r}, which the model computes itself as output {name!r}"
    if labels in graph.inputs:
        note += f"; the target is its input {labels!r}"
    return LossPlan("CrossEntropy", scores, graph.tensors[labels].type, attributes, note, labels)


def _axis(op: Operator) -> int:
    axis = op.attributes.get("axis", -1)
    assert isinstance(axis, int)
    return axis


def _class_attributes(options: Any, classes: int, loss: str) -> dict[str, Attribute]:
    """The loss over `classes`, as the options set it."""
    if loss != "soft-cross-entropy" and options.class_weights and len(options.class_weights) != classes:
        raise UsageError(f"--class-weights: {len(options.class_weights)} weights are given for {classes} classes")
    attributes: dict[str, Attribute] = {}
    if options.label_smoothing and loss != "focal":
        attributes["label_smoothing"] = options.label_smoothing
    if options.ignore_index is not None and loss != "soft-cross-entropy":
        attributes["ignore_index"] = options.ignore_index
    if options.class_weights and loss != "soft-cross-entropy":
        attributes["class_weights"] = tuple(float(w) for w in options.class_weights)
    if loss == "focal":
        attributes["gamma"] = 2.0 if options.focal_gamma is None else options.focal_gamma
    return attributes


def plan_classes(output: Output) -> LossPlan:
    """The cross-entropies: along the axis of the softmax, of the last layer's units, or of --class-axis."""
    graph, name, last, note = output.graph, output.name, output.last, output.note
    options, loss = output.options, output.loss
    source, known = name, graph.fact("class axis", name)
    softmax = last is not None and last.kind in ("Softmax", "LogSoftmax")
    if softmax and last is not None:
        source = last.inputs[0]
    shape = graph.tensors[source].shape
    axis = options.class_axis
    if axis is None and softmax and last is not None:
        axis = _axis(last)
    elif axis is None and known is not None and isinstance(known.value, int):
        axis = known.value
        note += f"; classes along axis {axis}, {known.evidence} (--class-axis)"
    elif axis is None:
        axis = 1 if len(shape) == 4 else len(shape) - 1
        if len(shape) > 2:
            note += f"; classes along axis {axis}, which nothing in the file shows (--class-axis)"
    elif not -len(shape) <= axis < len(shape):
        raise UsageError(f"--class-axis {axis}: output {name!r} has the shape {list(shape)}")
    else:
        note += f"; classes along axis {axis % len(shape)}"
    axis %= max(len(shape), 1)
    if not shape or shape[axis] < 2:
        raise UsageError(
            f"--loss cross-entropy: output {name!r} {list(shape)} has no class axis of at least 2; try --loss mse"
        )
    if loss == "nll" and (fact := graph.fact("distribution", name)) is not None:
        note += f"; -log p of its probabilities: {fact.evidence} (--loss cross-entropy takes logits)"
    attributes: dict[str, Attribute] = {"axis": axis, **_class_attributes(options, shape[axis], loss)}
    if loss == "soft-cross-entropy":
        return LossPlan("SoftCrossEntropy", source, TensorType(shape), attributes, note)
    target = TensorType(shape[:axis] + shape[axis + 1 :], DType.I32)
    return LossPlan("CrossEntropy", source, target, attributes, note, of_probabilities=loss == "nll")


_INDEX = "an index of a class"
_OF_INDEX = (LABEL_SMOOTHING, IGNORE_INDEX, CLASS_AXIS, CLASS_WEIGHTS)

declare(
    Loss(
        name="cross-entropy",
        help="cross-entropy of a softmax",
        target=_INDEX,
        plan=plan_classes,
        options=_OF_INDEX,
        may_be_auto=True,
    ),
    Loss(
        name="soft-cross-entropy",
        help="cross-entropy of a softmax",
        target="a distribution over the classes",
        plan=plan_classes,
        options=(LABEL_SMOOTHING, CLASS_AXIS),
    ),
    Loss(
        name="focal",
        help="cross-entropy times (1 - p)^gamma (`--focal-gamma`), for rare classes",
        target=_INDEX,
        plan=plan_classes,
        options=(IGNORE_INDEX, CLASS_AXIS, CLASS_WEIGHTS, FOCAL_GAMMA),
    ),
    Loss(
        name="nll",
        help="-log p of an output of probabilities, divided by the sum of their row",
        target=_INDEX,
        plan=plan_classes,
        options=_OF_INDEX,
        may_be_auto=True,
    ),
)
