"""Integers with one exponent a tensor: the arithmetic of NITI, in numpy.

A tensor of real numbers is q · 2^e: q is a tensor of i8 from -127 to 127, and e one integer. The exponent travels in a
tensor of its own, the *scale*, an i32[4]. Its numbers are the exponent, the count of values clipped to ±127, the bits
of the 32-bit sums, and their shift to 8 bits.

Source: Wang, Rasoulinezhad, Leong and So, "NITI: Training Integer Neural Networks Using Integer-only Arithmetic",
IEEE TPDS 2022. Divisions truncate towards zero there, so magnitudes are shifted here, and signs put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import DType, TensorType
from poetc.ops._bound import Bound
from poetc.ops._registry import OpSpec

LARGEST = 127
VALUE_BITS = 7  # of a magnitude
MOST_PRODUCTS = (2**31 - 1) // (128 * 127)  # that a sum of 32 bits holds for certain
MOST_LONG_PRODUCTS = 2**30  # of a sum whose total has 64 bits
MOST_SHIFT, MOST_LONG_SHIFT = 31, 62  # of a sum of 32 and of 64 bits: a larger one leaves nothing
LARGEST_EXPONENT = 100  # beyond it a float of 32 bits may not hold the value
ROUNDINGS = ("nearest", "stochastic")
SCALE = TensorType((4,), DType.I32)
LONG_SCALE = TensorType((6,), DType.I32)  # whether the sums were scanned, and the bits of the values, besides
HISTORY = TensorType((4,), DType.I32)  # the bits that are reused, for how many steps, the most since, scans so far
TOLERATED = 1000  # one clipped value in so many is no reason for a scan
RESCALES = ("every", "interval")


class Rescaling(OpSpec):
    """A kind that takes 32-bit sums to 8 bits; `rounding` says how. The last output is the scale.

    `purpose` tells whose rounding it is: that of activations, of errors or of updates; "" leaves it to the phase. The
    attribute `rescale` of a kind that `may_adapt` may be "interval". Then the last input is a history, which gives the
    bits of the sums while it lasts, and the scale has six numbers.
    """

    purpose = ""
    may_adapt = False

    def own_inputs(self, op: Bound) -> tuple[TensorType, ...]:
        """Without the history. Raises ValueError where it does not fit."""
        if not adapts(op):
            return op.inputs
        if not self.may_adapt or not op.inputs or op.inputs[-1] != HISTORY:
            raise ValueError("rescale interval: the last input is a history of four i32")
        return op.inputs[:-1]

    def scale_type(self, op: Bound) -> TensorType:
        return LONG_SCALE if adapts(op) else SCALE


def adapts(op: Bound) -> bool:
    """Whether the bits of the sums are reused. Raises ValueError for an unknown `rescale`."""
    rescale = op.get_str("rescale", "every")
    if rescale not in RESCALES:
        raise ValueError(f"rescale {rescale!r}: choose from {', '.join(RESCALES)}")
    return rescale == "interval"


def history_of(op: Bound, inputs: Sequence[Any]) -> Any | None:
    """The history, where the operator has one."""
    return inputs[-1] if adapts(op) else None


def rounding_of(op: Bound) -> str:
    """The attribute `rounding`: nearest (the default) or stochastic. Raises ValueError for another."""
    rounding = op.get_str("rounding", "nearest")
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding {rounding!r}: choose from {', '.join(ROUNDINGS)}")
    return rounding


def check_pair(name: str, q: TensorType, scale: TensorType) -> None:
    """ValueError unless `q` is of i8 and `scale` begins with its exponent."""
    if q.dtype is not DType.I8:
        raise ValueError(f"{name} is of {q.dtype}, not of i8")
    if scale.dtype is not DType.I32 or scale.elements < 1:
        raise ValueError(f"the scale of {name} is {scale.shape} of {scale.dtype}, not an exponent of i32")


def exponent(scale: Any) -> int:
    return int(scale.reshape(-1)[0])


def bits_of(sums: Any) -> int:
    """ceil(log2 max|sums|); 0 where all are 0."""
    largest = int(np.abs(sums.astype(np.int64)).max(initial=0))
    return (largest - 1).bit_length() if largest > 1 else 0


def rounded(sums: Any, shift: int, rounding: str, most: int = LARGEST, most_shift: int = MOST_SHIFT) -> tuple[Any, int]:
    """sums / 2^shift as i8, and how many values were clipped to ±most; a shift below 1 shifts nothing.

    Nearest takes halves away from zero. Pseudo-stochastic compares the upper half of the bits that go with the lower
    half, which stands for a random number.
    """
    magnitude = np.abs(sums.astype(np.int64))
    if shift > most_shift:
        magnitude = np.zeros_like(magnitude)
    elif shift > 0 and rounding == "nearest":
        magnitude = (magnitude + (1 << (shift - 1))) >> shift
    elif shift > 0:
        rest, half = magnitude & ((1 << shift) - 1), shift // 2
        low = (rest & ((1 << half) - 1)) << (shift & 1)
        magnitude = (magnitude >> shift) + ((rest >> half) > low)
    clipped = int((magnitude > most).sum())
    return (np.minimum(magnitude, most) * np.sign(sums)).astype(np.int8), clipped


def rescaled(sums: Any, sums_exponent: int, rounding: str, history: Any = None) -> tuple[Any, Any]:
    """`sums`, in units of 2^sums_exponent, as integers of 8 bits, with their scale.

    Raises ValueError where the exponent overflows.
    """
    bits, is_scanned = _bits_by(sums, history)
    shift = max(bits - VALUE_BITS, 0)
    q, clipped = rounded(sums, shift, rounding)
    if not is_scanned and clipped > q.size // TOLERATED:
        return rescaled(sums, sums_exponent, rounding, np.zeros(HISTORY.shape, np.int32))
    scale = scale_of(sums_exponent + shift, clipped, bits, shift)
    return q, scale if history is None else _longer(scale, is_scanned, q)


def _bits_by(sums: Any, history: Any) -> tuple[int, bool]:
    if history is not None and int(history[1]) > 0:
        return int(history[0]), False
    return bits_of(sums), True


def _longer(scale: Any, is_scanned: bool, q: Any) -> Any:
    return np.array([*scale, is_scanned, bits_of(q)], np.int32)


def scale_of(value_exponent: int, clipped: int, bits: int, shift: int) -> Any:
    """The scale as an array. Raises ValueError where the exponent overflows; one below the least counts as that."""
    if value_exponent > LARGEST_EXPONENT:
        raise ValueError(f"the exponent {value_exponent} is above {LARGEST_EXPONENT}")
    return np.array([max(value_exponent, -LARGEST_EXPONENT), clipped, bits, shift], np.int32)


def update_bits(rate: Any) -> int:
    """Bits of the largest update at a learning rate: 7 + floor(log2 rate), at most 7; NITI calls them µ."""
    _, power = np.frexp(np.float32(rate.reshape(())))
    return min(VALUE_BITS, VALUE_BITS + int(power) - 1) if rate.reshape(()) > 0 else -128


def update_of(sums: Any, rate: Any, rounding: str, history: Any = None, *, is_long: bool = False) -> tuple[Any, Any]:
    """The sums of a weight's gradient as an update of `update_bits` bits, and its scale, whose exponent is 0.

    `is_long`: the sums have 64 bits.
    """
    bits, is_scanned = _bits_by(sums, history)
    largest_bits = update_bits(rate)
    shift = bits - largest_bits
    most_shift = MOST_LONG_SHIFT if is_long else MOST_SHIFT
    q, clipped = rounded(sums, shift, rounding, min(LARGEST, 1 << max(largest_bits, 0)), most_shift)
    if not is_scanned and clipped > q.size // TOLERATED:
        return update_of(sums, rate, rounding, np.zeros(HISTORY.shape, np.int32), is_long=is_long)
    scale = scale_of(0, clipped, bits, shift)
    return q, scale if history is None else _longer(scale, is_scanned, q)


class SumTooLongError(ValueError):
    """A sum of more terms than an integer of 32 bits holds for certain: the model's size is at fault."""


def check_products(count: int, reason: str, most: int = MOST_PRODUCTS) -> None:
    """SumTooLongError where a sum of so many products may overflow."""
    if count > most:
        raise SumTooLongError(f"sums of {count:,} products are not certain to fit, {most:,} are: {reason}")
