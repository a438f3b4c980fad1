"""Convolution in 8 bits with sums of 32 bits, and its gradients. A dense layer is a convolution of 1 x 1 images.

Each makes its sums, and takes them to 8 bits by their largest magnitude. Updates of many terms have totals of 64 bits.
Wang et al. 2022 (`poetc.ops._integers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import Attribute, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.int8.selection import (
    IntegerProduct,
    long_kernels,
    plane_numbers,
    plane_pair_numbers,
    product_kernels,
    product_of,
)
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._convolutions import (
    check_rank,
    columns_of,
    convolve,
    convolve_back,
    geometry_of,
    group_of,
    image_shape,
    output_shape,
    shape_of,
    weight_shape,
)
from poetc.ops._integers import (
    MOST_LONG_PRODUCTS,
    MOST_PRODUCTS,
    SCALE,
    Rescaling,
    SumTooLongError,
    adapts,
    check_pair,
    check_products,
    exponent,
    history_of,
    rescaled,
    rounding_of,
    update_of,
)
from poetc.ops._registry import Gradients, Work, register
from poetc.ops._windows import Windows

MOST_BIAS_SHIFT = 22  # 127 · 2^22 beside the largest sum of products still fits in 32 bits
MOST_BIASED_PRODUCTS = 2**16
MOST_VALUES = (2**31 - 1) // 128  # that a sum of 32 bits holds for certain


class _Product(Rescaling):
    """Its kernels hold all sums, or make them twice."""

    symbol = ""
    may_adapt = True

    def product(self, op: Bound) -> IntegerProduct:
        raise NotImplementedError

    def planes(self, shape: Convolution) -> tuple[int, int]:
        """Of a depthwise convolution: numbers of packed planes, and columns of each."""
        return plane_numbers(shape), shape.pixels

    def kernel(self, op: Bound) -> Kernel:
        return self.kernels(op)[0]

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        product = self.product(op)
        return product_kernels(self.symbol, product, *self.planes(product.convolution))

    def work(self, op: Bound) -> Work:
        p = self.product(op)
        macs = p.groups * p.rows * p.columns * p.terms
        return Work(macs=macs, flops=4 * op.outputs[0].elements)


def aligned_bias(bias: Any, shift: int) -> Any:
    """A bias in units of the sums, from units of 2^shift of them; halves go away from zero."""
    magnitude = np.abs(bias.astype(np.int64))
    if shift >= 0:
        magnitude = magnitude << min(shift, MOST_BIAS_SHIFT)
    else:
        magnitude = (magnitude + (1 << (min(-shift, 31) - 1))) >> min(-shift, 31)
    return magnitude * np.sign(bias.astype(np.int64))


@register
class IntegerConv(_Product):
    summary = "Conv in 8 bits from (x, its scale, w, its exponent), optional (b, its exponent) → y, its scale; rounding"
    purpose = "activation"
    symbol = "poetc_op_int8_conv"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        inputs = self.own_inputs(op)
        if len(inputs) not in (4, 6):
            raise ValueError(f"{self.kind} takes pairs of values and exponents, not {len(inputs)} tensors")
        x, _, w = inputs[:3]
        for name, i in (("x", 0), ("w", 2), ("b", 4)):
            if i < len(inputs):
                check_pair(name, inputs[i], inputs[i + 1])
        shape = output_shape(op, x, w, inputs[4] if len(inputs) > 4 else None)
        if w.elements // w.shape[0] > MOST_BIASED_PRODUCTS:
            raise SumTooLongError(
                f"a sum has {w.elements // w.shape[0]:,} products, more than {MOST_BIASED_PRODUCTS:,}"
            )
        rounding_of(op)
        return TensorType(shape, DType.I8), self.scale_type(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, sx, w, sw = inputs[:4]
        windows, e = Windows.of(op, w.shape[2:]), exponent(sx) + exponent(sw)
        sums = convolve(windows, x.astype(np.float64), w.astype(np.float64), group_of(op)).astype(np.int64)
        if len(inputs) > 5:
            sums += aligned_bias(inputs[4], exponent(inputs[5]) - e).reshape(1, -1, 1, 1)
        return rescaled(sums, e, rounding_of(op), history_of(op, inputs))

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        """The gradient of a scale is the scale of the gradient. Updates have none: their size is the learning rate."""
        (gy, scale), x, w = grads, op.inputs[0], op.inputs[2]
        result: list[str | None] = [None] * len(op.inputs)
        if gy is None or scale is None:
            return result
        geometry = geometry_of(op)
        if needed[0]:
            attributes: dict[str, Attribute] = {**geometry, "input_size": b.type(x).shape[2:]}
            inputs = [gy, scale, w, op.inputs[3]]
            result[0], result[1] = b.emit("IntegerConvGradInput", inputs, attributes, hint=f"{x}.grad")
        if needed[2]:
            attributes = {**geometry, "kernel": b.type(w).shape[2:]}
            result[2], result[3] = b.emit("IntegerConvGradWeight", [x, gy], attributes, hint=f"{w}.grad")
        if len(op.inputs) > 5 and needed[4]:
            result[4], result[5] = b.emit("IntegerBiasGrad", [gy], hint=f"{op.inputs[4]}.grad")
        return result

    def product(self, op: Bound) -> IntegerProduct:
        x, _, w = op.inputs[:3]
        windows = Windows.of(op, w.shape[2:])
        shape = shape_of(windows, group_of(op), x, op.outputs[0], len(op.inputs) > 5)
        sizes = (shape.outputs // shape.group, shape.batch * shape.pixels, w.elements // w.shape[0])
        line = shape.channels // shape.group * shape.kernel_w
        return product_of(shape, sizes, line, is_stochastic=rounding_of(op) == "stochastic", adapts=adapts(op))


@register
class IntegerConvGradInput(_Product):
    summary = "The error of IntegerConv's x from (gy, its scale, w, its exponent) → gx, its scale; input_size, rounding"
    purpose = "error"
    symbol = "poetc_op_int8_conv_grad_input"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy, sy, w, sw = self.own_inputs(op)
        check_pair("gy", gy, sy)
        check_pair("w", w, sw)
        shape = image_shape(op, gy, w)
        check_products(_back_terms(w, group_of(op)), "take a smaller layer")
        rounding_of(op)
        return TensorType(shape, DType.I8), self.scale_type(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy, sy, w, sw = inputs[:4]
        h, width = op.get_ints("input_size")
        windows = Windows.of(op, w.shape[2:])
        sums = convolve_back(windows, gy.astype(np.float64), w.astype(np.float64), group_of(op), (h, width))
        return rescaled(sums.astype(np.int64), exponent(sy) + exponent(sw), rounding_of(op), history_of(op, inputs))

    def product(self, op: Bound) -> IntegerProduct:
        gy, _, w = op.inputs[:3]
        shape = shape_of(Windows.of(op, w.shape[2:]), group_of(op), op.outputs[0], gy, False)
        down = most_taps(shape.kernel_h, shape.stride_h, shape.dilation_h)
        line = shape.outputs // shape.group * most_taps(shape.kernel_w, shape.stride_w, shape.dilation_w)
        sizes = (w.shape[1], shape.batch * shape.height * shape.width, down * line)
        is_stochastic = rounding_of(op) == "stochastic"
        phases = shape.stride_h * shape.stride_w
        return product_of(shape, sizes, line, is_stochastic=is_stochastic, adapts=adapts(op), phases=phases)

    def work(self, op: Bound) -> Work:
        gy, _, w = op.inputs[:3]
        return Work(macs=gy.elements * (w.elements // w.shape[0]), flops=4 * op.outputs[0].elements)

    def planes(self, shape: Convolution) -> tuple[int, int]:
        return plane_numbers(shape, is_backward=True), shape.height * shape.width


def most_taps(kernel: int, stride: int, dilation: int) -> int:
    """Of the taps along an axis, the most that reach one pixel of the image."""
    return -(-kernel // (stride // math.gcd(stride, dilation)))


def _back_terms(w: TensorType, group: int) -> int:
    return w.shape[0] // group * w.shape[2] * w.shape[3]


@register
class IntegerConvGradWeight(_Product):
    summary = "The update of IntegerConv's w from (x, gy, learning rate) → g, its scale; kernel, rounding"
    purpose = "update"
    symbol = "poetc_op_int8_conv_grad_weight"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, gy, rate = self.own_inputs(op)
        weight = TensorType(weight_shape(op, x, gy), DType.I8)
        check_rate(rate)
        check_products(gy.elements // gy.shape[1], "use a smaller --batch", MOST_LONG_PRODUCTS)
        rounding_of(op)
        return weight, self.scale_type(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, gy, rate = inputs[:3]
        group, kernel = group_of(op), op.get_ints("kernel")
        n, outputs, oh, ow = gy.shape
        columns = columns_of(Windows.of(op, kernel), x.astype(np.float64), (oh, ow), group)
        rows = gy.astype(np.float64).reshape(n, group, outputs // group, oh * ow)
        sums = np.matmul(rows, np.swapaxes(columns, 2, 3)).sum(axis=0)
        sums = sums.reshape(outputs, x.shape[1] // group, *kernel).astype(np.int64)
        is_long = n * oh * ow > MOST_PRODUCTS
        return update_of(sums, rate, rounding_of(op), history_of(op, inputs), is_long=is_long)

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        """Totals of 64 bits where a sum has more terms than 32 bits hold."""
        product = self.product(op)
        if product.terms > MOST_PRODUCTS:
            return long_kernels(f"{self.symbol}_long", product)
        return super().kernels(op)

    def product(self, op: Bound) -> IntegerProduct:
        x, gy = op.inputs[:2]
        windows = Windows.of(op, op.get_ints("kernel"))
        shape = shape_of(windows, group_of(op), x, gy, False)
        columns = shape.channels // shape.group * shape.taps
        sizes = (shape.outputs // shape.group, columns, shape.batch * shape.pixels)
        return product_of(shape, sizes, 1, is_stochastic=rounding_of(op) == "stochastic", adapts=adapts(op))

    def planes(self, shape: Convolution) -> tuple[int, int]:
        return plane_pair_numbers(shape), shape.taps


def check_rate(rate: TensorType) -> None:
    """Raise ValueError unless a tensor can hold a learning rate: one element, f32."""
    if rate.elements != 1 or rate.dtype is not DType.F32:
        raise ValueError(f"the learning rate is one f32, not {rate.shape} of {rate.dtype}")


@register
class IntegerBiasGrad(Rescaling):
    summary = "The update of IntegerConv's b from (gy, learning rate) → g, its scale; rounding"
    purpose = "update"
    flops = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy, rate = op.inputs
        check_rank(gy)
        check_rate(rate)
        check_products(gy.elements // gy.shape[1], "use a smaller --batch", MOST_VALUES)
        rounding_of(op)
        return TensorType(gy.shape[1:2], DType.I8), SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy, rate = inputs
        return update_of(gy.astype(np.int64).sum(axis=(0, 2, 3)), rate, rounding_of(op))

    def kernel(self, op: Bound) -> Kernel:
        n, channels, h, w = op.inputs[0].shape
        shape = Convolution(n, channels, h, w, channels, h, w, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0)
        parameters = IntegerProduct(
            shape, 1, channels, 1, n * h * w, 0, 0, 0, True, rounding_of(op) == "stochastic", False
        )
        return Kernel("poetc_op_int8_bias_grad", parameters, (), 4 * channels)
