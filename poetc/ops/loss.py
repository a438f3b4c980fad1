"""Losses, all averaged to a scalar of shape (). Their gradients recompute intermediate values from the prediction.

A gradient kind reads (prediction, target) and, as an optional third input, the gradient of the loss itself. A loss that
is the root of the training graph has gradient 1 and needs none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import DType, TensorType
from poetc.ops._bound import Bound
from poetc.ops._indices import Indices, Use, classes_of
from poetc.ops._loss import Loss
from poetc.ops._registry import OpSpec, register
from poetc.ops.kernels import Kernel
from poetc.ops.kernels.rows import Axis, Elements

NEVER = -(2**31)  # an ignore_index that no target holds


class _Loss(Loss):
    def check(self, op: Bound) -> None:
        if op.inputs[0].shape != op.inputs[1].shape:
            raise ValueError(f"the prediction has shape {op.inputs[0].shape}, the target {op.inputs[1].shape}")


class _LossGrad(OpSpec):
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) > 2 and op.inputs[2].elements != 1:
            raise ValueError(f"the gradient of a loss is a scalar, not of shape {op.inputs[2].shape}")
        return (op.inputs[0],)


def _upstream(inputs: Sequence[Any]) -> Any:
    return inputs[2].reshape(()) if len(inputs) > 2 else inputs[0].dtype.type(1)


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
        return hit, dtype.type(max(1, int(kept.sum())))
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
    return weights, dtype.type(before * after)


@dataclass(frozen=True, slots=True)
class _Classes(Axis):
    """The classes lie along the axis."""


@dataclass(frozen=True, slots=True)
class _ClassesGrad(_Classes):
    has_upstream: bool


@dataclass(frozen=True, slots=True)
class _IndexedClasses(_Classes):
    ignored: int
    has_upstream: bool


@dataclass(frozen=True, slots=True)
class _WeightedClasses(Axis):
    ignored: int
    is_weighted: bool
    has_upstream: bool


@dataclass(frozen=True, slots=True)
class _PointwiseLossGrad(Elements):
    has_upstream: bool


def _index_kernel(op: Bound, symbol: str, has_upstream: bool) -> Kernel:
    smoothing = op.get_float("label_smoothing")
    classes = _layout(op)[1]
    ignored, weights, gamma = op.get_int("ignore_index", NEVER), _class_weights(op), op.get_float("gamma")
    if weights or gamma:
        weighted = _WeightedClasses(*_layout(op), ignored, bool(weights), has_upstream)
        floats = (1 - smoothing, smoothing / classes, gamma, *weights)
        return Kernel(symbol.replace("poetc_op_", "poetc_op_weighted_"), weighted, floats)
    parameters = _IndexedClasses(*_layout(op), ignored, has_upstream)
    return Kernel(symbol, parameters, (1 - smoothing, smoothing / classes))


def _class_weights(op: Bound) -> tuple[float, ...]:
    weights = op.attributes.get("class_weights", ())
    assert isinstance(weights, tuple)
    return tuple(float(w) for w in weights)


@register
class CrossEntropy(_Loss):
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
class CrossEntropyGrad(_LossGrad):
    summary = "Gradient of CrossEntropy in the logits from (logits, target, [gradient of the loss]); its attributes"
    flops = 15

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
            return ((slope * rest * (_upstream(inputs) / count)).reshape(logits.shape),)
        g = np.exp(log_p, out=log_p)
        g *= weights.sum(axis=1, keepdims=True)
        g -= weights
        g *= _upstream(inputs) / count
        return (g.reshape(logits.shape),)

    def kernel(self, op: Bound) -> Kernel:
        return _index_kernel(op, "poetc_op_cross_entropy_grad", len(op.inputs) > 2)


@register
class SoftCrossEntropy(_Loss):
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

    def kernel(self, op: Bound) -> Kernel:
        smoothing = op.get_float("label_smoothing")
        return Kernel(
            "poetc_op_soft_cross_entropy", _Classes(*_layout(op)), (1 - smoothing, smoothing / _layout(op)[1])
        )


@register
class SoftCrossEntropyGrad(_LossGrad):
    summary = "Gradient of SoftCrossEntropy in the logits from (logits, target, [gradient of the loss]); its attributes"
    flops = 17

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        logits = inputs[0]
        weights, count = _soft_weights(op, inputs[1], logits.dtype)
        p = np.exp(_log_softmax(logits.reshape(_layout(op))))
        g = (p * weights.sum(axis=1, keepdims=True) - weights) * (_upstream(inputs) / count)
        return (g.reshape(logits.shape),)

    def kernel(self, op: Bound) -> Kernel:
        smoothing = op.get_float("label_smoothing")
        parameters = _ClassesGrad(*_layout(op), len(op.inputs) > 2)
        return Kernel("poetc_op_soft_cross_entropy_grad", parameters, (1 - smoothing, smoothing / _layout(op)[1]))


class Pointwise(_Loss):
    """Mean over all elements of a function of prediction and target."""

    flops = 3
    symbol = ""

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (self.value(op, *inputs).mean(),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel(self.symbol, Elements(op.inputs[0].elements), (op.get_float("delta", 1.0),))


class PointwiseGrad(_LossGrad):
    flops = 3
    symbol = ""

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x = inputs[0]
        return (self.slope(op, x, inputs[1]) * (_upstream(inputs) / x.dtype.type(x.size)),)

    def kernel(self, op: Bound) -> Kernel:
        parameters = _PointwiseLossGrad(op.inputs[0].elements, len(op.inputs) > 2)
        return Kernel(self.symbol, parameters, (op.get_float("delta", 1.0),))


@register
class MeanSquaredError(Pointwise):
    summary = "Mean of (prediction - target)²"
    symbol = "poetc_op_mean_squared_error"

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        return np.square(x - t)


@register
class MeanSquaredErrorGrad(PointwiseGrad):
    summary = "Gradient of MeanSquaredError from (prediction, target, [gradient of the loss])"
    symbol = "poetc_op_mean_squared_error_grad"

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        return 2 * (x - t)


@register
class MeanAbsoluteError(Pointwise):
    summary = "Mean of |prediction - target| (L1)"
    symbol = "poetc_op_mean_absolute_error"

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        return np.abs(x - t)


@register
class MeanAbsoluteErrorGrad(PointwiseGrad):
    summary = "Gradient of MeanAbsoluteError from (prediction, target, [gradient of the loss]); 0 where they are equal"
    symbol = "poetc_op_mean_absolute_error_grad"

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        return np.sign(x - t)


@register
class Huber(Pointwise):
    summary = "Mean of d²/2 where |d| ≤ delta, else delta · (|d| - delta/2), d = prediction - target; delta"
    symbol = "poetc_op_huber"
    flops = 5

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        delta = x.dtype.type(op.get_float("delta", 1.0))
        d = np.abs(x - t)
        half = x.dtype.type(0.5)
        return np.where(d <= delta, half * d * d, delta * (d - half * delta))


@register
class HuberGrad(PointwiseGrad):
    summary = "Gradient of Huber from (prediction, target, [gradient of the loss]); delta"
    symbol = "poetc_op_huber_grad"

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        delta = x.dtype.type(op.get_float("delta", 1.0))
        return np.clip(x - t, -delta, delta)
