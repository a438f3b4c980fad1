"""Cross-entropies of classes: of an index or a distribution, focal (Lin et al. 2017), and of probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poetc.declare import LARGEST, LARGEST_FLOAT, Number, Option, Whole
from poetc.errors import UsageError, shortened
from poetc.graph import Attribute, DType, Graph, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Axis
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut
from poetc.ops._indices import Indices, Use, classes_of
from poetc.ops._registry import Work, register
from poetc.ops.losses import _means as means
from poetc.ops.losses._loss import Loss, LossPlan, Output, declare
from poetc.ops.losses._operators import LossGradient, LossOfEqualShapes, upstream

NEVER = -(2**31)  # an ignore_index that no target holds


def _layout(op: Bound) -> tuple[int, int, int]:
    """Elements before, along and after the class axis."""
    shape = op.inputs[0].shape
    axis = _class_axis(op)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _class_axis(op: Bound) -> int:
    rank, axis = len(op.inputs[0].shape), op.get_int("axis", -1)
    if not -rank <= axis < rank:
        raise ValueError(f"class axis {axis} of logits of shape {op.inputs[0].shape}")
    return axis % rank


def _log_softmax(logits: Any) -> Any:
    """A new array, which callers may change: of a language model, each is as large as many layers."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _index_weights(op: Bound, target: Any, dtype: Any) -> tuple[Any, Any]:
    """Target distribution [before, classes, after] with ignored samples zero, and the number of samples that count."""
    before, classes, after = _layout(op)
    target = target.reshape(before, 1, after)
    kept = target != op.get_int("ignore_index", NEVER)
    if np.any(kept & ((target < 0) | (target >= classes))):
        raise ValueError(f"a class index lies outside 0 … {classes - 1}")
    smoothing = op.get_float("label_smoothing")
    hit = (target == np.arange(classes).reshape(1, -1, 1)).astype(dtype)
    if not op.attributes.get("class_weights"):
        hit *= dtype.type(1 - smoothing)
        hit += dtype.type(smoothing / classes)
        hit *= kept.astype(dtype)
        return hit, dtype.type(max(1, means.mean_of(op, int(kept.sum()))))
    weights = hit * dtype.type(1 - smoothing) + dtype.type(smoothing / classes)
    of_class = np.array(op.attributes["class_weights"], dtype).reshape(1, -1, 1)
    total = (hit * of_class * kept).sum()
    if not total > 0:  # no target counts: not for label smoothing either
        return np.zeros_like(weights), dtype.type(1)
    return weights * of_class * kept.astype(dtype), total


def _hits(op: Bound, target: Any) -> Any:
    """Where [before, classes, after] is the class of the target."""
    before, classes, after = _layout(op)
    return target.reshape(before, 1, after) == np.arange(classes).reshape(1, -1, 1)


def _focused(op: Bound, log_p: Any, hit: Any) -> tuple[Any, Any]:
    """Focal loss: the factor (1 - p)^gamma of each sample, and the slope of its loss in log p[target].

    The slope is without the weight; p is the probability of the target. See Lin et al. 2017.
    """
    gamma, dtype = op.get_float("gamma"), log_p.dtype
    rest = (np.exp(log_p) * ~hit).sum(axis=1, keepdims=True)
    mine = (log_p * hit).sum(axis=1, keepdims=True)
    factor = rest ** dtype.type(gamma)
    ratio = np.exp(mine) * mine / np.where(rest > 0, rest, 1)
    return factor, np.where(rest > 0, factor * (dtype.type(gamma) * ratio - 1), 0)


def _soft_weights(op: Bound, target: Any, dtype: Any) -> tuple[Any, Any]:
    before, classes, after = _layout(op)
    smoothing = op.get_float("label_smoothing")
    weights = target.reshape(before, classes, after) * dtype.type(1 - smoothing) + dtype.type(smoothing / classes)
    return weights, dtype.type(means.mean_of(op, before * after))


@dataclass(frozen=True, slots=True)
class _Classes(Axis):
    """The classes lie along the axis. The mean is over `mean_of` samples, 0: over those that count."""

    has_upstream: bool
    mean_of: int
    part: int


@dataclass(frozen=True, slots=True)
class _IndexedClasses(_Classes):
    ignored: int


@dataclass(frozen=True, slots=True)
class _WeightedClasses(_IndexedClasses):
    is_weighted: bool


def _index_kernel(op: Bound, symbol: str, has_upstream: bool) -> Kernel:
    smoothing = op.get_float("label_smoothing")
    classes = _layout(op)[1]
    ignored, weights, gamma = op.get_int("ignore_index", NEVER), _class_weights(op), op.get_float("gamma")
    count = 0 if _has_sums(op) else means.mean_of(op, _samples(op))
    parameters = (*_layout(op), has_upstream, count, means.part_of(op), ignored)
    space = means.sums_bytes(op)
    if weights or gamma:
        floats = (1 - smoothing, smoothing / classes, gamma, *weights)
        weighted = _WeightedClasses(*parameters, bool(weights))
        return Kernel(symbol.replace("poetc_op_", "poetc_op_weighted_"), weighted, floats, space)
    return Kernel(symbol, _IndexedClasses(*parameters), (1 - smoothing, smoothing / classes), space)


def _soft_kernel(op: Bound, symbol: str, has_upstream: bool) -> Kernel:
    smoothing = op.get_float("label_smoothing")
    parameters = _Classes(*_layout(op), has_upstream, means.mean_of(op, _samples(op)), means.part_of(op))
    floats = (1 - smoothing, smoothing / _layout(op)[1])
    return Kernel(symbol, parameters, floats, means.sums_bytes(op))


def _samples(op: Bound) -> int:
    before, _, after = _layout(op)
    return before * after


def _has_sums(op: Bound) -> bool:
    """Whether the mean is over samples, or weights, that all targets decide together."""
    return op.get_int("ignore_index", NEVER) != NEVER or bool(_class_weights(op))


def _class_weights(op: Bound) -> tuple[float, ...]:
    weights = op.attributes.get("class_weights", ())
    assert isinstance(weights, tuple)
    return tuple(float(w) for w in weights)


@register
class CrossEntropy(LossOfEqualShapes):
    """Mean over the samples whose target is not `ignore_index`; 0 if there is none.

    With `class_weights` (one a class) the mean is that of PyTorch: weighted, and divided by the weights of the targets.
    `gamma` above 0 makes it the focal loss; there is no label smoothing then.
    """

    of_probabilities = True
    has_classes = True
    summary = (
        "Mean of (1 - p)^gamma · -log p, p = softmax(logits)[target], target i32 without the class axis; axis, "
        "ignore_index, label_smoothing, class_weights, gamma"
    )
    flops = 13

    def check(self, op: Bound) -> None:
        logits, target = op.inputs
        axis = _class_axis(op)
        expected = logits.shape[:axis] + logits.shape[axis + 1 :]
        if target.shape != expected or target.dtype is not DType.I32:
            raise ValueError(f"the target must be i32 of shape {expected}, not {target.dtype} of shape {target.shape}")
        weights = _class_weights(op)
        if weights and (len(weights) != logits.shape[axis] or min(weights) < 0):
            raise ValueError(f"{len(weights)} weights, none below 0, are given for {logits.shape[axis]} classes")
        if op.get_float("gamma") and op.get_float("label_smoothing"):
            raise ValueError("the focal loss has no label smoothing")

    def samples(self, op: Bound) -> int:
        return _samples(op)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return means.summed(means.in_order(*means.of_samples(op, _class_axis(op))))

    def indices(self, use: Use) -> Indices | None:
        return classes_of(use)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        logits, target = inputs
        log_p = _log_softmax(logits.reshape(_layout(op)))
        weights, count = _index_weights(op, target, logits.dtype)
        if op.get_float("gamma"):
            weights = weights * _focused(op, log_p, _hits(op, target))[0]
        np.copyto(log_p, 0, where=weights == 0)  # a class that is left out has -infinity
        log_p *= weights
        return (-log_p.sum() / count,)

    def kernel(self, op: Bound) -> Kernel:
        return _index_kernel(op, "poetc_op_cross_entropy", False)


@register
class CrossEntropyGrad(LossGradient):
    summary = "Gradient of CrossEntropy in the logits from (logits, target, [gradient of the loss]); its attributes"
    flops = 15
    evaluates_blocks = True

    def samples(self, op: Bound) -> int:
        return _samples(op)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        axes = means.of_samples(op, _class_axis(op))
        return means.twice(means.in_order(*axes)) if _has_sums(op) else means.in_any_order(op, *axes)

    def work(self, op: Bound) -> Work:
        return Work(flops=_samples(op)) if means.adds_up(op) else super().work(op)

    def indices(self, use: Use) -> Indices | None:
        return classes_of(use)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        logits = inputs[0]
        log_p = _log_softmax(logits.reshape(_layout(op)))
        weights, count = _index_weights(op, inputs[1], logits.dtype)
        if op.get_float("gamma"):
            p = np.exp(log_p)
            hit = _hits(op, inputs[1])
            rest = np.where(hit, (p * ~hit).sum(axis=1, keepdims=True), -p)
            slope = _focused(op, log_p, hit)[1] * weights.sum(axis=1, keepdims=True)
            return ((slope * rest * (upstream(inputs) / count)).reshape(logits.shape),)
        g = np.exp(log_p, out=log_p)
        g *= weights.sum(axis=1, keepdims=True)
        g -= weights
        g *= upstream(inputs) / count
        return (g.reshape(logits.shape),)

    def kernel(self, op: Bound) -> Kernel:
        return _index_kernel(op, "poetc_op_cross_entropy_grad", len(op.inputs) > 2)


@register
class SoftCrossEntropy(LossOfEqualShapes):
    of_probabilities = True
    has_classes = True
    summary = (
        "Mean of -Σ target · log softmax(logits), target a distribution shaped like the logits; axis, label_smoothing"
    )
    flops = 15

    def check(self, op: Bound) -> None:
        super().check(op)
        _class_axis(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        logits, target = inputs
        weights, count = _soft_weights(op, target, logits.dtype)
        return (-(weights * _log_softmax(logits.reshape(_layout(op)))).sum() / count,)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return means.summed(means.in_order(*means.of_samples(op, _class_axis(op))))

    def samples(self, op: Bound) -> int:
        return _samples(op)

    def kernel(self, op: Bound) -> Kernel:
        return _soft_kernel(op, "poetc_op_soft_cross_entropy", False)


@register
class SoftCrossEntropyGrad(LossGradient):
    summary = "Gradient of SoftCrossEntropy in the logits from (logits, target, [gradient of the loss]); its attributes"
    flops = 17
    evaluates_blocks = True

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        logits = inputs[0]
        weights, count = _soft_weights(op, inputs[1], logits.dtype)
        p = np.exp(_log_softmax(logits.reshape(_layout(op))))
        g = (p * weights.sum(axis=1, keepdims=True) - weights) * (upstream(inputs) / count)
        return (g.reshape(logits.shape),)

    def samples(self, op: Bound) -> int:
        return _samples(op)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return means.in_any_order(op, *means.of_samples(op, _class_axis(op)))

    def kernel(self, op: Bound) -> Kernel:
        return _soft_kernel(op, "poetc_op_soft_cross_entropy_grad", len(op.inputs) > 2)


@dataclass(frozen=True, slots=True)
class _ClassWeights:
    """Numbers of at least 0 with commas or spaces between them, or a text file that holds them."""

    annotation: str = "tuple[float, ...]"

    def accept(self, value: Any) -> tuple[float, ...]:
        items, where = [], ""
        if isinstance(value, str):
            text = value
            if Path(text).is_file():
                where = f"{shortened(text, 80)}: "
                try:
                    text = Path(text).read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError):
                    raise ValueError(f"{where}not a text file that can be read") from None
            items = text.replace(",", " ").split()
            if not items:
                raise ValueError(f"{where}there are no numbers")
        numbers = tuple(map(_number, items)) if items else tuple(value)
        for number, word in zip(numbers, items or numbers, strict=True):
            if number is None:
                raise ValueError(f"{where}{shortened(word)!r} is neither a number nor a file")
            if not (isinstance(number, float | int) and 0 <= number < LARGEST_FLOAT):
                raise ValueError(f"{shortened(word)} is not a number of at least 0")
        return tuple(number for number in numbers if number is not None)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


LABEL_SMOOTHING = Option(
    name="label_smoothing",
    values=Number(below=1.0),
    default=0.0,
    help="Share of a target that is spread over all classes.",
)
IGNORE_INDEX = Option(
    name="ignore_index",
    values=Whole(-LARGEST - 1),
    metavar="CLASS",
    help="The class whose targets count for nothing.",
)
CLASS_AXIS = Option(
    name="class_axis",
    values=Whole(-8, 7),
    metavar="AXIS",
    default_text="that of its Softmax, or of the last layer's units; poetc train asks the target's shape where "
    "they leave it open",
    help="Axis of the output that holds the classes.",
)
CLASS_WEIGHTS = Option(
    name="class_weights",
    values=_ClassWeights(),
    default=(),
    metavar="W,W,...|FILE",
    help="Weight of a target of each class, or a text file of such numbers.",
)
FOCAL_GAMMA = Option(
    name="focal_gamma",
    values=Number(below=LARGEST_FLOAT),
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
