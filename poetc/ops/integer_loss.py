"""The error of cross-entropy in integers: softmax minus the target, from logits of 8 bits.

Source: the CPU code of Mandheling (Xu et al., MobiCom 2022), after NITI (Wang et al. 2022). All divisions truncate,
and the error is always rounded pseudo-stochastically.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Axis
from poetc.ops._bound import Bound
from poetc.ops._integers import SCALE, check_pair, exponent, rounded, scale_of
from poetc.ops._registry import OpSpec, register

LOG2_E = 47274  # log2(e) · 2^15
TAYLOR_FROM = -7  # of exponents: up to here e^x is 1 + x + x²/2
LEAST_EXPONENT, MOST_EXPONENT = -20, 20
ERROR_SHIFT, ERROR_EXPONENT = 4, -7  # the target counts for 2^11; 2^4 / 2^11


def _halved(q: Any, shift: int) -> Any:
    """q / 2^shift towards zero."""
    return np.sign(q) * (np.abs(q) >> shift)


def probabilities(q: Any, logit_exponent: int) -> Any:
    """Numbers in proportion to the softmax over axis 1 of q · 2^logit_exponent, i64."""
    q = q.astype(np.int64)
    if logit_exponent > TAYLOR_FROM:
        z = np.sign(q) * (np.abs(q) * LOG2_E >> 15)
        e = min(logit_exponent, MOST_EXPONENT)
        z = z << e if e >= 0 else _halved(z, -e)
        z = np.maximum(z - (z.max(axis=1, keepdims=True) - 10), 0)
        return (1 << z) - 1
    e = max(logit_exponent, LEAST_EXPONENT)
    q = _halved(q, min(e - logit_exponent, 31))
    return (1 << (1 - 2 * e)) + q * (1 << (1 - e)) + q * q


@register
class IntegerCrossEntropyError(OpSpec):
    summary = "Error of the logits q under cross-entropy from (q, its scale, target i32) → err, its scale; axis"
    purpose = "error"
    flops = 20
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        q, scale, target = op.inputs
        check_pair("q", q, scale)
        before, classes, after = _layout(op)
        if target.dtype is not DType.I32 or target.elements != before * after:
            raise ValueError(f"the target is {target.shape} of {target.dtype}, one class a sample is wanted")
        if classes < 2:
            raise ValueError(f"{classes} classes; two are the least")
        return q, SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        q, scale, target = inputs
        before, classes, after = _layout(op)
        target = target.reshape(before, 1, after)
        if np.any((target < 0) | (target >= classes)):
            raise ValueError(f"a class index lies outside 0 … {classes - 1}")
        p = probabilities(q.reshape(before, classes, after), exponent(scale))
        p = (p << 11) // p.sum(axis=1, keepdims=True)
        hit = target == np.arange(classes).reshape(1, -1, 1)
        error, clipped = rounded(p - hit * p.sum(axis=1, keepdims=True), ERROR_SHIFT, "stochastic")
        return error.reshape(q.shape), scale_of(ERROR_EXPONENT, clipped, 11, ERROR_SHIFT)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_cross_entropy_error", Axis(*_layout(op)))


def _layout(op: Bound) -> tuple[int, int, int]:
    """Elements before, along and after the axis of the classes."""
    shape = op.inputs[0].shape
    axis = op.get_int("axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"class axis {axis} of logits of shape {shape}")
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
