"""The parts that firmware has beyond a library: a linker script made from the plan, and the sources of its port."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from poetc.boards import BOARDS, KIB, TARGETS, Board, Region, Target, own_files
from poetc.emit._module import spare_block
from poetc.errors import UsageError
from poetc.program import CHECKPOINT_SLOTS, Program, checkpoint_block, slot_blocks, store_blocks
from poetc.runtime import STACK_BYTES, WIDE_NESTED_STACK_BYTES, runtime_directory
from poetc.runtime.layout import ALIGNMENT_BYTES, align
from poetc.scheduling import MemoryPlan, Problem

PROTECTION_BYTES = 32  # granularity of a memory protection unit
MMU_PAGE_BYTES = 4 * KIB
PAGE_BYTES = 64 * KIB  # of code and RAM where both are in one memory


_RESERVED = (".text", ".data", ".bss", ".stack", ".vectors", ".ARM.exidx", ".note.GNU-stack")


@dataclass(frozen=True, slots=True)
class BankSection:
    """The section of the arena's part in a bank, and its address; None: where the bank begins."""

    bank: str
    section: str
    address: int | None = None


@dataclass(frozen=True, slots=True)
class Sections:
    """The linker sections of the parts of a model; "": the usual one.

    `constants` holds the initial state, too. `store`: the first pages of the store become part of the program. `banks`:
    of a library whose arena is in several memories.
    """

    arena: str = ""
    constants: str = ""
    store: str = ""
    banks: tuple[BankSection, ...] = ()

    @classmethod
    def parse(cls, assignments: Iterable[str], banks: Sequence[str] = ()) -> Sections:
        """The sections that `arena=.axi_sram` and the like name; for `banks`, `axi=.axi_sram@0x24001000`, too.

        UsageError for another key, a name that no linker takes, a second one.
        """
        known = [f.name for f in fields(cls) if f.name != "banks"] + list(banks)
        names: dict[str, str] = {}
        addresses: dict[str, int] = {}
        for word in assignments:
            key, _, name = word.partition("=")
            if key in banks and "@" in name:
                name, _, address = name.partition("@")
                try:
                    addresses[key] = int(address, 0)
                except ValueError:
                    addresses[key] = -1
                if addresses[key] < 0:
                    raise UsageError(f"--section {word}: {address!r} is no address, as 0x24001000 is")
            if key not in known:
                raise UsageError(f"--section {word}: write {', '.join(known[:-1])} or {known[-1]}, =, and a section")
            if not re.fullmatch(r"[._A-Za-z][\w.$]*", name) or name in _RESERVED:
                raise UsageError(f"--section {word}: {name or 'nothing'} is not a section of your own, as .axi_sram is")
            if key in names:
                raise UsageError(f"--section {word}: {key} has a section already")
            names[key] = name
        if len(set(names.values())) < len(names) and "arena" in names:
            raise UsageError("--section: the arena is in RAM, and needs a section that nothing else has")
        own = {key: name for key, name in names.items() if key not in banks}
        parts = tuple(BankSection(b, names[b], addresses.get(b)) for b in banks if b in names)
        return cls(**own, banks=parts)

    def __bool__(self) -> bool:
        return bool(self.arena or self.constants or self.store or self.banks)


NO_SECTIONS = Sections()


@dataclass(frozen=True, slots=True)
class Memory:
    """RAM that firmware may take: the total of arena, stack and variables, and the stack alone."""

    budget_bytes: int
    stack_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the linker puts things.

    The arena ends where RAM ends; the stack is at the bottom, so that its overflow leaves RAM instead of reaching data.
    """

    board: Board
    code: Region
    ram: Region
    stack_bytes: int  # of each processor
    arena_bytes: int
    processors: int = 1
    arena_address: int | None = None  # of an arena in several banks; `arena_bytes` are those of its part in `ram`
    banks: tuple[Region, ...] = ()  # the other banks, as far as they may be accessed

    @property
    def arena_origin(self) -> int:
        return self.ram.end - self.arena_bytes


FLEET_PROGRAM = "fleet.c"
FRAME_BYTES = 140  # the least that it needs for a frame


def used_blocks(programs: Sequence[Program], *, saves: bool) -> int:
    """Blocks of the store, from block 0, of pages and, if it `saves`, of checkpoints."""
    pages = max(store_blocks(program) for program in programs)
    checkpoints = checkpoint_block(programs) + CHECKPOINT_SLOTS * slot_blocks(programs[0])
    return max(pages, checkpoints) if saves else pages


def checkpoint_steps(program: Program, target: Target, board: Board | None, asked: int | None) -> int:
    """After how many steps the training program saves its state; 0: never.

    By default it does so after each, on boards with a store of their own, and where state lives on the store. There a
    reset without checkpoints would leave pages of another version than the state in RAM. Raises UsageError for a number
    that cannot be.
    """
    has_program = "device" in target.ports
    room = spare_block(program) is not None
    is_on_store = any(page.slots > 1 for page in program.pages)
    if asked is None:
        return int(board is not None and (board.own_store or is_on_store) and has_program and room)
    if asked == 0 and is_on_store and board is not None and board.own_store and has_program:
        raise UsageError(
            "--checkpoint 0: some state lives on the store, and a reset would lose the rest: 1, or solve with"
            " --state ram"
        )
    if asked > 0 and not has_program:
        raise UsageError(f"--checkpoint {asked}: the code for {target.name} has no training loop of a board in it")
    if asked > 0 and not room:
        raise UsageError(f"--checkpoint {asked}: the arena has no room for a block of the store besides the state")
    if asked > 1 and is_on_store:
        raise UsageError(
            f"--checkpoint {asked}: some state lives on the store, so every step must be saved: 1; solve with "
            "--state ram to save less often"
        )
    return asked


CODE_AND_TABLES_BYTES = 64 * KIB  # an ample guess


def formats_store(program: Program, board: Board | None, steps: int, image_bytes: int) -> bool:
    """Whether firmware holds the initial pages, and sets up an empty store of its board with them.

    `steps`: from checkpoint to checkpoint. `image_bytes`: of initial state and constants. Where the flash has no room
    beside them, somebody copies store.img to the card.
    """
    if not steps or board is None or not board.own_store or board.code is None:
        return False
    pages_bytes = initial_pages_bytes(program)
    return 0 < pages_bytes <= board.code.size_bytes - image_bytes - CODE_AND_TABLES_BYTES


def initial_pages_bytes(program: Program) -> int:
    """The flash that the data of all initial pages take."""
    return sum(align(page.size_bytes) for page in program.pages if page.image)


def port_sources(
    target: Target, board: Board | None, program: str = "train.c", *, bundle: bool = False, queues: bool = False
) -> dict[str, Path]:
    """Name in the emitted directory of each file of the port: sources, and the headers beside them.

    `program` is the one of the folder `device`. `bundle`: a program of Linux can follow the memory that is left to it.
    `queues`: several processors work, where the system or the board has them.
    """
    if not target.ports:  # a library
        return {}
    root = runtime_directory() / "ports"
    named = board.sources if board is not None else ()
    if board is not None and program == FLEET_PROGRAM:
        named = (*named, board.serial)
    if queues and "posix" in target.ports:
        named = (*named, "processors/threads.c")
    elif queues and board is not None and board.processors:
        named = (*named, board.processors)
    paths: set[Path] = set()
    for folder in (*target.ports, *(["pressure"] if bundle and "posix" in target.ports else [])):
        if folder == "loop" and program != "train.c":
            continue
        files = (root / folder).iterdir()
        # The board chooses the drivers of the folder `device`; every board has its program.
        paths |= {p for p in files if folder != "device" or p.suffix == ".h" or p.name == program}
    for name in named:
        if (root / name).exists():  # else it is a driver in the folder of the user's board
            paths |= {root / name, *_headers_of(root / name)}
    kinds = (".c", ".h", ".S")
    sources = {"main.c" if p.name == "main.c" else f"port/{p.name}": p for p in sorted(paths) if p.suffix in kinds}
    if target.build == "package":  # no program of its own
        sources.pop("main.c")
    if board is not None:
        sources |= {f"port/{name}": path for name, path in own_files(board).items()}  # in place of those of these names
    return sources


def _headers_of(path: Path) -> Iterator[Path]:
    """Those beside it that it includes."""
    for name in re.findall(r'^#include "(\w+\.h)"', path.read_text(encoding="utf-8"), re.MULTILINE):
        if (path.parent / name).exists():
            yield path.parent / name


def layout(board: Board, memory: Memory | None, arena_bytes: int, image_bytes: int, processors: int = 1) -> Layout:
    """The memory map for an arena and `image_bytes` of constants, tables and initial state.

    Without `memory`, the program may use the board's whole RAM, and the stack gets the bytes that the runtime needs.
    Raises UsageError where the board has less RAM than the budget's own share: the linker finds the rest.
    """
    assert board.code is not None and board.ram is not None
    code, ram = board.code, board.ram
    arena = align(arena_bytes)
    needed = STACK_BYTES + (WIDE_NESTED_STACK_BYTES if board.trap == "mmu" else STACK_BYTES)
    stack = align(memory.stack_bytes if memory is not None else needed)
    if code.origin == ram.origin:  # one memory for both
        code = Region(code.origin, align(image_bytes + 512 * KIB, PAGE_BYTES))  # code: all kernels take 300 KiB
        ram = Region(code.end, ram.size_bytes - code.size_bytes)
    size = ram.size_bytes if memory is None else min(memory.budget_bytes, ram.size_bytes)
    size -= size % (PROTECTION_BYTES if board.trap == "mpu" else ALIGNMENT_BYTES)
    if size <= 0:
        raise UsageError(f"{board.name} has {ram.size_bytes} bytes of RAM, the budget leaves nothing of it")
    if board.memory_option:
        size = min(align(size, 8 * KIB), ram.size_bytes)
        ram = Region(ram.origin, size)
    elif board.trap == "mmu":  # ends with a page
        ram = Region(align(ram.origin + size, MMU_PAGE_BYTES) - size, size)
    elif board.trap == "end":
        ram = Region(ram.end - size, size)
    else:
        ram = Region(ram.origin, size)
    return Layout(board, code, ram, stack, arena, processors)


REGIONS = 8  # that every protection unit has
MOST_BANKS = REGIONS - 3  # beside that of stack and variables; two are for code and devices


def bank_starts(board: Board | None, problem: Problem, plan: MemoryPlan, memory: Memory) -> dict[str, int]:
    """The address of the arena's part in each bank of a board.

    The part in another bank ends where a region of the protection unit does. UsageError where the board has no such
    banks.
    """
    known = dict(board.banks) if board is not None else {}
    first, *others = problem.banks
    if board is None or first.name != board.bank or any(b.name not in known for b in others):
        names = ", ".join(b.name for b in problem.banks)
        able = [b for b in BOARDS.values() if b.banks] if board is None or not board.banks else [board]
        fit = sorted(f"{b.name} ({', '.join((b.bank, *dict(b.banks)))})" for b in able)
        raise UsageError(
            f"solved for the banks {names}: firmware is for the banks of a board, the first of them first; these have"
            f" several: {', '.join(fit)}. A library (--target cortex-m, or c99) takes any"
        )
    used = [b for b in range(1, len(problem.banks)) if plan.banks[b].arena_bytes]
    if len(used) > MOST_BANKS:
        raise UsageError(
            f"solved for {len(used)} banks beside {board.bank}: the regions of a protection unit guard {MOST_BANKS};"
            " give budgets to fewer banks"
        )
    arena_bytes = align(plan.banks[0].arena_bytes)
    starts = {board.bank: layout(board, _in_grains(board, memory, len(used)), arena_bytes, 0).arena_origin}
    for b, spec in enumerate(others, 1):
        bank, size = known[spec.name], align(plan.banks[b].arena_bytes)
        if _region_bytes(size) > bank.size_bytes:
            raise UsageError(
                f"{board.name} has {bank.size_bytes:,} bytes in {spec.name}; solve for {spec.name}={bank.size_bytes} or"
                " less"
            )
        starts[spec.name] = bank.origin + _region_bytes(size) - size
    return starts


def _in_grains(board: Board, memory: Memory, others: int) -> Memory:
    """A budget at which as many regions end as a protection unit has besides those of code, devices and `others`."""
    core, grain_bytes = board.core or TARGETS[board.target].core, PROTECTION_BYTES
    if core is None or not core.has_regions_of_any_size:
        size_log2 = max(0, memory.budget_bytes - 1).bit_length()
        grain_bytes = max(grain_bytes, 1 << max(0, size_log2 - 3 * (REGIONS - 2 - others)))  # each has eighths
    return replace(memory, budget_bytes=memory.budget_bytes // grain_bytes * grain_bytes)


def _region_bytes(size_bytes: int) -> int:
    """The least that one region of a protection unit allows of a bank: some eighths of a power of two."""
    whole = max(256, 1 << (size_bytes - 1).bit_length()) if size_bytes else 0
    return align(size_bytes, whole // 8) if whole else 0


def layout_of(
    board: Board, memory: Memory | None, program: Program, arena_bytes: int, image_bytes: int, processors: int = 1
) -> Layout:
    """`layout` for an arena of `arena_bytes`, which `program` may have in several banks."""
    if program.arena_address is None or memory is None:
        return layout(board, memory, arena_bytes, image_bytes, processors)
    parts = {b.name: b for b in program.banks}
    others = [(part, bank) for name, bank in board.banks if (part := parts.get(name)) is not None]
    main = layout(board, _in_grains(board, memory, len(others)), 0, image_bytes)
    first = program.arena_address
    used = main.ram.end - first - parts[board.bank].offset_bytes if board.bank in parts else 0
    regions = tuple(
        Region(bank.origin, first + part.offset_bytes + bank_size(program, part.name) - bank.origin)
        for part, bank in others
    )
    return replace(main, arena_bytes=used, arena_address=first, banks=regions)


def bank_size(program: Program, name: str) -> int:
    """The bytes of the arena's part in a bank."""
    last = program.banks[-1]
    part = next(b for b in program.banks if b.name == name)
    return align(program.arena_bytes - last.offset_bytes) if part is last else part.size_bytes


def linker_script(plan: Layout, sections: Sections) -> str:
    """For GNU ld. An arena that does not fit fails here, with the number of bytes that are missing."""
    return "\n".join(_script(plan, sections))


def _script(plan: Layout, sections: Sections) -> Iterator[str]:
    code, ram = plan.code, plan.ram
    core = TARGETS[plan.board.target].core
    is_microcontroller = core is not None and core.is_microcontroller
    own = [name for name in (sections.constants, sections.store) if name and not name.startswith((".text", ".rodata"))]
    in_code = "".join(f"\n    {name} : {{ *({name}) }} > code" for name in dict.fromkeys(own))
    arena = sections.arena or ".bss.poetc_arena"
    stacks = plan.processors * plan.stack_bytes
    second = f"\n        . = . + {plan.stack_bytes};\n        poetc_second_stack_top = .;" * (plan.processors > 1)
    if plan.processors > 2:
        second += f"\n        . = . + {(plan.processors - 2) * plan.stack_bytes};"
    place = (
        f"{'.arena' if not sections.arena else arena} {plan.arena_origin:#010x} (NOLOAD) : {{ *({arena}) }} > ram"
        if plan.arena_address is None
        else f"poetc_arena = {plan.arena_address:#010x};"
    )
    banks = "".join(f"\n        LONG({b.origin:#010x}) LONG({b.end:#010x})" for b in plan.banks)
    table = f"\n        . = ALIGN(4);\n        poetc_banks = .;{banks}\n        poetc_banks_end = .;"
    if plan.arena_address is None:
        table = ""
    message = (
        f"the arena of {plan.arena_bytes} bytes does not fit: with the stack of {stacks} and variables it"
        f" needs more than the {ram.size_bytes} bytes of RAM"
    )
    yield f"/* {plan.board.title}: RAM {ram.size_bytes} bytes, arena {plan.arena_bytes}. Made by poetc. */"
    yield f"ENTRY({'poetc_reset' if is_microcontroller else '_start'})"
    yield "MEMORY"
    yield "{"
    yield f"    code (rx)  : ORIGIN = {code.origin:#010x}, LENGTH = {code.size_bytes}"
    yield f"    ram  (rwx) : ORIGIN = {ram.origin:#010x}, LENGTH = {ram.size_bytes}"
    yield "}"
    yield f"""
SECTIONS
{{
    poetc_code = ORIGIN(code);
    poetc_code_end = ORIGIN(code) + LENGTH(code);
    .text :
    {{
        KEEP(*(.vectors))
        *(.text.start)
        *(.text*)
        *(.rodata*)
        *(.data.rel.ro*){table}
        . = ALIGN(16);
    }} > code{in_code}
    .ARM.exidx : {{ *(.ARM.exidx*) }} > code

    poetc_ram = ORIGIN(ram);
    poetc_ram_end = ORIGIN(ram) + LENGTH(ram);
    .stack (NOLOAD) :
    {{
        poetc_stack = .;
        . = . + {plan.stack_bytes};
        poetc_stack_top = .;{second}
    }} > ram
    .data : {{ poetc_data = .; *(.data*) *(.got*) . = ALIGN(8); poetc_data_end = .; }} > ram AT > code
    poetc_data_load = LOADADDR(.data);
    poetc_code_used = LOADADDR(.data) + SIZEOF(.data);
    {place}
    .bss poetc_data_end (NOLOAD) : {{ poetc_bss = .; *(.bss*) *(COMMON) . = ALIGN(8); poetc_bss_end = .; }} > ram
    /DISCARD/ : {{ *(.eh_frame*) *(.note*) }}
}}
ASSERT({plan.arena_bytes} + {stacks} + (poetc_bss_end - poetc_data) <= LENGTH(ram),
       "{message}")
"""


def call_graph_flags(target: Target) -> str:
    """Lets the compiler write the call graph with the stack of every function (build/**/*.ci), for a bound on it."""
    return " -fcallgraph-info=su" if target.build == "firmware" else ""


def link_flags(target: Target) -> list[str]:
    """The flags of the linker, for firmware; the script comes on top."""
    newlib = ["--specs=nano.specs"] if target.cross_compile == "arm-none-eabi-" else ["-nostdlib", "-static"]
    build_id = "-Wl,--build-id=none,-z,noexecstack,-z,max-page-size=4096,--no-warn-rwx-segments"
    return ["-nostartfiles", *newlib, build_id]


def makefile_lines(target: Target) -> list[str]:
    """The rule that links `firmware.elf`; LIBRARY are all objects."""
    *first, build_id = link_flags(target)
    return [
        "firmware.elf: $(LIBRARY) link.ld",
        f"\t$(CC) $(CFLAGS) {' '.join(first)} -T link.ld -Wl,--gc-sections,-Map=firmware.map {build_id} -o $@"
        " $(LIBRARY) -lgcc $(LDFLAGS)",
        "",
    ]
