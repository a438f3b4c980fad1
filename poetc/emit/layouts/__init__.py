"""How emitted files lie in a directory: one module for each build system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from poetc.emit.layouts import arduino, cmake, cmsis_pack, makefile, zephyr
from poetc.emit.layouts.contents import OPT_LEVELS, Contents, Emitted, check_names, library_sources

Files = Mapping[str, bytes | Path]


@dataclass(frozen=True, slots=True)
class Layout:
    """`place` gives each file its name in the directory: bytes to write, or a file to copy.

    `programs`: also with the program and the port of a target; otherwise a library alone. `named`: files of a model
    begin with its name, so that a project may have many.
    """

    place: Callable[[Contents], Files]
    programs: bool = False
    named: bool = True


LAYOUTS = {
    "makefile": Layout(makefile.place, programs=True, named=False),
    "cmake": Layout(cmake.place, programs=True),
    "zephyr": Layout(zephyr.place),
    "arduino": Layout(arduino.place),
    "cmsis-pack": Layout(cmsis_pack.place),
}

__all__ = [
    "LAYOUTS",
    "OPT_LEVELS",
    "Contents",
    "Emitted",
    "Files",
    "Layout",
    "check_names",
    "library_sources",
]
