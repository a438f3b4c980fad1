"""The parts that pooling of floats and of 8-bit integers share: shapes, parameters, maxima and divisors."""

from __future__ import annotations

from typing import Any

import numpy as np

from poetc.graph import Attribute, DType, Operator, TensorType
from poetc.kernels.operators import parameters as rows
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._windows import Windows


def windows_of(op: Bound) -> Windows:
    """The windows. Raises ValueError where one could lie on pads alone."""
    windows = Windows.of(op, op.get_ints("kernel"))
    if any(windows.pads[i] >= windows.extent[i % 2] for i in range(4)):
        raise ValueError(f"pads {windows.pads} as large as the window {windows.kernel}: some windows hold no pixel")
    return windows


def output_shape(op: Bound) -> tuple[int, ...]:
    """The shape of y. Raises ValueError unless x is [N, C, H, W]."""
    shape = op.inputs[0].shape
    if len(shape) != 4:
        raise ValueError(f"pooling works on [N, C, H, W], not on shape {shape}")
    return (*shape[:2], *windows_of(op).output_size(shape[2:]))


def grad_attributes(b: Builder, op: Operator) -> dict[str, Attribute]:
    """The attributes of the gradient: those of the operator, and the size of its image."""
    return {**op.attributes, "input_size": b.type(op.inputs[0]).shape[2:]}


def input_shape(op: Bound, gy: TensorType) -> tuple[int, ...]:
    """The shape of the gradient in x. Raises ValueError where gy has another size than the outputs."""
    size = op.get_ints("input_size")
    if windows_of(op).output_size(size) != gy.shape[2:]:
        raise ValueError(f"gy of shape {gy.shape} does not belong to an input of size {size}")
    return (*gy.shape[:2], *size)


def _parameters(op: Bound, image: TensorType, output: TensorType) -> rows.PoolWindows:
    (n, c, h, w), (_, _, oh, ow), windows = image.shape, output.shape, windows_of(op)
    (kh, kw), (sh, sw), (top, left, _, _), (dh, dw) = windows.kernel, windows.strides, windows.pads, windows.dilations
    return rows.PoolWindows(n * c, h, w, oh, ow, kh, kw, sh, sw, top, left, dh, dw)


def max_parameters(op: Bound, image: TensorType, output: TensorType, where: TensorType) -> rows.MaxPool:
    """The parameters of a kernel, whose places of maxima take the type of `where`."""
    return rows.MaxPool(_parameters(op, image, output), where.dtype is DType.I32)


def divisors_of(op: Bound, size: tuple[int, ...], output: tuple[int, ...], dtype: Any) -> Any:
    """Taps that count, per output [oh, ow]: those on the image, or with count_include_pad on the image and its pads."""
    windows = windows_of(op)
    image = np.ones(size, dtype)
    if op.get_int("count_include_pad"):
        top, left, bottom, right = windows.pads
        image = np.ones((size[0] + top + bottom, size[1] + left + right), dtype)
        windows = Windows(windows.kernel, windows.strides, (0, 0, 0, 0), windows.dilations)
    return windows.view(image, (output[0], output[1])).sum(axis=(0, 1))


def average_parameters(op: Bound, image: TensorType, output: TensorType) -> rows.AveragePool:
    """With count_include_pad the counted image reaches `pads` beyond the real one, else not at all."""
    pads = windows_of(op).pads if op.get_int("count_include_pad") else (0, 0, 0, 0)
    return rows.AveragePool(_parameters(op, image, output), pads)


def maximum_types(op: Bound) -> tuple[TensorType, TensorType]:
    """The largest tap of each window and its number, in the type that numbers them all."""
    shape = output_shape(op)
    where = DType.U8 if windows_of(op).taps <= 255 else DType.I32
    return TensorType(shape, op.inputs[0].dtype), TensorType(shape, where)


def maximum(op: Bound, x: Any, pad: float) -> tuple[Any, Any]:
    """`maximum_types` of x, which is `pad` around its image."""
    windows = windows_of(op)
    *outer, oh, ow = output_shape(op)
    taps = windows.view(x, (oh, ow), pad).reshape(*outer, windows.taps, oh, ow)
    where = taps.argmax(axis=2)
    y = np.take_along_axis(taps, where[:, :, None], axis=2)[:, :, 0]
    return y, where.astype(np.uint8 if windows.taps <= 255 else np.int32)


def at_maxima(op: Bound, where: Any, gy: Any) -> Any:
    """gy, added up at the pixels that were the largest of their windows."""
    windows = windows_of(op)
    taps = np.arange(windows.taps).reshape(-1, 1, 1)
    spread = np.where(where[:, :, None] == taps, gy[:, :, None], gy.dtype.type(0))
    spread = spread.reshape(*gy.shape[:2], *windows.kernel, *gy.shape[2:])
    return windows.fold(spread, op.get_ints("input_size"))
