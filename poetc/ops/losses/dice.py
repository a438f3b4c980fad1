"""The Dice loss of classes: the overlap of a softmax with the classes of the target, for each sample and class.

Milletari et al. 2016 (V-Net), with a softmax over the classes and one mean over samples and classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from poetc.declare import LARGEST_FLOAT, Number, Option
from poetc.errors import UsageError
from poetc.graph import DType
from poetc.kernels import Kernel, Parameters
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, Range, on_axis
from poetc.ops._indices import Indices, Use, classes_of
from poetc.ops._registry import register
from poetc.ops.losses import _means as means
from poetc.ops.losses._loss import Loss, LossPlan, Output, declare
from poetc.ops.losses._operators import LossGradient, LossKind
from poetc.ops.losses.cross_entropy import CLASS_AXIS, plan_classes


@dataclass(frozen=True, slots=True)
class _Samples(Parameters):
    """`before`, `classes` and `after` are elements of one sample. The mean is over the classes of `mean_of` samples."""

    samples: int
    before: int
    classes: int
    after: int
    has_upstream: bool
    mean_of: int
    part: int


def _sizes(op: Bound) -> tuple[int, int, int, int]:
    """Samples; elements of a sample before, along and after the class axis."""
    shape, axis = op.inputs[0].shape, op.get_int("axis", 1)
    axis %= max(len(shape), 1)
    if len(shape) < 2 or axis == 0:
        raise ValueError(f"logits [N, C, ...] are needed, not {list(shape)} with classes along axis {axis}")
    return shape[0], math.prod(shape[1:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _overlap(op: Bound, logits: Any, target: Any) -> tuple[Any, Any, Any, Any]:
    """Softmax and target, both [N, before, C, after]; by sample and class, the smoothed overlap and size."""
    samples, before, classes, after = _sizes(op)
    x = logits.reshape(samples, before, classes, after)
    indices = target.reshape(samples, before, 1, after)
    if np.any((indices < 0) | (indices >= classes)):
        raise ValueError(f"a class index lies outside 0 … {classes - 1}")
    p = np.exp(x - x.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    y = (indices == np.arange(classes).reshape(1, 1, -1, 1)).astype(p.dtype)
    smooth = p.dtype.type(op.get_float("smooth", 1.0))
    return p, y, 2 * (p * y).sum(axis=(1, 3)) + smooth, (p + y).sum(axis=(1, 3)) + smooth


def _kernel(op: Bound, symbol: str, rows: int) -> Kernel:
    """`rows` numbers a class as workspace."""
    sizes = _sizes(op)
    parameters = _Samples(*sizes, len(op.inputs) > 2, means.mean_of(op, sizes[0]), means.part_of(op))
    space = 4 * rows * sizes[2] + means.sums_bytes(op)
    return Kernel(symbol, parameters, (op.get_float("smooth", 1.0),), space)


def _by_samples(op: Bound) -> tuple[Cut, ...]:
    """The cut by samples; the one of a single sample by its places."""
    axis = op.get_int("axis", 1) % len(op.inputs[0].shape)
    if op.inputs[0].shape[0] == 1:
        return means.in_order(*means.of_samples(op, axis))
    axes = [0 if t.elements > 1 else None for t in (*op.inputs, *op.outputs)]
    return on_axis(op, "samples", axes)


@register
class Dice(LossKind):
    of_probabilities = True
    has_classes = True
    summary = (
        "1 minus the overlap of softmax(logits [N, C, ...]) with the target, i32, by their sizes: "
        "the mean over samples and classes; axis, smooth"
    )
    flops = 16

    def check(self, op: Bound) -> None:
        _sizes(op)
        logits, target = op.inputs
        axis = op.get_int("axis", 1) % len(logits.shape)
        expected = logits.shape[:axis] + logits.shape[axis + 1 :]
        if target.shape != expected or target.dtype is not DType.I32:
            raise ValueError(f"the target must be i32 of shape {expected}, not {target.dtype} of shape {target.shape}")

    def indices(self, use: Use) -> Indices | None:
        return classes_of(use)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return means.summed(_by_samples(op))

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        return means.block_of_mean(op, cut, ranges, op.inputs[0].shape[0])

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        _, _, overlap, size = _overlap(op, *inputs)
        return ((1 - overlap / size).mean(),)

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, "poetc_op_dice", 2)


@register
class DiceGrad(LossGradient):
    summary = "Gradient of Dice in the logits from (logits, target, [gradient of the loss]); its attributes"
    flops = 36
    evaluates_blocks = True

    def check(self, op: Bound) -> None:
        _sizes(op)

    def indices(self, use: Use) -> Indices | None:
        return classes_of(use)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return _by_samples(op) if op.inputs[0].shape[0] > 1 else means.twice(_by_samples(op))

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        return means.block_of_mean(op, cut, ranges, op.inputs[0].shape[0])

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        p, y, overlap, size = _overlap(op, *inputs[:2])
        slope = (overlap / np.square(size))[:, None, :, None] - 2 * y / size[:, None, :, None]
        share = p.dtype.type(means.mean_of(op, overlap.shape[0]) * overlap.shape[1])
        slope = p * (slope - (p * slope).sum(axis=2, keepdims=True)) / share
        upstream = inputs[2].reshape(()) if len(inputs) > 2 else p.dtype.type(1)
        return ((slope * upstream).reshape(inputs[0].shape),)

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, "poetc_op_dice_grad", 3)


DICE_SMOOTH = Option(
    name="dice_smooth",
    values=Number(below=LARGEST_FLOAT),
    default_text="1",
    help="Added to the overlap and to the size, so that an absent class counts as found.",
)


def _plan(output: Output) -> LossPlan:
    """As the cross-entropy reads the output; samples lie along its first axis."""
    plan = plan_classes(output)
    axis, smooth = plan.attributes["axis"], output.options.dice_smooth
    if axis == 0:
        raise UsageError(f"--loss dice: output {output.name!r} has its classes along the axis of the samples")
    return replace(plan, kind="Dice", attributes={"axis": axis, "smooth": 1.0 if smooth is None else smooth})


declare(
    Loss(
        name="dice",
        help="1 - overlap of the softmax with the target, for each sample and class (`--dice-smooth`)",
        target="an index of a class",
        plan=_plan,
        options=(DICE_SMOOTH, CLASS_AXIS),
    )
)
