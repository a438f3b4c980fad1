"""trained.bin: the state of a program in one file, by the names of its tensors (docs/reference/formats.md).

The order does not depend on the place of a tensor while it trains, so that every schedule of a model reads the file.
The counterpart in C is `poetc_state_write`.
"""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array, TensorType
from poetc.program._ir import Page, Program
from poetc.program._manifest import State
from poetc.runtime.layout import CHECKPOINT_TRAILER_BYTES, CHECKPOINT_WORDS_BYTES, align

TAG = b"poetc s2"
OLD_TAG = b"poetc st"  # of a runtime that put state in RAM before state on the store
CHECKPOINT_SLOTS = 2  # of a session
TRAILER_BYTES = 24  # Tag, identity, steps, size of the part before it, CRC-32: POETC_STATE_TRAILER.


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the file: a range of the arena, or a page of the store. Bytes; `size_bytes` is a multiple of 16."""

    offset_bytes: int  # in the file
    size_bytes: int
    arena_offset_bytes: int = 0
    page: int | None = None  # its index


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A state tensor in the file. `page` is where it lives while it trains, None: in RAM at `arena_offset_bytes`."""

    name: str
    type: TensorType
    offset_bytes: int  # in the file
    arena_offset_bytes: int = 0
    page: Page | None = None


def state_identity(program: Program) -> int:
    """Tells the state of a model from that of others, by names, types and shapes.

    Neither schedule, kernels and places count, nor the values: new firmware goes on with the state of an earlier one.
    """
    lines = (f"{name}\0{dtype}\0{list(shape)}\n" for name, dtype, shape in _described(program))
    return zlib.crc32("".join(lines).encode())


def _described(program: Program) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(t.name, np.dtype(t.type.dtype.numpy).name, t.type.shape) for t in tensors(program)]


def regions(program: Program) -> tuple[Region, ...]:
    """State by the names of its tensors, in the order of the file; neighbours in RAM are one region."""
    joined: list[Region] = []
    places = {page: i for i, page in enumerate(program.pages)}
    offset = 0
    for tensor in _by_name(program):
        size, last = align(tensor.type.size_bytes), joined[-1] if joined else None
        if tensor.page is not None:
            joined.append(Region(offset, size, page=places[tensor.page]))
        elif last and last.page is None and last.arena_offset_bytes + last.size_bytes == tensor.arena_offset_bytes:
            joined[-1] = replace(last, size_bytes=last.size_bytes + size)
        else:
            joined.append(Region(offset, size, tensor.arena_offset_bytes))
        offset += size
    return tuple(joined)


def state_in_ram_bytes(program: Program) -> int:
    """The size of the state in the image and in a checkpoint: the regions of the arena."""
    return sum(region.size_bytes for region in regions(program) if region.page is None)


def slot_blocks(program: Program) -> int:
    """Blocks of the store that one checkpoint takes: `poetc_checkpoint_blocks`."""
    return blocks_of_slot(state_in_ram_bytes(program), program.block_bytes)


def blocks_of_slot(state_bytes: int, block_bytes: int) -> int:
    """The same, of so much state in RAM."""
    return -(-(state_bytes + CHECKPOINT_WORDS_BYTES + CHECKPOINT_TRAILER_BYTES) // block_bytes)


def store_blocks(program: Program) -> int:
    """Blocks of the store up to the end of the last page, from block 0."""
    return max((p.first_block + p.block_count * p.slots for p in program.pages), default=0)


def paged_bytes(program: Program) -> int:
    """Bytes of the store that the pages take."""
    first = min((page.first_block for page in program.pages), default=0)
    return (store_blocks(program) - first) * program.block_bytes


def checkpoint_block(programs: Iterable[Program]) -> int:
    """The first block of the checkpoints of a session, of all programs of a model.

    Block 0 where all state is in RAM: an emission with other pages finds them there. Else behind the pages, so that the
    image of the store begins with its first page.
    """
    return max(store_blocks(p) if any(page.image for page in p.pages) else 0 for p in programs)


def _by_name(program: Program) -> list[StateTensor]:
    """State in RAM and on the store. The bytes from a tensor to the next aligned place are its own."""
    in_file = [StateTensor(b.name, b.operand.type, 0, b.operand.offset_bytes) for b in program.state]
    in_file += [StateTensor(p.tensor, p.type, 0, page=p) for p in program.pages if p.image and p.type is not None]
    return sorted(in_file, key=lambda t: t.name.encode())


def tensors(program: Program) -> tuple[StateTensor, ...]:
    """Every state tensor, in the order of the file."""
    sorted_tensors = _by_name(program)
    offsets = itertools.accumulate((align(t.type.size_bytes) for t in sorted_tensors), initial=0)
    return tuple(replace(t, offset_bytes=offset) for t, offset in zip(sorted_tensors, offsets, strict=False))


def pack_state(program: Program, steps: int, arena: Array, page_data: Callable[[int], bytes]) -> bytes:
    """The file: of an arena, and the data of the pages of state, after `steps` complete runs."""
    data = bytearray()
    for region in regions(program):
        if region.page is None:
            end = region.arena_offset_bytes + region.size_bytes
            data += arena[region.arena_offset_bytes : end].tobytes()
        else:
            page = page_data(region.page)
            data += page + bytes(region.size_bytes - len(page))
    return sealed(bytes(data), state_identity(program), steps)


def sealed(data: bytes, identity: int, steps: int) -> bytes:
    """The file: these bytes of state, and its trailer."""
    data += TAG + struct.pack("<III", identity, steps, len(data))
    return data + struct.pack("<I", zlib.crc32(data))


def identity_in(data: bytes) -> int | None:
    """The identity of the state in a trained.bin; None for a file too short to be one."""
    if len(data) < TRAILER_BYTES:
        return None
    (identity,) = struct.unpack_from("<I", data, len(data) - TRAILER_BYTES + len(TAG))
    return int(identity)


def read_state(data: bytes, program: Program, where: str) -> dict[str, Array]:
    """Every state tensor by name. UsageError, which names `where`, for a file that is damaged or of another model."""
    if data[-TRAILER_BYTES:].startswith(OLD_TAG):
        raise UsageError(
            f"{where}: of an earlier poetc; put the poetc-emit.json of the program that wrote it beside it"
        )
    _check(data, sum(region.size_bytes for region in regions(program)), where)
    if identity_in(data) != state_identity(program):
        raise UsageError(f"{where}: the state of another model: names, types or shapes differ")
    return {
        t.name: np.frombuffer(data, t.type.dtype.numpy, t.type.elements, t.offset_bytes).reshape(t.type.shape)
        for t in tensors(program)
    }


def read_listed_state(data: bytes, listed: State, where: str) -> dict[str, Array]:
    """The same by the part `state` of poetc-emit.json.

    The manifest must be of the emission that wrote the file.
    """
    _check(data, listed.size_bytes, where)
    try:
        return {
            t.name: np.frombuffer(data, t.dtype, math.prod(t.shape), t.offset_bytes or 0).reshape(t.shape)
            for t in listed.tensors
        }
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: the manifest beside it does not describe it ({error!r})") from None


def _check(data: bytes, size_bytes: int, where: str) -> None:
    if len(data) != size_bytes + TRAILER_BYTES or data[size_bytes : size_bytes + len(TAG)] not in (TAG, OLD_TAG):
        raise UsageError(f"{where}: no trained state of this model, which takes {size_bytes + TRAILER_BYTES} bytes")
    (checksum,) = struct.unpack("<I", data[-4:])
    if zlib.crc32(data[:-4]) != checksum:
        raise UsageError(f"{where}: damaged: its checksum does not hold")
