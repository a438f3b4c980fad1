"""Runs emitted firmware on an emulated board, measured from outside the program."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from poetc.boards import (
    TARGETS,
    Board,
    Elf,
    Numerics,
    build_counter,
    command,
    compiler_prefix,
    find_board,
    read_elf,
    require_toolchain,
)
from poetc.devices.core_cycles import has_table
from poetc.emit import Memory, bank_size, checkpoint_steps, emit, used_blocks
from poetc.errors import CheckFailed, format_count
from poetc.graph import Array, Value
from poetc.measure._counting import read_counts, write_costs
from poetc.measure._stack import stack_bound
from poetc.program import (
    Call,
    Move,
    Page,
    PageIn,
    PageOut,
    PageSource,
    Program,
    all_inputs,
    fit_input,
    page_blocks,
    read_state,
    store_image,
)

TIMEOUT_S = 3600
SMALLEST_CARD_BYTES = 1 << 20
FAULT_STATUS = 100  # POETC_PORT_FAULT
POWER_CUT_STATUS = 86  # of the plugin
GUARD_BYTES = 65536  # POETC_PORT_GUARD_BYTES

OnStep = Callable[[int, float], None]


class BoardFault(CheckFailed):
    """The board trapped an access: past the budget, or nowhere."""


class BoardStopped(CheckFailed):
    """The program stopped with a code of the runtime or of a driver."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class PowerCut(CheckFailed):
    """The power was cut, as asked for. `steps` were done in this boot."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"the power was cut after {format_count(steps, 'step')}")
        self.steps = steps


@dataclass(frozen=True, slots=True)
class Firmware:
    """A built program and where it was built.

    `stack_bound_bytes` is None where an operating system gives the stack; `checkpoint_steps`: after how many steps it
    saves its state, 0: never.
    """

    board: Board
    program: Program
    directory: Path
    elf: Elf
    stack_bound_bytes: int | None = None
    checkpoint_steps: int = 0

    @property
    def has_store(self) -> bool:
        return bool(self.program.pages) or self.checkpoint_steps > 0

    @property
    def has_processors(self) -> bool:
        """Whether several processors execute the program."""
        return bool(self.program.queues) and (TARGETS[self.board.target].hosted or bool(self.board.processors))

    @property
    def path(self) -> Path:
        return self.directory / "src" / ("train" if TARGETS[self.board.target].hosted else "firmware.elf")

    @property
    def run_directory(self) -> Path:
        return self.directory / "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Work of one operator (or page transfer) over the whole run."""

    name: str
    kind: str
    times: int
    instructions: int
    cycles: int  # 0: not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The measurements of a run.

    Sizes are in bytes; `arena_bytes` and `stack_bytes` are the extent of the memory that was touched.

    `instructions` are those of the training steps; `total_instructions` also start-up, data, log. `step_ends` are the
    instructions from reset to the end of each step, before its checkpoint. `stack_bytes` is None where the stack is the
    operating system's. `resumed_step`: the losses are of the steps after it. `gradients_crc`: a checksum of all
    gradients of each step, if they were asked for. `step_instructions`: of each of the program's instructions, in the
    first step. `cycles` are those of the training steps by the table of the core, without waits of the flash. They are
    0 where the core has no table, or several processors run.

    With several processors, `instructions` are the sum of theirs, and `queue_instructions` those of each.
    `longest_instructions` are those from the beginning to the end of all steps. Waiting for others counts there, and
    the fences do not.
    """

    losses: tuple[float, ...]
    arena_bytes: int
    stack_bytes: int | None
    instructions: int
    total_instructions: int
    cycles: int
    page_ins: int
    page_outs: int
    state: Mapping[str, Array]
    counts: tuple[Count, ...]
    resumed_step: int = 0
    step_ends: tuple[int, ...] = ()
    gradients_crc: tuple[int, ...] = ()
    step_instructions: tuple[int, ...] = ()
    step_cycles: tuple[int, ...] = ()  # likewise; empty where cycles are not counted
    queue_instructions: tuple[int, ...] = ()
    longest_instructions: int = 0
    bank_bytes: tuple[int, ...] = ()  # by part of an arena in banks; `arena_bytes` is the sum

    @property
    def state_sha256(self) -> str:
        return state_digest(self.state)

    @property
    def time_ns(self) -> int:
        """Of the training steps, as the profile of an emulated board has them: its cycles, else its instructions."""
        return self.cycles or self.instructions

    @property
    def step_ns(self) -> tuple[int, ...]:
        """Likewise of each of the program's instructions, in the first step."""
        return self.step_cycles or self.step_instructions


def state_digest(state: Mapping[str, Array]) -> str:
    """SHA-256 over names and little-endian bytes, sorted by name: the same for every schedule and layout."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(state[name]).tobytes())
    return digest.hexdigest()


def build_firmware(
    program: Program,
    values: Mapping[str, Value],
    board: str,
    directory: Path,
    *,
    memory: Memory | None = None,
    numerics: Numerics = "separate",
    model: str = "model",
    checkpoint: int | None = None,
    gradients: bool = False,
) -> Firmware:
    """Emit for `board` into `directory` / src and build.

    UsageError without the toolchain; CheckFailed if it does not fit. `checkpoint`: as for `emit`; `gradients`: log
    their checksum.
    """
    named_board = find_board(board)
    require_toolchain(named_board)
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "src"
    emit(
        [program],
        values,
        model=model,
        target=named_board.target,
        out_dir=source,
        numerics=numerics,
        board=board,
        memory=memory,
        checkpoint=checkpoint,
    )
    steps = checkpoint_steps(program, TARGETS[named_board.target], named_board, checkpoint)
    return rebuild(named_board, program, values, directory, checkpoint=steps, gradients=gradients)


def rebuild(
    board: Board,
    program: Program,
    values: Mapping[str, Value],
    directory: Path,
    *,
    checkpoint: int = 0,
    gradients: bool = False,
) -> Firmware:
    """Build the sources in `directory` / src, and lay out the store for the first run.

    `checkpoint`: after how many steps.
    """
    source = directory / "src"
    hosted = TARGETS[board.target].hosted
    build_command = ["make", "-s", f"-j{os.cpu_count() or 1}", "-C", str(source)]
    build_command += [f"CHECKPOINT_STEPS={checkpoint}", f"GRADIENTS={'1' if gradients else ''}"]
    build_command.append("ANY_RANGE=1")  # whoever runs it here has looked at the data
    if hosted:
        build_command.append("LDFLAGS=-static")
    command(build_command, f"the emitted C does not build for {board.name}")
    path, prefix = source / ("train" if hosted else "firmware.elf"), compiler_prefix(board)
    elf = read_elf(path, prefix)
    kernels = program.kernels
    stack = None if hosted else stack_bound(source / "build", path, prefix, kernels, ("poetc_reset", "main"))
    (directory / "run").mkdir(exist_ok=True)
    firmware = Firmware(board, program, directory, elf, stack, checkpoint)
    fresh_store(firmware, values)
    return firmware


def fresh_store(firmware: Firmware, values: Mapping[str, Value]) -> None:
    """The store as it is before the first run: initial pages, zeros."""
    program = firmware.program
    if firmware.has_store:
        image = store_image(program, values) if any(p.image for p in program.pages) else b""
        size = used_blocks([program], saves=True) * program.block_bytes
        if firmware.board.card:  # cards come in powers of two
            size = max(SMALLEST_CARD_BYTES, 1 << (size - 1).bit_length())
        (firmware.run_directory / "store.bin").write_bytes(image + bytes(max(0, size - len(image))))


def execute(
    firmware: Firmware,
    batches: Sequence[Mapping[str, Array]],
    on_step: OnStep | None = None,
    *,
    command: Sequence[str] | None = None,
    cut_at: int | None = None,
) -> Run:
    """Train one step for each batch, from the newest checkpoint on the store on.

    BoardFault, BoardStopped, or CheckFailed if the board did not end well.

    `command`: instead of `emulator_command`, to run under other circumstances. `cut_at`: the power is cut after so many
    instructions; raises PowerCut, and the store is as it was then.
    """
    program, run = firmware.program, firmware.run_directory
    write_records(run / "data.bin", program, batches)
    counts = run / "counts.txt"
    for stale in (counts, run / "trained.bin"):
        stale.unlink(missing_ok=True)
    emulation = command or emulator_command(firmware, counts.resolve(), cut_at, cycles=True)
    try:
        log = _emulate(firmware, emulation, on_step)
    except BoardStopped as error:
        code = f"code {error.code}"
        text = str(error).replace(code, code + _where(firmware, counts), 1)
        raise BoardStopped(text, error.code) from None
    losses = log.losses
    if log.resumed + len(losses) != len(batches):
        raise CheckFailed(f"{firmware.board.name}: {log.resumed + len(losses)} of {len(batches)} steps were run")
    counters = {key: int(value) for key, value in re.findall(r"(\w+) (\d+)", log.last)}
    measured, bank_bytes, marks, works, cycle_marks = read_counts(counts)
    count = len(program.instructions)
    if firmware.has_processors:
        marks = _in_order(program, works)
    return Run(
        losses=tuple(losses),
        arena_bytes=sum(bank_bytes) if program.banks else measured["arena"],
        bank_bytes=tuple(bank_bytes),
        stack_bytes=measured["stack"] if "poetc_stack" in firmware.elf.symbols else None,
        instructions=_inside(marks, count),
        total_instructions=measured["instructions"],
        cycles=_inside(cycle_marks, count) if "cycles" in measured else 0,
        page_ins=counters["page_ins"],
        page_outs=counters["page_outs"],
        state=_state(firmware, len(batches), counters["sequence"] - (not losses)),  # resuming begins a new run
        counts=_counts(program, marks, cycle_marks if "cycles" in measured else [0] * len(marks)),
        resumed_step=log.resumed,
        step_ends=tuple(marks[count :: count + 1]),
        gradients_crc=tuple(log.gradients),
        step_instructions=tuple(after - before for before, after in pairwise(marks[: count + 1])),
        step_cycles=tuple(after - before for before, after in pairwise(cycle_marks[: count + 1]))
        if "cycles" in measured
        else (),
        queue_instructions=_of_queues(program, marks) if firmware.has_processors else (),
        longest_instructions=_longest(program, marks) if firmware.has_processors else 0,
    )


def _where(firmware: Firmware, counts: Path) -> str:
    """The operator at which a run stopped, as `Program.where` names it: there is a mark before each instruction."""
    if firmware.has_processors or not counts.exists():
        return ""
    marks = read_counts(counts)[2]
    return firmware.program.where((len(marks) - 1) % (len(firmware.program.instructions) + 1))


def write_records(path: Path, program: Program, batches: Sequence[Mapping[str, Array]]) -> None:
    """The data file of a training program: for each batch the bytes of the inputs and of the target."""
    with path.open("wb") as file:
        for batch in batches:
            for binding in all_inputs(program):
                array = fit_input(binding, batch)
                file.write(np.ascontiguousarray(array, binding.operand.type.dtype.numpy).tobytes())


def _arena_address(firmware: Firmware) -> int:
    """Under Linux it ends with a page, between two that are taken away."""
    symbols = firmware.elf.symbols
    if "poetc_guarded" in symbols:
        return symbols["poetc_guarded"] + GUARD_BYTES + -firmware.program.arena_bytes % GUARD_BYTES
    return symbols["poetc_arena"]


_FENCES = ("execute", "poetc_queues_run", "poetc_queues_serve")  # the callers of poetc_execute in poetc_queues.c
_TRANSLATED_MIB = 64  # of the emulator's own code: without it QEMU asks for 1 GiB, which a limit may refuse


def emulator_command(firmware: Firmware, counts: Path, cut_at: int | None = None, *, cycles: bool = False) -> list[str]:
    """The words that start QEMU in `run_directory`; the plugin that measures writes to `counts`, or cuts the power.

    `cycles`: it counts them too, where the core has a table and one processor runs.
    """
    board, symbols = firmware.board, firmware.elf.symbols
    arena = _arena_address(firmware)
    plugin = [str(build_counter(firmware.directory)), f"mark={symbols['poetc_port_mark'] & ~1:x}"]
    if firmware.program.banks:
        for part in firmware.program.banks:
            first = arena + part.offset_bytes
            plugin.append(f"bank={first:x}-{first + bank_size(firmware.program, part.name):x}")
    else:
        plugin.append(f"arena={arena:x}-{arena + firmware.program.arena_bytes:x}")
    if firmware.has_processors:
        plugin.append(f"work={symbols['poetc_execute'] & ~1:x}")
        for name, size in firmware.elf.extents.items():
            if name.split(".")[0] in _FENCES:
                plugin.append(f"rest={symbols[name] & ~1:x}-{(symbols[name] & ~1) + size:x}")
    if "poetc_stack" in symbols:
        plugin.append(f"stack={symbols['poetc_stack']:x}-{symbols['poetc_stack_top']:x}")
    core = board.core or TARGETS[board.target].core
    if cycles and core is not None and has_table(core.name) and not firmware.has_processors:
        costs = firmware.directory / "cycles.txt"
        write_costs(firmware.path, compiler_prefix(board), core.name, costs)
        plugin.append(f"cycles={costs}")
    plugin.append(f"out={counts}")
    if cut_at is not None:
        plugin.append(f"cut={cut_at:x}")
    command = [*board.qemu, "-plugin", ",".join(plugin)]
    if TARGETS[board.target].hosted:
        return [*command, str(firmware.path.resolve())]
    command += ["-semihosting-config", "enable=on,target=native"]
    accelerator = f"tcg,tb-size={_TRANSLATED_MIB}"
    if board.smp and firmware.has_processors:  # one thread of the emulator: counts are exact
        command += ["-smp", str(len(firmware.program.queues))]
        accelerator += ",thread=single"
    if "-accel" not in board.qemu:
        command += ["-accel", accelerator]
    if board.memory_option:
        assert board.ram is not None
        start = board.ram.origin & ~0xFFFFFFF
        command += ["-m", f"{(symbols['poetc_ram_end'] - start) // 1024}K"]
    if board.card and firmware.has_store:
        command += ["-drive", "if=sd,format=raw,file=store.bin"]
    return [*command, "-kernel", str(firmware.path.resolve())]


@dataclass(slots=True)
class _Log:
    """The log of the training program; `last` is its last line."""

    losses: list[float] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    resumed: int = 0
    last: str = ""


_STEP = re.compile(r"step (\d+)(?: loss \S+)? bits ([0-9a-f]{8})(?: gradients ([0-9a-f]{8}))?$")


def _emulate(firmware: Firmware, command: Sequence[str], on_step: OnStep | None) -> _Log:
    log = _Log()
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=firmware.run_directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                match = _STEP.match(line.strip())
                if match is None:
                    lines.append(line.strip())
                    continue
                log.losses.append(float(np.array(int(match[2], 16), np.uint32).view(np.float32)))
                if match[3]:
                    log.gradients.append(int(match[3], 16))
                if on_step is not None:
                    on_step(int(match[1]), log.losses[-1])
            status = process.wait()
        finally:
            timer.cancel()
            process.kill()
    if status == POWER_CUT_STATUS:
        raise PowerCut(len(log.losses))
    log.last = _ending(firmware, status, lines)
    resumed = next((line for line in lines if line.startswith("resumed step ")), "0")
    log.resumed = int(resumed.split()[-1])
    return log


_ORDINARY = ("resumed ", "input ", "other data ")


def _ending(firmware: Firmware, status: int, lines: Sequence[str]) -> str:
    name, last = firmware.board.name, lines[-1] if lines else ""
    if status == 0 and last.startswith("done "):
        return last
    stopped = next((re.search(r"code (-?\d+)", line) for line in lines if line.startswith("stopped")), None)
    if stopped is not None:
        at = next(i for i, line in enumerate(lines) if line.startswith("stopped"))
        told = [line for line in lines[:at] if not line.startswith(_ORDINARY)]  # file, record, remedy
        raise BoardStopped(f"{name}: {'; '.join([*told, lines[at]])}", int(stopped[1]))
    fault = next((line for line in lines if line.startswith("fault") or "ockup" in line), "")
    if status == FAULT_STATUS or fault:
        raise BoardFault(f"{name}: an access outside of code and budget was trapped ({fault})")
    raise CheckFailed(f"{name}: ended with status {status}: {' | '.join(lines[-3:])}")


# --- results ----------------------------------------------------------------------------------------------------------


def _in_order(program: Program, works: Sequence[Sequence[int]]) -> list[int]:
    """Marks as a single processor would make them that executes the instructions in the order of the list."""
    busy = [queue for queue in program.queues if queue]
    if len(works) != len(busy):
        raise CheckFailed(f"{len(works)} of {len(busy)} processors were at work")
    marks, total = list[int](), 0
    for run in range((len(works[0]) - 1) // len(busy[0])):  # and the number at the end
        taken = {}
        for queue, begins in zip(busy, works, strict=True):
            for at, entry in enumerate(queue, run * len(queue)):
                taken[entry.instruction] = begins[at + 1] - begins[at]
        for index in range(len(program.instructions)):
            marks.append(total)
            total += taken[index]
        marks.append(total)
    return marks


def _of_queues(program: Program, marks: Sequence[int]) -> tuple[int, ...]:
    """Instructions by processor, over all runs."""
    taken = _instructions_by_run(program, marks)
    return tuple(sum(run[entry.instruction] for run in taken for entry in queue) for queue in program.queues)


def _longest(program: Program, marks: Sequence[int]) -> int:
    """Instructions from the beginning to the end of all runs, as the fences order the queues."""
    total = 0
    for taken in _instructions_by_run(program, marks):
        ends: dict[int, int] = {}
        before = {entry.instruction: last.instruction for queue in program.queues for last, entry in pairwise(queue)}
        waits = {entry.instruction: entry.waits for queue in program.queues for entry in queue}
        for index, own in enumerate(taken):  # whatever an entry waits for comes earlier in the list
            others = [program.queues[q][n - 1].instruction for q, n in enumerate(waits[index]) if n]
            begin = max((ends[i] for i in (*others, *([before[index]] if index in before else []))), default=0)
            ends[index] = begin + own
        total += max(ends.values(), default=0)
    return total


def _instructions_by_run(program: Program, marks: Sequence[int]) -> list[list[int]]:
    """The processor's instructions for each of the program's, run by run; `marks`: the counter around each."""
    count = len(program.instructions)
    runs = [marks[start : start + count + 1] for start in range(0, len(marks), count + 1)]
    return [[after - before for before, after in pairwise(run)] for run in runs]


def _inside(marks: Sequence[int], count: int) -> int:
    """Instructions between the first and the last mark of each run; a run has `count` and one more."""
    return sum(marks[i + count] - marks[i] for i in range(0, len(marks), count + 1))


def _counts(program: Program, marks: Sequence[int], cycles: Sequence[int]) -> tuple[Count, ...]:
    count = len(program.instructions)
    totals: dict[tuple[str, str], list[int]] = {}
    for start in range(0, len(marks), count + 1):
        for i, instruction in enumerate(program.instructions):
            match instruction:
                case Call():
                    key = (instruction.operator, instruction.kind)
                case PageOut():
                    key = (instruction.operand.tensor, "page out")
                case PageIn():
                    key = (instruction.operand.tensor, "page in")
                case Move():
                    key = (instruction.operand.tensor, "move")
            total = totals.setdefault(key, [0, 0, 0])
            total[0] += 1
            total[1] += marks[start + i + 1] - marks[start + i]
            total[2] += cycles[start + i + 1] - cycles[start + i]
    return tuple(
        Count(name=name, kind=kind, times=times, instructions=instructions, cycles=spent)
        for (name, kind), (times, instructions, spent) in totals.items()
    )


def _state(firmware: Firmware, steps: int, sequence: int) -> dict[str, Array]:
    """The state as the program handed it over.

    Pages on the store are compared with it, one by one.
    """
    program = firmware.program
    path = firmware.run_directory / "trained.bin"
    state = read_state(path.read_bytes(), program, str(path))
    for index, data in check_pages(firmware, steps, sequence).items():
        page = program.pages[index]
        if page.image and state[page.tensor].tobytes() != data:
            raise CheckFailed(f"{firmware.board.name}: {path.name} has another {page.tensor} than the store")
    return state


def check_pages(firmware: Firmware, steps: int, sequence: int | None = None) -> dict[int, bytes]:
    """Data of every page that the store must hold after `steps` steps.

    Raises CheckFailed if one differs from the page table's version. `sequence`: runs begun, where that is not `steps`.
    """
    runs = steps if sequence is None else sequence
    program = firmware.program
    if not program.pages:
        return {}
    store = (firmware.run_directory / "store.bin").read_bytes()
    written = {i.page for i in program.instructions if isinstance(i, PageOut)}
    read = {i.page for i in program.instructions if isinstance(i, PageIn) and i.source is PageSource.IMAGE}
    pages: dict[int, bytes] = {}
    for index, page in enumerate(program.pages):
        if index not in written | read:
            continue
        stamp = (steps if page.slots > 1 else runs) if index in written else 0
        data, whole = _slot(store, page, stamp % page.slots, program.block_bytes)
        if whole != page_blocks(index, stamp, data, program.block_bytes):
            raise CheckFailed(
                f"{firmware.board.name}: page {index} ({page.tensor}) on the store is not the one that was written"
            )
        pages[index] = data
    return pages


def _slot(store: bytes, page: Page, slot: int, block_bytes: int) -> tuple[bytes, bytes]:
    start = (page.first_block + slot * page.block_count) * block_bytes
    whole = store[start : start + page.block_count * block_bytes]
    return whole[: page.size_bytes], whole
