"""Max and average pooling in 8 bits. Where windows overlap, errors that meet in a pixel are added up and rescaled.

An average is the sum of the taps times round(2^20 / their number), so that the divisor need be no power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators import parameters as rows
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._integers import LARGEST, SCALE, Rescaling, SumTooLongError, check_pair, exponent, rescaled, rounding_of
from poetc.ops._pools import (
    at_maxima,
    average_parameters,
    divisors_of,
    grad_attributes,
    input_shape,
    max_parameters,
    maximum,
    maximum_types,
    output_shape,
    windows_of,
)
from poetc.ops._registry import Gradients, OpSpec, Work, register

FRACTION_BITS = 20
MOST_TAPS = 2**16  # of a window: 2^7 · 2^20 and the rounding of the reciprocals fit in 32 bits


@dataclass(frozen=True, slots=True)
class _RoundedMaxPool(rows.MaxPool):
    is_stochastic: bool


@dataclass(frozen=True, slots=True)
class _RoundedAverage(rows.AveragePool):
    is_stochastic: bool


def _max_rounded(op: Bound, image: TensorType, output: TensorType, where: TensorType) -> _RoundedMaxPool:
    plain = max_parameters(op, image, output, where)
    return _RoundedMaxPool(plain.windows, plain.is_wide, rounding_of(op) == "stochastic")


def _average_rounded(op: Bound, image: TensorType, output: TensorType) -> _RoundedAverage:
    plain = average_parameters(op, image, output)
    return _RoundedAverage(plain.windows, plain.counted, rounding_of(op) == "stochastic")


def _check_taps(op: Bound) -> None:
    if windows_of(op).taps > MOST_TAPS:
        raise SumTooLongError(f"a window has {windows_of(op).taps:,} taps, more than {MOST_TAPS:,}")


@register
class IntegerMaxPool(OpSpec):
    summary = "MaxPool of i8 → y, where (tap of the maximum); the scale stays"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.inputs[0].dtype is not DType.I8:
            raise ValueError(f"x is of {op.inputs[0].dtype}, not of i8")
        return maximum_types(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return maximum(op, inputs[0], -128)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        """The scale of gy stands where the gradient of `where` would: `training.niti` puts it there."""
        if grads[0] is None or grads[1] is None or not needed[0]:
            return [None]
        inputs = [op.outputs[1], grads[0], grads[1]]
        return b.emit("IntegerMaxPoolGrad", inputs, grad_attributes(b, op), hint=f"{op.inputs[0]}.grad")

    def work(self, op: Bound) -> Work:
        return Work(flops=op.outputs[0].elements * windows_of(op).taps)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_max_pool", max_parameters(op, op.inputs[0], *op.outputs))


@register
class IntegerMaxPoolGrad(Rescaling):
    summary = "The error of IntegerMaxPool's x from (where, gy, its scale) → gx, its scale; input_size, rounding"
    purpose = "error"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        where, gy, scale = op.inputs
        check_pair("gy", gy, scale)
        if where.shape != gy.shape:
            raise ValueError(f"where has shape {where.shape}, gy {gy.shape}")
        rounding_of(op)
        return TensorType(input_shape(op, gy), DType.I8), SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        where, gy, scale = inputs
        return rescaled(at_maxima(op, where, gy.astype(np.int32)), exponent(scale), rounding_of(op))

    def work(self, op: Bound) -> Work:
        return Work(flops=2 * (op.inputs[1].elements + op.outputs[0].elements))

    def kernel(self, op: Bound) -> Kernel:
        where, gy, _ = op.inputs
        image = op.outputs[0]
        workspace_bytes = 4 * image.shape[2] * image.shape[3]
        return Kernel("poetc_op_int8_max_pool_grad", _max_rounded(op, image, gy, where), (), workspace_bytes)


def _shares(op: Bound, size: tuple[int, ...], output: tuple[int, ...]) -> Any:
    """round(2^20 / divisor) of each output."""
    divisors = divisors_of(op, size, output, np.int64)
    return (2 * 2**FRACTION_BITS + divisors) // (2 * divisors)


@register
class IntegerAveragePool(Rescaling):
    summary = "AveragePool of i8 from (x, its scale) → y, its scale; rounding"
    purpose = "activation"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        check_pair("x", *op.inputs)
        _check_taps(op)
        rounding_of(op)
        return TensorType(output_shape(op), DType.I8), SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, scale = inputs
        *_, oh, ow = output_shape(op)
        total = windows_of(op).view(x.astype(np.int64), (oh, ow)).sum(axis=(2, 3))
        sums = total * _shares(op, x.shape[2:], (oh, ow))
        return rescaled(sums, exponent(scale) - FRACTION_BITS, rounding_of(op))

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        if grads[0] is None or grads[1] is None or not needed[0]:
            return [None, None]
        inputs = [grads[0], grads[1]]
        return b.emit("IntegerAveragePoolGrad", inputs, grad_attributes(b, op), hint=f"{op.inputs[0]}.grad")

    def work(self, op: Bound) -> Work:
        return Work(flops=2 * op.outputs[0].elements * (windows_of(op).taps + 1))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_average_pool", _average_rounded(op, op.inputs[0], op.outputs[0]))


def _check_shares(op: Bound) -> None:
    """SumTooLongError where the shares that a pixel gets may overflow 32 bits.

    A pixel lies in at most as many windows as a window has taps. So shares of whole windows fit; those of windows that
    count a few pixels alone, at the edge of a small image, may not.
    """
    gy, windows = op.inputs[0], windows_of(op)
    shares = _shares(op, op.get_ints("input_size"), gy.shape[2:])
    if LARGEST * windows.taps * int(shares.max(initial=0)) < 2**31:
        return
    shape = (1, 1, *windows.kernel, *gy.shape[2:])
    most = windows.fold(np.broadcast_to(shares.reshape(1, 1, 1, 1, *gy.shape[2:]), shape), op.get_ints("input_size"))
    if LARGEST * int(most.max(initial=0)) >= 2**31:
        raise SumTooLongError(
            "an average counts too few of its taps: take count_include_pad, or smaller pads around the image"
        )


@register
class IntegerAveragePoolGrad(Rescaling):
    summary = "The error of IntegerAveragePool's x from (gy, its scale) → gx, its scale; input_size, rounding"
    purpose = "error"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        check_pair("gy", *op.inputs)
        _check_taps(op)
        _check_shares(op)
        rounding_of(op)
        return TensorType(input_shape(op, op.inputs[0]), DType.I8), SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        (gy, scale), windows, size = inputs, windows_of(op), op.get_ints("input_size")
        share = gy.astype(np.int64) * _shares(op, size, gy.shape[2:])
        shape = (*gy.shape[:2], *windows.kernel, *gy.shape[2:])
        sums = windows.fold(np.broadcast_to(share[:, :, None, None], shape), size)
        return rescaled(sums, exponent(scale) - FRACTION_BITS, rounding_of(op))

    def work(self, op: Bound) -> Work:
        return Work(flops=2 * op.inputs[0].elements * (windows_of(op).taps + 1))

    def kernel(self, op: Bound) -> Kernel:
        image = op.outputs[0]
        workspace_bytes = 4 * image.shape[2] * image.shape[3]
        parameters = _average_rounded(op, image, op.inputs[0])
        return Kernel("poetc_op_int8_average_pool_grad", parameters, (), workspace_bytes)
