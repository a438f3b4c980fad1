"""Kinds of training data: one file each, which declares the names of files that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poetc.datasets._columns import Samples
from poetc.datasets._matching import Note
from poetc.datasets._slots import Slot
from poetc.declare import Option, Registry
from poetc.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of the options that kinds declare, by name, and the model's file, beside which other files may lie."""

    values: Mapping[str, Any] = field(default_factory=dict)
    model: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A source to read: the arrays that `selection` names, by slot. `like`: the training data of a validation."""

    path: Path
    slots: Sequence[Slot]
    selection: Mapping[str, str]
    like: Samples | None
    note: Note
    settings: Settings = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`takes`: whether a file or a folder is of this kind. `description`: how messages and the help of --data call it.

    `help`: a sentence more of that help. `options`: those that it alone has. `ignores`: the class of targets that count
    for nothing, where its samples have such targets.
    """

    name: str
    description: str
    takes: Callable[[Path], bool]
    read: Callable[[Request], Samples]
    help: str = ""
    options: tuple[Option, ...] = ()
    ignores: int | None = None


KINDS: Registry[Kind] = Registry("--data")


def kind_of(path: Path) -> Kind | None:
    """The first kind that takes the file or the folder."""
    return next((kind for kind in KINDS.values() if kind.takes(path)), None)


def require_used(kind: Kind | None, settings: Settings, source: str) -> None:
    """UsageError for an option with a value that is of another kind than that of `source`."""
    mine = () if kind is None else kind.options
    for other in KINDS.values():
        for option in other.options:
            if option not in mine and settings.values.get(option.name) not in (None, "", False):
                raise UsageError(f"{option.flag} is for {other.description}; {source} holds none")


def declare(name: str, description: str, read: Callable[[Request], Samples], *suffixes: str) -> None:
    """Add a kind of files that end in one of `suffixes`."""
    KINDS.add(
        name, Kind(name=name, description=description, takes=lambda path: path.suffix.lower() in suffixes, read=read)
    )


def declare_folder(
    name: str, description: str, read: Callable[[Request], Samples], takes: Callable[[Path], bool]
) -> None:
    """Add a kind of folders that `takes` knows by their content."""
    KINDS.add(
        name, Kind(name=name, description=description, takes=lambda path: path.is_dir() and takes(path), read=read)
    )
