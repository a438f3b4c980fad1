"""The form of poetc-emit.json, field by field (docs/reference/formats.md). Offsets are in bytes.

`poetc.emit` writes it. `poetc.runtime.session` reads it without these structures: it needs numpy alone.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType

from poetc.errors import UsageError
from poetc.files import read_file


class Place(Struct, omit_defaults=True):
    """The place of a state tensor while it trains: an offset in the arena, or a page with some slots on the store."""

    memory: str  # ram | store
    offset_bytes: int | UnsetType = UNSET
    first_block: int | UnsetType = UNSET
    slot_blocks: int | UnsetType = UNSET
    slots: int | UnsetType = UNSET
    block_bytes: int | UnsetType = UNSET


class Row(Struct, omit_defaults=True):
    """A tensor, at `offset_bytes` of its file or of the arena. An input on the store has a `page` instead."""

    name: str
    dtype: str  # numpy's name
    shape: tuple[int, ...]
    size_bytes: int
    offset_bytes: int | None
    page: int | UnsetType = UNSET
    place: Place | UnsetType = UNSET
    identifier: str | UnsetType | None = UNSET  # of the accessor in C
    direction: str | UnsetType = UNSET  # in | out
    limit: dict[str, int] | UnsetType = UNSET  # of the integers that an input may hold


class Record(Struct):
    """Data of one step: all inputs, one behind the other."""

    file: str
    size_bytes: int
    tensors: tuple[Row, ...]


class State(Struct):
    """The state in trained.bin. `identity` is that of `state_identity`."""

    file: str
    identity: int
    size_bytes: int
    tensors: tuple[Row, ...]


class Constants(Struct):
    file: str
    tensors: tuple[Row, ...]


class ProgramSizes(Struct):
    name: str
    arena_bytes: int
    high_water_bytes: int


class Session(Struct, kw_only=True, omit_defaults=True):
    """The facts that a session needs beside tensors. `emission` tells one emission from others, since version 0.3."""

    library: str
    symbol: str
    bundle: str | None
    queues: str | None
    arena_bytes: int
    state_bytes: int
    block_bytes: int
    store_blocks: int
    checkpoint_block: int | UnsetType = UNSET
    store_image: str | None
    learning_rate: str | None
    programs: dict[str, ProgramSizes]
    emission: int | UnsetType = UNSET


class Manifest(Struct, kw_only=True, omit_defaults=True):
    """Of one model. The file has its name, target and programs too; those of version 0.2 lack some parts."""

    record: Record | UnsetType = UNSET
    state: State
    constants: Constants | UnsetType = UNSET
    session: Session
    accessors: dict[str, tuple[Row, ...]] = {}


def manifest_of(path: Path) -> Manifest:
    """A poetc-emit.json of one model, also of earlier versions. Raises UsageError, and OSError where there is none."""
    try:
        return msgspec.json.decode(read_file(path), type=Manifest)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise UsageError(f"{path}: damaged; emit again") from None
