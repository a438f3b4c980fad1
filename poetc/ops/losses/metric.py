"""Losses of embeddings whose classes are known: pairs and triples of one batch (metric learning).

Rows are x[N, D], their classes i32[N]. The distance of an ordered pair is PyTorch's `pairwise_distance`: the Euclidean
norm of x[i] - x[j] + 1e-6, so that equal rows have a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.declare import LARGEST_FLOAT, Number, Option
from poetc.errors import UsageError
from poetc.graph import Attribute, DType, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.ops._bound import Bound
from poetc.ops._registry import Work, register
from poetc.ops.losses._loss import Loss, LossPlan, Output, declare
from poetc.ops.losses._operators import LossGradient, LossKind

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class _Rows(Parameters):
    rows: int
    width: int
    is_triplet: bool
    has_upstream: bool


def _check(op: Bound) -> None:
    if len(op.inputs) < 2 or len(op.inputs[0].shape) != 2:
        raise ValueError(f"rows [N, D] and classes [N] are needed, not {op.inputs}")
    if op.inputs[1].shape != op.inputs[0].shape[:1] or op.inputs[1].dtype is not DType.I32:
        raise ValueError(f"the classes must be i32 of {op.inputs[0].shape[0]} rows, not {op.inputs[1]}")


def _distances(x: Any) -> tuple[Any, Any]:
    """Differences [N, N, D] and distances [N, N]."""
    apart = x[:, None] - x[None] + x.dtype.type(EPSILON)
    return apart, np.sqrt(np.square(apart).sum(axis=2))


def _triplet(op: Bound, inputs: Sequence[Any]) -> tuple[Any, Any]:
    """The loss, and its slope in each distance."""
    x, classes = inputs[:2]
    margin, distance = x.dtype.type(op.get_float("margin", 1.0)), _distances(inputs[0])[1]
    same = classes[:, None] == classes[None]
    positive = same & ~np.eye(len(x), dtype=bool)
    triples = positive[:, :, None] & ~same[:, None, :]
    hinge = distance[:, :, None] - distance[:, None, :] + margin
    active = triples & (hinge > 0)
    count = x.dtype.type(max(1, int(triples.sum())))
    slope = (active.sum(axis=2) - active.sum(axis=1)).astype(x.dtype) / count
    return (hinge * active).sum() / count, slope


def _contrastive(op: Bound, inputs: Sequence[Any]) -> tuple[Any, Any]:
    x, classes = inputs[:2]
    margin, distance = x.dtype.type(op.get_float("margin", 1.0)), _distances(inputs[0])[1]
    same, pairs = classes[:, None] == classes[None], np.triu(np.ones((len(x), len(x)), bool), 1)
    short = np.maximum(margin - distance, 0)
    count = x.dtype.type(max(1, int(pairs.sum())))
    loss = (np.where(same, np.square(distance), np.square(short)) * pairs).sum() / (2 * count)
    return loss, (np.where(same, distance, -short) * pairs).astype(x.dtype) / count


_LOSSES = {"Triplet": _triplet, "Contrastive": _contrastive}


class _Metric(LossKind):
    is_of_labels = True

    def check(self, op: Bound) -> None:
        _check(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (_LOSSES[self.kind](op, inputs)[0],)

    def work(self, op: Bound) -> Work:
        n, width = op.inputs[0].shape
        return Work(flops=n * n * (3 * width + 20) + (4 * n**3 if self.kind == "Triplet" else 0))

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, "poetc_op_metric", is_triplet=self.kind == "Triplet", squares=1)


class _MetricGrad(LossGradient):
    aliases = ()

    def check(self, op: Bound) -> None:
        _check(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        slope = _LOSSES[self.kind.removesuffix("Grad")](op, inputs)[1]
        apart, distance = _distances(inputs[0])
        pull = (slope / distance)[:, :, None] * apart
        gradient = pull.sum(axis=1) - pull.sum(axis=0)
        return (gradient * inputs[2].reshape(()) if len(inputs) > 2 else gradient,)

    def work(self, op: Bound) -> Work:
        n, width = op.inputs[0].shape
        return Work(flops=n * n * (7 * width + 30) + (6 * n**3 if self.kind == "TripletGrad" else 0))

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, "poetc_op_metric_grad", is_triplet=self.kind == "TripletGrad", squares=2)


def _kernel(op: Bound, symbol: str, *, is_triplet: bool, squares: int) -> Kernel:
    """`squares` numbers for each pair as workspace."""
    n, width = op.inputs[0].shape
    parameters = _Rows(n, width, is_triplet, len(op.inputs) > 2)
    return Kernel(symbol, parameters, (op.get_float("margin", 1.0), EPSILON), 4 * squares * n * n)


@register
class Triplet(_Metric):
    """All triples of a batch (Hermans et al. 2017, "batch all"), each as PyTorch's TripletMarginLoss."""

    summary = (
        "Mean of max(0, d(a, p) - d(a, n) + margin), a and p of one class, n of another, from (x, classes); margin"
    )


@register
class TripletGrad(_MetricGrad):
    summary = "Gradient of Triplet in x from (x, classes, [gradient of the loss]); margin"


@register
class Contrastive(_Metric):
    """Hadsell et al. 2006, eq. 4."""

    summary = "Mean over all pairs of d²/2 in one class, max(0, margin - d)²/2 in two, from (x, classes); margin"


@register
class ContrastiveGrad(_MetricGrad):
    summary = "Gradient of Contrastive in x from (x, classes, [gradient of the loss]); margin"


MARGIN = Option(
    name="margin",
    values=Number(below=LARGEST_FLOAT),
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
