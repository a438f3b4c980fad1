"""Kernels between pages that may not be touched: they read and write what they were given, and nothing beside it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from poetc.kernels.convolution_turned import selection as turned
from poetc.kernels.convolution_winograd import selection as winograd
from poetc.kernels.gemm import packing as packed_operands
from poetc.ops import Kernel, spec
from tests.host_c.test_threads import LARGE
from tests.kernels import test_convolution_turned, test_convolution_winograd, test_gemm_packing
from tests.ops.test_cases import KERNEL_CASES
from tests.support.kernels import AnyArray, Case, Library, _Call, bind_kind, library, scalar_library, wide_library

PAGE = mmap.PAGESIZE
ROOM_BYTES = 64 << 20
LIBRARIES = {"vectors": library, "wide": wide_library, "scalar": scalar_library}


class Fenced:
    """Memory whose every second stretch of pages is out of bounds."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, ROOM_BYTES)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.protect = ctypes.CDLL(None, use_errno=True).mprotect
        self.protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def lay_out(self, sizes: Sequence[int], at_end: bool) -> list[int]:
        """Offsets of operands, each between two fences: up to the one behind it (in units of 16 bytes) or from the one
        before it on. All is NaN.
        """
        assert self.protect(self.base, ROOM_BYTES, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        offsets, fences, end = [], [0], PAGE
        for size in sizes:
            held = -(-max(size, 1) // 16) * 16
            pages = -(-held // PAGE) * PAGE
            offsets.append(end + pages - held if at_end else end)
            fences.append(end + pages)
            end += pages + PAGE
        assert end <= ROOM_BYTES
        ctypes.memset(self.base, 0xFF, end)
        for fence in fences:
            assert self.protect(self.base + fence, PAGE, 0) == 0
        return offsets

    def run(self, kernel: Kernel, case: Case, lib: Library, at_end: bool) -> None:
        inputs = single(case)
        op, overwritten = bind_kind(case.kind, case.attributes, inputs), {o: i for i, o in spec(case.kind).must_alias}
        own = [t.size_bytes for o, t in enumerate(op.outputs) if o not in overwritten]
        room = [kernel.workspace_bytes] if kernel.workspace_bytes else []
        places = self.lay_out([*(x.nbytes for x in inputs), *own, *room], at_end)
        offsets, rest = places[: len(inputs)], iter(places[len(inputs) :])
        for offset, x in zip(offsets, inputs, strict=True):
            ctypes.memmove(self.base + offset, x.tobytes(), x.nbytes)
        offsets += [offsets[overwritten[o]] if o in overwritten else next(rest) for o in range(len(op.outputs))]
        refs = [offset // 16 << 1 for offset in (*offsets, *rest)]
        call = _Call(
            (ctypes.c_uint32 * len(refs))(*refs),
            (ctypes.c_int32 * max(1, len(kernel.ints)))(*kernel.ints),
            (ctypes.c_float * max(1, len(kernel.floats)))(*kernel.floats),
            self.base,
            None,
        )
        lib.function(kernel.symbol)(ctypes.byref(call))


def single(case: Case) -> list[AnyArray]:
    return [x.astype(np.float32) if x.dtype == np.float64 else x for x in case.arrays()]


def bound(case: Case) -> Kernel:
    return spec(case.kind).kernel(bind_kind(case.kind, case.attributes, single(case)))


def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Case, Kernel]]:
    """As bound by default, then as where operands are large."""
    for case in (*KERNEL_CASES, *LARGE):
        yield case, bound(case)
    monkeypatch.setattr(packed_operands, "SHARE", 0)
    for case in (*test_gemm_packing.CASES, *test_gemm_packing.LARGE, *test_gemm_packing.LOW_WORKSPACE):
        yield case, bound(case)
    for name, value in (("LEAST_BYTES", 0), ("SHARE", 0)):
        monkeypatch.setattr(turned, name, value)
    for case in test_convolution_turned.CASES:
        yield case, bound(case)
    for name, value in (("LEAST_BYTES", 0), ("SHARE", 1e9), ("DIRECT", 1e9)):
        monkeypatch.setattr(winograd, name, value)
    for case in test_convolution_winograd.CASES:
        yield case, bound(case)


def in_a_child(work: Callable[[], None]) -> int:
    """The signal that ends it; 0 if it returns, 1 if it raises."""
    child = os.fork()
    if child == 0:
        for number in (signal.SIGSEGV, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


@pytest.mark.parametrize("at_end", [True, False], ids=["before a fence", "behind one"])
@pytest.mark.parametrize("vectors", LIBRARIES)
@pytest.mark.long_but("vectors-before a fence", "scalar-behind one")
def test_nothing_beside_the_operands(
    vectors: str, at_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib, fenced, log = LIBRARIES[vectors](), Fenced(), tmp_path / "case"
    todo = list(calls(monkeypatch))
    assert len(todo) > 1000
    assert {"_packed", "_turned", "_winograd"} <= {f"_{kernel.symbol.rpartition('_')[2]}" for _, kernel in todo}

    def work() -> None:
        with log.open("w") as file:
            for case, kernel in todo:
                file.seek(0)
                file.write(f"{kernel.symbol}: {case}\n")
                file.flush()
                fenced.run(kernel, case, lib, at_end)

    assert in_a_child(work) == 0, log.read_text().splitlines()[0]


def test_fences_hold() -> None:
    """16 bytes less than the kernel reads or writes, and it ends."""
    case = next(case for case in LARGE if case.kind == "Relu")
    kernel, fenced = bound(case), Fenced()
    lay_out = fenced.lay_out
    for operand in (0, 1):

        def shorter(sizes: Sequence[int], at_end: bool, operand: int = operand) -> list[int]:
            return lay_out([n - 16 if i == operand else n for i, n in enumerate(sizes)], at_end)

        fenced.lay_out = shorter  # type: ignore[method-assign]
        assert in_a_child(lambda: fenced.run(kernel, case, library(), True)) in (signal.SIGSEGV, signal.SIGBUS)
