"""Operators in blocks through `poetc_stream`, with operands on a store and in RAM, give the bits of the whole."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from poetc.devices.blocks import CutOperator
from poetc.emit._instruction_tables import _block_ints, _operands
from poetc.graph import Attribute, DType, Operator, TensorType
from poetc.ops import Bound, Cut, spec
from poetc.program import Operand, PageSource, Space
from poetc.program._blocks import call_in_blocks
from poetc.runtime.layout import align, page_bytes
from tests.ops.cases.convolution import output_shape
from tests.support.kernels import AnyArray, bind_kind, library, run_kernel

U32, POINTER = ctypes.c_uint32, ctypes.c_void_p
TRANSFER = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, U32, U32, POINTER)
RUN = 7  # stamps the pages that it writes
Shape = tuple[int, ...]


class _Page(ctypes.Structure):
    _fields_ = tuple((name, U32) for name in ("first_block", "size_bytes", "slots"))


class _Program(ctypes.Structure):
    _fields_ = (
        ("instructions", POINTER),
        ("instruction_count", U32),
        ("pages", ctypes.POINTER(_Page)),
        ("page_count", U32),
        ("absences", POINTER),
        *((name, U32) for name in ("absence_count", "block_bytes", "page_buffer_offset", "arena_bytes", "state_bytes")),
        ("regions", POINTER),
        *((name, U32) for name in ("region_count", "flash_bytes", "loss_offset")),
        ("updates_state", ctypes.c_uint8),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        ("arena", POINTER),
        ("arena_bytes", ctypes.c_size_t),
        ("flash", POINTER),
        ("page_out", TRANSFER),
        ("page_in", TRANSFER),
        *((name, POINTER) for name in ("context", "sync", "observer", "observer_context")),
    )


class _Runtime(ctypes.Structure):
    _fields_ = (
        ("config", ctypes.POINTER(_Config)),
        ("program", ctypes.POINTER(_Program)),
        *((n, U32) for n in ("run_count", "sequence", "instruction", "page_ins", "page_outs", "version_offset")),
    )


class _Instruction(ctypes.Structure):
    _fields_ = (("kernel", POINTER), ("refs", POINTER), ("ints", POINTER), ("floats", POINTER), ("op", ctypes.c_uint8))


def streamed(
    kind: str,
    attributes: dict[str, Attribute],
    arrays: Sequence[AnyArray],
    cut: Cut,
    units: Shape,
    on_store: Collection[int],
    store_block: int,
) -> bytes | None:
    """The result of the instruction in blocks of `units`; None where there are no such blocks.

    `on_store`: the operands there, by their numbers. Everything that the instruction must leave alone is compared.
    """
    bound, dll = bind_kind(kind, attributes, arrays), library().dll
    types, names = (*bound.inputs, *bound.outputs), [f"t{n}" for n in range(len(arrays) + 1)]
    kernel = next((k for k in spec(kind).kernels(bound) if not k.workspace_bytes), None)
    if kernel is None:
        return None
    made = CutOperator(kind, bound, cut, [kernel], names).blocks(frozenset(on_store), units, store_block)
    if not made:
        return None
    end, places = 64, dict[int, Operand]()
    for n, type in enumerate(types):
        if n not in on_store:
            places[n] = Operand(Space.ARENA, end, type, names[n])
            end += align(type.size_bytes) + 32
    workspace = Operand(Space.ARENA, end, TensorType((made[0].workspace_bytes,), DType.U8), "")
    page_buffer = end + align(made[0].workspace_bytes) + 64
    end = page_buffer + store_block + 64
    rows, first = list[_Page](), 0
    for n in on_store:
        rows.append(_Page(first, types[n].size_bytes, 1))
        first += page_bytes(types[n].size_bytes, store_block) // store_block
    pages = {names[n]: k for k, n in enumerate(on_store)}
    operator = Operator("op", kind, tuple(names[:-1]), (names[-1],), attributes)
    sources = dict.fromkeys(names, PageSource.IMAGE)
    call = call_in_blocks(operator, bound, made[0], workspace, places, pages, 0, sources)

    arena, store = np.full(end + 64, 0xFF, np.uint8), np.full(first * store_block, 0xFF, np.uint8)
    arena = arena[-arena.ctypes.data % 64 :][:end]

    def page_out(_: Any, block: int, count: int, data: int) -> int:
        ctypes.memmove(store[block * store_block :].ctypes.data, data, count * store_block)
        return 0

    def page_in(_: Any, block: int, count: int, data: int) -> int:
        ctypes.memmove(data, store[block * store_block :].ctypes.data, count * store_block)
        return 0

    config = _Config(arena.ctypes.data, end, None, TRANSFER(page_out), TRANSFER(page_in))
    program = _Program(None, 0, (_Page * len(rows))(*rows), len(rows), None, 0, store_block, page_buffer, end)
    runtime = _Runtime(ctypes.pointer(config), ctypes.pointer(program), sequence=RUN)
    for n, array in enumerate(arrays):
        if n in places:
            arena[places[n].offset_bytes :][: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        else:
            assert dll.poetc_load_page(ctypes.byref(runtime), pages[names[n]], POINTER(array.ctypes.data)) == 0
    numbers, before = _block_ints(call), arena.copy()
    ints, refs = (ctypes.c_int32 * len(numbers))(*numbers), [o.offset_bytes // 16 << 1 for o in _operands(call)]
    of_refs = (U32 * len(refs))(*refs)
    function = ctypes.cast(getattr(dll, call.symbol), POINTER)
    floats = (ctypes.c_float * max(1, len(call.floats)))(*call.floats)
    instruction = _Instruction(function, ctypes.addressof(of_refs), ctypes.addressof(ints), ctypes.addressof(floats), 0)
    assert dll.poetc_stream(ctypes.byref(runtime), ctypes.byref(instruction), None) == 0

    result, found = types[-1].size_bytes, np.zeros(align(types[-1].size_bytes), np.uint8)
    written = [(workspace.offset_bytes, made[0].workspace_bytes), (page_buffer, store_block)]
    if len(arrays) in places:
        written.append((places[len(arrays)].offset_bytes, result))
        found = arena[written[-1][0] :][:result]
    else:
        buffer = np.zeros(store_block, np.uint8)
        of_data = (U32(pages[names[-1]]), U32(0), U32(RUN), POINTER(found.ctypes.data), POINTER(buffer.ctypes.data))
        assert dll.poetc_read_page(ctypes.byref(runtime), *of_data) == 0
    data = found[:result].tobytes()
    for at, size in written:
        arena[at : at + size] = before[at : at + size]
    assert (arena == before).all(), "it wrote beside its workspace"
    return data


def compare(
    kind: str,
    attributes: dict[str, Attribute],
    shapes: Sequence[Shape],
    title: str,
    units: Shape,
    on_store: Collection[int],
    store_block: int,
) -> bool:
    """Whether there are such blocks; then their result has been held against that of the whole operator."""
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    if kind.startswith("BatchNorm"):
        arrays = [np.abs(a) for a in arrays]  # among them a variance
    bound = bind_kind(kind, attributes, arrays)
    cut = next(c for c in spec(kind).cuts(bound) if c.title == title)
    found = streamed(kind, attributes, arrays, cut, units, on_store, store_block)
    if found is None:
        return False
    kernel = next(k for k in spec(kind).kernels(bound) if not k.workspace_bytes)
    (whole,) = run_kernel(kind, attributes, arrays, kernel=kernel)
    assert found == whole.tobytes(), (kind, attributes, shapes, title, units, on_store, store_block)
    return True


@pytest.mark.parametrize("size", [2, 3])
def test_small_images_of_which_a_block_has_all_rows_again(size: int) -> None:
    """A block behind the first one needs all rows of a band, some of which the block before had, too."""
    pads: dict[str, Attribute] = {"pads": (1, 1, 1, 1)}
    assert compare("Conv", pads, [(1, 5, size, size), (3, 5, 3, 3)], "output_rows", (1,), [0, 1], 64)


def test_rows_that_fill_a_band_and_begin_within_a_block_of_the_store() -> None:
    """Their buffer is that of one row."""
    shapes = [(1, 18, 2, 2), (18, 3, 3, 3)]
    attributes: dict[str, Attribute] = {"input_size": (4, 4)}
    assert compare("ConvGradInput", attributes, shapes, "channels/summed_outputs", (3, 5), [1, 2], 64)


def test_groups_of_more_results_than_terms_are_no_whole_blocks_of_the_store() -> None:
    """Blocks of 4 output channels have 6 channels of the image: 48 bytes."""
    shapes = [(1, 12, 1, 2), (12, 3, 1, 1)]
    attributes: dict[str, Attribute] = {"group": 3, "input_size": (1, 2)}
    assert compare("ConvGradInput", attributes, shapes, "groups", (4,), [0, 2], 32)


def test_random_convolutions_in_blocks_of_terms() -> None:
    draw, compared = random.Random(0), 0
    for _ in range(400):
        x = (draw.choice([1, 1, 2, 3]), draw.choice([2, 3, 5, 8, 13]), draw.choice([1, 2, 3, 8]), draw.randint(1, 12))
        w = (draw.choice([2, 4, 5, 7, 9, 18]), x[1], draw.randint(1, 3), draw.choice([1, 2, 3, 5]))
        attributes: dict[str, Attribute] = {
            "strides": (draw.randint(1, 3), draw.randint(1, 3)),
            "dilations": (draw.randint(1, 2), draw.randint(1, 2)),
            "pads": tuple(draw.choice([0, 1, 2, 6]) for _ in range(4)),
        }
        y = output_shape(x, w, attributes)
        if min(y) < 1:
            continue
        kind, shapes, title = "Conv", list[Shape]([x, w]), "outputs/summed_channels"
        if draw.random() < 0.5:
            attributes["input_size"] = x[2:]
            kind, shapes, title = "ConvGradInput", [y, w], "channels/summed_outputs"
        elif draw.random() < 0.5:
            shapes.append(w[:1])
        compared += _compared(draw, kind, attributes, shapes, title)
    assert compared > 100


@pytest.mark.parametrize("kind", ["BatchNormApply", "BatchNormActivate", "BatchNormGradInput", "Conv", "MatMul"])
def test_blocks_that_begin_anywhere_in_parameters_in_ram(kind: str) -> None:
    """Four numbers are 16 bytes, and kernels have operands at multiples of these: others pass through windows."""
    draw, compared = random.Random(1), 0
    for _ in range(60):
        c, n, plane = draw.choice([2, 3, 5, 7, 9, 12]), draw.choice([1, 1, 2]), (draw.randint(1, 6), draw.randint(1, 6))
        x, p = (n, c, *plane), (c,)
        attributes: dict[str, Attribute] = {} if kind in ("Conv", "MatMul") else {"epsilon": 1e-3}
        shapes: list[Shape] = [x, p, p, p, p]
        if kind == "BatchNormActivate":
            attributes |= {"activation": "Relu"}
        elif kind == "BatchNormGradInput":
            shapes = [x, p, p, p, p, p, x]
        elif kind == "Conv":
            attributes |= {"group": 1}
            shapes = [x, (draw.choice([3, 5, 6]), c, 1, 1)]
            shapes.append(shapes[1][:1])
        elif kind == "MatMul":
            shapes = [(draw.choice([3, 5, 6]), c), (c, draw.choice([2, 4]))]
        bound = Bound(attributes, tuple(TensorType(shape) for shape in shapes))
        bound = Bound(attributes, bound.inputs, spec(kind).infer(bound))
        for cut in spec(kind).cuts(bound):
            compared += _compared(draw, kind, attributes, shapes, cut.title)
    assert compared > 30


def _compared(
    draw: random.Random, kind: str, attributes: dict[str, Attribute], shapes: Sequence[Shape], title: str
) -> bool:
    """With random units, operands on the store, and blocks of the store."""
    operands = range(len(shapes) + 1)
    on_store, block = [n for n in operands if draw.random() < 0.6], draw.choice([32, 64, 512])
    bound = Bound(attributes, tuple(TensorType(shape) for shape in shapes))
    bound = Bound(attributes, bound.inputs, spec(kind).infer(bound))
    cut = next((c for c in spec(kind).cuts(bound) if c.title == title), None)
    if cut is None or not on_store:
        return False
    roots = [str(n) for n in operands]
    is_aligned = draw.random() < 0.5
    aligned = CutOperator(kind, bound, cut, (), roots).steps(on_store, 1)
    steps = aligned if is_aligned else [axis.step for axis in cut.axes]
    units = tuple(
        min(axis.extent, step * draw.randint(1, max(1, axis.extent // step)))
        for axis, step in zip(cut.axes, steps, strict=True)
    )
    return compare(kind, attributes, shapes, title, units, on_store, block)
