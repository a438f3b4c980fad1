"""Data that the model of `training_case` cannot be trained on, and the complaint about each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poetc.graph import Array
from poetc.program import sample_inputs
from tests.program.models import training_case

RECORDS = 3


def good() -> tuple[Array, Array]:
    program = training_case().program()
    batches = [sample_inputs(program, seed) for seed in range(RECORDS)]
    return np.stack([b["x"] for b in batches]), np.stack([b["target"] for b in batches])


def records(x: Array, y: Array) -> bytes:
    return b"".join(a.tobytes() + b.tobytes() for a, b in zip(x, y, strict=True))


def changed(array: Array, index: tuple[int, ...], value: float) -> Array:
    array = array.copy()
    array[index] = value
    return array


def size(size_bytes: int) -> str:
    """The complaint about a file of this size. A board does not say the size, for want of room."""
    return rf"data\.bin: ({size_bytes} bytes, no whole number of records of|a record is) 112"


X, Y = good()
BAD: Mapping[str, tuple[bytes | None, str]] = {
    "no file": (None, "data.bin"),
    "an empty file": (b"", size(0)),
    "too short for a step": (records(X, Y)[:50], size(50)),
    "cut short": (records(X, Y)[:-7], size(329)),
    "labels of 64 bits": (records(X, Y.astype(np.int64)), size(384)),
    "classes from 1": (records(X, changed(Y, (1, 2), 3)), r"data.bin: record 2: target\D*2\D* is 3, not 0 to 2"),
    "a negative class": (records(X, changed(Y, (2, 0), -1)), r"data.bin: record 3: target\D*0\D* is -1, not 0 to 2"),
    "more samples than labels": (X.tobytes() + Y[:2].tobytes(), size(320)),
    "all samples, then all labels": (
        X.tobytes() + Y.tobytes(),
        r"data.bin: record 1: target\D*0\D* is \d+, not 0 to 2",
    ),
    "a NaN": (records(changed(X, (1, 0, 0, 2), np.nan), Y), r"data.bin: record 2: x\D*2\D"),
    "an infinity": (records(changed(X, (0, 0, 0, 2), -np.inf), Y), r"data.bin: record 1: x\D*2\D"),
    "numbers that the loss cannot take": (records(X * np.float32(1e30), Y), "the loss is (nan|inf|no number)"),
}
