"""Resizing images (N, C, H, W), nearest and linear.

Where each output pixel reads is worked out here, once, as tables of rows and columns; the kernels know nothing of
coordinate conventions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Ints
from poetc.kernels.operators.parameters import Resize as ResizeTables
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, Range, block_with_shape, untouched
from poetc.ops._registry import OpSpec, Work, register

COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


def coordinates(convention: str, size: int, length: int, scale: float, region: tuple[float, float] = (0, 1)) -> Array:
    """[size] float32: where each output pixel lies on an input axis of `length`, in pixels of the input.

    `convention`: ONNX's `coordinate_transformation_mode`. Single precision as in onnxruntime, since half an ulp decides
    which pixel is nearest. Formulas with the output's length take `size`, as the standard says; its reference
    implementation takes length · scale. `region`: the part that tf_crop_and_resize cuts out, in shares of length - 1.
    """
    one, half = np.float32(1), np.float32(0.5)
    i, by = np.arange(size, dtype=np.float32), np.float32(scale)
    if by == 1 and region == (0, 1):
        return i
    last, last_of_y = np.float32(length - 1), np.float32(max(size - 1, 1))
    match convention:
        case "asymmetric":
            return i / by
        case "align_corners":
            return i * last / last_of_y
        case "tf_half_pixel_for_nn":
            return (i + half) / by
        case "tf_crop_and_resize":
            start, end = np.float32(region[0]), np.float32(region[1])
            if size == 1:
                return np.full(1, half * (start + end) * last)
            return start * last + i * (end - start) * last / last_of_y
        case "pytorch_half_pixel" if size == 1:
            return np.zeros(1, np.float32)
        case "half_pixel_symmetric":
            shift = np.float32(length) * half * (one - np.float32(size) / (by * np.float32(length)))
            return (float(shift) + (i.astype(np.float64) + 0.5) / float(by) - 0.5).astype(np.float32)
        case _:
            return (i + half) / by - half


def nearest_pixel(at: Array, rounding: str, scale: float) -> Array:
    """Whole places, not yet within the image. "simple" is the rule of operator sets before 11."""
    match rounding:
        case "round_prefer_floor":
            return np.ceil(at - np.float32(0.5))
        case "round_prefer_ceil":
            return np.floor(at + np.float32(0.5))
        case "ceil":
            return np.ceil(at)
        case "simple" if scale < 1:
            return np.ceil(at)
        case _:
            return np.floor(at)


@dataclass(frozen=True, slots=True)
class Taps:
    """Along one axis: y[i] = (1 - weight[i]) x[low[i]] + weight[i] x[high[i]]; weight 0 throughout for nearest."""

    low: Array
    high: Array
    weight: Array


def taps(op: Bound, axis: int, length: int) -> Taps:
    """The taps of spatial axis 0 (H) or 1 (W), `length` long in x."""
    size = op.get_ints("sizes")[axis]
    scales = op.attributes.get("scales", (0.0, 0.0))
    assert isinstance(scales, tuple)
    scale = float(scales[axis]) or size / length
    at = coordinates(op.get_str("coordinates", COORDINATES[0]), size, length, scale)
    if op.get_str("mode", "nearest") == "nearest":
        low = np.clip(nearest_pixel(at, op.get_str("nearest", NEAREST[0]), scale), 0, length - 1).astype(np.int64)
        return Taps(low, low, np.zeros(size))
    low = np.floor(at).astype(np.int64)
    return Taps(np.clip(low, 0, length - 1), np.clip(low + 1, 0, length - 1), at - low)


def check(kind: str, op: Bound, shape: Ints) -> Ints:
    """The resized shape. ValueError if the attributes or the shape do not fit."""
    sizes = op.get_ints("sizes")
    for name, allowed, default in (
        ("mode", ("nearest", "linear"), "nearest"),
        ("coordinates", COORDINATES, COORDINATES[0]),
        ("nearest", NEAREST, NEAREST[0]),
    ):
        if op.get_str(name, default) not in allowed:
            raise ValueError(f"{kind}: {name} {op.get_str(name)!r} is none of {', '.join(allowed)}")
    if len(shape) != 4 or len(sizes) != 2 or min(*shape, *sizes) < 1:
        raise ValueError(f"{kind}: cannot resize {shape} to (H, W) = {sizes}")
    return (*shape[:2], *sizes)


def tables(op: Bound, shape: Ints, suffix: str) -> Kernel:
    """The kernel; its floats are the weights of rows and columns."""
    rows, columns = taps(op, 0, shape[2]), taps(op, 1, shape[3])
    height, width = op.get_ints("sizes")
    head = (shape[0] * shape[1], shape[2], shape[3], height, width)
    if op.get_str("mode", "nearest") == "nearest":
        return Kernel(f"poetc_op_resize_nearest{suffix}", ResizeTables(*head, ints(rows.low, columns.low)))
    weights = tuple(float(w) for w in (*rows.weight, *columns.weight))
    places = ints(rows.low, columns.low, rows.high, columns.high)
    return Kernel(f"poetc_op_resize_linear{suffix}", ResizeTables(*head, places), weights)


def ints(*arrays: Array) -> Ints:
    return tuple(int(v) for a in arrays for v in a)


@register
class Resize(OpSpec):
    summary = "image (N, C, H, W) to `sizes` (H, W); `mode`: nearest, linear; `scales` (h, w); `coordinates`; `nearest`"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.F32:
            raise ValueError(f"Resize needs an f32 input, not {x.dtype}")
        return (TensorType(check(self.kind, op, x.shape)),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        rows, columns = taps(op, 0, x.shape[2]), taps(op, 1, x.shape[3])
        across = columns.weight.astype(x.dtype)
        wide = x[..., columns.low] + (x[..., columns.high] - x[..., columns.low]) * across
        down = rows.weight.astype(x.dtype)[:, None]
        return (wide[:, :, rows.low] + (wide[:, :, rows.high] - wide[:, :, rows.low]) * down,)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1("ResizeGrad", [gy], {**op.attributes, "shape": b.type(op.inputs[0]).shape})

    def work(self, op: Bound) -> Work:
        linear = op.get_str("mode", "nearest") == "linear"
        return Work(flops=9 * op.outputs[0].elements if linear else 0)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By images, or by planes of one."""
        return untouched(op, (0, 1))

    def kernel(self, op: Bound) -> Kernel:
        return tables(op, op.inputs[0].shape, "")


@register
class ResizeGrad(OpSpec):
    summary = "(gy): each output pixel's gradient added where Resize read it from an x of `shape`"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (gy,), shape = op.inputs, op.get_ints("shape")
        if gy.dtype is not DType.F32 or gy.shape != check(self.kind, op, shape):
            raise ValueError(f"ResizeGrad: f32 of shape {check(self.kind, op, shape)} expected, not {gy}")
        return (TensorType(shape),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (gy,), shape = inputs, op.get_ints("shape")
        rows, columns = taps(op, 0, shape[2]), taps(op, 1, shape[3])
        gx = np.zeros((math.prod(shape[:2]), *shape[2:]), gy.dtype)
        flat = gy.reshape(-1, *gy.shape[2:])
        for r, down in ((rows.low, 1 - rows.weight), (rows.high, rows.weight)):
            for c, across in ((columns.low, 1 - columns.weight), (columns.high, columns.weight)):
                share = (down[:, None] * across).astype(gy.dtype)
                index: tuple[Any, ...] = (slice(None), r[:, None], c[None, :])
                np.add.at(gx, index, flat * share)
        return (gx.reshape(shape),)

    def work(self, op: Bound) -> Work:
        linear = op.get_str("mode", "nearest") == "linear"
        return Work(flops=(12 if linear else 1) * op.inputs[0].elements)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By images, or by planes of one."""
        return untouched(op, (0, 1))

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """Its result has a shape of its own."""
        return block_with_shape(op, cut, ranges)

    def kernel(self, op: Bound) -> Kernel:
        return tables(op, op.get_ints("shape"), "_grad")
