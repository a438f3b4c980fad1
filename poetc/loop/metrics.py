"""Loss and metrics of an evaluation, from the model's outputs and the reference of its loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array, DType, Graph, Operator, Phase, TensorType, TrainingGraph
from poetc.ops import Bound, spec
from poetc.ops.losses import LossKind
from poetc.training import evaluation

_BELOW_1 = np.nextafter(np.float32(1), np.float32(0))  # a sigmoid that is 1 was rounded: its logit is above 16.6
NAMES = "accuracy, topK (as top5), confusion, mse, mae, perplexity"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of the evaluation graph, and how an output of the model becomes its first input.

    `output` is the model's. `last` is the kind of the operator that made it, where the loss reads that operator's input
    (Softmax, Sigmoid). It is "" where the loss reads the output itself. `times` is its weight in the sum of losses.
    `target_axis` is that of the samples in the target.
    """

    kind: str
    attributes: dict[str, Any]
    output: str
    shape: tuple[int, ...]  # of the scores of a batch
    last: str = ""
    target: str = "target"
    times: float = 1.0
    target_axis: int = 0

    @staticmethod
    def of(step: TrainingGraph, model: Graph) -> tuple[Loss, ...]:
        """The losses that add up to that of `step`, in the order of the sum.

        Raises UsageError where no output of the model leads to the input of a loss.
        """
        graph = evaluation(model, step)
        weights = {o.inputs[0]: o.attributes["alpha"] for o in graph.operators if o.kind == "Affine"}
        losses = []
        for operator in graph.operators:
            if operator.phase is not Phase.LOSS or not isinstance(spec(operator.kind), LossKind):
                continue
            source, target = operator.inputs
            output, last = _of_probabilities(graph, operator) or _origin(graph, source)
            times = weights.get(operator.outputs[0], 1.0)
            assert isinstance(times, float | int)
            shape, attributes = graph.tensors[source].shape, dict(operator.attributes)
            axis = 0 if (fact := step.fact("batch axis", target)) is None else int(fact.value)
            losses.append(Loss(operator.kind, attributes, output, shape, last, target, float(times), axis))
        return tuple(losses)

    def scores(self, output: Array) -> Array:
        """The input of the loss, for a whole batch."""
        with np.errstate(divide="ignore"):
            if self.last == "Softmax":
                output = np.log(output)
            elif self.last == "Sigmoid":
                output = np.log(output) - np.log1p(-np.minimum(output, _BELOW_1))
        return output.reshape(self.shape)

    @property
    def spec(self) -> LossKind:
        kind = spec(self.kind)
        assert isinstance(kind, LossKind)
        return kind

    @property
    def class_axis(self) -> int | None:
        """The axis of the classes; None: there are none."""
        if not self.spec.has_classes:
            return None
        return int(self.attributes.get("axis", -1)) % len(self.shape)

    @property
    def sample_axis(self) -> int:
        """The axis of samples in the scores."""
        return max(self.target_axis, int(bool(self.attributes.get("time_first"))))

    def evaluate(self, scores: Array, target: Array) -> float:
        """The loss of samples, in 64 bits."""
        with np.errstate(all="ignore"):
            scores = np.nan_to_num(np.asarray(scores, np.float64), nan=np.nan, neginf=-1e4, posinf=1e4)
        types = TensorType(scores.shape), TensorType(target.shape, _dtype(target))
        bound = Bound(self.attributes, types, (TensorType(()),))
        truth = target if target.dtype.kind == "i" else np.asarray(target, np.float64)
        (value,) = spec(self.kind).evaluate(bound, [scores, truth])
        return float(value)

    def weight(self, target: Array) -> float:
        """The divisor of the mean over these samples: their number, or the sum of their classes' weights."""
        if self.kind != "CrossEntropy":
            return float(target.size)
        kept = target[target != self.attributes.get("ignore_index", -(2**31))]
        weights = self.attributes.get("class_weights")
        return float(np.asarray(weights)[kept].sum()) if weights else float(kept.size)


def _of_probabilities(graph: Graph, loss: Operator) -> tuple[str, str] | None:
    """The output whose probabilities the loss reads, and the operator that would have made them; None: it does not."""
    makers = {t: op for op in graph.operators for t in op.outputs}
    name = loss.inputs[0]
    while name in makers and makers[name].phase is Phase.LOSS:
        name = makers[name].inputs[0]
    if name == loss.inputs[0]:
        return None
    return name, "Sigmoid" if loss.kind == "BceWithLogits" else "Softmax"


def _origin(graph: Graph, source: str) -> tuple[str, str]:
    """The output that tells the input of the loss, and the operator between the two, if there is one."""
    if source in graph.outputs:
        return source, ""
    for output in graph.outputs:
        last = _through_views(graph, output)
        if last is not None and source in last.inputs and last.kind in ("Softmax", "LogSoftmax", "Sigmoid"):
            return output, last.kind
    raise UsageError(f"{graph.name}: no output of it is the input of the loss ({source}), so it cannot be evaluated")


def _dtype(array: Array) -> DType:
    return DType.I32 if array.dtype.kind == "i" else DType.F32


def _through_views(model: Graph, name: str) -> Operator | None:
    made_by = {t: op for op in model.operators for t in op.outputs}
    last = made_by.get(name)
    while last is not None and spec(last.kind).is_view:
        last = made_by.get(last.inputs[0])
    return last


def default_metrics(loss: Loss, *, of_tokens: bool = False) -> tuple[str, ...]:
    """Accuracy for classes, the mean absolute error for numbers; none where targets have another shape than outputs.

    `of_tokens`: perplexity too.
    """
    if loss.spec.is_of_labels:
        return ()
    if loss.spec.has_classes:
        return ("accuracy", "perplexity") if of_tokens else ("accuracy",)
    return ("accuracy",) if loss.kind == "BceWithLogits" else ("mae",)


def parse_metrics(text: str, loss: Loss) -> tuple[str, ...]:
    """The names, separated by commas. Raises UsageError for one that the loss has no use for."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in names:
        known = name in ("accuracy", "confusion", "mse", "mae", "perplexity") or _top(name)
        if not known:
            raise UsageError(f"--metrics {name}: choose from {NAMES}")
        if loss.spec.is_of_labels:
            raise UsageError(f"--metrics {name}: the loss {loss.kind} of this model has none")
        is_share = name == "accuracy" and loss.kind != "BceWithLogits"
        of_classes = is_share or name in ("confusion", "perplexity") or _top(name)
        if of_classes and loss.class_axis is None:
            raise UsageError(f"--metrics {name}: the loss {loss.kind} of this model gives no classes to count")
        if loss.class_axis is not None and (classes := loss.shape[loss.class_axis]) <= _top(name):
            raise UsageError(f"--metrics {name}: is always 1 with {classes} classes; take a smaller one")
        if name in ("mse", "mae") and loss.class_axis is not None:
            raise UsageError(f"--metrics {name}: is for numbers, not for the classes of {loss.kind}")
    return names


def _top(name: str) -> int:
    """K of a name topK; 0 for any other name."""
    return int(name[3:]) if name.startswith("top") and name[3:].isdecimal() and len(name) < 12 else 0


@dataclass(slots=True)
class Meter:
    """Adds up over the batches of an evaluation. Metrics are of the first loss, `loss` is the weighted sum of all."""

    losses: Sequence[Loss]
    names: Sequence[str]
    _sums: dict[str, float] = field(default_factory=dict)
    _weights: dict[str, float] = field(default_factory=dict)
    _confusion: Array | None = None

    @property
    def loss(self) -> Loss:
        return self.losses[0]

    def add(self, outputs: Mapping[str, Array], batch: Mapping[str, Array], share: float) -> None:
        """One batch and the model's outputs for it; `share` of its samples count (the first ones)."""
        for number, loss in enumerate(self.losses):
            target = batch.get(loss.target)
            scores = loss.scores(outputs[loss.output])
            if target is None:  # of a model's own loss, which is to be 0
                target = np.zeros(scores.shape, np.float32)
            scores, target = _first(scores, share, loss.sample_axis), _first(target, share, loss.target_axis)
            if weight := loss.weight(target):
                self._mean(f"loss {number}", loss.evaluate(scores, target), weight)
            if self.names and not number:
                self._count(scores, target)

    def _count(self, scores: Array, target: Array) -> None:
        axis = self.loss.class_axis
        if axis is None:
            difference = np.asarray(scores, np.float64) - target
            self._mean("mse", float(np.square(difference).mean()), target.size)
            self._mean("mae", float(np.abs(difference).mean()), target.size)
            if self.loss.kind == "BceWithLogits":
                self._mean("accuracy", float(((scores > 0) == (target > 0.5)).mean()), target.size)
            return
        classes = self.loss.shape[axis]
        rows = np.moveaxis(scores, axis, -1).reshape(-1, classes)
        if self.loss.kind == "SoftCrossEntropy":
            labels = np.moveaxis(target, axis, -1).reshape(-1, classes).argmax(axis=1)
        else:
            labels = target.reshape(-1)
            kept = labels != self.loss.attributes.get("ignore_index", -(2**31))
            rows, labels = rows[kept], labels[kept]
        if not len(labels):
            return
        predicted = rows.argmax(axis=1)
        self._mean("accuracy", float((predicted == labels).mean()), len(labels))
        own = np.take_along_axis(rows, labels[:, None].astype(np.intp), axis=1)
        rank = (rows > own).sum(axis=1)  # classes with a higher score
        for name in self.names:
            if k := _top(name):
                self._mean(name, float((rank < k).mean()), len(labels))
        if "confusion" in self.names:
            if self._confusion is None:
                self._confusion = np.zeros((classes, classes), np.int64)
            np.add.at(self._confusion, (labels, predicted), 1)

    def _mean(self, name: str, value: float, weight: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def result(self) -> dict[str, Any]:
        """`loss` and the metrics by name; the confusion matrix as rows of true classes."""
        means = {name: self._sums[name] / self._weights[name] for name in self._sums}
        losses = (loss.times * means.get(f"loss {number}", math.nan) for number, loss in enumerate(self.losses))
        means_of_epoch: dict[str, Any] = {"loss": math.fsum(losses)}
        for name in self.names:
            if name == "perplexity":
                means_of_epoch[name] = math.exp(min(means_of_epoch["loss"], 700.0))
            elif name == "confusion":
                means_of_epoch[name] = [] if self._confusion is None else self._confusion.tolist()
            elif name in means:
                means_of_epoch[name] = means[name]
        return means_of_epoch


def _first(array: Array, share: float, axis: int = 0) -> Array:
    """The first part of the rows: those of samples that count."""
    if share == 1 or not array.ndim:
        return array
    return array[(slice(None),) * axis + (slice(round(array.shape[axis] * share)),)]
