"""Connectionist temporal classification (Graves et al. 2006), in log space.

The loss of a sample is -log of the probability of all paths that give its labels, divided by their number (at least 1).
A batch has the mean, as in PyTorch. Every sample has all time steps. The labels of a sample end at the first blank or
-1. Labels that do not fit into the time steps give loss 0 and gradient 0 (PyTorch's `zero_infinity`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.declare import Option, Whole
from poetc.errors import UsageError
from poetc.graph import Attribute, DType, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.ops._bound import Bound
from poetc.ops._indices import Indices, Use
from poetc.ops._registry import Work, register
from poetc.ops.losses._loss import Loss, LossPlan, Output, declare
from poetc.ops.losses._operators import LossGradient, LossKind

NEVER = -1e30  # log of a probability of zero


@dataclass(frozen=True, slots=True)
class _Paths(Parameters):
    batch: int
    steps: int
    classes: int
    labels: int  # at most, of a sample
    blank: int
    is_time_first: bool
    has_upstream: bool


def _sizes(op: Bound) -> tuple[int, int, int, int]:
    """Samples, time steps, classes and the largest number of labels. ValueError where the types do not fit."""
    if len(op.inputs) < 2 or len(op.inputs[0].shape) != 3 or len(op.inputs[1].shape) != 2:
        raise ValueError(f"CTC takes logits [samples, steps, classes] and labels [samples, most], not {op.inputs}")
    first, second, classes = op.inputs[0].shape
    batch, steps = (second, first) if op.get_int("time_first") else (first, second)
    if op.inputs[1].shape[0] != batch or op.inputs[1].dtype is not DType.I32:
        raise ValueError(f"the labels must be i32 of {batch} samples, not {op.inputs[1]}")
    if not 0 <= op.get_int("blank") < classes:
        raise ValueError(f"the blank, {op.get_int('blank')}, is none of the {classes} classes")
    return batch, steps, classes, op.inputs[1].shape[1]


def _log_sum(*terms: Any) -> Any:
    top = np.maximum.reduce(terms)
    total = np.log(sum(np.exp(term - top) for term in terms))
    return np.where(top <= NEVER / 2, NEVER, top + total)  # NaN stays


def _shifted(row: Any, places: int) -> Any:
    """`row` moved by so many places, NEVER where nothing comes from."""
    result = np.full_like(row, NEVER)
    if places > 0:
        result[places:] = row[:-places]
    else:
        result[:places] = row[-places:]
    return result


def _labels(op: Bound, target: Any, classes: int) -> list[int]:
    """The labels of one sample."""
    blank, labels = op.get_int("blank"), []
    for label in target.tolist():
        if label in (blank, -1):
            break
        if not 0 <= label < classes:
            raise ValueError(f"a label lies outside 0 … {classes - 1}")
        labels.append(label)
    return labels


def _losses(op: Bound, inputs: Sequence[Any]) -> tuple[Any, Any]:
    """For each sample the loss, divided by the labels, and its gradient in the logits [samples, steps, classes]."""
    batch, steps, classes, _ = _sizes(op)
    logits = inputs[0].swapaxes(0, 1) if op.get_int("time_first") else inputs[0]
    shifted = logits - logits.max(axis=2, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=2, keepdims=True))
    losses, gradients = np.zeros(batch, logits.dtype), np.zeros_like(logits)
    for n in range(batch):
        labels = _labels(op, inputs[1][n], classes)
        path = np.full(2 * len(labels) + 1, op.get_int("blank"))
        path[1::2] = labels
        skips = np.zeros(len(path), bool)
        skips[2:] = (path[2:] != path[:-2]) & (path[2:] != op.get_int("blank"))
        emitted = log_p[n][:, path]
        forward, backward = np.full_like(emitted, NEVER), np.full_like(emitted, NEVER)
        forward[0, :2], backward[-1, -2:] = emitted[0, :2], emitted[-1, -2:]
        for t in range(1, steps):
            row = forward[t - 1]
            two = np.where(skips, _shifted(row, 2), NEVER) if len(path) > 2 else np.full_like(row, NEVER)
            one = _shifted(row, 1) if len(path) > 1 else np.full_like(row, NEVER)
            forward[t] = np.maximum(emitted[t] + _log_sum(row, one, two), NEVER)
        for t in range(steps - 2, -1, -1):
            row = backward[t + 1]
            two = _shifted(np.where(skips, row, NEVER), -2) if len(path) > 2 else np.full_like(row, NEVER)
            one = _shifted(row, -1) if len(path) > 1 else np.full_like(row, NEVER)
            backward[t] = np.maximum(emitted[t] + _log_sum(row, one, two), NEVER)
        total = _log_sum(*forward[-1, -2:])
        if not total <= NEVER / 2:  # NaN counts
            share = logits.dtype.type(max(1, len(labels)))
            losses[n] = -total / share
            posterior = np.exp(forward + backward - emitted - total)
            gradients[n] = np.exp(log_p[n])
            for place, label in enumerate(path):
                gradients[n, :, label] -= posterior[:, place]
            gradients[n] /= share
    return losses, gradients


def _kernel(op: Bound, symbol: str, rows: int) -> Kernel:
    """`rows` rows of a number a place of a path as workspace."""
    batch, steps, classes, labels = _sizes(op)
    has_upstream = len(op.inputs) > 2
    parameters = _Paths(
        batch, steps, classes, labels, op.get_int("blank"), bool(op.get_int("time_first")), has_upstream
    )
    return Kernel(symbol, parameters, (), 4 * rows * (2 * labels + 1))


def _labels_of(use: Use) -> Indices:
    """-1 fills rows of fewer labels."""
    return Indices(use.inputs[1], 0, use.first.shape[-1] - 1, -1)


@register
class Ctc(LossKind):
    of_probabilities = True
    is_of_labels = True
    summary = (
        "CTC loss of logits [samples, steps, classes] and labels i32 [samples, most]. Labels end at the first blank "
        "or -1; blank, time_first ([steps, samples, classes]), axis (2)"
    )

    def check(self, op: Bound) -> None:
        _sizes(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (_losses(op, inputs)[0].mean(),)

    def indices(self, use: Use) -> Indices | None:
        return _labels_of(use)

    def work(self, op: Bound) -> Work:
        batch, steps, classes, labels = _sizes(op)
        return Work(flops=batch * steps * (12 * classes + 45 * (2 * labels + 1)))

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, "poetc_op_ctc", 1)


@register
class CtcGrad(LossGradient):
    summary = "Gradient of Ctc in the logits from (logits, labels, [gradient of the loss]); its attributes"

    def check(self, op: Bound) -> None:
        _sizes(op)

    def indices(self, use: Use) -> Indices | None:
        return _labels_of(use)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gradients = _losses(op, inputs)[1] / inputs[0].dtype.type(_sizes(op)[0])
        if len(inputs) > 2:
            gradients = gradients * inputs[2].reshape(())
        return (np.ascontiguousarray(gradients.swapaxes(0, 1) if op.get_int("time_first") else gradients),)

    def work(self, op: Bound) -> Work:
        batch, steps, classes, labels = _sizes(op)
        return Work(flops=batch * steps * (26 * classes + 105 * (2 * labels + 1)))

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, "poetc_op_ctc_grad", _sizes(op)[1] + 1)


CTC_LABELS = Option(
    name="ctc_labels",
    values=Whole(1),
    metavar="N",
    default_text="half of the time steps",
    help="Most labels of a sample.",
)
CTC_BLANK = Option(
    name="ctc_blank",
    values=Whole(),
    metavar="CLASS",
    default_text="0",
    help="The class that is no label.",
)


def _plan(output: Output) -> LossPlan:
    """Logits are [batch, steps, classes]; [steps, batch, classes] where the second is the batch's axis."""
    graph, name, last, note, options = output.graph, output.name, output.last, output.note, output.options
    softmax = last is not None and last.kind in ("Softmax", "LogSoftmax")
    source = last.inputs[0] if last is not None and softmax else name
    shape = graph.tensors[source].shape
    if (
        len(shape) != 3
        or shape[2] < 2
        or (softmax and last is not None and last.attributes.get("axis", -1) not in (-1, 2))
    ):
        raise UsageError(f"--loss ctc: output {name!r} {list(shape)} is not [batch, steps, classes]")
    fact = graph.fact("batch axis", name)
    time_first = shape[0] != graph.batch == shape[1] if fact is None else fact.value == 1
    batch, steps = (shape[1], shape[0]) if time_first else shape[:2]
    labels, blank = options.ctc_labels or max(1, steps // 2), options.ctc_blank or 0
    if labels > steps or blank >= shape[2]:
        wrong = f"--ctc-labels {labels}" if labels > steps else f"--ctc-blank {blank}"
        raise UsageError(f"{wrong}: output {name!r} has {steps} time steps and {shape[2]} classes")
    order = "[steps, batch, classes]" if time_first else "[batch, steps, classes]"
    note += f", taken as {order}" + ("" if fact is None else f" ({fact.evidence})")
    note += f"; labels end at the first {blank} or -1, and are at most {labels}"
    attributes: dict[str, Attribute] = {"axis": 2, "blank": blank, "time_first": time_first}
    return LossPlan("Ctc", source, TensorType((batch, labels), DType.I32), attributes, note, is_batch_first=True)


declare(
    Loss(
        name="ctc",
        help="connectionist temporal classification: logits of steps, blanks by `--ctc-blank`",
        target="labels of a sequence, at most `--ctc-labels`, ended by a blank or -1",
        plan=_plan,
        options=(CTC_LABELS, CTC_BLANK),
    )
)
