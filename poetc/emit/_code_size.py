"""How large the firmware of a program will be, without a compiler.

`poetc/runtime/code_sizes.tsv` lists every function and variable of the runtime, the ports and the compiler's libraries.
It gives the bytes that each takes on each target, and the symbols that it refers to; scripts/code_sizes.py measures
them. The linker keeps all that can be reached from the program's kernels and from reset. Tables and images are counted
exactly.
"""

from __future__ import annotations

import functools
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
from poetc.program import Program, inputs_on_store, packed_state_bytes
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
    roots |= {"poetc_stream_half"} if main.has_blocks and queues else set()
    roots |= {"poetc_rows"} if main.has_tables else set()
    roots |= {"poetc_session_fill"} if inputs_on_store(main) else set()
    kept = _reached(sections, roots | {name for name in sections if name.endswith((":.vectors", ":.text.start"))})
    total = dict.fromkeys((CODE, VARIABLES, INITIALISED), 0)
    for name in kept:
        total[sections[name].kind] += sections[name].size_bytes
    plan = layout(board, memory, module.arena_bytes, 0, len(main.queues) if queues else 1)
    checksum_bytes = CHECKSUM_BYTES if gradients else 0
    state_bytes = packed_state_bytes(main, values) if main.state_bytes else 0
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
