"""A disk that loses what was not synced: replays what a program wrote (recorder.c) and pulls the plug at any moment.

As POSIX allows it: of the writes since a file's last sync each sector may be there or not, whatever their order; a name
that was made, replaced or removed since the directory's last sync may be as it was before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

SECTOR_BYTES = 512
WRAPPED = (
    "open",
    "open64",
    "pwrite",
    "pwrite64",
    "write",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "poetc_checkpoint_save",
)
RECORDER = Path(__file__).with_name("recorder.c")


@dataclass(frozen=True, slots=True)
class Event:
    """`kind`: c create, t truncate, w write, s sync, r rename, u unlink, k checkpoint saved (`offset`: its step)."""

    kind: str
    name: str
    other: str
    offset: int
    data: bytes


def link_options(recorder_object: Path) -> str:
    """For LDFLAGS: the recorder, and what it stands before."""
    return " ".join([str(recorder_object), *(f"-Wl,--wrap={name}" for name in WRAPPED)])


def read_record(path: Path) -> list[Event]:
    """The events of a record, in order."""
    data, at, events = path.read_bytes(), 0, []
    while at < len(data):
        first, second, offset, size = struct.unpack_from("<QQQQ", data, at + 1)
        start = at + 33
        name, other = data[start : start + first], data[start + first : start + first + second]
        start += first + second
        events.append(Event(chr(data[at]), name.decode(), other.decode(), offset, data[start : start + size]))
        at = start + size
    return events


@dataclass(slots=True)
class _File:
    """What is on the medium, and what was written since, sector by sector: each list from old to new."""

    synced: bytes = b""
    written: bytearray = field(default_factory=bytearray)
    pending: dict[int, list[bytes]] = field(default_factory=dict)

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self.written.extend(bytes(max(0, end - len(self.written))))
        self.written[offset:end] = data
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            start = sector * SECTOR_BYTES
            self.pending.setdefault(sector, []).append(bytes(self.written[start : start + SECTOR_BYTES]))

    def truncate(self) -> None:
        self.written.clear()
        self.pending = {sector: [*old, b""] for sector, old in self.pending.items()}
        for sector in range(-(-len(self.synced) // SECTOR_BYTES)):
            self.pending.setdefault(sector, []).append(b"")

    def sync(self) -> None:
        self.synced = bytes(self.written)
        self.pending = {}

    def survives(self, random: Random) -> bytes:
        """What a cut now leaves."""
        found = bytearray(self.synced)
        for sector, versions in sorted(self.pending.items()):
            kept = random.randint(0, len(versions))  # 0: none of them
            if kept > 0:
                data, start = versions[kept - 1], sector * SECTOR_BYTES
                found.extend(bytes(max(0, start + len(data) - len(found))))
                found[start : start + len(data)] = data
        return bytes(found)


class Medium:
    """The files of one directory. Names are those that the program used."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._synced = {name: _File(data, bytearray(data)) for name, data in files.items()}
        self._now = dict(self._synced)
        self._changes: list[Event] = []  # of the directory, since its last sync

    def replay(self, events: Iterable[Event]) -> None:
        for event in events:
            match event.kind:
                case "c":
                    self._now[event.name] = _File()
                    self._changes.append(event)
                case "t":
                    self._now[event.name].truncate()
                case "w":
                    self._now[event.name].write(event.offset, event.data)
                case "s" if event.name in (".", "./"):
                    self._synced, self._changes = dict(self._now), []
                case "s":
                    self._now[event.name].sync()
                case "r":
                    self._now[event.other] = self._now.pop(event.name)
                    self._changes.append(event)
                case "u":
                    del self._now[event.name]
                    self._changes.append(event)

    def pull_the_plug(self, random: Random) -> dict[str, bytes]:
        """The files that are there after it."""
        names = dict(self._synced)
        for name, file in self._now.items():
            if names.get(name) is not file and random.random() < 0.5:
                names[name] = file
        for name in [n for n in names if n not in self._now and random.random() < 0.5]:
            del names[name]
        return {name: file.survives(random) for name, file in names.items()}
