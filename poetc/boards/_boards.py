"""Targets (a core and how to compile for it) and boards (a memory map and how to start it)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poetc.boards._cores import Core

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Region:
    origin: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.origin + self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A family of devices, and how programs for it are compiled.

    `build`: a program for an operating system, a library, or firmware.

    `exact_flags` are added where subnormal numbers count: for all numerics but `fast`. A file in `targets` has these
    fields; `{core}` in its flags stands for those of the core.
    """

    name: str
    title: str = ""  # the result, in the table of docs/how-to/port.md
    cross_compile: str = ""  # The compiler's default prefix.
    flags: str = "-O2"
    exact_flags: str = ""
    build: str = "firmware"  # program | library | firmware | package
    ports: tuple[str, ...] = ()  # folders of runtime/ports, all of their sources
    board: str = ""  # the one whose memory map is taken if none is named
    core: Core | None = None  # whose instructions the code has; None: any core's

    @property
    def hosted(self) -> bool:
        return self.build in ("program", "package")


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A memory map, the sources of its port, and how QEMU starts it.

    `code` and `ram` are the memories that the linker may use. `trap` names the mechanism that catches an access past
    the budget. That is the protection unit, the memory management unit, pages that are taken away, or the end of the
    RAM: then the budget ends there. `memory_option`: QEMU gets RAM that ends exactly with the budget.
    A file in `boards` has these fields.
    """

    name: str
    title: str
    target: str
    qemu: tuple[str, ...]
    code: Region | None = None
    ram: Region | None = None
    sources: tuple[str, ...] = ()  # files of runtime/ports besides the target's folders
    serial: str = ""  # the driver of its serial line, a file of runtime/ports; "": none here
    processors: str = ""  # the port of its other processors, a file of runtime/ports; "": it has one
    processor_count: int = 2  # with that port, the most
    smp: bool = False  # QEMU is told how many processors there are
    trap: str = ""  # mpu | mmu | end | pages | ""
    memory_option: bool = False
    bank: str = "ram"  # name of the memory `ram`, where an arena is spread over several
    banks: tuple[tuple[str, Region], ...] = ()  # the others that it may be spread over, by name
    card: bool = False  # pages go to an SD card image; otherwise to a file
    own_store: bool = False  # of the board, not the debugger's: checkpoints are on unless they are switched off
    cross_compile: str = ""  # where it differs from the target's
    flags: str = ""
    core: Core | None = None
    folder: Path | None = None  # of a board of the user's own: its files are compiled, too
