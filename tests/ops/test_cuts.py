"""Every cut that a kind declares: blocks give the bits of the whole operator, on every kernel and target."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator

import numpy as np
import pytest

from poetc.ops import Bound, Cut, Kernel, OpSpec, Part, registry, spec
from poetc.ops.kernels import packed_operands, turned, winograd
from poetc.ops.kernels.blocks import beginning, block_kernel
from tests.ops.test_cases import CASES
from tests.ops.test_low_workspace import PACKING, TURNED, WINOGRAD, fast_library
from tests.support.kernels import (
    AnyArray,
    Case,
    Library,
    _Call,
    bind_kind,
    library,
    run_kernel,
    scalar_library,
    wide_library,
)

_NO_CUTS = OpSpec.cuts
CUT = [case for case in CASES if type(spec(case.kind)).cuts is not _NO_CUTS]


def run_blocks(
    op: Bound, kind: str, inputs: list[AnyArray], cut: Cut, kernel: Kernel, units: int, lib: Library
) -> list[AnyArray]:
    """The outputs of `kernel`, run once a block of `units`. Cut operands have windows, but for strided ones."""
    types, count = (*op.inputs, *op.outputs), len(op.inputs)
    replaced = {o: i for i, o in spec(kind).must_alias}
    whole = [
        *inputs,
        *(np.full(t.shape, np.nan if t.dtype.numpy == np.float32 else 0, t.dtype.numpy) for t in op.outputs),
    ]
    whole = [np.ascontiguousarray(a) for a in whole]
    for begin in range(0, cut.extent, units):
        here = min(units, cut.extent - begin)
        made = block_kernel(kernel, cut.name, here)
        assert made is not None
        made = beginning(made, begin)
        places, end = list[int](), 64
        blocks = []
        for n, (array, part) in enumerate(zip(whole, cut.parts, strict=True)):
            seen = array if part is None or part.is_strided else _view(array, cut, part)[:, begin : begin + here]
            blocks.append(np.ascontiguousarray(seen))
            if n >= count and n - count in replaced:
                places.append(places[replaced[n - count]])
                continue
            places.append(end)
            end += -(-blocks[-1].nbytes // 16) * 16 + 64
        places.append(end)
        end += made.workspace_bytes + 64
        arena = _aligned(end)
        for n, (place, block) in enumerate(zip(places, blocks, strict=False)):
            if n < count or n - count not in replaced:
                arena[place : place + block.nbytes] = np.frombuffer(block.tobytes(), np.uint8)
        refs = []
        for n, place in enumerate(places[:-1]):
            part = cut.parts[n]
            step = begin * part.inner * types[n].dtype.size_bytes if part is not None and part.is_strided else 0
            assert (place + step) % 16 == 0, "a block begins where kernels want it"
            refs.append((place + step) // 16 << 1)
        refs += [places[-1] // 16 << 1] * bool(made.workspace_bytes)
        call = _Call(
            (ctypes.c_uint32 * len(refs))(*refs),
            (ctypes.c_int32 * max(1, len(made.ints)))(*made.ints),
            (ctypes.c_float * max(1, len(made.floats)))(*made.floats),
            arena.ctypes.data,
            None,
        )
        assert lib.function(made.symbol)(ctypes.byref(call)) == 0
        for n in range(count, len(types)):
            part, block = cut.parts[n], blocks[n]
            data = np.frombuffer(arena[places[n] : places[n] + block.nbytes].tobytes(), types[n].dtype.numpy)
            if part is None or part.is_strided:
                whole[n] = data.reshape(types[n].shape)
            else:
                _view(whole[n], cut, part)[:, begin : begin + here] = data.reshape(part.rows, here, part.inner)
    return whole[count:]


def _view(array: AnyArray, cut: Cut, part: Part) -> AnyArray:
    return array.reshape(part.rows, cut.extent, part.inner)


def _aligned(size: int) -> AnyArray:
    storage = np.full(size + 64, 0xFF, np.uint8)
    shift = -storage.ctypes.data % 64
    return storage[shift : shift + size]


def sizes(op: Bound, cut: Cut) -> Iterator[int]:
    """Units of blocks: the least where strided operands allow it, some, and a little less than all."""
    step = 1
    for type, part in zip((*op.inputs, *op.outputs), cut.parts, strict=True):
        if part is not None and part.is_strided:
            step = math.lcm(step, 16 // math.gcd(16, part.inner * type.dtype.size_bytes))
    yield from dict.fromkeys(
        u for u in (step, 4 * step, cut.extent - 1 - (cut.extent - 1) % step) if 0 < u < cut.extent
    )


def check(case: Case, libraries: tuple[Library, ...]) -> int:
    """The number of blockings that were compared."""
    arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in case.arrays()]
    op, compared = bind_kind(case.kind, case.attributes, arrays), 0
    for cut in spec(case.kind).cuts(op):
        assert len(cut.parts) == len(op.inputs) + len(op.outputs)
        for type, part in zip((*op.inputs, *op.outputs), cut.parts, strict=True):
            assert part is None or part.rows * cut.extent * part.inner == type.elements
        for kernel in spec(case.kind).kernels(op):
            if block_kernel(kernel, cut.name, 1) is None:
                continue
            for lib in libraries:
                expected = run_kernel(case.kind, case.attributes, arrays, lib=lib, kernel=kernel)
                for units in sizes(op, cut):
                    found = run_blocks(op, case.kind, arrays, cut, kernel, units, lib)
                    for a, b in zip(found, expected, strict=True):
                        assert a.tobytes() == b.tobytes(), (str(case), cut.name, kernel.name, units)
                    compared += 1
    return compared


def test_small_operators() -> None:
    libraries = (library(), scalar_library())
    assert sum(check(case, libraries) for case in CUT) > 100
    cut = {case.kind for case in CUT}
    missing = [k for k, s in registry().items() if k not in cut and _has_cuts(k) and s.source is None]
    assert not missing, f"no case of {missing}"


def _has_cuts(kind: str) -> bool:
    return type(spec(kind)).cuts is not _NO_CUTS and "actor" not in kind  # Adafactor takes back the cut of updates


@pytest.mark.long
def test_packing_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_operands, "SHARE", 0)
    libraries = (library(), wide_library(), scalar_library(), fast_library())
    assert sum(check(case, libraries) for case in PACKING) > 100


def test_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST_BYTES", 0), ("SHARE", 1e9), ("DIRECT", 1e9)):
        monkeypatch.setattr(winograd, name, value)
    assert sum(check(case, (library(), fast_library())) for case in WINOGRAD) > 10


def test_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned, "LEAST_BYTES", 0)
    monkeypatch.setattr(turned, "SHARE", 0)
    assert sum(check(case, (library(), fast_library())) for case in TURNED) > 5
