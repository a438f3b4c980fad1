"""Kinds of training data: one file each, which declares the names of files that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from poetc.datasets._columns import Samples
from poetc.datasets._matching import Note
from poetc.datasets._slots import Slot
from poetc.declare import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A source to read: the arrays that `selection` names, by slot. `classes`: those of the training data."""

    path: Path
    slots: Sequence[Slot]
    selection: Mapping[str, str]
    classes: tuple[str, ...]
    note: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`takes`: whether a file or a folder is of this kind. `words`: how messages call it."""

    name: str
    words: str
    takes: Callable[[Path], bool]
    read: Callable[[Request], Samples]


KINDS: Registry[Kind] = Registry("--data")


def declare(name: str, words: str, read: Callable[[Request], Samples], *suffixes: str) -> None:
    """Add a kind of files that end in one of `suffixes`."""
    KINDS.add(name, Kind(name=name, words=words, takes=lambda path: path.suffix.lower() in suffixes, read=read))


def declare_folder(name: str, words: str, read: Callable[[Request], Samples], takes: Callable[[Path], bool]) -> None:
    """Add a kind of folders that `takes` knows by their content."""
    KINDS.add(name, Kind(name=name, words=words, takes=lambda path: path.is_dir() and takes(path), read=read))
