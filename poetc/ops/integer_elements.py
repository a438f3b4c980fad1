"""Element by element in 8 bits: to integers and back, ReLU, sums of two, dropout, and the update of a weight.

Formulas: Wang et al. 2022 (`poetc.ops._integers`). Sums of two tensors, and a ReLU with a limit, are of this project.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._integers import (
    HISTORY,
    LARGEST,
    LONG_SCALE,
    MOST_SHIFT,
    SCALE,
    VALUE_BITS,
    Rescaling,
    check_pair,
    exponent,
    rescaled,
    rounded,
    rounding_of,
    scale_of,
)
from poetc.ops._registry import Gradients, OpSpec, Work, register
from poetc.ops.random import philox

MOST_APART = 22  # exponents of two tensors that are added; 127 · 2^22 twice still fits in 32 bits
_MANTISSA_BITS = 24


@dataclass(frozen=True, slots=True)
class _Rounded(Elements):
    is_stochastic: bool


@dataclass(frozen=True, slots=True)
class _Aligned(_Rounded):
    scales: int  # that of x first


@dataclass(frozen=True, slots=True)
class _Limited(Elements):
    """The limit is mantissa · 2^power; a mantissa of 0 stands for none."""

    mantissa: int
    power: int


@dataclass(frozen=True, slots=True)
class _Dropped(Elements):
    seed: int


def quantized(x: Any) -> tuple[Any, Any]:
    """Floats as i8 and their scale: b = ceil(log2 max|x|), q = round(x · 2^(7-b)) from -128 to 127, e = b - 7.

    Halves go to the even number. Raises ValueError for numbers that are not finite.
    """
    largest = np.abs(x).max(initial=0)
    if not np.isfinite(largest):
        raise ValueError("an input is not a finite number")
    mantissa, power = np.frexp(largest)
    bits = int(power) - (1 if mantissa == 0.5 else 0) if largest else 0
    bits = max(bits, -LARGEST_BITS)
    scaled = np.rint(np.ldexp(x.astype(np.float64), VALUE_BITS - bits))
    q = np.clip(scaled, -128, 127)
    return q.astype(np.int8), scale_of(bits - VALUE_BITS, int((q != scaled).sum()), bits, 0)


LARGEST_BITS = 60  # of an input; below 2^-60 all is zero


@register
class Quantize(OpSpec):
    summary = "Floats x → i8 q with x ≈ q · 2^e, scale (e first); one exponent for the whole tensor"
    flops = 4

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.F32:
            raise ValueError(f"{self.kind} reads floats, not {x.dtype}")
        return TensorType(x.shape, DType.I8), SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return quantized(inputs[0])

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_quantize", Elements(op.inputs[0].elements))


@register
class Dequantize(OpSpec):
    summary = "q · 2^e as floats, from (q, its scale)"
    flops = 2

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        check_pair("q", *op.inputs)
        return (TensorType(op.inputs[0].shape),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (np.ldexp(inputs[0].astype(np.float32), exponent(inputs[1])).astype(np.float32),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_dequantize", Elements(op.inputs[0].elements))


def _limit(op: Bound) -> tuple[int, int]:
    """The attribute `limit` as mantissa · 2^power; (0, 0) where there is none."""
    limit = op.get_float("limit")
    if not 0 <= limit < math.inf:
        raise ValueError(f"limit {limit} is no number of at least 0")
    mantissa, power = math.frexp(limit)
    return (int(mantissa * 2**_MANTISSA_BITS), power - _MANTISSA_BITS) if limit else (0, 0)


def _largest_value(op: Bound, scale: Any) -> int:
    """The limit of ReLU, in units of the tensor."""
    mantissa, power = _limit(op)
    if not mantissa:
        return LARGEST
    shift = power - exponent(scale)
    return min(LARGEST, mantissa << min(shift, VALUE_BITS) if shift >= 0 else mantissa >> min(-shift, 31))


@register
class IntegerRelu(OpSpec):
    summary = "ReLU of i8 from (x, its scale): max(x, 0), at most `limit` (a real number; 0: none)"
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        check_pair("x", *op.inputs)
        _limit(op)
        return op.inputs[:1]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (np.clip(inputs[0], 0, _largest_value(op, inputs[1])).astype(np.int8),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        inputs = [gy, op.outputs[0], op.inputs[1]]
        return b.emit1("IntegerReluGrad", inputs, op.attributes, hint=f"{op.inputs[0]}.grad")

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_relu", _Limited(op.inputs[0].elements, *_limit(op)))


@register
class IntegerReluGrad(OpSpec):
    summary = "Error gy where 0 < y < limit, else 0, from (gy, y, scale of y); limit"
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy, y, scale = op.inputs
        check_pair("y", y, scale)
        if gy != y:
            raise ValueError(f"gy is {gy.shape} of {gy.dtype}, y {y.shape} of {y.dtype}")
        _limit(op)
        return (gy,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy, y, scale = inputs
        passes = y > 0
        if _limit(op)[0]:
            passes &= y < _largest_value(op, scale)
        return (np.where(passes, gy, np.int8(0)),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_relu_grad", _Limited(op.inputs[0].elements, *_limit(op)))


@register
class IntegerAdd(Rescaling):
    """The sum is exact unless the exponents are more than 22 apart; then the smaller tensor loses its last bits."""

    summary = "Sum of two tensors of i8 from (a, its scale, b, its scale), exponents aligned → y, its scale; rounding"
    aliases = ((0, 0), (2, 0))
    flops = 8

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        a, sa, b, sb = op.inputs
        check_pair("a", a, sa)
        check_pair("b", b, sb)
        if a.shape != b.shape:
            raise ValueError(f"a has shape {a.shape}, b {b.shape}")
        rounding_of(op)
        return a, SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        a, sa, b, sb = inputs
        low = max(min(exponent(sa), exponent(sb)), max(exponent(sa), exponent(sb)) - MOST_APART)
        return rescaled(_shifted(a, exponent(sa) - low) + _shifted(b, exponent(sb) - low), low, rounding_of(op))

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        return [grads[0] if needed[0] else None, grads[1], grads[0] if needed[2] else None, grads[1]]

    def kernel(self, op: Bound) -> Kernel:
        parameters = _Rounded(op.inputs[0].elements, rounding_of(op) == "stochastic")
        return Kernel("poetc_op_int8_add", parameters)


@register
class IntegerAlign(Rescaling):
    """Several tensors come under one exponent, the highest of them, before `Concat` joins them."""

    summary = "x in units of the highest of several exponents, from (x, its scale, scale, ...) → y, its scale; rounding"
    flops = 4
    purpose = "activation"
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, *scales = op.inputs
        for scale in scales:
            check_pair("x", x, scale)
        rounding_of(op)
        return x, SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, *scales = inputs
        shift = max(map(exponent, scales)) - exponent(scales[0])
        y, _ = rounded(x, shift, rounding_of(op))
        return y, scale_of(exponent(scales[0]) + shift, 0, VALUE_BITS + shift, shift)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        return [grads[0] if needed[0] else None, grads[1], *[None] * (len(op.inputs) - 2)]

    def kernel(self, op: Bound) -> Kernel:
        parameters = _Aligned(op.inputs[0].elements, rounding_of(op) == "stochastic", len(op.inputs) - 1)
        return Kernel("poetc_op_int8_align", parameters)


def _shifted(q: Any, shift: int) -> Any:
    """q · 2^shift, towards zero where the shift is below 0."""
    magnitude = np.abs(q.astype(np.int64))
    magnitude = magnitude << shift if shift >= 0 else magnitude >> min(-shift, 31)
    return magnitude * np.sign(q.astype(np.int64))


class _Dropped8(OpSpec):
    """Half of the elements stay, and count twice: the exponent grows by 1. The mask is that of Dropout."""

    aliases = ((0, 0),)
    flops = 20

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, scale, step = op.inputs
        check_pair("x", x, scale)
        if step.dtype is not DType.I32 or step.elements != 1:
            raise ValueError(f"the step is one i32, not {step.shape} of {step.dtype}")
        return x, SCALE

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, scale, step = inputs
        kept = philox(x.size, op.get_int("seed"), int(step.reshape(()))).reshape(x.shape) >= 1 << 31
        return np.where(kept, x, np.int8(0)), scale_of(exponent(scale) + 1, 0, VALUE_BITS, 0)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_dropout", _Dropped(op.inputs[0].elements, op.get_int("seed")))


@register
class IntegerDropout(_Dropped8):
    summary = "Half of x, i8, from (x, its scale, step) → y, its scale; the same mask for the same `seed` and step"

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        if grads[0] is None or grads[1] is None or not needed[0]:
            return [None] * 3
        inputs = [grads[0], grads[1], op.inputs[2]]
        gx, scale = b.emit("IntegerDropoutGrad", inputs, op.attributes, hint=f"{op.inputs[0]}.grad")
        return [gx, scale, None]


@register
class IntegerDropoutGrad(_Dropped8):
    summary = "The error of IntegerDropout's x from (gy, its scale, step) → gx, its scale"


@register
class IntegerUpdate(OpSpec):
    summary = "w - g in place, clipped to ±127; the second state counts the clipped weights: (w, count, g)"
    recomputable = False
    must_alias = ((0, 0), (1, 1))
    flops = 3

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        w, count, g = op.inputs
        if w.dtype is not DType.I8 or g.dtype is not DType.I8 or w.shape != g.shape:
            raise ValueError(f"w is {w.shape} of {w.dtype}, g {g.shape} of {g.dtype}; both are of i8")
        if count.dtype is not DType.I32 or count.elements != 1:
            raise ValueError(f"the count is one i32, not {count.shape} of {count.dtype}")
        return w, count

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, count, g = inputs
        moved = w.astype(np.int64) - g
        kept = np.clip(moved, -LARGEST, LARGEST)
        total = np.minimum(count.astype(np.int64) + int((kept != moved).sum()), 2**31 - 1)
        return kept.astype(np.int8), total.astype(np.int32)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_update", Elements(op.inputs[0].elements))


MORE_BITS = 16  # of a stored weight, below the 8 that products read
_FRACTION_BITS = 23  # of a float


@register
class IntegerStoredUpdate(OpSpec):
    """Weights of 24 bits, of which products read the upper 8, as WAGEUBN stores them (Yang et al., 2020).

    Where `stored` does not round to w, somebody has replaced w: `stored` begins at w again.
    """

    summary = "stored - rate · g in place, in units of 2^-16; w is its upper 8 bits: (w, stored, count, g, rate)"
    recomputable = False
    must_alias = ((0, 0), (1, 1), (2, 2))
    flops = 10

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        w, stored, count, g, rate = op.inputs
        if w.dtype is not DType.I8 or g != w or stored != TensorType(w.shape, DType.I32):
            raise ValueError(f"w is {w}, g {g}, stored {stored}; they are of i8, i8 and i32, of one shape")
        if (count.dtype, count.elements) != (DType.I32, 1) or (rate.dtype, rate.elements) != (DType.F32, 1):
            raise ValueError(f"the count is one i32 and the rate one f32, not {count} and {rate}")
        return w, stored, count

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, stored, count, g, rate = inputs
        word = int(rate.astype(np.float32).reshape(1).view(np.uint32)[0])
        shift = 127 + _FRACTION_BITS - MORE_BITS - (word >> _FRACTION_BITS)
        mantissa = word & ((1 << _FRACTION_BITS) - 1) | 1 << _FRACTION_BITS
        product = np.abs(g.astype(np.int64)) * mantissa
        if shift > MOST_SHIFT:
            product = np.zeros_like(product)
        elif shift > 0:
            product = (product + (1 << (shift - 1))) >> shift
        else:
            product <<= min(-shift, MOST_SHIFT)
        was = stored.astype(np.int64)
        was = np.where(upper_bits(was) == w, was, w.astype(np.int64) << MORE_BITS)
        moved = was - product * np.sign(g.astype(np.int64))
        kept = np.clip(moved, -LARGEST << MORE_BITS, LARGEST << MORE_BITS)
        total = np.minimum(count.astype(np.int64) + int((kept != moved).sum()), 2**31 - 1)
        return upper_bits(kept).astype(np.int8), kept.astype(np.int32), total.astype(np.int32)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_stored_update", Elements(op.inputs[0].elements))


def upper_bits(stored: Any) -> Any:
    """The upper 8 of 24 bits, rounded to nearest, halves upwards."""
    return (stored + (1 << (MORE_BITS - 1))) >> MORE_BITS


WINDOW = 4  # steps


@register
class IntegerRescale(OpSpec):
    """The rule is of this project; Mandheling publishes none (Xu et al., MobiCom 2022, self-adaptive rescaling).

    Bits are found by a scan, and reused until a product clips more than one value in `TOLERATED`. It then scans its
    sums in the same step. After a window of `WINDOW` steps the bits fall to the most that a step of it needed.
    """

    summary = "The history of a rescaling for the next step, in place from (history, scale)"
    recomputable = False
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.inputs != (HISTORY, LONG_SCALE):
            raise ValueError(f"a history and a scale of six numbers are wanted, not {op.inputs}")
        return op.inputs[:1]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        bits, left, most, scans = (int(n) for n in inputs[0])
        _, _, used, shift, is_scanned, top = (int(n) for n in inputs[1])
        if is_scanned:
            bits, left, most, scans = used, WINDOW, 0, min(scans + 1, 2**31 - 1)
        else:
            left, most = left - 1, max(most, max(shift, 0) + top)
            if left == 0:
                bits, left, most = min(bits, most), WINDOW, 0
        return (np.array([bits, left, most, scans], np.int32),)

    def work(self, op: Bound) -> Work:
        return Work(flops=8)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_rescale", Elements(WINDOW))


@register
class ClippedCount(OpSpec):
    summary = "The count of clipped values, one i32, in place from (count, scales...): those of the scales are added"
    recomputable = False
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.inputs[0].dtype is not DType.I32 or op.inputs[0].elements != 1:
            raise ValueError(f"the count is one i32, not {op.inputs[0]}")
        if any(t not in (SCALE, LONG_SCALE) for t in op.inputs[1:]):
            raise ValueError("scales have four or six i32")
        return op.inputs[:1]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        total = int(inputs[0].reshape(())) + sum(int(scale[1]) for scale in inputs[1:])
        return (np.array([min(total, 2**31 - 1)], np.int32).reshape(inputs[0].shape),)

    def work(self, op: Bound) -> Work:
        return Work(flops=len(op.inputs))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_int8_clipped_count", Elements(len(op.inputs) - 1))
