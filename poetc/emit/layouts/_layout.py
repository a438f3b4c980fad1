"""A way in which emitted files lie in a directory, for one build system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from poetc.emit.layouts._contents import Contents

Files = Mapping[str, bytes | Path]


@dataclass(frozen=True, slots=True)
class Layout:
    """`place` gives each file its name in the directory: bytes to write, or a file to copy.

    `programs`: also with the program and the port of a target; otherwise a library alone. `named`: files of a model
    begin with its name, so that a project may have many. `next_step`: how a project takes the directory in, as a
    half-sentence; "" where the program is built in it. `target`: the one of the layout where none is named; "": this
    machine for a program, any core for a library.
    """

    place: Callable[[Contents], Files]
    next_step: str = ""
    programs: bool = False
    named: bool = True
    target: str = ""
