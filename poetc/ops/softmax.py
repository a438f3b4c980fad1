"""Softmax and log-softmax along one axis; gradients from the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Axis
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, untouched
from poetc.ops._registry import OpSpec, register


def _axis(op: Bound) -> int:
    rank, axis = len(op.inputs[0].shape), op.get_int("axis", -1)
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of shape {op.inputs[0].shape}")
    return axis % rank


def _parameters(op: Bound) -> Axis:
    shape, axis = op.inputs[0].shape, _axis(op)
    return Axis(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _check_same(op: Bound) -> TensorType:
    if op.inputs[0].shape != op.inputs[1].shape:
        raise ValueError(f"y has shape {op.inputs[0].shape}, gy {op.inputs[1].shape}")
    return op.inputs[0]


def _shift(x: Any, axis: int) -> Any:
    largest = x.max(axis=axis, keepdims=True)
    return x - np.where(np.isneginf(largest), x.dtype.type(0), largest)


class _OfRows(OpSpec):
    """Rows along `axis` are independent."""

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By rows."""
        return untouched(op, range(_axis(op)))


@register
class Softmax(_OfRows):
    summary = "exp(x) / Σ exp(x) along axis; zeros where all are -inf (attention that may look at nothing)"
    _symbol = "poetc_op_softmax"
    flops = 14
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _axis(op)
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        e = np.exp(_shift(inputs[0], _axis(op)))
        total = e.sum(axis=_axis(op), keepdims=True)
        return (e / np.where(total == 0, total.dtype.type(1), total),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1(f"{op.kind}Grad", [op.outputs[0], gy], op.attributes, hint=f"{op.inputs[0]}.grad")

    def kernel(self, op: Bound) -> Kernel:
        return Kernel(self._symbol, _parameters(op))


@register
class LogSoftmax(Softmax):
    summary = "x - log Σ exp(x) along axis"
    _symbol = "poetc_op_log_softmax"

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        shifted = _shift(inputs[0], _axis(op))
        return (shifted - np.log(np.exp(shifted).sum(axis=_axis(op), keepdims=True)),)


@register
class SoftmaxGrad(_OfRows):
    summary = "y · (gy - Σ gy · y) along axis, from (y, gy)"
    _symbol = "poetc_op_softmax_grad"
    macs = 1
    flops = 2
    aliases = ((1, 0), (0, 0))

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        return (_check_same(op),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        y, gy = inputs
        return (y * (gy - (gy * y).sum(axis=_axis(op), keepdims=True)),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel(self._symbol, _parameters(op))


@register
class LogSoftmaxGrad(SoftmaxGrad):
    summary = "gy - exp(y) · Σ gy along axis, from (y, gy)"
    _symbol = "poetc_op_log_softmax_grad"
    macs = 0
    flops = 13

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        y, gy = inputs
        return (gy - np.exp(y) * gy.sum(axis=_axis(op), keepdims=True),)
