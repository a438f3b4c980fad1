"""How large the firmware of a program will be, without a compiler.

`poetc/runtime/code_sizes.tsv` lists every function and variable of the runtime, the ports and the compiler's libraries.
It gives the bytes that each takes on each target, and the symbols that it refers to; scripts/code_sizes.py measures
them. The linker keeps all that can be reached from the program's kernels and from reset. Tables and images are counted
exactly.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from poetc.boards import TARGETS, Board, Numerics, numerics_of_target
from poetc.emit._firmware import (
    Memory,
    checkpoint_steps,
    formats_store,
    initial_pages_bytes,
    layout,
    port_sources,
)
from poetc.emit._module import Module
from poetc.emit._tables_bytes import tables_bytes
from poetc.graph import Value
from poetc.program import Program, inputs_on_store, packed_state
from poetc.runtime import runtime_directory
from poetc.runtime.layout import align

DATA_FILE = runtime_directory() / "code_sizes.tsv"
TRAIN = "ports/device/train.c"  # measured for one processor and, where a board has more, for several
LOOP = (TRAIN, "ports/loop/poetc_loop.c")  # measured without and with checkpoints
CHECKPOINTS, QUEUES = "+checkpoints", "+queues"
CODE, VARIABLES, INITIALISED = "code", "bss", "data"
CHECKSUM_BYTES = 4  # `gradients_crc` of train.c
Key = tuple[str, str]  # target and numerics


def columns() -> list[tuple[str, Numerics]]:
    """Firmware targets, and the numerics that each may have."""
    result: list[tuple[str, Numerics]] = []
    for target in TARGETS.values():
        if target.build == "firmware":
            result += [(target.name, numerics) for numerics in numerics_of_target(target)]
    return result


@dataclass(frozen=True, slots=True)
class Section:
    """A piece that the linker keeps or drops as one.

    `name`: file and section; `references`: symbols, or sections by name.
    """

    name: str
    kind: str
    size_bytes: int
    symbols: tuple[str, ...]
    references: frozenset[str]


_LEFT_OUT = (".ARM.ex", ".eh_frame", ".bss.poetc_arena")  # discarded, or counted apart

_WEAK = 2  # binding of a symbol

# --- object files -----------------------------------------------------------------------------------------------------


def read_object(data: bytes, label: str) -> tuple[dict[str, Section], set[str]]:
    """Sections of an ELF object (little-endian, 32 or 64 bits) that take memory, and its undefined symbols."""
    wide = data[4] == 2
    head = struct.unpack_from("<16xHHIQQQIHHHHHH" if wide else "<16xHHIIIIIHHHHHH", data)
    offset, entry, count, names_at = head[5], head[10], head[11], head[12]
    form = "<IIQQQQIIQQ" if wide else "<IIIIIIIIII"
    headers = [struct.unpack_from(form, data, offset + i * entry) for i in range(count)]

    def text(table: int, at: int) -> str:
        start = headers[table][4] + at
        return data[start : data.index(b"\0", start)].decode()

    names = [text(names_at, h[0]) for h in headers]
    symbols: list[tuple[str, int, int, int]] = []  # name, section, type, binding
    for h in headers:
        if h[1] == 2:
            for at in range(h[4], h[4] + h[5], h[9]):
                if wide:
                    name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, at)
                else:
                    name, _, _, info, _, section = struct.unpack_from("<IIIBBH", data, at)
                symbols.append((text(h[6], name), section, info & 15, info >> 4))
    references: dict[int, set[str]] = {}
    for h in headers:
        if h[1] in (4, 9):
            for at in range(h[4], h[4] + h[5], h[9]):
                info = struct.unpack_from("<QQ" if wide else "<II", data, at)[1]
                name, section, _, binding = symbols[info >> 32 if wide else info >> 8]
                if section == 0 and binding == _WEAK:  # the linker brings nothing in for it
                    continue
                local = 0 < section < 0xFF00 and (binding == 0 or not name)
                references.setdefault(h[7], set()).add(f"{label}:{names[section]}" if local else name)
    by_name: dict[str, Section] = {}
    for i, h in enumerate(headers):
        kind = INITIALISED if h[2] & 1 else CODE
        if not h[2] & 2 or h[1] not in (1, 8) or h[5] == 0 or names[i].startswith(_LEFT_OUT):
            continue
        if h[1] == 8:
            kind = VARIABLES
        name = f"{label}:{names[i]}"
        own = tuple(sorted(s for s, section, _, binding in symbols if section == i and binding != 0))
        previous = by_name.get(name)
        size = align(h[5], max(4, h[8]) if h[8] <= 16 else 4) if kind != CODE else align(h[5], 4)
        by_name[name] = Section(
            name,
            kind,
            size + (previous.size_bytes if previous else 0),
            own + (previous.symbols if previous else ()),
            frozenset(references.get(i, set()) | (previous.references if previous else set())),
        )
    return by_name, {s for s, section, _, binding in symbols if section == 0 and s and binding != _WEAK}


# --- the table --------------------------------------------------------------------------------------------------------


def write_table(measured: Mapping[Key, Mapping[str, Section]], note: str) -> str:
    """One line a section: name, kind, symbols, bytes on each target, references (and the targets that have them)."""
    keys = list(measured)
    lines = [
        "# Bytes of code and variables of the runtime on each target; made by scripts/code_sizes.py, do not edit.",
        f"# {note}",
        "\t".join(["section", "kind", "symbols", *(f"{t}/{n}" for t, n in keys), "references"]),
    ]
    for name in sorted({name for sections in measured.values() for name in sections}):
        of = {key: sections[name] for key, sections in measured.items() if name in sections}
        some = next(iter(of.values()))
        sizes = [str(of[key].size_bytes) if key in of else "" for key in keys]
        symbols = sorted({s for section in of.values() for s in section.symbols})
        masks: dict[str, int] = {}
        for bit, key in enumerate(keys):
            for reference in of[key].references if key in of else ():
                masks[reference] = masks.get(reference, 0) | 1 << bit
        full = sum(1 << bit for bit, key in enumerate(keys) if key in of)
        references = [r if mask == full else f"{r}@{mask:x}" for r, mask in sorted(masks.items())]
        lines.append("\t".join([name, some.kind, " ".join(symbols), *sizes, " ".join(references)]))
    return "\n".join([*lines, ""])


@functools.cache
def _table() -> tuple[dict[Key, int], tuple[tuple[Section, tuple[int, ...], dict[str, int]], ...]]:
    """The column of each target, and every section with its sizes and the columns that each reference holds for."""
    lines = DATA_FILE.read_text().splitlines()[2:]
    head = lines[0].split("\t")[3:-1]
    keys: dict[Key, int] = {}
    for i, word in enumerate(head):
        target, numerics = word.split("/")
        keys[target, numerics] = i
    rows = []
    for line in lines[1:]:
        name, kind, symbols, *sizes, references = line.split("\t")
        masks = {}
        for word in references.split():
            reference, _, mask = word.partition("@")
            masks[reference] = int(mask, 16) if mask else -1
        section = Section(name, kind, 0, tuple(symbols.split()), frozenset())
        rows.append((section, tuple(int(s or 0) for s in sizes), masks))
    return keys, tuple(rows)


def is_measured(board: Board) -> bool:
    """Whether the table has the sizes of the board's target and port."""
    return board.folder is None and (board.target, "separate") in _table()[0]


@functools.cache
def read_table(key: Key) -> dict[str, Section]:
    """By name, those that `key` has."""
    keys, rows = _table()
    column = keys[key]
    of_key = {}
    for section, sizes, masks in rows:
        if sizes[column]:
            references = frozenset(name for name, mask in masks.items() if mask >> column & 1)
            of_key[section.name] = replace(section, size_bytes=sizes[column], references=references)
    return of_key


@dataclass(frozen=True, slots=True, kw_only=True)
class FirmwareSize:
    """Bytes.

    `flash_bytes` = code + tables + images, as `size` counts text and data. `ram_bytes` is all RAM that is linked:
    stack, variables and the arena.
    """

    code_bytes: int
    tables_bytes: int
    image_bytes: int
    stack_bytes: int
    variables_bytes: int
    arena_bytes: int

    @property
    def flash_bytes(self) -> int:
        return self.code_bytes + self.tables_bytes + self.image_bytes

    @property
    def ram_bytes(self) -> int:
        return self.stack_bytes + self.variables_bytes + self.arena_bytes


def _reached(sections: Mapping[str, Section], names: Iterable[str]) -> set[str]:
    """The sections that the linker keeps for these symbols and sections."""
    places = {symbol: name for name, s in sections.items() for symbol in s.symbols}
    waiting = sorted(names)
    kept: set[str] = set()
    while waiting:
        name = waiting.pop()
        name = places.get(name, name)
        if name in sections and name not in kept:
            kept.add(name)
            waiting += sections[name].references
    return kept


def kernel_bytes(symbols: Iterable[str], board: Board, numerics: str = "separate") -> int:
    """The code of these kernels on a board, with all that they call. The table must have its target."""
    sections = read_table((board.target, numerics))
    reached = (sections[name] for name in _reached(sections, symbols))
    return sum(s.size_bytes for s in reached if s.kind == CODE)


def firmware_size(
    main: Program,
    board: Board,
    *,
    values: Mapping[str, Value],
    numerics: str = "separate",
    memory: Memory | None = None,
    checkpoint: int | None = None,
    gradients: bool = False,
) -> FirmwareSize:
    """The predicted size of the firmware of `main` on `board`, for the compiler that the table names.

    It is that of one pass over the data: EPOCHS and VALIDATION of its Makefile add code, and VALIDATION the program
    `evaluate`. Other programs of a model do not count: the loop does not call them, so the linker drops them.
    Of the initial state (`values`) zeros take no flash. `gradients`: it logs a checksum of them. The size counts the
    variable of this checksum, but not the little code for it.
    """
    module = Module("model", (main,))
    target = TARGETS[board.target]
    queues = bool(main.queues and board.processors)
    ports = {f"ports/{p.parent.name}/{p.name}" for p in port_sources(target, board, queues=queues).values()}
    steps = checkpoint_steps(main, target, board, checkpoint)
    if steps:
        ports = ports - {*LOOP} | {name + CHECKPOINTS for name in LOOP}
    if queues:
        ports = {name.replace(TRAIN, TRAIN + QUEUES) for name in ports}
    sections = {
        name: s
        for name, s in read_table((board.target, numerics)).items()
        if not name.startswith("ports/") or name.partition(":")[0] in ports
    }
    roots = main.kernels | ({"poetc_stream"} if main.has_blocks else set())
    roots |= {"poetc_session_fill"} if inputs_on_store(main) else set()
    kept = _reached(sections, roots | {name for name in sections if name.endswith((":.vectors", ":.text.start"))})
    total = dict.fromkeys((CODE, VARIABLES, INITIALISED), 0)
    for name in kept:
        total[sections[name].kind] += sections[name].size_bytes
    plan = layout(board, memory, module.arena_bytes, 0, len(main.queues) if queues else 1)
    checksum_bytes = CHECKSUM_BYTES if gradients else 0
    state_bytes = len(packed_state(main, values)) if main.state_bytes else 0
    images = state_bytes + align(module.flash_bytes)
    if formats_store(main, board, steps, images):
        images += initial_pages_bytes(main)
    variables = align(total[INITIALISED], 8) + align(
        total[VARIABLES] + checksum_bytes, 8
    )  # as the linker script has it
    return FirmwareSize(
        code_bytes=total[CODE] + total[INITIALISED],
        tables_bytes=tables_bytes(module, 8 if "aarch64" in target.cross_compile else 4, queues=queues),
        image_bytes=images,
        stack_bytes=plan.processors * plan.stack_bytes,
        variables_bytes=variables,
        arena_bytes=plan.arena_bytes,
    )
