"""Loss and metrics of an evaluation, from the model's outputs and the reference of its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array, DType, Graph, Operator, Phase, TensorType, TrainingGraph
from poetc.ops import Bound, registry, spec

CLASS_LOSSES = ("CrossEntropy", "SoftCrossEntropy")
NAMES = "accuracy, topK (as top5), confusion, mse, mae, perplexity"


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss operator of a training graph, and how the model's output becomes its first input.

    `output` is the model's; `last` the kind of the operator that made it, where the loss is taken from that operator's
    input (Softmax, Sigmoid); "" where it is taken from the output itself. `own`: the output is the loss.
    """

    kind: str
    attributes: dict[str, Any]
    output: str
    shape: tuple[int, ...]  # of the scores of a batch
    last: str = ""
    own: bool = False

    @staticmethod
    def of(step: TrainingGraph, model: Graph) -> Loss:
        """Raises UsageError where no output of the model leads to what the loss reads."""
        operator = next(o for o in step.operators if o.phase is Phase.LOSS and f"{o.kind}Grad" in registry())
        source = operator.inputs[0]
        if source not in model.tensors:
            source = source.rpartition("~")[0]  # of a micro-batch
        attributes = dict(operator.attributes)
        if source in model.outputs:
            return Loss(operator.kind, attributes, source, model.tensors[source].shape)
        for output in model.outputs:
            last = _through_views(model, output)
            if last is None or source not in last.inputs:
                continue
            if last.kind in ("Softmax", "LogSoftmax", "Sigmoid"):
                return Loss(operator.kind, attributes, output, model.tensors[source].shape, last.kind)
            if last.kind == operator.kind:
                return Loss(operator.kind, attributes, output, model.tensors[source].shape, own=True)
        raise UsageError(
            f"{step.name}: none of its outputs is what the loss reads ({source}), so it cannot be evaluated"
        )

    def scores(self, output: Array) -> Array:
        """What the loss reads, for a whole batch."""
        with np.errstate(divide="ignore"):
            if self.last == "Softmax":
                output = np.log(output)
            elif self.last == "Sigmoid":
                output = np.log(output) - np.log1p(-output)
        return output.reshape(self.shape)

    @property
    def class_axis(self) -> int | None:
        """The axis of the classes; None: there are none."""
        if self.kind not in CLASS_LOSSES:
            return None
        return int(self.attributes.get("axis", -1)) % len(self.shape)

    def evaluate(self, scores: Array, target: Array) -> float:
        """The loss of samples, in 64 bits."""
        with np.errstate(all="ignore"):
            scores = np.nan_to_num(np.asarray(scores, np.float64), neginf=-1e4, posinf=1e4)
        types = TensorType(scores.shape), TensorType(target.shape, _dtype(target))
        bound = Bound(self.attributes, types, (TensorType(()),))
        given = target if target.dtype.kind == "i" else np.asarray(target, np.float64)
        (value,) = spec(self.kind).evaluate(bound, [scores, given])
        return float(value)

    def weight(self, target: Array) -> int:
        """The number of values that a mean over these samples is taken of."""
        if self.kind == "CrossEntropy" and "ignore_index" in self.attributes:
            return int((target != self.attributes["ignore_index"]).sum())
        return int(target.size)


def _dtype(array: Array) -> DType:
    return DType.I32 if array.dtype.kind == "i" else DType.F32


def _through_views(model: Graph, name: str) -> Operator | None:
    made_by = {t: op for op in model.operators for t in op.outputs}
    last = made_by.get(name)
    while last is not None and spec(last.kind).is_view:
        last = made_by.get(last.inputs[0])
    return last


def default_metrics(loss: Loss) -> tuple[str, ...]:
    """Accuracy for classes, the mean absolute error for numbers."""
    if loss.own:
        return ()
    return ("accuracy",) if loss.kind in (*CLASS_LOSSES, "BceWithLogits") else ("mae",)


def parse_metrics(text: str, loss: Loss) -> tuple[str, ...]:
    """The names, separated by commas. Raises UsageError for one that the loss has no use for."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in names:
        known = name in ("accuracy", "confusion", "mse", "mae", "perplexity") or _top(name)
        if not known:
            raise UsageError(f"--metrics {name}: choose from {NAMES}")
        of_classes = name in ("confusion", "perplexity") or _top(name)
        if loss.own or (of_classes and loss.class_axis is None):
            raise UsageError(f"--metrics {name}: the loss {loss.kind} of this model gives no classes to count")
        if name in ("mse", "mae") and loss.class_axis is not None:
            raise UsageError(f"--metrics {name}: is for numbers, not for the classes of {loss.kind}")
    return names


def _top(name: str) -> int:
    return int(name[3:]) if name.startswith("top") and name[3:].isdigit() and int(name[3:]) else 0


@dataclass(slots=True)
class Meter:
    """Adds up over the batches of an evaluation."""

    loss: Loss
    names: Sequence[str]
    _sums: dict[str, float] = field(default_factory=dict)
    _weights: dict[str, float] = field(default_factory=dict)
    _confusion: Array | None = None

    def add(self, output: Array, target: Array | None, share: float, rows: int) -> None:
        """One batch: the model's output, the target, and the share of its samples that count (the first ones)."""
        if self.loss.own or target is None:
            self._mean("loss", float(np.asarray(output).reshape(-1)[0]), rows)
            return
        scores = self.loss.scores(output)
        scores, target = _first(scores, share), _first(target, share)
        if weight := self.loss.weight(target):
            self._mean("loss", self.loss.evaluate(scores, target), weight)
        if self.names:
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
        found = rows.argmax(axis=1)
        self._mean("accuracy", float((found == labels).mean()), len(labels))
        own = np.take_along_axis(rows, labels[:, None].astype(np.intp), axis=1)
        rank = (rows > own).sum(axis=1)  # classes with a higher score
        for name in self.names:
            if k := _top(name):
                self._mean(name, float((rank < k).mean()), len(labels))
        if "confusion" in self.names:
            if self._confusion is None:
                self._confusion = np.zeros((classes, classes), np.int64)
            np.add.at(self._confusion, (labels, found), 1)

    def _mean(self, name: str, value: float, weight: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def result(self) -> dict[str, Any]:
        """`loss` and the metrics by name; the confusion matrix as rows of true classes."""
        means = {name: self._sums[name] / self._weights[name] for name in self._sums}
        found: dict[str, Any] = {"loss": means.get("loss", math.nan)}
        for name in self.names:
            if name == "perplexity":
                found[name] = math.exp(min(found["loss"], 700.0))
            elif name == "confusion":
                found[name] = [] if self._confusion is None else self._confusion.tolist()
            elif name in means:
                found[name] = means[name]
        return found


def _first(array: Array, share: float) -> Array:
    """The first part of the rows: those of samples that count."""
    return array if share == 1 or not array.ndim else array[: round(len(array) * share)]
