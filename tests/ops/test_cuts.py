"""Every cut that a kind declares: blocks give the bits of the whole operator, on every kernel and target."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from poetc.kernels.blocks import beginning
from poetc.kernels.convolution_turned import selection as turned
from poetc.kernels.convolution_winograd import selection as winograd
from poetc.kernels.gemm import packing as packed_operands
from poetc.ops import Bound, Cut, Kernel, OpSpec, Range, box_of, kernels_of_blocks, registry, results_by_parts, spec
from tests.kernels.test_low_workspace import PACKING, TURNED, WINOGRAD, fused_library
from tests.ops.test_cases import CASES
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
    op: Bound, kind: str, inputs: list[AnyArray], cut: Cut, kernel: Kernel, units: tuple[int, ...], lib: Library
) -> list[AnyArray] | None:
    """The outputs of `kernel`, run once a block of so many units along each axis; None where it cannot be cut so."""
    types, count = (*op.inputs, *op.outputs), len(op.inputs)
    replaced = {o: i for i, o in spec(kind).must_alias}
    whole = [
        *inputs,
        *(np.full(t.shape, np.nan if t.dtype.numpy == np.float32 else 0, t.dtype.numpy) for t in op.outputs),
    ]
    whole = [np.ascontiguousarray(a) for a in whole]
    moved = [n for n in cut.tables if n >= count]
    for n in moved:
        whole[n][...] = whole[replaced[n - count]]  # rows that no index names
    steps = [range(0, axis.extent, n) for axis, n in zip(cut.axes, units, strict=True)]
    kept = np.zeros(0, np.uint8)  # of the workspace, from block to block
    for begins in itertools.product(*steps):
        ranges = [(b, min(b + n, axis.extent)) for b, n, axis in zip(begins, units, cut.axes, strict=True)]
        of_blocks = kernels_of_blocks(kind, op, cut, [kernel], [ranges])
        if kernel.name not in of_blocks:
            return None
        made = beginning(of_blocks[kernel.name][0], begins[0])
        places, end, blocks = list[int](), 64, []
        for n, (array, type) in enumerate(zip(whole, types, strict=True)):
            shape, box = box_of(type, cut, n, ranges)
            blocks.append(_window(cut, n, np.ascontiguousarray(array.reshape(shape)[box]), whole, ranges[0]))
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
        space = arena[places[-1] : places[-1] + made.workspace_bytes]
        space[: kept.size] = kept[: space.size]
        refs = [place // 16 << 1 for place in places[:-1]]
        refs += [places[-1] // 16 << 1] * bool(made.workspace_bytes)
        call = _Call(
            (ctypes.c_uint32 * len(refs))(*refs),
            (ctypes.c_int32 * max(1, len(made.ints)))(*made.ints),
            (ctypes.c_float * max(1, len(made.floats)))(*made.floats),
            arena.ctypes.data,
            None,
        )
        assert lib.function(made.symbol)(ctypes.byref(call)) == 0
        kept = space.copy()
        for n in range(count, len(types)):
            shape, box = box_of(types[n], cut, n, ranges)
            block = blocks[n]
            data = np.frombuffer(arena[places[n] : places[n] + block.nbytes].tobytes(), types[n].dtype.numpy)
            if n in moved:
                first = _first_uses(cut, whole)
                for k in range(*ranges[0]):
                    if first[k] == k:
                        place = whole[cut.indices].ravel()[k]
                        whole[n][place] = data.reshape(np.shape(block))[k - ranges[0][0]]
                continue
            whole[n].reshape(shape)[box] = data.reshape(np.shape(whole[n].reshape(shape)[box]))
    return whole[count:]


def _window(cut: Cut, n: int, block: AnyArray, whole: list[AnyArray], units: Range) -> AnyArray:
    """The block; rows of a table that the block's indices name, which are 0, 1, ... in their window then.

    Where rows move, the indices of all blocks are in the window: each the number of the first one of the same row.
    """
    if n == cut.indices and cut.parts[n] is None:
        return np.array(_first_uses(cut, whole), block.dtype).reshape(block.shape)
    if n == cut.indices:
        return np.arange(block.size, dtype=block.dtype)
    if n in cut.tables:
        return np.ascontiguousarray(whole[n][whole[cut.indices].ravel()[slice(*units)]])
    return block


def _first_uses(cut: Cut, whole: list[AnyArray]) -> list[int]:
    length = whole[cut.tables[0]].shape[0]
    rows = [int(i) % length for i in whole[cut.indices].ravel()]
    return [rows.index(row) for row in rows]


def _aligned(size: int) -> AnyArray:
    storage = np.full(size + 64, 0xFF, np.uint8)
    shift = -storage.ctypes.data % 64
    return storage[shift : shift + size]


def sizes(cut: Cut) -> Iterator[int]:
    """Units of blocks along an axis: the least, some, and a little less than all."""
    step = cut.step
    yield from dict.fromkeys(
        u for u in (step, 4 * step, cut.extent - 1 - (cut.extent - 1) % step) if 0 < u < cut.extent and cut.allows(u)
    )


def block_count(cut: Cut, units: tuple[int, ...]) -> int:
    return math.prod(-(-axis.extent // n) for axis, n in zip(cut.axes, units, strict=True))


def check(case: Case, libraries: tuple[Library, ...]) -> int:
    """The number of blockings that were compared."""
    arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in case.arrays()]
    op, compared = bind_kind(case.kind, case.attributes, arrays), 0
    for cut in spec(case.kind).cuts(op):
        for axis in cut.axes:
            assert len(axis.parts) == len(op.inputs) + len(op.outputs)
            for n, type in enumerate((*op.inputs, *op.outputs)):
                part = axis.parts[n]
                assert part is None or part.rows * axis.span(n).limit * part.inner == type.elements
        for kernel in spec(case.kind).kernels(op):
            for lib in libraries:
                expected = run_kernel(case.kind, case.attributes, arrays, lib=lib, kernel=kernel)
                choices = itertools.product(*(sizes(axis) for axis in cut.axes))
                few = [
                    u for u in choices if math.prod(-(-a.extent // n) for a, n in zip(cut.axes, u, strict=True)) < 50
                ]
                for units in few[:3]:
                    found = run_blocks(op, case.kind, arrays, cut, kernel, units, lib)
                    if found is None:
                        continue
                    for a, b in zip(found, expected, strict=True):
                        assert a.tobytes() == b.tobytes(), (str(case), cut.title, kernel.name, units)
                    compared += 1
    return compared


def test_small_operators() -> None:
    libraries = (library(), scalar_library())
    assert sum(check(case, libraries) for case in CUT) > 100
    cut = {case.kind for case in CUT}
    missing = [k for k, s in registry().items() if k not in cut and type(s).cuts is not _NO_CUTS and s.source is None]
    assert not missing, f"no case of {missing}"


def test_losses_of_random_shapes() -> None:
    """Samples keep the order of memory, whatever the axis of the classes and the blocks."""
    random, compared = np.random.default_rng(0), 0
    for _ in range(40):
        shape = tuple(int(n) for n in random.integers(1, 7, random.integers(2, 5)))
        axis = int(random.integers(0, len(shape)))
        x, share = random.normal(0, 4, shape).astype(np.float32), random.uniform(0, 1, shape).astype(np.float32)
        weights = tuple(float(w) for w in random.uniform(0.1, 3, shape[axis]))
        target = random.integers(0, shape[axis], shape[:axis] + shape[axis + 1 :]).astype(np.int32)
        for kind, other, attributes in (
            ("CrossEntropy", target, {"axis": axis, "class_weights": weights, "ignore_index": 1}),
            ("CrossEntropy", target, {"axis": axis, "label_smoothing": 0.1}),
            ("SoftCrossEntropy", share, {"axis": axis}),
            ("BceWithLogits", share, {"axis": axis, "pos_weight": weights, "gamma": 1.5}),
            ("Huber", share, {"delta": 0.7}),
        ):
            compared += check(Case(kind, (x, other), attributes), (library(),))
            compared += check(Case(f"{kind}Grad", (x, other), attributes), (library(),))
    assert compared > 500


@pytest.mark.long
def test_packing_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_operands, "SHARE", 0)
    libraries = (library(), wide_library(), scalar_library(), fused_library())
    assert sum(check(case, libraries) for case in PACKING) > 100


def test_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST_BYTES", 0), ("SHARE", 1e9), ("DIRECT", 1e9)):
        monkeypatch.setattr(winograd, name, value)
    assert sum(check(case, (library(), fused_library())) for case in WINOGRAD) > 10


def test_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned, "LEAST_BYTES", 0)
    monkeypatch.setattr(turned, "SHARE", 0)
    assert sum(check(case, (library(), fused_library())) for case in TURNED) > 5


@pytest.mark.parametrize("case", CUT, ids=str)
def test_numbers_of_blocks_are_those_of_the_whole(case: Case) -> None:
    """In numpy: the interpreter makes a large result a block at a time."""
    arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in case.arrays()]
    op = bind_kind(case.kind, case.attributes, arrays)
    whole = spec(case.kind).evaluate(op, [a.copy() for a in arrays])
    found = [np.full(t.shape, np.nan) for t in op.outputs]
    for block in results_by_parts(case.kind, op, arrays, 8):
        for result, (shape, box, made) in zip(found, block, strict=True):
            with np.errstate(invalid="ignore"):  # of any bytes that are no numbers
                result.reshape(shape)[box] = made
    for result, expected in zip(found, whole, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "kind", ["LstmCell", "LstmCellGrad", "GruCell", "GruCellGrad", "QLinearConv", "QLinearAdd", "DequantizeChannels"]
)
def test_cells_and_codes_have_blocks(kind: str) -> None:
    """Kernels of their blocks exist: nothing that is declared is left out in silence."""
    assert sum(check(case, (library(),)) for case in CUT if case.kind == kind) > 0
