"""store.bin: the state in the newest whole checkpoint on a store, in the layout of trained.bin.

The counterparts in C are `poetc_checkpoint_load` and `poetc_read_state_page`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from poetc.program._ir import Program
from poetc.program._manifest import Manifest
from poetc.program._state_file import (
    CHECKPOINT_SLOTS,
    OLD_TAG,
    TAG,
    TRAILER_BYTES,
    Region,
    regions,
    sealed,
    state_identity,
)
from poetc.runtime.layout import CHECKPOINT_TRAILER_BYTES, CHECKPOINT_WORDS_BYTES, align
from poetc.runtime.layout import TRAILER_BYTES as PAGE_TRAILER_BYTES

CHECKPOINT_TAG = b"poetc c5"
UNORDERED_TAG = b"poetc c4"  # of a runtime that saved state in the order of its places
OLD_CHECKPOINT_TAG = b"poetc c3"  # of one that wrote zeros in the first two words of the trailer, besides
OLD_WORDS_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page of state: its offset in trained.bin, its data, and its place on the store in blocks.

    No blocks: a region in RAM, whose data are in the checkpoint.
    """

    offset_bytes: int
    size_bytes: int
    first_block: int = 0
    slot_blocks: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Where one emission keeps state on its store. `first_block`: of the checkpoints. `parts`: those of trained.bin."""

    identity: int
    block_bytes: int
    first_block: int
    size_bytes: int  # of trained.bin, without its trailer
    parts: tuple[StoredPage, ...]

    @property
    def ram_bytes(self) -> int:
        """Of state in the checkpoint."""
        return sum(align(part.size_bytes) for part in self.parts if not part.slots)

    @property
    def slot_blocks(self) -> int:
        """Of one checkpoint: `poetc_checkpoint_blocks`."""
        return -(-(self.data_bytes + CHECKPOINT_TRAILER_BYTES) // self.block_bytes)

    @property
    def end_bytes(self) -> int:
        """Where a store with one full slot ends."""
        return (self.first_block + self.slot_blocks) * self.block_bytes

    @property
    def data_bytes(self) -> int:
        """Of one checkpoint, without zeros and trailer."""
        return self.ram_bytes + CHECKPOINT_WORDS_BYTES


def store_layout(program: Program, first_block: int) -> StoreLayout:
    """That of a training program, and of its checkpoints."""
    parts = regions(program)
    return StoreLayout(
        state_identity(program),
        program.block_bytes,
        first_block,
        sum(r.size_bytes for r in parts),
        tuple(_part(r, program) for r in parts),
    )


def _part(region: Region, program: Program) -> StoredPage:
    if region.page is None:
        return StoredPage(region.offset_bytes, region.size_bytes)
    page = program.pages[region.page]
    return StoredPage(region.offset_bytes, page.size_bytes, page.first_block, page.block_count, page.slots)


def listed_layout(manifest: Manifest) -> StoreLayout:
    """The same by a poetc-emit.json."""
    state, session = manifest.state, manifest.session
    parts = [
        StoredPage(t.offset_bytes or 0, t.size_bytes, *(n or 0 for n in (p.first_block, p.slot_blocks, p.slots)))
        for t in state.tensors
        if (p := t.place)
    ]
    first_block = session.store_blocks if session.checkpoint_block is UNSET else session.checkpoint_block
    parts.sort(key=lambda part: part.offset_bytes)
    return StoreLayout(state.identity, session.block_bytes, first_block, state.size_bytes, tuple(parts))


def is_trained(data: bytes) -> bool:
    """Whether a file has the trailer of trained.bin."""
    return data[-TRAILER_BYTES:][: len(TAG)] in (TAG, OLD_TAG)


@dataclass(frozen=True, slots=True, order=True)
class _Saved:
    """A whole checkpoint. The last save is the newest; `step` orders those of an older runtime, which have save 0."""

    save: int
    step: int
    slot: int
    version: int  # that stamps its pages


def state_on_store(data: bytes, layouts: Iterable[StoreLayout]) -> tuple[bytes, int] | None:
    """The state in the newest whole checkpoint as a trained.bin, and its step. None where there is no whole one."""
    for layout in layouts:
        for saved in sorted(
            filter(None, (_saved(data, layout, slot) for slot in range(CHECKPOINT_SLOTS))), reverse=True
        ):
            state = _state(data, layout, saved)
            if state is not None:
                return sealed(state, layout.identity, saved.step), saved.step
    return None


def _slot(data: bytes, layout: StoreLayout, slot: int) -> bytes:
    start = (layout.first_block + slot * layout.slot_blocks) * layout.block_bytes
    return data[start : start + layout.slot_blocks * layout.block_bytes]


def _saved(data: bytes, layout: StoreLayout, slot: int) -> _Saved | None:
    """The checkpoint in a slot; None where there is no whole one of this emission."""
    whole = _slot(data, layout, slot)
    if len(whole) != layout.slot_blocks * layout.block_bytes:
        return None
    trailer = whole[-CHECKPOINT_TRAILER_BYTES:]
    save, offset, step, _, _, _, size_bytes, checksum = struct.unpack("<8I", trailer)
    tags, fields = (
        ((CHECKPOINT_TAG, UNORDERED_TAG), trailer) if save else ((OLD_CHECKPOINT_TAG,), trailer[OLD_WORDS_BYTES:])
    )
    for tag in tags:
        told = tag + struct.pack("<I", layout.identity) + fields[:-4]
        if size_bytes == layout.data_bytes and zlib.crc32(whole[:size_bytes], zlib.crc32(told)) == checksum:
            return _Saved(save, step, slot, (step + offset) % 2**32)
    return None


def _state(data: bytes, layout: StoreLayout, saved: _Saved) -> bytes | None:
    """The bytes of trained.bin before its trailer; None where a page of this version is not whole."""
    saved_data, at = _slot(data, layout, saved.slot), 0
    state = bytearray(layout.size_bytes)
    for page in layout.parts:
        if not page.slots:
            size = align(page.size_bytes)
            state[page.offset_bytes : page.offset_bytes + size] = saved_data[at : at + size]
            at += size
            continue
        stamp = saved.version if page.slots > 1 else 0
        start = (page.first_block + stamp % page.slots * page.slot_blocks) * layout.block_bytes
        whole = data[start : start + page.slot_blocks * layout.block_bytes]
        trailer, held = whole[-PAGE_TRAILER_BYTES:], whole[: page.size_bytes]
        if len(trailer) < PAGE_TRAILER_BYTES:
            return None
        _, number, size_bytes, checksum = struct.unpack("<4I", trailer)
        if (number, size_bytes) != (stamp, page.size_bytes) or zlib.crc32(held, zlib.crc32(trailer[:12])) != checksum:
            return None
        state[page.offset_bytes : page.offset_bytes + page.size_bytes] = held
    return bytes(state)
