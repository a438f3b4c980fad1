"""Layers of QDQ models on codes of 8 bits: convolution, dense (a convolution of 1 x 1 images), and pools.

Sums have 32 bits and are exact. Their factor x_scale · w_scale / scale is made in floats, as onnxruntime's QLinearConv
makes it. Gradients are those of the float layer on the real numbers of the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from poetc.graph import Attribute, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.int8.selection import (
    COLUMNS,
    ROWS,
    IntegerProduct,
    LayerParameters,
    has_planes,
    plane_numbers,
    product_of,
    worth_offering,
)
from poetc.kernels.operators import parameters as rows
from poetc.ops._affine import (
    bounds_of,
    by_channel,
    check_codes,
    check_scales,
    codes_of,
    requantized,
)
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._convolutions import (
    convolve,
    convolve_back,
    geometry_of,
    group_of,
    image_shape,
    is_depthwise,
    output_shape,
    shape_of,
)
from poetc.ops._cuts import Cut, Range, along
from poetc.ops._pools import average_parameters, divisors_of, grad_attributes, windows_of
from poetc.ops._pools import output_shape as pooled_shape
from poetc.ops._registry import Gradients, OpSpec, Work, register
from poetc.ops._windows import Windows
from poetc.ops.integer_pool import IntegerMaxPool
from poetc.ops.qlinear import masked

MOST_TERMS = 32_000  # of a sum: with a bias of 2^30 it fits in 32 bits
MOST_BIAS = 2**30


@dataclass(frozen=True, slots=True)
class _Requantized(IntegerProduct):
    """Its sums start from the bias and the zero point's share, one number an output."""

    zero_x: int
    zero: int
    low: int
    high: int

    @property
    def workspace_bytes(self) -> int:
        sums = self.rows * self.columns_at_once
        packed = 2 * self.terms_at_once * (self.rows_at_once + self.columns_at_once)
        return 4 * (sums + self.groups * self.rows) + packed

    @property
    def passes(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class _RequantizedPlanes(_Requantized):
    """Plane by plane: `terms_at_once` numbers of packed planes."""

    @property
    def workspace_bytes(self) -> int:
        return 4 * (self.columns_at_once + self.groups) + 2 * self.terms_at_once


@register
class QLinearConv(OpSpec):
    summary = "Conv on codes from (x, w, scale[O], optional b of i32) → y; x_scale, x_zero, scale, zero, low, high"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, w, scales = op.inputs[:3]
        check_codes("x", x)
        check_codes("w", w)
        bias = op.inputs[3] if len(op.inputs) > 3 else None
        shape = output_shape(op, x, w, bias)
        check_scales(scales, w)
        if bias is not None and bias.dtype is not DType.I32:
            raise ValueError(f"the bias is of {bias.dtype}, not of i32")
        if w.elements // w.shape[0] > MOST_TERMS:
            raise ValueError(f"a sum has {w.elements // w.shape[0]:,} products, more than {MOST_TERMS:,}")
        codes_of(op, "x_")
        codes_of(op)
        bounds_of(op)
        return (TensorType(shape, DType.I8),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, w, scales = inputs[:3]
        x_codes, codes = codes_of(op, "x_"), codes_of(op)
        centred = x.astype(np.float64) - x_codes.zero
        sums = convolve(Windows.of(op, w.shape[2:]), centred, w.astype(np.float64), group_of(op)).astype(np.int64)
        if len(inputs) > 3:
            sums += inputs[3].astype(np.int64).reshape(1, -1, 1, 1)
        factor = np.float32(x_codes.scale) * scales.astype(np.float32) / np.float32(codes.scale)
        v = sums.astype(np.float32) * factor.reshape(1, -1, 1, 1)
        return (requantized(v, codes.zero, *bounds_of(op)),)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        result: list[str | None] = [None] * len(op.inputs)
        if grads[0] is None:
            return result
        (x, w, scales), gy = op.inputs[:3], masked(b, op, grads[0])
        geometry = geometry_of(op)
        if needed[0]:
            attributes: dict[str, Attribute] = {**geometry, "input_size": b.type(x).shape[2:]}
            if b.type(w).elements > b.type(x).elements + b.type(gy).elements:  # in floats they would be the most
                result[0] = b.emit1("QLinearConvGradInput", [gy, w, scales], attributes, hint=f"{x}.grad")
            else:
                real = b.emit1("DequantizeChannels", [w, scales], hint=f"{w}.real")
                result[0] = b.emit1("ConvGradInput", [gy, real], attributes, hint=f"{x}.grad")
        if needed[1]:
            codes: dict[str, Attribute] = {"scale": op.attributes["x_scale"], "zero": op.attributes["x_zero"]}
            real = b.emit1("DequantizeLinear", [x], codes, hint=f"{x}.real")
            attributes = {**geometry, "kernel": b.type(w).shape[2:]}
            result[1] = b.emit1("ConvGradWeight", [real, gy], attributes, hint=f"{w}.grad")
        if len(op.inputs) > 3 and needed[3]:
            hint = f"{op.inputs[3]}.grad"
            result[3] = b.emit1("ReduceSum", [gy], {"axes": (0, 2, 3), "keepdims": False}, hint=hint)
        return result

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By output channels, each of which has a scale and sums of its own; by planes of a depthwise convolution."""
        x, *of_outputs = op.inputs
        is_by_planes = is_depthwise(op, x, op.outputs[0])
        if group_of(op) != 1 and not is_by_planes:
            return ()
        parts = (along(x, 1) if is_by_planes else None, *(along(t, 0) for t in of_outputs), along(op.outputs[0], 1))
        cut = Cut("planes" if is_by_planes else "outputs", of_outputs[0].shape[0], parts, binds=True)
        return (cut,) if cut.extent > 1 else ()

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """Of fewer groups, where each plane is one."""
        bound = super().block(op, cut, ranges)
        if cut.name != "planes":
            return bound
        return replace(bound, attributes={**bound.attributes, "group": ranges[0][1] - ranges[0][0]})

    def work(self, op: Bound) -> Work:
        y, w = op.outputs[0], op.inputs[1]
        return Work(macs=y.elements * (w.elements // w.shape[0]), flops=5 * y.elements)

    def kernel(self, op: Bound) -> Kernel:
        return self.kernels(op)[0]

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        (x, w), y = op.inputs[:2], op.outputs[0]
        x_codes, codes = codes_of(op, "x_"), codes_of(op)
        shape = shape_of(Windows.of(op, w.shape[2:]), group_of(op), x, y, len(op.inputs) > 3)
        sizes = (shape.outputs // shape.group, shape.batch * shape.pixels, w.elements // w.shape[0])
        line = shape.channels // shape.group * shape.kernel_w
        plain = product_of(shape, sizes, line, is_stochastic=False, adapts=False)
        numbers = {field.name: getattr(plain, field.name) for field in fields(plain)}
        numbers |= {"holds_sums": False, "zero_x": x_codes.zero, "zero": codes.zero}
        low, high = bounds_of(op)
        whole = _Requantized(**numbers, low=low, high=high)
        floats = (x_codes.scale, codes.scale)
        narrow = replace(whole, columns_at_once=COLUMNS)
        candidates = (whole, narrow, replace(narrow, rows_at_once=ROWS))
        offered = [Kernel("poetc_op_int8_qlinear_conv", p, floats, p.workspace_bytes) for p in candidates]
        if has_planes(shape):
            numbers |= {"rows_at_once": 1, "columns_at_once": shape.pixels, "terms_at_once": plane_numbers(shape)}
            planes = _RequantizedPlanes(**numbers, low=low, high=high)
            symbol = "poetc_op_int8_qlinear_depthwise"
            offered = [Kernel(symbol, planes, floats, planes.workspace_bytes), offered[-1]]
        return tuple(worth_offering(offered))


@register
class QLinearConvGradInput(OpSpec):
    summary = "ConvGradInput from (gy, codes w, scale[O]); its attributes"
    cost_like = "ConvGradInput"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy, w, scales = op.inputs
        check_codes("w", w)
        check_scales(scales, w)
        return (TensorType(image_shape(op, gy, w)),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy, w, scales = inputs
        floats = w.astype(np.float32) * by_channel(scales, w)
        windows = Windows.of(op, w.shape[2:])
        h, width = op.get_ints("input_size")
        return (convolve_back(windows, gy, floats.astype(gy.dtype), group_of(op), (h, width)).astype(gy.dtype),)

    def work(self, op: Bound) -> Work:
        gy, w = op.inputs[:2]
        return Work(macs=gy.elements * (w.elements // w.shape[0]))

    def kernel(self, op: Bound) -> Kernel:
        (gy, w), gx = op.inputs[:2], op.outputs[0]
        return Kernel("poetc_op_qlinear_conv_grad_input", LayerParameters(whole_shape(op, w.shape[2:], gx, gy)))


def whole_shape(op: Bound, kernel: Sequence[int], image: TensorType, output: TensorType) -> Convolution:
    """The shape of a convolution, also of one with 1 x 1 taps, as it is."""
    (n, c, h, width), (_, o, oh, ow), windows = image.shape, output.shape, Windows.of(op, tuple(kernel))
    (kh, kw), (sh, sw), (top, left, _, _), (dh, dw) = windows.kernel, windows.strides, windows.pads, windows.dilations
    return Convolution(n, c, h, width, o, oh, ow, kh, kw, sh, sw, top, left, dh, dw, group_of(op), 0)


@register
class QLinearMaxPool(IntegerMaxPool):
    summary = "MaxPool of codes → y, where (tap of the maximum); scale and zero stay"

    gradient = OpSpec.gradient  # in floats, unlike that of NITI's integers

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        inputs = [op.outputs[1], gy]
        return b.emit1("MaxPoolGrad", inputs, grad_attributes(b, op), hint=f"{op.inputs[0]}.grad")


@dataclass(frozen=True, slots=True)
class _CodedAverage(rows.AveragePool):
    zero_x: int
    zero: int
    low: int
    high: int


@register
class QLinearAveragePool(OpSpec):
    summary = "AveragePool of codes; kernel, strides, pads, dilations, x_scale, x_zero, scale, zero, low, high"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        check_codes("x", op.inputs[0])
        codes_of(op, "x_")
        codes_of(op)
        bounds_of(op)
        if windows_of(op).taps >= 2**22:
            raise ValueError(f"a window has {windows_of(op).taps:,} taps")
        return (TensorType(pooled_shape(op), DType.I8),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        (x,), x_codes, codes = inputs, codes_of(op, "x_"), codes_of(op)
        *_, oh, ow = pooled_shape(op)
        sums = windows_of(op).view(x.astype(np.int64) - x_codes.zero, (oh, ow)).sum(axis=(2, 3))
        mean = sums.astype(np.float32) * np.float32(x_codes.scale)
        mean = mean / divisors_of(op, x.shape[2:], (oh, ow), np.float32)
        return (requantized(mean / np.float32(codes.scale), codes.zero, *bounds_of(op)),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        known = ("kernel", "strides", "pads", "dilations", "ceil_mode", "count_include_pad", "input_size")
        attributes = {n: v for n, v in grad_attributes(b, op).items() if n in known}
        return b.emit1("AveragePoolGrad", [masked(b, op, gy)], attributes, hint=f"{op.inputs[0]}.grad")

    def work(self, op: Bound) -> Work:
        return Work(flops=op.outputs[0].elements * (windows_of(op).taps + 6))

    def kernel(self, op: Bound) -> Kernel:
        x_codes, codes = codes_of(op, "x_"), codes_of(op)
        plain = average_parameters(op, op.inputs[0], op.outputs[0])
        low, high = bounds_of(op)
        parameters = _CodedAverage(plain.windows, plain.counted, x_codes.zero, codes.zero, low, high)
        return Kernel("poetc_op_int8_qlinear_average_pool", parameters, (codes.scale, x_codes.scale))
