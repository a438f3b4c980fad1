"""How long every instruction of a program takes on this machine."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from poetc.boards import Numerics, telling
from poetc.errors import CheckFailed, UsageError
from poetc.files import scratch_directory
from poetc.graph import Array, Value
from poetc.measure._host import HostModel, compile_library, compiler_words
from poetc.program import Program, sample_inputs
from poetc.runtime import runtime_directory

MOST_REPEATS, ENOUGH_NS = 50, 20_000_000  # of steps that are soon done
MOST_OVERHEAD = 2  # As a multiple of an empty measurement.


@dataclass(frozen=True, slots=True)
class StepTimes:
    """In ns: the time of each instruction, and processor time of whole steps that nobody observes.

    Each is the median over the repeats; an instruction's time excludes the time that taking it costs.
    """

    instruction_ns: tuple[int, ...]
    step_ns: int
    repeats: int


class _Measurement(ctypes.Structure):
    _fields_ = [("start", ctypes.c_int64), ("instruction_ns", ctypes.c_void_p)]


class TimedModel(HostModel):
    """A HostModel whose observer takes times instead of gradients."""

    def time(self, library: Path, repeats: int, seed: int = 0) -> StepTimes:
        """Train at least `repeats` steps that are observed and as many that are not, in turn.

        It trains more of short steps. The first of each kind is not counted.
        """
        observer = ctypes.CDLL(str(library))
        observer.poetc_measure_overhead.restype = ctypes.c_int64
        least_ns = int(observer.poetc_measure_overhead(ctypes.c_uint32(1000)))
        count = len(self.program.instructions)
        row = np.zeros(max(1, count), np.int64)
        measurement = _Measurement(instruction_ns=row.ctypes.data)
        rows: list[Array] = []
        steps_ns: list[int] = []
        measure = ctypes.cast(observer.poetc_measure, ctypes.c_void_p).value
        self._config.observer_context = ctypes.addressof(measurement)
        inputs = sample_inputs(self.program, seed)
        try:
            while len(rows) <= repeats or (len(rows) <= MOST_REPEATS and sum(steps_ns) < ENOUGH_NS):
                self._config.observer = measure
                self.run(inputs)
                rows.append(row.copy())
                self._config.observer = None
                self.run(inputs)
                steps_ns.append(self.run_ns)
        finally:
            self._config.observer = self._config.observer_context = None
        step_ns = round(float(np.median(steps_ns[1:])))
        observed_ns = np.median(np.array(rows)[1:, :count], axis=0)
        # The sum of many short instructions shows the cost of observing each better than empty measurements do.
        more_ns = (float(observed_ns.sum()) - step_ns) / max(1, count)
        times = np.maximum(observed_ns - np.clip(more_ns, least_ns, MOST_OVERHEAD * least_ns), 0)
        return StepTimes(tuple(round(float(t)) for t in times), step_ns, len(rows) - 1)


def compile_observer(directory: Path) -> Path:
    """Build the observer as a shared library."""
    runtime = runtime_directory()
    library = directory / "libpoetc_measure.so"
    source = runtime / "ports" / "measure" / "poetc_measure.c"
    command = [*compiler_words(), "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command += [f"-I{runtime / 'include'}", "-o", str(library), str(source)]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError(f"{command[0]} not found: install a C compiler to measure on this machine") from None
    if completed.returncode:
        raise CheckFailed(f"the timer does not build: {' | '.join(telling(completed.stderr.strip().splitlines()))}")
    return library


def host_simd(cflags: str) -> Literal["none", "sse", "avx2", "avx512", "neon"]:
    """The vectors that `cflags` compile for on this machine, as profiles call them. Raises UsageError."""
    command = [*compiler_words(), *cflags.split(), "-dM", "-E", "-x", "c", os.devnull]
    try:
        macros = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        raise UsageError(f"{command[0]} not found: install a C compiler to measure on this machine") from None
    if "__AVX512F__" in macros:
        return "avx512"
    if "__AVX__" in macros:
        return "avx2"
    return "sse" if "__SSE2__" in macros else "neon" if "__aarch64__" in macros else "none"


def time_program(
    program: Program,
    values: Mapping[str, Value],
    *,
    repeats: int = 9,
    cflags: str = "-O2",
    numerics: Numerics = "separate",
) -> StepTimes:
    """Compile `program` for this machine, train on made-up inputs and take the times of its instructions.

    On one processor, one instruction after another.
    """
    program = replace(program, queues=())
    with scratch_directory("poetc-timing-") as scratch:
        directory = scratch
        library = compile_library([program], values, directory, cflags=cflags, numerics=numerics)
        model = TimedModel(library, [program], values)
        with model:
            return model.time(compile_observer(directory), repeats)
