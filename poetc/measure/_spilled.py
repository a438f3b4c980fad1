"""Arrays that wait in files, so that a comparison of a large model holds one tensor at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import numpy as np

from poetc.graph import Array

_PART = 1 << 18  # elements that are compared at once


class Spilled(MutableMapping[str, Array]):
    """By name arrays in files of `folder`, which is made; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._files: dict[str, Path] = {}

    def __setitem__(self, name: str, array: Array) -> None:
        path = self._files.setdefault(name, self._folder / f"{len(self._files)}.npy")
        np.save(path, array)

    def __getitem__(self, name: str) -> Array:
        array: Array = np.load(self._files[name])
        return array

    def digest(self, name: str) -> bytes:
        """`digest` of the array, which is not read as a whole."""
        with self._files[name].open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            read(file)
            total = hashlib.blake2b()
            while part := file.read(4 * _PART):
                total.update(part)
        return total.digest()

    def __delitem__(self, name: str) -> None:
        self._files.pop(name).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def digest(array: Array) -> bytes:
    """BLAKE2b hash of the array's bytes in memory order; the shape does not count."""
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def largest(array: Array) -> float:
    """The largest absolute value: 0 of an empty array, NaN where an element is."""
    flat = np.asarray(array).reshape(-1)
    parts = (flat[start : start + _PART] for start in range(0, flat.size, _PART))
    return float(np.max([np.max(np.abs(np.asarray(part, np.float64))) for part in parts], initial=0.0))


def largest_difference(a: Array, b: Array) -> float:
    """The largest absolute difference of two arrays of one size, in 64 bits. NaN where one is."""
    one, other = np.asarray(a).reshape(-1), np.asarray(b).reshape(-1)
    differences = [0.0]
    for start in range(0, one.size, _PART):
        rows = slice(start, start + _PART)
        differences.append(
            float(np.max(np.abs(np.asarray(one[rows], np.float64) - np.asarray(other[rows], np.float64))))
        )
    return float(np.max(differences))


def quotient_of_difference(a: Array, b: Array, divisor: float) -> Array:
    """(a - b) / divisor in 64 bits, rounded to 32."""
    one, other = np.asarray(a).reshape(-1), np.asarray(b).reshape(-1)
    quotient = np.empty(one.size, np.float32)
    for start in range(0, one.size, _PART):
        rows = slice(start, start + _PART)
        quotient[rows] = (np.asarray(one[rows], np.float64) - other[rows]) / divisor
    return quotient.reshape(np.shape(a))
