"""Codes: the numbers of a matrix in fewer bits, as a model file holds them or a rounding makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

F16, BF16 = "f16", "bf16"
_PART_NUMBERS = 1 << 22  # that are coded, or decoded, at once
BITS = {"int4": 4, "int8": 8, F16: 16, BF16: 16}


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """The numbers of a matrix [rows, depth], `form` "int4", "int8", "f16" or "bf16".

    Integers: code q stands for (q - zero) · scale. A block of `block` numbers along a row has a scale and a zero point;
    without `zeros` zero is half of the range. `codes` [rows, bytes of a row], two numbers of 4 bits a
    byte, the lower half first; `zeros` likewise, or floats [rows, blocks]. Floats of 16 bits have
    neither scales nor zeros, and `block` is 0.
    """

    form: str
    shape: tuple[int, int]
    codes: Array
    block: int = 0
    scales: Array | None = None  # f32 [rows, blocks]
    zeros: Array | None = None  # u8 [rows, bytes] or f32 [rows, blocks]

    @property
    def bits(self) -> int:
        return BITS[self.form]

    @property
    def size_bytes(self) -> int:
        return sum(a.nbytes for a in (self.codes, self.scales, self.zeros) if a is not None)

    def decoded(self) -> Array:
        """The numbers as f32 [rows, depth]."""
        return decode(self.form, self.block, self.shape[1], self.codes, self.scales, self.zeros)

    def error(self, numbers: Array) -> float:
        """The root mean square of the rounding of `numbers` [rows, depth], as a part of that of the numbers."""
        size = error = 0.0
        for rows in _parts(*self.shape):
            scales, zeros = (None if a is None else a[rows] for a in (self.scales, self.zeros))
            part = numbers[rows].astype(np.float64)
            size += float(np.square(part).sum())
            part -= decode(self.form, self.block, self.shape[1], self.codes[rows], scales, zeros)
            error += float(np.square(part).sum())
        return float(np.sqrt(error / (size or numbers.size or 1)))

    def turned(self) -> Coded | None:
        """The codes of the transposed matrix; None where blocks of a row would become blocks of a column."""
        if self.form not in (F16, BF16):
            return None
        halves = self.codes.view(np.uint16)
        return Coded(self.form, self.shape[::-1], np.ascontiguousarray(halves.T).view(np.uint8))


def pack(numbers: Array, bits: int) -> Array:
    """Rows of small integers as bytes."""
    numbers = np.asarray(numbers, np.uint8)
    if bits == 8:
        return np.ascontiguousarray(numbers)
    if numbers.shape[1] % 2:
        numbers = np.concatenate([numbers, np.zeros((len(numbers), 1), np.uint8)], 1)
    return np.ascontiguousarray(numbers[:, ::2] | numbers[:, 1::2] << 4)


def unpack(packed: Array, bits: int, count: int) -> Array:
    """The inverse of `pack`, for rows of `count` numbers."""
    if bits == 8:
        return packed
    both = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
    return both[:, :count]


def decode(form: str, block: int, depth: int, codes: Array, scales: Array | None, zeros: Array | None) -> Array:
    """The numbers of `Coded`, from its fields."""
    if form == F16:
        return codes.view(np.float16).astype(np.float32)
    if form == BF16:
        return (codes.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert scales is not None
    bits, result = BITS[form], np.empty((len(codes), depth), np.float32)
    for rows in _parts(len(codes), depth):
        few = scales[rows]
        zero = np.full(few.shape, 2 ** (bits - 1), np.float32) if zeros is None else zeros[rows]
        zero = unpack(zero, bits, few.shape[1]) if zero.dtype == np.uint8 else zero
        wide = [np.repeat(a.astype(np.float32), block, 1)[:, :depth] for a in (zero, np.asarray(few))]
        result[rows] = (unpack(codes[rows], bits, depth).astype(np.float32) - wide[0]) * wide[1]
    return result


def encode(values: Array, form: str, block: int = 32) -> Coded:
    """The nearest codes of a matrix: integers scaled by the largest number of each block, or rounded floats."""
    rows, depth = values.shape
    if form == F16:
        with np.errstate(over="ignore"):
            return Coded(form, (rows, depth), np.ascontiguousarray(values.astype(np.float16)).view(np.uint8))
    if form == BF16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return Coded(form, (rows, depth), np.ascontiguousarray(rounded.astype(np.uint16)).view(np.uint8))
    parts = [_encoded(values[part], BITS[form], block) for part in _parts(rows, depth)]
    codes, scales = (np.concatenate(each) if len(parts) > 1 else each[0] for each in zip(*parts, strict=True))
    return Coded(form, (rows, depth), codes, block, scales)


def _parts(rows: int, depth: int) -> Iterator[slice]:
    """All rows, a few at a time: copies of a whole table of embeddings would take gigabytes."""
    few = max(1, _PART_NUMBERS // max(1, depth))
    return (slice(start, start + few) for start in range(0, max(1, rows), few))


def _encoded(values: Array, bits: int, block: int) -> tuple[Array, Array]:
    """Codes and scales of some rows."""
    rows, depth = values.shape
    blocks = -(-depth // block)
    filled = np.zeros((rows, blocks * block), np.float32)
    filled[:, :depth] = values
    parts = filled.reshape(rows, blocks, block)
    most = np.abs(parts).max(2)
    half = 2 ** (bits - 1)
    scales = np.where(most > 0, most / (half - 1), 1).astype(np.float32)
    whole = np.clip(np.rint(parts / scales[..., None]), 1 - half, half - 1) + half
    return pack(whole.reshape(rows, -1)[:, :depth].astype(np.uint8), bits), scales
