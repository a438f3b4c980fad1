"""trained.bin: the state of a program in one file, wherever it lives while it trains (docs/reference/formats.md).

The counterpart in C is `poetc_state_write`.
"""

from __future__ import annotations

import functools
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array, TensorType
from poetc.program._ir import Binding, Page, Program
from poetc.runtime.layout import CHECKPOINT_TRAILER_BYTES, CHECKPOINT_WORDS_BYTES, align

TAG = b"poetc st"
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


def model_identity(files: Iterable[bytes]) -> int:
    """Tells checkpoints and trained.bin of one emitted model from those of another: tables, weights, constants."""
    return functools.reduce(lambda crc, data: zlib.crc32(data, crc), files, 0)


def regions(program: Program) -> tuple[Region, ...]:
    """State in RAM, neighbours as one, then the pages of state, in the order of the file."""
    found: list[Region] = []
    offset = 0
    for start, end in _ranges(program.state):
        found.append(Region(offset, end - start, start))
        offset += end - start
    for index, page in enumerate(program.pages):
        if page.image:
            found.append(Region(offset, align(page.size_bytes), page=index))
            offset += align(page.size_bytes)
    return tuple(found)


def state_in_ram_bytes(program: Program) -> int:
    """The size of the state in the image and in a checkpoint: the regions of the arena."""
    return sum(region.size_bytes for region in regions(program) if region.page is None)


def slot_blocks(program: Program) -> int:
    """Blocks of the store that one checkpoint takes: `poetc_checkpoint_blocks`."""
    data_bytes = state_in_ram_bytes(program) + CHECKPOINT_WORDS_BYTES
    return -(-(data_bytes + CHECKPOINT_TRAILER_BYTES) // program.block_bytes)


def _ranges(state: Iterable[Binding]) -> Iterator[tuple[int, int]]:
    """The ranges of the arena that the bindings cover, aligned; neighbours become one range."""
    begin = reached = -1
    for operand in sorted((b.operand for b in state), key=lambda o: o.offset_bytes):
        if operand.offset_bytes > reached:
            if reached >= 0:
                yield begin, reached
            begin = operand.offset_bytes
        reached = max(reached, align(operand.offset_bytes + operand.type.size_bytes))
    if reached >= 0:
        yield begin, reached


def tensors(program: Program) -> tuple[StateTensor, ...]:
    """Every state tensor, in the order of the file."""
    found: list[StateTensor] = []
    for region in regions(program):
        if region.page is not None:
            page = program.pages[region.page]
            assert page.type is not None
            found.append(StateTensor(page.tensor, page.type, region.offset_bytes, page=page))
            continue
        end = region.arena_offset_bytes + region.size_bytes
        for binding in program.state:
            start = binding.operand.offset_bytes
            if region.arena_offset_bytes <= start < end:
                offset = region.offset_bytes + start - region.arena_offset_bytes
                found.append(StateTensor(binding.name, binding.operand.type, offset, start))
    return tuple(sorted(found, key=lambda t: t.offset_bytes))


def pack_state(program: Program, identity: int, steps: int, arena: Array, page_data: Callable[[int], bytes]) -> bytes:
    """The file: of an arena, and the data of the pages of state, after `steps` complete runs."""
    data = bytearray()
    for region in regions(program):
        if region.page is None:
            end = region.arena_offset_bytes + region.size_bytes
            data += arena[region.arena_offset_bytes : end].tobytes()
        else:
            page = page_data(region.page)
            data += page + bytes(region.size_bytes - len(page))
    return sealed(bytes(data), identity, steps)


def sealed(data: bytes, identity: int, steps: int) -> bytes:
    """The file: these bytes of state, and its trailer."""
    data += TAG + struct.pack("<III", identity, steps, len(data))
    return data + struct.pack("<I", zlib.crc32(data))


def state_identity(data: bytes) -> int | None:
    """The identity of the emission that wrote a trained.bin; None for a file too short to be one."""
    if len(data) < TRAILER_BYTES:
        return None
    (identity,) = struct.unpack_from("<I", data, len(data) - TRAILER_BYTES + len(TAG))
    return int(identity)


def read_state(data: bytes, program: Program, where: str) -> dict[str, Array]:
    """Every state tensor by name. UsageError, which names `where`, for a file that is damaged or of another model."""
    _check(data, sum(region.size_bytes for region in regions(program)), where)
    return {
        t.name: np.frombuffer(data, t.type.dtype.numpy, t.type.elements, t.offset_bytes).reshape(t.type.shape)
        for t in tensors(program)
    }


def read_listed_state(data: bytes, listed: Mapping[str, Any], where: str) -> dict[str, Array]:
    """The same by the entries under `state` of poetc-emit.json.

    The manifest must be of the emission that wrote the file.
    """
    try:
        _check(data, int(listed["size_bytes"]), where)
        found = {}
        for t in listed["tensors"]:
            flat = np.frombuffer(data, t["dtype"], math.prod(t["shape"]), t["offset_bytes"])
            found[str(t["name"])] = flat.reshape(t["shape"])
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: the manifest beside it does not describe it ({error!r})") from None


def _check(data: bytes, size_bytes: int, where: str) -> None:
    if len(data) != size_bytes + TRAILER_BYTES or data[size_bytes : size_bytes + len(TAG)] != TAG:
        raise UsageError(f"{where}: no trained state of this model, which takes {size_bytes + TRAILER_BYTES} bytes")
    (checksum,) = struct.unpack("<I", data[-4:])
    if zlib.crc32(data[:-4]) != checksum:
        raise UsageError(f"{where}: damaged: its checksum does not hold")
