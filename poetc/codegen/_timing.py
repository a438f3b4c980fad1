"""How long every instruction of a program takes on this machine."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from poetc.codegen._host import HostModel, compile_library
from poetc.codegen._interpret import sample_inputs
from poetc.codegen.program import Program
from poetc.errors import CheckFailed, UsageError
from poetc.graph import Value
from poetc.runtime import runtime_directory


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Processor time in ns: of each instruction and of a whole step, each the median over the repeats."""

    instruction_ns: tuple[int, ...]
    step_ns: int
    repeats: int


class _Measurement(ctypes.Structure):
    _fields_ = [("start", ctypes.c_int64), ("step_ns", ctypes.c_void_p)]


class TimedModel(HostModel):
    """A HostModel whose observer takes times instead of gradients."""

    def time(self, library: Path, repeats: int, seed: int = 0) -> StepTimes:
        """Train `repeats` steps after one that is not counted."""
        observer = ctypes.CDLL(str(library))
        observer.poetc_measure_overhead.restype = ctypes.c_int64
        overhead_ns = int(observer.poetc_measure_overhead(ctypes.c_uint32(1000)))
        times = np.zeros((repeats + 1, max(1, len(self.program.instructions))), np.int64)
        measurement = _Measurement()
        self._config.observer = ctypes.cast(observer.poetc_measure, ctypes.c_void_p).value
        self._config.observer_context = ctypes.addressof(measurement)
        inputs = sample_inputs(self.program, seed)
        try:
            for row in times:
                measurement.step_ns = row.ctypes.data
                self.run(inputs)
        finally:
            self._config.observer = self._config.observer_context = None
        times = np.maximum(times[1:, : len(self.program.instructions)] - overhead_ns, 0)
        by_instruction = tuple(round(float(t)) for t in np.median(times, axis=0))
        return StepTimes(by_instruction, round(float(np.median(times.sum(axis=1)))), repeats)


def compile_observer(directory: Path, cc: str | None = None) -> Path:
    """Build the observer as a shared library."""
    runtime = runtime_directory()
    library = directory / "libpoetc_measure.so"
    source = runtime / "ports" / "measure" / "poetc_measure.c"
    words = [cc or os.environ.get("CC", "cc"), "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    words += [f"-I{runtime / 'include'}", "-o", str(library), str(source)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError(f"{words[0]} not found: install a C compiler to measure on this machine") from None
    if done.returncode:
        raise CheckFailed(f"the timer does not build: {' | '.join(done.stderr.strip().splitlines()[:5])}")
    return library


def host_simd(cflags: str, cc: str | None = None) -> Literal["none", "sse", "avx2", "avx512", "neon"]:
    """The vectors that `cflags` compile for on this machine, as profiles call them. Raises UsageError."""
    words = [cc or os.environ.get("CC", "cc"), *cflags.split(), "-dM", "-E", "-x", "c", os.devnull]
    try:
        macros = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        raise UsageError(f"{words[0]} not found: install a C compiler to measure on this machine") from None
    if "__AVX512F__" in macros:
        return "avx512"
    if "__AVX__" in macros:
        return "avx2"
    return "sse" if "__SSE2__" in macros else "neon" if "__aarch64__" in macros else "none"


def time_program(
    program: Program, values: Mapping[str, Value], *, repeats: int = 9, cc: str | None = None, cflags: str = "-O2"
) -> StepTimes:
    """Compile `program` for this machine, train on made-up inputs and take the times of its instructions."""
    with tempfile.TemporaryDirectory(prefix="poetc-timing-") as scratch:
        directory = Path(scratch)
        library = compile_library([program], values, directory, cc=cc, cflags=cflags)
        model = TimedModel(library, [program], values)
        with model:
            return model.time(compile_observer(directory, cc), repeats)
