"""Checkpoints: all that a training needs to go on, in one file that is whole or not there.

    8 bytes   "poetc ck"
    8 bytes   length of the header, little-endian
    header    JSON: `progress`, and for each array its group, name, type, shape
    arrays    one after the other
    32 bytes  SHA-256 of everything before

Two files are written in turn, each under another name first and then renamed. Whatever happens while one is written,
the other is whole. Since a training is determined by its seed, going on from either ends with the same bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from poetc.errors import UsageError
from poetc.files import open_file
from poetc.graph import Array

TAG = b"poetc ck"
NAMES = ("checkpoint.a", "checkpoint.b")
_PREFIX = ".checkpoint-"

Arrays = Mapping[str, Array]


class _Listed(msgspec.Struct):
    group: str
    name: str
    type: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


class _Header(msgspec.Struct):
    progress: dict[str, Any]
    arrays: list[_Listed]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`progress` is JSON; its `number` counts checkpoints. `arrays` are by group (state, average, best) and name."""

    progress: Mapping[str, Any]
    arrays: Mapping[str, Arrays]


class CheckpointStore:
    """A directory with two checkpoints, the newer of which counts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the older one. Raises UsageError, with both kept, where the disk is full or refuses."""
        numbers = {name: _number_of(self.directory / name) for name in NAMES}
        older = min(NAMES, key=lambda name: numbers[name])
        handle, staged = -1, None
        try:
            handle, staged = tempfile.mkstemp(prefix=_PREFIX, dir=self.directory)
            with os.fdopen(handle, "wb") as file:
                digest = hashlib.sha256()
                for piece in _pieces(checkpoint):
                    digest.update(piece)
                    file.write(piece)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
            os.replace(staged, self.directory / older)
            _sync(self.directory)
        except OSError as error:
            if staged is not None:
                Path(staged).unlink(missing_ok=True)
            kept = "; the last good checkpoint is kept: make room, then --resume" if max(numbers.values()) >= 0 else ""
            raise UsageError(f"{self.directory}: {(error.strerror or str(error)).lower()}{kept}") from error

    def load(self) -> Checkpoint | None:
        """The newer of those that are whole; None where there is none at all.

        Raises UsageError where all are damaged.
        """
        there = sorted(
            (n for n in NAMES if (self.directory / n).exists()), key=lambda n: -_number_of(self.directory / n)
        )
        for name in there:
            checkpoint = read_checkpoint(self.directory / name)
            if checkpoint is not None:
                return checkpoint
        if there:
            raise UsageError(f"{self.directory}: its checkpoints are damaged; begin anew with --force")
        return None

    def exists(self) -> bool:
        """Whether there is any checkpoint, whole or damaged."""
        return any((self.directory / name).exists() for name in NAMES)

    def has_steps(self) -> bool:
        """Whether there are checkpoints, and not only that of a training's beginning."""
        checkpoint = self.load() if self.exists() else None
        return checkpoint is not None and checkpoint.progress["step"] > 0

    def clean(self) -> None:
        """Remove the half-written files of a process that was killed."""
        for path in self.directory.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _pieces(checkpoint: Checkpoint) -> Any:
    listed, arrays = [], []
    for group, members in sorted(checkpoint.arrays.items()):
        for name, array in sorted(members.items()):
            listed.append({"group": group, "name": name, "type": array.dtype.str, "shape": list(array.shape)})
            arrays.append(array)
    header = json.dumps({"progress": checkpoint.progress, "arrays": listed}).encode()
    yield TAG + len(header).to_bytes(8, "little")
    yield header
    for array in arrays:
        yield np.ascontiguousarray(array).tobytes()


def is_checkpoint(path: Path) -> bool:
    """Whether the file begins as a checkpoint does. OSErrors as `open` gives them."""
    with open_file(path) as file:
        return file.read(len(TAG)) == TAG


def read_checkpoint(path: Path) -> Checkpoint | None:
    """None where the file is not as it was written."""
    with open_file(path) as file:
        data = file.read()
    body, digest = memoryview(data)[:-32], data[-32:]
    if data[:8] != TAG or hashlib.sha256(body).digest() != digest:
        return None
    try:
        return _decoded(body)
    except (msgspec.ValidationError, RecursionError, ValueError, TypeError, OverflowError, SyntaxError):
        return None


def _decoded(body: memoryview) -> Checkpoint:
    """The checkpoint in a file without its digest. The errors of damaged headers are those of the parsers."""
    length = int.from_bytes(body[8:16], "little")
    header = msgspec.convert(json.loads(bytes(body[16 : 16 + length])), _Header)  # it may have NaN and Infinity
    arrays: dict[str, dict[str, Array]] = {}
    offset = 16 + length
    for entry in header.arrays:
        dtype, count = np.dtype(entry.type), math.prod(entry.shape)
        array = np.frombuffer(body, dtype, count, offset).reshape(entry.shape)
        arrays.setdefault(entry.group, {})[entry.name] = array
        offset += count * dtype.itemsize
    return Checkpoint(header.progress, arrays)


def _number_of(path: Path) -> int:
    """Counts the checkpoints of a training; -1 where there is none."""
    try:
        with open_file(path) as file:
            start = file.read(16)
            header = json.loads(file.read(int.from_bytes(start[8:16], "little")))
        return int(header["progress"]["number"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, UsageError):
        return -1


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
