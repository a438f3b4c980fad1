"""Losses of classes that are present or not, each by itself: the cross-entropy of a sigmoid, weighted and focal.

`pos_weight` weighs positive targets, as in PyTorch's BCEWithLogitsLoss; focal loss is that of Lin et al. 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from poetc.declare import Number, Option
from poetc.errors import UsageError
from poetc.graph import Attribute, TensorType
from poetc.kernels import Kernel
from poetc.kernels.kernel import Window
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, Range
from poetc.ops._registry import Work, register
from poetc.ops.losses import _means as means
from poetc.ops.losses._loss import Loss, LossPlan, Output, declare
from poetc.ops.losses._operators import Pointwise, PointwiseGrad
from poetc.ops.losses.cross_entropy import CLASS_WEIGHTS, FOCAL_GAMMA

_NO_ALPHA = -1.0


@dataclass(frozen=True, slots=True)
class _Columns(Window):
    """Elements from number `begin` on, of `columns` columns of `after` elements each, and so on.

    `weights` is 0, 1 or one for each column along the axis.
    """

    count: int
    columns: int
    after: int
    begin: int
    weights: int
    has_upstream: bool
    mean_of: int
    part: int

    def beginning(self, unit: int) -> _Columns:
        return replace(self, begin=unit)


def _weights(op: Bound) -> tuple[float, ...]:
    weights = op.attributes.get("pos_weight", ())
    assert isinstance(weights, tuple)
    return tuple(float(w) for w in weights if isinstance(w, float | int))


def _layout(op: Bound) -> tuple[int, int]:
    """Elements along and after the axis that `pos_weight` goes along. A block of elements has those of the whole."""
    if "columns" in op.attributes:
        return op.get_int("columns"), op.get_int("after")
    shape, axis = op.inputs[0].shape or (1,), op.get_int("axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} of logits of shape {shape}")
    axis %= len(shape)
    if len(_weights(op)) not in (0, 1, shape[axis]):
        raise ValueError(f"pos_weight holds {len(_weights(op))} numbers for {shape[axis]} columns")
    return shape[axis], math.prod(shape[axis + 1 :])


def _of_block(op: Bound, block: Bound) -> Bound:
    columns, after = _layout(op)
    return replace(block, attributes={**block.attributes, "columns": columns, "after": after})


def _is_plain(op: Bound) -> bool:
    return not (_weights(op) or op.get_float("gamma") or op.get_float("alpha", _NO_ALPHA) >= 0)


def _kernel(op: Bound, symbol: str) -> Kernel:
    weights, elements = _weights(op), op.inputs[0].elements
    whole = means.mean_of(op, elements)
    parameters = _Columns(elements, *_layout(op), 0, len(weights), len(op.inputs) > 2, whole, means.part_of(op))
    floats = (op.get_float("gamma"), op.get_float("alpha", _NO_ALPHA), *weights)
    return Kernel(symbol, parameters, floats, means.sums_bytes(op))


def _parts(op: Bound, x: Any, t: Any) -> tuple[Any, Any, Any, Any]:
    """Cross-entropy and its slope; the weight of alpha; the probability of a miss."""
    one = x.dtype.type(1)
    e = np.exp(-np.abs(x))
    p, q = np.where(x >= 0, 1 / (1 + e), e / (1 + e)), np.where(x >= 0, e / (1 + e), 1 / (1 + e))
    weights = np.array(_weights(op) or (1.0,), x.dtype)
    if len(weights) > 1:
        columns, after = _layout(op)
        weights = weights[np.arange(op.get_int("begin"), op.get_int("begin") + x.size) // after % columns]
        weights = weights.reshape(x.shape)
    share = one + (weights - one) * t
    entropy = (one - t) * x + share * (np.log1p(e) + np.maximum(-x, 0))
    alpha = op.get_float("alpha", _NO_ALPHA)
    balance = x.dtype.type(alpha) * t + x.dtype.type(1 - alpha) * (one - t) if alpha >= 0 else one
    return entropy, (one - t) - share * q, balance, p * (one - t) + q * t


@register
class BceWithLogits(Pointwise):
    of_probabilities = True
    summary = (
        "Mean of -(w · t · log p + (1 - t) · log(1 - p)), p = sigmoid(x), target t in [0, 1]; "
        "pos_weight, axis, gamma, alpha"
    )
    symbol = "poetc_op_bce_with_logits"
    flops = 25

    def check(self, op: Bound) -> None:
        super().check(op)
        _layout(op)

    def value(self, op: Bound, x: Any, t: Any) -> Any:
        if _is_plain(op):
            return np.maximum(x, 0) - x * t + np.log1p(np.exp(-np.abs(x)))
        entropy, _, balance, miss = _parts(op, x, t)
        return balance * miss ** x.dtype.type(op.get_float("gamma")) * entropy

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        return _of_block(op, super().block(op, cut, ranges))

    def work(self, op: Bound) -> Work:
        return super().work(op) if _is_plain(op) else Work(flops=60 * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return super().kernel(op) if _is_plain(op) else _kernel(op, "poetc_op_weighted_bce")


@register
class BceWithLogitsGrad(PointwiseGrad):
    summary = "Gradient of BceWithLogits in the logits from (logits, target, [gradient of the loss]); its attributes"
    symbol = "poetc_op_bce_with_logits_grad"
    flops = 14

    def slope(self, op: Bound, x: Any, t: Any) -> Any:
        if _is_plain(op):
            e = np.exp(-np.abs(x))
            return np.where(x >= 0, 1 / (1 + e), e / (1 + e)) - t
        entropy, slope, balance, miss = _parts(op, x, t)
        gamma = x.dtype.type(op.get_float("gamma"))
        if not gamma:
            return balance * slope
        e = np.exp(-np.abs(x))
        spread = e / np.square(1 + e)  # p (1 - p)
        steep = np.divide(gamma * spread * (1 - 2 * t) * entropy, miss, out=np.zeros_like(x), where=miss > 0)
        return balance * miss**gamma * (steep + slope)

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        return _of_block(op, super().block(op, cut, ranges))

    def evaluate_block(self, block: Bound, cut: Cut, begin: int, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return self.evaluate(replace(block, attributes={**block.attributes, "begin": begin}), inputs)

    def work(self, op: Bound) -> Work:
        return super().work(op) if _is_plain(op) else Work(flops=70 * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return super().kernel(op) if _is_plain(op) else _kernel(op, "poetc_op_weighted_bce_grad")


FOCAL_ALPHA = Option(
    name="focal_alpha",
    values=Number(most=1.0),
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
