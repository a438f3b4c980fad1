"""Codes of QDQ models, element by element: to and from floats, sums, and the slope of a clipped result.

Gradients are of the real numbers that codes stand for, in floats. Rounding passes them on (Bengio et al. 2013). A
rectifier's bound stops them, and the ends of the 8 bits do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._affine import (
    HIGHEST,
    LOWEST,
    bounds_of,
    by_channel,
    check_codes,
    check_scales,
    codes_of,
    real,
    requantized,
)
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, flat, on_axis
from poetc.ops._registry import Gradients, OpSpec, register


@dataclass(frozen=True, slots=True)
class _Coded(Elements):
    zero: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Rescaled(_Coded):
    zero_a: int


@dataclass(frozen=True, slots=True)
class _Summed(_Rescaled):
    zero_b: int


@dataclass(frozen=True, slots=True)
class Channels(Elements):
    """`length` elements of each output channel."""

    length: int


def masked(b: Builder, op: Operator, gy: str) -> str:
    """The gradient of the result of `op` before it was clipped; gy itself where no rectifier clips."""
    low = int(str(op.attributes.get("low", LOWEST))) if op.attributes.get("stops_low") else LOWEST - 1
    high = int(str(op.attributes.get("high", HIGHEST))) if op.attributes.get("stops_high") else HIGHEST + 1
    if low < LOWEST and high > HIGHEST:
        return gy
    return b.emit1("QLinearSlope", [gy, op.outputs[0]], {"low": low, "high": high}, hint=f"{gy}.slope")


class _ByElement(OpSpec):
    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return (flat(op, len(op.inputs), binds=True),)


@register
class QuantizeLinear(_ByElement):
    summary = "Floats → codes of i8: round(x / scale) + zero, clipped to [low, high]; halves go to even"
    flops = 4

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.F32:
            raise ValueError(f"{self.kind} reads floats, not {x.dtype}")
        codes_of(op)
        bounds_of(op)
        return (TensorType(x.shape, DType.I8),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        codes, x = codes_of(op), inputs[0].astype(np.float32)
        if not np.isfinite(x).all():
            raise ValueError("an input is not a finite number")
        return (requantized(x / np.float32(codes.scale), codes.zero, *bounds_of(op)),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return masked(b, op, gy)

    def kernel(self, op: Bound) -> Kernel:
        codes = codes_of(op)
        parameters = _Coded(op.inputs[0].elements, codes.zero, *bounds_of(op))
        return Kernel("poetc_op_qlinear_quantize", parameters, (codes.scale,))


@register
class DequantizeLinear(_ByElement):
    summary = "Codes of i8 → floats: (q - zero) · scale"
    flops = 2

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        check_codes("q", op.inputs[0])
        codes_of(op)
        return (TensorType(op.inputs[0].shape),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (real(inputs[0], codes_of(op)),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return gy

    def kernel(self, op: Bound) -> Kernel:
        codes = codes_of(op)
        parameters = _Coded(op.inputs[0].elements, codes.zero, LOWEST, HIGHEST)
        return Kernel("poetc_op_qlinear_dequantize", parameters, (codes.scale,))


@register
class DequantizeChannels(OpSpec):
    summary = "Weights of i8 → floats, from (w[O, ...], scale[O])"
    flops = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        w, scales = op.inputs
        check_codes("w", w)
        check_scales(scales, w)
        return (TensorType(w.shape),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, scales = inputs
        return (w.astype(np.float32) * by_channel(scales, w),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return on_axis(op, "outputs", [0, 0, 0])

    def kernel(self, op: Bound) -> Kernel:
        w = op.inputs[0]
        return Kernel("poetc_op_qlinear_dequantize_channels", Channels(w.elements, w.elements // w.shape[0]))


@register
class QLinearSlope(_ByElement):
    summary = "gy where low < y < high, else 0, from (gy, codes y)"
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy, y = op.inputs
        check_codes("y", y)
        if gy.dtype is not DType.F32 or gy.shape != y.shape:
            raise ValueError(f"gy is {gy.shape} of {gy.dtype}, y {y.shape}")
        return (gy,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy, y = inputs
        return (np.where((y > op.get_int("low")) & (y < op.get_int("high")), gy, gy.dtype.type(0)),)

    def kernel(self, op: Bound) -> Kernel:
        parameters = _Coded(op.inputs[0].elements, 0, op.get_int("low"), op.get_int("high"))
        return Kernel("poetc_op_qlinear_slope", parameters)


@register
class QLinearRescale(_ByElement):
    summary = "Codes in another scale: round(x_scale · (x - x_zero) / scale) + zero, clipped to [low, high]"
    flops = 6
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        check_codes("x", op.inputs[0])
        codes_of(op, "x_")
        codes_of(op)
        bounds_of(op)
        return op.inputs

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        codes = codes_of(op)
        v = real(inputs[0], codes_of(op, "x_")) / np.float32(codes.scale)
        return (requantized(v, codes.zero, *bounds_of(op)),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return masked(b, op, gy)

    def kernel(self, op: Bound) -> Kernel:
        x, codes = codes_of(op, "x_"), codes_of(op)
        parameters = _Rescaled(op.inputs[0].elements, codes.zero, *bounds_of(op), x.zero)
        return Kernel("poetc_op_qlinear_rescale", parameters, (codes.scale, x.scale))


@register
class QLinearAdd(_ByElement):
    summary = "Codes of the sum of two tensors of one shape; a_scale, a_zero, b_scale, b_zero, scale, zero, low, high"
    aliases = ((0, 0), (1, 0))
    flops = 9

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        a, b = op.inputs
        check_codes("a", a)
        check_codes("b", b)
        if a.shape != b.shape:
            raise ValueError(f"a has shape {a.shape}, b {b.shape}")
        for prefix in ("a_", "b_", ""):
            codes_of(op, prefix)
        bounds_of(op)
        return (a,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        codes = codes_of(op)
        total = real(inputs[0], codes_of(op, "a_")) + real(inputs[1], codes_of(op, "b_"))
        return (requantized(total / np.float32(codes.scale), codes.zero, *bounds_of(op)),)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy = masked(b, op, grads[0]) if grads[0] is not None else None
        return [gy if need else None for need in needed]

    def kernel(self, op: Bound) -> Kernel:
        a, b, codes = codes_of(op, "a_"), codes_of(op, "b_"), codes_of(op)
        parameters = _Summed(op.inputs[0].elements, codes.zero, *bounds_of(op), a.zero, b.zero)
        return Kernel("poetc_op_qlinear_add", parameters, (codes.scale, a.scale, b.scale))
