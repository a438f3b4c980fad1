"""Slots and sources that the tests of data share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from poetc.datasets import Samples, Slot, open_source
from poetc.graph import DType
from poetc.program import Limit

IMAGE = Slot(name="x", shape=(4, 1, 2, 3), dtype=DType.F32, is_target=False, sample_shape=(1, 2, 3))
FEATURES = Slot(name="x", shape=(4, 3), dtype=DType.F32, is_target=False, sample_shape=(3,))
CLASS = Slot(name="t", shape=(4,), dtype=DType.I32, is_target=True, sample_shape=(), limit=Limit(0, 2, 0))
NUMBER = Slot(name="t", shape=(4, 1), dtype=DType.F32, is_target=True, sample_shape=(1,))


def images(count: int = 10) -> dict[str, np.ndarray]:
    """Each pixel of sample n is n; labels go round."""
    x = np.repeat(np.arange(count, dtype=np.float32), 6).reshape(count, 1, 2, 3)
    return {"x": x, "target": np.arange(count, dtype=np.int64) % 3}


def opened(text: object, *slots: Slot, **options: object) -> Samples:
    source = open_source(str(text), slots, lambda text: None, **options)  # type: ignore[arg-type]
    assert isinstance(source, Samples)
    return source


def stored(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path
