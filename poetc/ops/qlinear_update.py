"""Gradient descent on codes: QAS (Lin et al. 2022, "On-Device Training Under 256KB Memory").

The gradient of a code is the scale times that of its real number g. QAS divides it by the scale squared, so that a code
moves by lr · g / scale: its real number moves by lr · g. QAS rounds the new code to the nearest one. Small updates are
lost then. Stochastic rounding keeps them on average: the code goes up with the probability of its fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel
from poetc.kernels.int8.selection import LayerParameters
from poetc.ops._affine import HIGHEST, LOWEST, by_channel, check_codes, check_scales, codes_of, real
from poetc.ops._bound import Bound
from poetc.ops._convolutions import weight_shape
from poetc.ops._integers import rounding_of
from poetc.ops._registry import OpSpec, Work, register, spec
from poetc.ops.qlinear import Channels
from poetc.ops.qlinear_layers import MOST_BIAS, whole_shape
from poetc.ops.random import philox

FRACTION = 2.0**-24  # of a random word's upper 24 bits


@dataclass(frozen=True, slots=True)
class _Moved(Channels):
    is_stochastic: bool
    seed: int


@register
class QLinearSgd(OpSpec):
    summary = (
        "Codes of w - lr · g, and the count of clipped ones, from (w, count, g, scale[O], lr, step); rounding, seed"
    )
    recomputable = False
    must_alias = ((0, 0), (1, 1))

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        w, count, g, scales, rate, step = op.inputs
        check_codes("w", w)
        check_scales(scales, w)
        if g.dtype is not DType.F32 or g.shape != w.shape:
            raise ValueError(f"g is {g.shape} of {g.dtype}, w {w.shape}")
        if rate.elements != 1 or rate.dtype is not DType.F32:
            raise ValueError("the learning rate is one f32")
        if any(t.elements != 1 or t.dtype is not DType.I32 for t in (count, step)):
            raise ValueError("the count and the step are one i32 each")
        rounding_of(op)
        return w, count

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, count, g, scales, rate, step = inputs
        factor = np.float32(rate.reshape(())) / scales.astype(np.float32)
        moved = w.astype(np.float32) - g.astype(np.float32) * by_channel(factor, w)
        kept = np.where(moved > LOWEST, moved, np.float32(LOWEST))
        kept = np.where(kept < HIGHEST, kept, np.float32(HIGHEST))
        clipped = int((kept != moved).sum())
        if rounding_of(op) == "stochastic":
            random_bits = philox(w.size, op.get_int("seed"), int(step.reshape(()))).reshape(w.shape)
            low = np.floor(kept)
            q = low + ((random_bits >> np.uint32(8)).astype(np.float32) * np.float32(FRACTION) < kept - low)
        else:
            q = np.rint(kept)
        total = min(int(count.reshape(())) + clipped, 2**31 - 1)
        return q.astype(np.int8), np.array(total, np.int32).reshape(count.shape)

    def work(self, op: Bound) -> Work:
        return Work(flops=(30 if rounding_of(op) == "stochastic" else 6) * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        w = op.inputs[0]
        is_stochastic = rounding_of(op) == "stochastic"
        parameters = _Moved(w.elements, w.elements // w.shape[0], is_stochastic, op.get_int("seed"))
        return Kernel("poetc_op_qlinear_sgd", parameters)


@register
class QLinearBiasSgd(OpSpec):
    summary = "Codes of i32 of b - lr · g, rounded to nearest, from (b, g, scale[O], lr); x_scale"
    recomputable = False
    must_alias = ((0, 0),)
    flops = 6

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        b, g, scales, rate = op.inputs
        check_scales(scales, b)
        if b.dtype is not DType.I32 or g.dtype is not DType.F32 or g.shape != b.shape or rate.elements != 1:
            raise ValueError(f"b is {b.shape} of {b.dtype}, g {g.shape} of {g.dtype}")
        codes_of(op, "x_")
        return (b,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        b, g, scales, rate = inputs
        unit = np.float32(op.get_float("x_scale")) * scales.astype(np.float32)
        v = g.astype(np.float32) * (np.float32(rate.reshape(())) / unit)
        most = np.float32(MOST_BIAS)
        v = np.where(v > -most, v, -most)
        v = np.where(v < most, v, most)
        moved = b.astype(np.int64) - np.trunc(v + np.where(v < 0, np.float32(-0.5), np.float32(0.5))).astype(np.int64)
        return (np.clip(moved, -MOST_BIAS, MOST_BIAS).astype(np.int32),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_qlinear_bias_sgd", Channels(op.inputs[0].elements, 1), (op.get_float("x_scale"),))


COLUMNS, PART = 4, 64  # of a product at once: runtime/kernels, int8_linear_sgd.c


@register
class QLinearConvSgd(OpSpec):
    """Its gradient is never stored, and the codes of x are read as they are."""

    summary = "QLinearSgd on ConvGradWeight(x, gy) from (w, count, codes x, gy, scale[O], lr, step); their attributes"
    recomputable = False
    must_alias = ((0, 0), (1, 1))
    cost_like = "ConvGradWeight"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        w, count, x, gy = op.inputs[:4]
        check_codes("x", x)
        codes_of(op, "x_")
        shape = weight_shape(op, x, gy)
        if shape != w.shape:
            raise ValueError(f"w has shape {w.shape}, its gradient {shape}")
        update = (w, count, TensorType(w.shape), *op.inputs[4:])
        return spec("QLinearSgd").infer(Bound(op.attributes, update))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, count, x, gy, *rest = inputs
        operands = (TensorType(op.inputs[2].shape), op.inputs[3])
        gradient = Bound(op.attributes, operands, (TensorType(op.inputs[0].shape),))
        (g,) = spec("ConvGradWeight").evaluate(gradient, [real(x, codes_of(op, "x_")), gy])
        return spec("QLinearSgd").evaluate(op, [w, count, g, *rest])

    def work(self, op: Bound) -> Work:
        w, _, _, gy = op.inputs[:4]
        return Work(macs=gy.elements * (w.elements // w.shape[0]), flops=30 * w.elements)

    def kernel(self, op: Bound) -> Kernel:
        (x, gy), codes = op.inputs[2:4], codes_of(op, "x_")
        shape = whole_shape(op, op.get_ints("kernel"), x, gy)
        parameters = LayerParameters(shape, codes.zero, rounding_of(op) == "stochastic", op.get_int("seed"))
        workspace_bytes = 4 * COLUMNS * (PART + shape.outputs // shape.group)
        return Kernel("poetc_op_qlinear_conv_sgd", parameters, (codes.scale,), workspace_bytes)
