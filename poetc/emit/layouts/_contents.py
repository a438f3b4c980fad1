"""The contents of an emission, before a layout gives each file its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

from poetc.boards import Board, Numerics, Target, numerics_flags
from poetc.emit._cprint import identifier
from poetc.emit._firmware import NO_SECTIONS, Sections
from poetc.emit._library_banks import BankPart, bank_assembly, bank_parts
from poetc.emit._module import Module
from poetc.errors import UsageError

OPT_LEVELS = ("-O0", "-O1", "-O2", "-O3", "-Os")

WARNINGS = "-Wall -Wextra -Wconversion -pedantic"
NOTE_GNU_STACK = '    .section .note.GNU-stack, "", %progbits'
LIBRARY_NAME_LENGTH = 32  # of a component in a CMSIS-Pack
_BYTES_A_LINE = 24
LARGE_BYTES = 1 << 30  # of images: more of them lie behind the program


@dataclass(frozen=True, slots=True)
class Emitted:
    """One model: its header and source (`files`), its images, and the number that tells these from others."""

    module: Module
    emission: int
    files: Mapping[str, bytes]
    images: Mapping[str, bytes]


@dataclass(frozen=True)
class Contents:
    """All of an emission. `runtime` and `port`: name in the emitted directory, and the file that is copied.

    `files`: others that a build needs. `arenas`: the data sources define an arena for each model; `shared_arena`: one
    for all of them.
    """

    models: tuple[Emitted, ...]
    runtime: Mapping[str, bytes | Path]
    target: Target
    board: Board | None
    numerics: Numerics
    port: Mapping[str, Path] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    sections: Sections = NO_SECTIONS
    arenas: bool = False
    shared_arena: bool = False
    checkpoint: int = 0
    formats: bool = False  # the program sets up an empty store, with pages.bin
    threads: int = 1  # in kernels, where `make` says nothing else
    opt_level: str = ""  # "": that of the target, or of the project

    @property
    def modules(self) -> list[Module]:
        return [model.module for model in self.models]

    @property
    def has_processors(self) -> bool:
        """Whether its program runs on several processors."""
        return "port/poetc_processors.h" in self.port

    @property
    def title(self) -> str:
        return " and ".join(_plain(m.name or m.model) for m in self.modules)

    @property
    def library_name(self) -> str:
        """One identifier for all of it, of at most 32 characters."""
        return identifier("_".join(m.prefix for m in self.modules), LIBRARY_NAME_LENGTH)

    @cached_property
    def images(self) -> dict[str, bytes]:
        return {name: data for model in self.models for name, data in model.images.items()}

    @cached_property
    def written(self) -> dict[str, bytes]:
        """Everything but the runtime, the port and the sources of data."""
        headers = {name: data for model in self.models for name, data in model.files.items()}
        return {**headers, **self.images, **self.files}

    def data_sources(self, *, inline: bool = False) -> dict[str, bytes]:
        """Assembly with the images and the arenas; `inline`: with their bytes, which needs no path of an image."""
        sources = {}
        for model in self.models:
            lines = list(_data(model, self.sections, inline))
            if parts := self.bank_parts(model.module):
                lines += bank_assembly(parts)
            elif self.arenas and not self.shared_arena:
                lines += _arena([model.module], arena_section(self.sections))
            sources[model.module.data_source] = _assembly("The initial state and the constants, read-only.", lines)
        if self.shared_arena:
            lines = list(_arena(self.modules, arena_section(self.sections)))
            sources["poetc_arena.S"] = _assembly("One arena for all models: one of them trains at a time.", lines)
        return sources

    def bank_parts(self, module: Module) -> list[BankPart]:
        """The parts of a library's arena that is in several memories."""
        return bank_parts(module, self.sections) if self.target.build == "library" else []

    def compiler_flags(self) -> str:
        """Without those of the core."""
        several = " -DPOETC_QUEUES" + " -pthread" * self.target.hosted if self.has_processors else ""
        return f"-std=c99 {WARNINGS} {self.numerics_flag}{several}{' -DPOETC_FORMATS' * self.formats}"

    @property
    def numerics_flag(self) -> str:
        return numerics_flags(self.numerics)


def _plain(text: str) -> str:
    """A name within a line of a build file."""
    return "".join(c if c.isalnum() or c in "-_. " else "_" for c in text)


def include_folders(sources: Iterable[str]) -> list[str]:
    """Folders of the runtime are its rooms; a deeper file is named by its way from there."""
    rooms = {"/".join(s.split("/")[: 2 if s.startswith("runtime/") else 1]) for s in sources if "/" in s}
    return [".", "runtime/include", *sorted(rooms - {"runtime/include"})]


def library_sources(contents: Contents) -> list[str]:
    """C and assembly of models and runtime, without the port."""
    names = [*contents.written, *contents.data_sources(), *contents.runtime]
    return sorted(name for name in names if name.endswith((".c", ".S")))


def arena_section(sections: Sections) -> str:
    """The section that arenas of a library are in."""
    return sections.arena or ".bss.poetc_arena"


def _assembly(title: str, lines: Iterable[str]) -> bytes:
    return "\n".join([f"/* {title} */", *lines, NOTE_GNU_STACK, ""]).encode()


def _data(model: Emitted, sections: Sections, inline: bool) -> Iterator[str]:
    """The images: `.incbin` is the one way that is fast to compile for any size. %progbits suits every ELF.

    Code of x86-64 reaches 2 GiB, so larger images lie behind all else.
    """
    module = model.module
    usual = f'    .section {sections.constants or ".rodata.poetc"}, "a", %progbits'
    if not sections.constants and sum(map(len, model.images.values())) > LARGE_BYTES:
        large = '    .section .lrodata.poetc, "al", %progbits'
        yield from ("#if defined(__x86_64__) && defined(__ELF__)", large, "#else", usual, "#endif")
    else:
        yield usual
    for name in ("state", "constants", "pages"):
        file = module.image(f"{name}.bin")
        if file in model.images:
            yield from _object(f"{module.prefix}_{name}", file, model.images[file], inline)
    file = module.image("store.img")
    if sections.store and file in model.images:
        symbol = f"{module.prefix}_store_image"
        yield f'    .section {sections.store}, "a", %progbits'
        yield from _object(symbol, file, model.images[file], inline)
        yield from (f"    .global {symbol}_end", f"{symbol}_end:")


def _object(symbol: str, file: str, data: bytes, inline: bool) -> Iterator[str]:
    yield from ("    .balign 16", f"    .global {symbol}", f"    .type {symbol}, %object", f"{symbol}:")
    if inline:
        for at in range(0, len(data), _BYTES_A_LINE):
            yield f"    .byte {','.join(map(str, data[at : at + _BYTES_A_LINE]))}"
    else:
        yield f'    .incbin "{file}"'
    yield f"    .size {symbol}, . - {symbol}"


def _arena(modules: Sequence[Module], section: str) -> Iterator[str]:
    """In assembly, since a compiler would fill an array in a section with a name of its own with zeros in flash."""
    size = max(m.arena_bytes for m in modules)
    yield f'    .section {section}, "aw", %nobits'
    yield "    .balign 16"
    for module in modules:
        yield from (f"    .global {module.arena}", f"    .type {module.arena}, %object", f"{module.arena}:")
    yield f"    .space {size}"
    yield from (f"    .size {module.arena}, {size}" for module in modules)


_DECLARED = re.compile(r"^#define (\w+)|^extern [^;\n]*?(\w+)(?:\[\])?;|^static inline [^(\n]*?(\w+)\(", re.MULTILINE)


def check_names(models: Sequence[Emitted]) -> None:
    """UsageError where two models give something the same name."""
    declared = [
        {next(filter(None, groups)) for text in m.files.values() for groups in _DECLARED.findall(text.decode())}
        for m in models
    ]
    for (first, some), (second, others) in combinations(zip(models, declared, strict=True), 2):
        a, b = first.module, second.module
        common = min(some & others, default="")
        if a.stem.lower() == b.stem.lower():
            common = f"{b.stem}.h"
        if common:
            raise UsageError(
                f"{a.name or a.model} and {b.name or b.model} both have the name {common}: give each model a name of"
                " its own with --name, in the order of the directories"
            )
