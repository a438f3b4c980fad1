"""Blocks of GGUF as codes, scales and zero points: x = (q - zero) · scale.

Layouts: ggml-common.h and ggml-quants.c of llama.cpp. A block of 32 numbers has its low halves of bytes first, then its
high ones. Scales are products of a float of 16 bits and an integer, which 32 bits hold without loss. Where a
block adds a smallest number m, the zero point is -m / scale, a float that is rounded to 24 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from poetc.graph import Array

_SUPER = 256  # numbers of a block of blocks


@dataclass(frozen=True, slots=True)
class Blocks:
    """`codes` [rows, depth] of `bits` bits; `scales` and `zeros` [rows, blocks]; without zeros half of the range."""

    bits: int
    block: int
    codes: Array
    scales: Array
    zeros: Array | None = None

    def decoded(self) -> Array:
        zero = np.float32(2 ** (self.bits - 1)) if self.zeros is None else np.repeat(self.zeros, self.block, 1)
        return np.asarray((self.codes.astype(np.float32) - zero) * np.repeat(self.scales, self.block, 1), np.float32)


def _f16(raw: Array) -> Array:
    """Two bytes each as a float of 32 bits."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _halves(raw: Array) -> Array:
    """Low halves of bytes, then high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _rows(parts: Array, rows: int) -> Array:
    return np.ascontiguousarray(parts.reshape(rows, -1))


def _with_least(bits: int, block: int, codes: Array, scale: Array, least: Array) -> Blocks:
    """x = scale · q + least. Where the scale is 0, the number is the least one."""
    flat = scale == 0
    used = np.where(flat, np.where(least == 0, 1, least), scale).astype(np.float32)
    zeros = np.where(flat, np.where(least == 0, 0, -1), -least / used).astype(np.float32)
    codes = np.where(np.repeat(flat, block, axis=1), 0, codes).astype(np.uint8)
    return Blocks(bits, block, codes, used, zeros)


def _q4_0(raw: Array, rows: int) -> Blocks:
    parts = raw.reshape(rows, -1, 18)
    return Blocks(4, 32, _rows(_halves(parts[..., 2:]), rows), _rows(_f16(parts[..., :2]), rows))


def _q4_1(raw: Array, rows: int) -> Blocks:
    parts = raw.reshape(rows, -1, 20)
    scale, least = (_rows(_f16(parts[..., a : a + 2]), rows) for a in (0, 2))
    return _with_least(4, 32, _rows(_halves(parts[..., 4:]), rows), scale, least)


def _fifth_bits(raw: Array) -> Array:
    """The fifth bit of each of 32 numbers, out of four bytes."""
    return np.unpackbits(np.ascontiguousarray(raw), axis=-1, bitorder="little")


def _q5_0(raw: Array, rows: int) -> Blocks:
    parts = raw.reshape(rows, -1, 22)
    codes = _halves(parts[..., 6:]) + (_fifth_bits(parts[..., 2:6]) << 4) + 112  # zero is 16; of 8 bits it is 128
    return Blocks(8, 32, _rows(codes, rows), _rows(_f16(parts[..., :2]), rows))


def _q5_1(raw: Array, rows: int) -> Blocks:
    parts = raw.reshape(rows, -1, 24)
    codes = _halves(parts[..., 8:]) + (_fifth_bits(parts[..., 4:8]) << 4)
    scale, least = (_rows(_f16(parts[..., a : a + 2]), rows) for a in (0, 2))
    return _with_least(8, 32, _rows(codes, rows), scale, least)


def _q8_0(raw: Array, rows: int) -> Blocks:
    parts = raw.reshape(rows, -1, 34)
    codes = (parts[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    return Blocks(8, 32, _rows(codes, rows), _rows(_f16(parts[..., :2]), rows))


def _k_scales(raw: Array) -> tuple[Array, Array]:
    """Eight scales and eight least numbers of 6 bits, out of twelve bytes."""
    low, middle, high = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=-1)
    leasts = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], axis=-1)
    return scales.astype(np.float32), leasts.astype(np.float32)


def _k_least(raw: Array, rows: int, bits: int, codes: Array) -> Blocks:
    scales, leasts = _k_scales(raw[..., 4:16])
    scale, least = (_rows(_f16(raw[..., a : a + 2]) * s, rows) for a, s in ((0, scales), (2, leasts)))
    return _with_least(bits, 32, _rows(codes, rows), scale, -least)


def _q4_k(raw: Array, rows: int) -> Blocks:
    parts = raw.reshape(rows, -1, 144)
    return _k_least(parts, rows, 4, _halves(parts[..., 16:].reshape(*parts.shape[:2], 4, 32)))


def _q5_k(raw: Array, rows: int) -> Blocks:
    parts = raw.reshape(rows, -1, 176)
    codes = _halves(parts[..., 48:].reshape(*parts.shape[:2], 4, 32)).reshape(*parts.shape[:2], 8, 32)
    high = parts[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _k_least(parts, rows, 8, codes + (high << 4))


def _q6_k(raw: Array, rows: int) -> Blocks:
    """Blocks of 16 numbers of 6 bits, which take 8."""
    parts = raw.reshape(rows, -1, 210)
    low, high = parts[..., :128].reshape(*parts.shape[:2], 2, 64), parts[..., 128:192].reshape(*parts.shape[:2], 2, 32)
    fours = np.concatenate([low[..., :32] & 15, low[..., 32:] & 15, low[..., :32] >> 4, low[..., 32:] >> 4], axis=-1)
    twos = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    codes = fours + (twos << 4) + 96  # zero is 32; of 8 bits it is 128
    scales = np.ascontiguousarray(parts[..., 192:208]).view(np.int8).astype(np.float32)
    return Blocks(8, 16, _rows(codes, rows), _rows(scales * _f16(parts[..., 208:]), rows))


BLOCKS: dict[str, Callable[[Array, int], Blocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
FLOATS = {"F32": np.float32, "F16": np.float16}
