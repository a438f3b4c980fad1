"""store.bin: the state in the newest whole checkpoint on a store, in the layout of trained.bin.

The counterparts in C are `poetc_checkpoint_load` and `poetc_read_state_page`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from poetc.program._ir import Program
from poetc.program._state_file import TAG, TRAILER_BYTES, regions, sealed, state_in_ram_bytes
from poetc.runtime.layout import CHECKPOINT_TRAILER_BYTES, CHECKPOINT_WORDS_BYTES
from poetc.runtime.layout import TRAILER_BYTES as PAGE_TRAILER_BYTES

CHECKPOINT_TAG = b"poetc c4"
OLD_CHECKPOINT_TAG = b"poetc c3"  # of a runtime that wrote zeros in the first two words of the trailer
OLD_WORDS_BYTES = 8
SLOTS = 2  # of a session


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page of state: its offset in trained.bin, its data, and its place on the store in blocks."""

    offset_bytes: int
    size_bytes: int
    first_block: int
    slot_blocks: int
    slots: int


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Where one emission keeps state on its store. `first_block`: of the checkpoints, past all pages."""

    identity: int
    block_bytes: int
    first_block: int
    ram_bytes: int
    size_bytes: int  # of trained.bin, without its trailer
    pages: tuple[StoredPage, ...]

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


def store_layout(program: Program, identity: int, store_blocks: int) -> StoreLayout:
    """That of a training program. `store_blocks`: those that pages of all programs take."""
    parts = regions(program)
    pages = [(r.offset_bytes, program.pages[r.page]) for r in parts if r.page is not None]
    return StoreLayout(
        identity,
        program.block_bytes,
        store_blocks,
        state_in_ram_bytes(program),
        sum(r.size_bytes for r in parts),
        tuple(StoredPage(at, p.size_bytes, p.first_block, p.block_count, p.slots) for at, p in pages),
    )


def listed_layout(manifest: Mapping[str, Any]) -> StoreLayout:
    """The same by a poetc-emit.json. KeyError, TypeError or ValueError if that has no such facts."""
    state, session = manifest["state"], manifest["session"]
    placed = [(t, t["place"]) for t in state["tensors"] if t["place"]["memory"] == "store"]
    pages = tuple(
        StoredPage(
            int(t["offset_bytes"]), int(t["size_bytes"]), int(p["first_block"]), int(p["slot_blocks"]), int(p["slots"])
        )
        for t, p in placed
    )
    size_bytes = int(state["size_bytes"])
    return StoreLayout(
        int(state["identity"]),
        int(session["block_bytes"]),
        int(session["store_blocks"]),
        min((page.offset_bytes for page in pages), default=size_bytes),
        size_bytes,
        pages,
    )


def is_trained(data: bytes) -> bool:
    """Whether a file has the trailer of trained.bin."""
    return data[-TRAILER_BYTES:][: len(TAG)] == TAG


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
        for saved in sorted(filter(None, (_saved(data, layout, slot) for slot in range(SLOTS))), reverse=True):
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
    tag, words = (CHECKPOINT_TAG, trailer) if save else (OLD_CHECKPOINT_TAG, trailer[OLD_WORDS_BYTES:])
    told = tag + struct.pack("<I", layout.identity) + words[:-4]
    if size_bytes != layout.data_bytes or zlib.crc32(whole[: layout.data_bytes], zlib.crc32(told)) != checksum:
        return None
    return _Saved(save, step, slot, (step + offset) % 2**32)


def _state(data: bytes, layout: StoreLayout, saved: _Saved) -> bytes | None:
    """The bytes of trained.bin before its trailer; None where a page of this version is not whole."""
    state = bytearray(_slot(data, layout, saved.slot)[: layout.ram_bytes])
    state += bytes(layout.size_bytes - len(state))
    for page in layout.pages:
        stamp = saved.version if page.slots > 1 else 0
        start = (page.first_block + stamp % page.slots * page.slot_blocks) * layout.block_bytes
        whole = data[start : start + page.slot_blocks * layout.block_bytes]
        trailer, held = whole[-PAGE_TRAILER_BYTES:], whole[: page.size_bytes]
        if len(trailer) < PAGE_TRAILER_BYTES:
            return None
        _, found, size_bytes, checksum = struct.unpack("<4I", trailer)
        if (found, size_bytes) != (stamp, page.size_bytes) or zlib.crc32(held, zlib.crc32(trailer[:12])) != checksum:
            return None
        state[page.offset_bytes : page.offset_bytes + page.size_bytes] = held
    return bytes(state)
