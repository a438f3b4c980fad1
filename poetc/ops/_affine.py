"""Integers of 8 bits with a scale and a zero point: the arithmetic of QDQ models, in numpy.

A code q stands for the real number scale · (q - zero). Weights have zero 0 and a scale for each output channel. All
operations on floats are of 32 bits, in one order, and rounding takes halves to the even number. So C has the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import Attribute, DType, TensorType
from poetc.ops._bound import Bound

LOWEST, HIGHEST = -128, 127


@dataclass(frozen=True, slots=True)
class Codes:
    """The scale and the zero point of an activation."""

    scale: float
    zero: int

    def attributes(self, prefix: str = "") -> dict[str, Attribute]:
        """As attributes of an operator, whose names begin with `prefix`."""
        return {f"{prefix}scale": self.scale, f"{prefix}zero": self.zero}

    def code(self, number: float) -> int:
        """The nearest code of a real number, clipped."""
        return int(requantized(np.float32(number) / np.float32(self.scale), self.zero))


def codes_of(op: Bound, prefix: str = "") -> Codes:
    """Scale and zero point in an operator's attributes. ValueError unless they are a float32 above 0, and an int8."""
    codes = Codes(op.get_float(f"{prefix}scale"), op.get_int(f"{prefix}zero"))
    if not (0 < codes.scale < math.inf and codes.scale == float(np.float32(codes.scale))):
        raise ValueError(f"{prefix}scale {codes.scale} is no number of 32 bits above 0")
    if not LOWEST <= codes.zero <= HIGHEST:
        raise ValueError(f"{prefix}zero {codes.zero} is not from {LOWEST} to {HIGHEST}")
    return codes


def bounds_of(op: Bound) -> tuple[int, int]:
    """The codes `low` and `high` that a result is clipped to. Raises ValueError where they are none."""
    low, high = op.get_int("low", LOWEST), op.get_int("high", HIGHEST)
    if not LOWEST <= low <= high <= HIGHEST:
        raise ValueError(f"{low} to {high} are no codes of 8 bits")
    return low, high


def requantized(v: Any, zero: int, low: int = LOWEST, high: int = HIGHEST) -> Any:
    """Codes of real numbers in units of the scale: round(v) + zero, clipped to [low, high]; NaN becomes the lowest."""
    least, most = np.float32(low - zero), np.float32(high - zero)
    v = np.asarray(v, np.float32)
    v = np.where(v > least, v, least)
    v = np.where(v < most, v, most)
    return (np.rint(v).astype(np.int32) + zero).astype(np.int8)


def real(q: Any, codes: Codes) -> Any:
    """The real numbers of codes, in floats of 32 bits."""
    return (q.astype(np.int32) - codes.zero).astype(np.float32) * np.float32(codes.scale)


def by_channel(numbers: Any, like: Any) -> Any:
    """One number for each index of the first axis, in a shape that broadcasts with `like`."""
    return np.asarray(numbers, np.float32).reshape(-1, *([1] * (like.ndim - 1)))


def check_codes(name: str, tensor: TensorType) -> None:
    """ValueError unless the tensor holds codes."""
    if tensor.dtype is not DType.I8:
        raise ValueError(f"{name} is of {tensor.dtype}, not of i8")


def check_scales(scales: TensorType, weight: TensorType) -> None:
    """ValueError unless there is one scale for each output channel."""
    if scales.dtype is not DType.F32 or scales.shape != weight.shape[:1]:
        raise ValueError(f"the scales are {scales.shape} of {scales.dtype}, not f32 for {weight.shape[0]} channels")
