"""Max and average pooling over [N, C, H, W]. Max pooling keeps, per output, the tap that was largest (a byte)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import Attribute, DType, Operator, TensorType
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops._windows import Windows
from poetc.ops.kernels import Kernel, rows


def _windows(op: Bound) -> Windows:
    windows = Windows.of(op, op.get_ints("kernel"))
    if any(windows.pads[i] >= windows.extent[i % 2] for i in range(4)):
        raise ValueError(f"pads {windows.pads} as large as the window {windows.kernel}: some windows hold no pixel")
    return windows


def _output(op: Bound) -> tuple[int, ...]:
    shape = op.inputs[0].shape
    if len(shape) != 4:
        raise ValueError(f"pooling works on [N, C, H, W], not on shape {shape}")
    return (*shape[:2], *_windows(op).output_size(shape[2:]))


def _grad_attributes(b: Builder, op: Operator) -> dict[str, Attribute]:
    return {**op.attributes, "input_size": b.type(op.inputs[0]).shape[2:]}


def _input_shape(op: Bound, gy: TensorType) -> tuple[int, ...]:
    size = op.get_ints("input_size")
    if _windows(op).output_size(size) != gy.shape[2:]:
        raise ValueError(f"gy of shape {gy.shape} does not belong to an input of size {size}")
    return (*gy.shape[:2], *size)


def _parameters(op: Bound, image: TensorType, output: TensorType) -> rows.PoolWindows:
    (n, c, h, w), (_, _, oh, ow), found = image.shape, output.shape, _windows(op)
    (kh, kw), (sh, sw), (top, left, _, _), (dh, dw) = found.kernel, found.strides, found.pads, found.dilations
    return rows.PoolWindows(n * c, h, w, oh, ow, kh, kw, sh, sw, top, left, dh, dw)


def _max_parameters(op: Bound, image: TensorType, output: TensorType, where: TensorType) -> rows.MaxPool:
    return rows.MaxPool(_parameters(op, image, output), where.dtype is DType.I32)


@register
class MaxPool(OpSpec):
    kind = "MaxPool"
    summary = "Maximum over windows → y, where (tap of the maximum); kernel, strides, pads, dilations, ceil_mode"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        shape = _output(op)
        where = DType.U8 if _windows(op).taps <= 255 else DType.I32
        return TensorType(shape, op.inputs[0].dtype), TensorType(shape, where)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        windows = _windows(op)
        *outer, oh, ow = _output(op)
        taps = windows.view(inputs[0], (oh, ow), -np.inf).reshape(*outer, windows.taps, oh, ow)
        where = taps.argmax(axis=2)
        y = np.take_along_axis(taps, where[:, :, None], axis=2)[:, :, 0]
        return y, where.astype(np.uint8 if windows.taps <= 255 else np.int32)

    def gradient(
        self, b: Builder, op: Operator, grads: Sequence[str | None], needed: Sequence[bool]
    ) -> Sequence[str | None]:
        if grads[0] is None or not needed[0]:
            return [None]
        inputs = [op.outputs[1], grads[0]]
        return [b.emit1("MaxPoolGrad", inputs, _grad_attributes(b, op), hint=f"{op.inputs[0]}.grad")]

    def work(self, op: Bound) -> Work:
        return Work(flops=op.outputs[0].elements * _windows(op).taps)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_max_pool", _max_parameters(op, op.inputs[0], *op.outputs))


@register
class MaxPoolGrad(OpSpec):
    kind = "MaxPoolGrad"
    summary = "Gradient of MaxPool from (where, gy); its attributes and input_size (h, w)"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        where, gy = op.inputs
        if where.shape != gy.shape:
            raise ValueError(f"where has shape {where.shape}, gy {gy.shape}")
        return (TensorType(_input_shape(op, gy), gy.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        where, gy = inputs
        windows = _windows(op)
        taps = np.arange(windows.taps).reshape(-1, 1, 1)
        spread = np.where(where[:, :, None] == taps, gy[:, :, None], gy.dtype.type(0))
        spread = spread.reshape(*gy.shape[:2], *windows.kernel, *gy.shape[2:])
        return (windows.fold(spread, op.get_ints("input_size")),)

    def work(self, op: Bound) -> Work:
        return Work(flops=op.inputs[1].elements + op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        where, gy = op.inputs
        return Kernel("poetc_op_max_pool_grad", _max_parameters(op, op.outputs[0], gy, where))


def _divisors(op: Bound, size: tuple[int, ...], output: tuple[int, ...], dtype: Any) -> Any:
    """Taps that count, per output [oh, ow]: those on the image, or with count_include_pad on the image and its pads."""
    windows = _windows(op)
    image = np.ones(size, dtype)
    if op.get_int("count_include_pad"):
        top, left, bottom, right = windows.pads
        image = np.ones((size[0] + top + bottom, size[1] + left + right), dtype)
        windows = Windows(windows.kernel, windows.strides, (0, 0, 0, 0), windows.dilations)
    return windows.view(image, (output[0], output[1])).sum(axis=(0, 1))


def _average_parameters(op: Bound, image: TensorType, output: TensorType) -> rows.AveragePool:
    """With count_include_pad the counted image reaches `pads` beyond the real one, else not at all."""
    pads = _windows(op).pads if op.get_int("count_include_pad") else (0, 0, 0, 0)
    return rows.AveragePool(_parameters(op, image, output), pads)


@register
class AveragePool(OpSpec):
    kind = "AveragePool"
    summary = "Mean over windows; kernel, strides, pads, dilations, ceil_mode, count_include_pad"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        return (TensorType(_output(op), op.inputs[0].dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x = inputs[0]
        *_, oh, ow = _output(op)
        total = _windows(op).view(x, (oh, ow)).sum(axis=(2, 3))
        return (total / _divisors(op, x.shape[2:], (oh, ow), x.dtype),)

    def gradient(
        self, b: Builder, op: Operator, grads: Sequence[str | None], needed: Sequence[bool]
    ) -> Sequence[str | None]:
        if grads[0] is None or not needed[0]:
            return [None]
        return [b.emit1("AveragePoolGrad", [grads[0]], _grad_attributes(b, op), hint=f"{op.inputs[0]}.grad")]

    def work(self, op: Bound) -> Work:
        return Work(flops=op.outputs[0].elements * (_windows(op).taps + 1))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_average_pool", _average_parameters(op, op.inputs[0], op.outputs[0]))


@register
class AveragePoolGrad(OpSpec):
    kind = "AveragePoolGrad"
    summary = "Gradient of AveragePool from gy; its attributes and input_size (h, w)"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy = op.inputs[0]
        return (TensorType(_input_shape(op, gy), gy.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy, windows, size = inputs[0], _windows(op), op.get_ints("input_size")
        share = gy / _divisors(op, size, gy.shape[2:], gy.dtype)
        shape = (*gy.shape[:2], *windows.kernel, *gy.shape[2:])
        return (windows.fold(np.broadcast_to(share[:, :, None, None], shape), size),)

    def work(self, op: Bound) -> Work:
        return Work(flops=op.inputs[0].elements * (_windows(op).taps + 1))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_average_pool_grad", _average_parameters(op, op.outputs[0], op.inputs[0]))
