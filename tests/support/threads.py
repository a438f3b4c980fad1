"""Builds of the runtime whose kernels share their work, however little it is."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.kernels import Case, KernelError, Library, build_library, library, run_kernel


def with_threads(path: Path, copy: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a library: its pool starts anew, with so many threads."""
    monkeypatch.setenv("POETC_THREADS", str(threads))
    shutil.copy(path, copy)
    return copy


# -O0 compiles in a third of the time. GCC warns there of signs that intrinsics change.
THREADED = ("-O0", "-Wno-sign-conversion", "-march=native", "-DPOETC_THREADS=5", "-DPOETC_THREADS_WORK=0", "-pthread")


def threaded_library(folder: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Up to five threads."""
    built = build_library(*THREADED)
    assert not built.failures
    path = with_threads(built.path, folder / "threads.so", threads, monkeypatch)
    return dataclasses.replace(built, path=path, dll=ctypes.CDLL(str(path)), threads=True)


def results(row: Case, lib: Library) -> list[bytes] | int:
    """What the kernel makes of single-precision inputs, or its error."""
    inputs = [x.astype(np.float32) if x.dtype == np.float64 else x for x in row.arrays()]
    try:
        return [y.tobytes() for y in run_kernel(row.kind, row.attributes, inputs, lib=lib)]
    except KernelError as error:
        return error.code


def require_same_bits(cases: Sequence[Case], folder: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case has the bits of one thread in so many."""
    lib = threaded_library(folder, threads, monkeypatch)
    for case in cases:
        alone = results(case, library())
        assert isinstance(alone, list), str(case)
        assert results(case, lib) == alone, str(case)
