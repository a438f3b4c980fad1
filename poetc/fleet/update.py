"""A client's update as integers: the reference of `poetc_update.h`, and calls of the C.

The words of all clients are added up modulo a power of two, and the server finds the sum of their updates in that. So
masks that cancel each other in the sum can hide each client's words (Bell et al. 2020, SecAgg+).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from poetc.errors import CheckFailed, UsageError
from poetc.graph import Array
from poetc.ops.random import philox
from poetc.runtime.library import EINVAL, Library

LARGEST_RANGE = 1 << 30  # POETC_UPDATE_RANGE
LARGEST_MODULUS = 1 << 32
_UNIT = np.float32(1 << 24)


class _Update(ctypes.Structure):
    """`poetc_update`."""

    _fields_ = [
        ("clip", ctypes.c_float),
        ("factor", ctypes.c_float),
        ("range", ctypes.c_uint32),
        ("is_stochastic", ctypes.c_uint32),
        ("seed", ctypes.c_uint32),
        ("round", ctypes.c_uint32),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizer:
    """How numbers become words: -clip is 0, clip is `range`; they are multiplied by `factor` before.

    `modulus`: words with masks are below this power of two. `round` makes the random numbers of each round new.
    """

    clip: float
    range: int
    modulus: int = LARGEST_MODULUS
    factor: float = 1.0
    stochastic: bool = True
    seed: int = 0
    round: int = 0

    def __post_init__(self) -> None:
        scale = np.float32(self.range) / (np.float32(2) * np.float32(self.clip)) if self.clip else np.inf
        if not 0 < self.clip < np.inf or not np.isfinite(scale):
            raise UsageError(f"clipping range {self.clip:g}: must be a number above 0")
        if not 2 <= self.range <= LARGEST_RANGE or self.range % 2:
            raise UsageError(f"target range {self.range}: must be even, 2 to {LARGEST_RANGE}")
        if not self.range < self.modulus <= LARGEST_MODULUS or self.modulus & (self.modulus - 1):
            raise UsageError(
                f"modulus range {self.modulus}: must be a power of two, above the target range {self.range} and at most"
                f" {LARGEST_MODULUS}"
            )

    @property
    def mask(self) -> int:
        """The bits that a word has."""
        return self.modulus - 1

    @property
    def _c(self) -> _Update:
        word = 0xFFFFFFFF
        return _Update(self.clip, self.factor, self.range, self.stochastic, self.seed & word, self.round & word)

    def bytes(self) -> bytes:
        """The structure `poetc_update` as a board with little-endian numbers of 32 bits has it."""
        return bytes(self._c)

    def codes(self, after: Array, before: Array | None = None, first: int = 0) -> Array:
        """The words of an update, in numpy. `first`: the number of its first element in the whole update."""
        numbers = after.reshape(-1).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            if before is not None:
                numbers = numbers - before.reshape(-1).astype(np.float32)
            numbers = numbers * np.float32(self.factor)
        if not np.isfinite(numbers).all():
            raise CheckFailed("the update holds a number that is not finite: the training diverged")
        clip, half = np.float32(self.clip), self.range // 2
        numbers = np.clip(numbers, -clip, clip) * (np.float32(self.range) / (np.float32(2) * clip))
        whole = np.floor(numbers)
        part = numbers - whole
        if self.stochastic:
            random_bits = philox(first + numbers.size, self.seed, self.round)[first:]
            up = (random_bits >> np.uint32(8)).astype(np.float32) < part * _UNIT
        else:
            up = part >= np.float32(0.5)
        result: Array = (np.clip(whole.astype(np.int64) + up, -half, half) + half).astype(np.uint32)
        return result

    def codes_in_c(self, library: Library, after: Array, before: Array | None = None, first: int = 0) -> Array:
        """The same by the C of an emitted library."""
        now = np.ascontiguousarray(after, np.float32).reshape(-1)
        then = None if before is None else np.ascontiguousarray(before, np.float32).reshape(-1)
        quantized = np.empty(now.size, np.uint32)
        update = self._c
        code = library.dll.poetc_update_quantize(
            ctypes.byref(update),
            ctypes.c_void_p(now.ctypes.data),
            ctypes.c_void_p(None if then is None else then.ctypes.data),
            ctypes.c_uint32(first),
            ctypes.c_uint32(now.size),
            ctypes.c_void_p(quantized.ctypes.data),
        )
        if code:
            assert code != EINVAL, self
            raise CheckFailed("the update holds a number that is not finite: the training diverged")
        return quantized

    def masked_in_c(self, library: Library, codes: Array, terms: Array) -> Array:
        """The words with the terms of a mask added, by the C of an emitted library."""
        result = np.ascontiguousarray(codes, np.uint32).copy()
        mask = np.ascontiguousarray(terms, np.uint32).reshape(-1)
        library.dll.poetc_update_add(
            ctypes.c_void_p(result.ctypes.data),
            ctypes.c_void_p(mask.ctypes.data),
            ctypes.c_uint32(result.size),
            ctypes.c_uint32(self.mask),
        )
        return result

    def numbers(self, codes: Array, clients: int = 1) -> Array:
        """The sum of the clients' numbers, from the sum of their words without masks."""
        return np.asarray(codes, np.float64) * (2 * self.clip / self.range) - clients * self.clip
