"""The bytes that a program starts from: state, constants, and pages that must be on the store."""

from __future__ import annotations

import bisect
import io
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from poetc.graph import Array, Fill, TensorType, Value, materialize
from poetc.program._ir import Binding, Program
from poetc.program._state_file import regions
from poetc.runtime.layout import ALIGNMENT_BYTES, SUMMED_BYTES, TRAILER_BYTES, align, page_bytes

Placed = tuple[Binding, Array, Iterable[tuple[int, int]]]  # with its bytes, and begin and end of their parts


def _bytes(name: str, value: Value, type: TensorType) -> Array:
    """The bytes of a value, without a copy where it is an array already."""
    array = np.asarray(materialize(value, type), type.dtype.numpy)
    if array.shape != type.shape:
        raise ValueError(f"{name}: the value has shape {array.shape}, the tensor {type.shape}")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _at_offsets(parts: Iterable[tuple[int, memoryview | bytes]], size_bytes: int = 0) -> bytes:
    """Bytes at their offsets, with zeros between them and up to `size_bytes`: parts may be made one after the other."""
    image = io.BytesIO()
    for offset, data in parts:
        image.seek(offset)  # bytes that are skipped become zeros
        image.write(data)
    image.write(bytes(max(0, size_bytes - image.seek(0, io.SEEK_END))))
    return image.getvalue()


def _image(bindings: tuple[Binding, ...], size_bytes: int, values: Mapping[str, Value]) -> bytes:
    return _at_offsets(
        ((b.operand.offset_bytes, _bytes(b.name, values[b.name], b.operand.type).data) for b in bindings), size_bytes
    )


def state_image(program: Program, values: Mapping[str, Value]) -> bytes:
    """The bottom of the arena before the first run: `state_bytes` bytes."""
    return _image(program.state, program.state_bytes, values)


PIECE = struct.Struct("<II8x")  # place, size
_LEAST_ZEROS_BYTES = 48  # that are left out: three times the head of a piece


def packed_state(program: Program, values: Mapping[str, Value]) -> bytes:
    """The initial state in RAM as `poetc_init` takes it: pieces of the arena, without long runs of zeros.

    Each has a head of 16 bytes with its offset in the arena and its size. A head without a size ends it. Everything
    else in the regions of the state is zero, as the moments of an optimizer are.
    """
    image = io.BytesIO()
    head = place = -1  # of the last piece: where its head is in the image, and its place
    for at, zeros_bytes, data in _parts(program, (_with_runs(b, values) for b in _in_order(program))):
        if zeros_bytes is not None:
            image.write(bytes(zeros_bytes))
        else:
            _close_piece(image, head, place)
            head, place = image.tell(), at
            image.write(PIECE.pack(0, 0))
        image.write(data.data)  # at once: values may be made one after the other
    _close_piece(image, head, place)
    image.write(PIECE.pack(0, 0))
    return image.getvalue()


def packed_state_bytes(program: Program, values: Mapping[str, Value]) -> int:
    """The size of `packed_state`. Random numbers are not drawn for it: they have no long runs of zeros."""

    def sized(binding: Binding) -> Placed:
        value, type = values[binding.name], binding.operand.type
        is_random = isinstance(value, Fill) and value.kind in ("normal", "uniform") and value.value != value.high
        if is_random and np.issubdtype(type.dtype.numpy, np.floating):
            size_bytes = math.prod(type.shape) * np.dtype(type.dtype.numpy).itemsize
            return binding, np.broadcast_to(np.uint8(1), size_bytes), [(0, size_bytes)] if size_bytes else []
        return _with_runs(binding, values)

    total_bytes = piece_bytes = 0
    for _, zeros_bytes, data in _parts(program, map(sized, _in_order(program))):
        if zeros_bytes is None:
            total_bytes += align(piece_bytes) + PIECE.size
            piece_bytes = 0
        piece_bytes += (zeros_bytes or 0) + data.size
    return total_bytes + align(piece_bytes) + PIECE.size


def _in_order(program: Program) -> list[Binding]:
    return sorted(program.state, key=lambda b: b.operand.offset_bytes)


def _with_runs(binding: Binding, values: Mapping[str, Value]) -> Placed:
    data = _bytes(binding.name, values[binding.name], binding.operand.type)
    return binding, data, _runs(data)


def _parts(program: Program, placed: Iterable[Placed]) -> Iterator[tuple[int, int | None, Array]]:
    """The parts of the initial state between long runs of zeros: place in the arena, zeros before it, bytes.

    None in place of zeros: a piece begins.
    """
    starts, end, region = sorted(r.arena_offset_bytes for r in regions(program) if r.page is None), -1, -1
    for binding, data, runs in placed:
        at = binding.operand.offset_bytes
        of_word = bisect.bisect_right(starts, at)
        for first, last in runs:
            joins = of_word == region and at + first - end <= _LEAST_ZEROS_BYTES
            yield at + first, at + first - end if joins else None, data[first:last]
            end, region = at + last, of_word


def _close_piece(image: io.BytesIO, head: int, place: int) -> None:
    """Fill up the last piece, and write its head."""
    if head >= 0:
        size_bytes = image.tell() - head - PIECE.size
        image.write(bytes(align(size_bytes) - size_bytes))
        image.getbuffer()[head : head + PIECE.size] = PIECE.pack(place, align(size_bytes))


def _runs(data: Array) -> Iterator[tuple[int, int]]:
    """Begin and end of the parts of `data` between long runs of zeros; they begin at multiples of the alignment."""
    whole = data.size - data.size % ALIGNMENT_BYTES
    used = np.flatnonzero(data[:whole].reshape(-1, ALIGNMENT_BYTES).any(axis=1)) * ALIGNMENT_BYTES
    if data[whole:].any():
        used = np.append(used, whole)
    if used.size:
        breaks = np.flatnonzero(np.diff(used) > _LEAST_ZEROS_BYTES)
        lasts = np.minimum(used[np.r_[breaks, used.size - 1]] + ALIGNMENT_BYTES, data.size)
        yield from zip(used[np.r_[0, breaks + 1]].tolist(), lasts.tolist(), strict=True)


def constants_image(program: Program, values: Mapping[str, Value]) -> bytes:
    """Flash: `flash_bytes` bytes."""
    return _image(program.constants, program.flash_bytes, values)


def initial_pages(program: Program, values: Mapping[str, Value]) -> Iterator[tuple[int, bytes]]:
    """Data of the pages that must be on the store before the first run, with their numbers: one after the other."""
    data = b""
    for i, page in enumerate(program.pages):
        if page.is_sums:  # of the page before
            sums = sums_of(data)
            yield i, sums + b"\xff" * (page.size_bytes - len(sums))  # any row may differ in the other slot
        elif page.image and page.type:
            data = _bytes(page.tensor, values[page.tensor], page.type).tobytes()
            yield i, data


def sums_of(data: bytes) -> bytes:
    """The checksums of the pieces of a table."""
    pieces = (data[at : at + SUMMED_BYTES] for at in range(0, len(data), SUMMED_BYTES))
    return b"".join(struct.pack("<I", zlib.crc32(piece)) for piece in pieces)


def packed_pages(program: Program, values: Mapping[str, Value]) -> bytes:
    """The data of all initial pages, each filled up to the alignment: `initial_pages` of the emitted model."""
    return b"".join(data + bytes(align(len(data)) - len(data)) for _, data in initial_pages(program, values))


def page_blocks(index: int, stamp: int, data: bytes, block_bytes: int) -> bytes:
    """A slot as poetc.c writes it: data, zeros, and the trailer at the end of the last block."""
    head = struct.pack("<III", index, stamp, len(data))
    trailer = head + struct.pack("<I", zlib.crc32(data, zlib.crc32(head)))
    size = page_bytes(len(data), block_bytes)
    return data + bytes(size - len(data) - TRAILER_BYTES) + trailer


def store_image(program: Program, values: Mapping[str, Value]) -> bytes:
    """The store from block 0, as far as initial pages need it: to be copied to the card before the first run."""
    size = program.block_bytes
    pages = initial_pages(program, values)
    return _at_offsets((program.pages[i].first_block * size, page_blocks(i, 0, data, size)) for i, data in pages)
