"""Measurements of kernels and their CSV."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

import msgspec

from poetc import boards, frontend, passes, training
from poetc.benchmark._integers import coded_steps, integer_steps
from poetc.benchmark._networks import board_networks, networks
from poetc.benchmark._roomy import roomy_networks
from poetc.devices import DeviceProfile, build_problem, load_profile
from poetc.devices.features import features_of
from poetc.devices.machine import machine_of
from poetc.devices.profile import Quantity, Source
from poetc.devices.reuse import Fetched, fetched_bytes
from poetc.devices.zeros import zero_factors, zero_shares
from poetc.errors import UsageError
from poetc.events import Progress, silent
from poetc.files import scratch_directory, write_text
from poetc.graph import Graph, TrainingGraph
from poetc.measure import build_firmware, execute, host_simd, time_program
from poetc.program import Call, Program, lower, sample_inputs
from poetc.program import _ir as flat
from poetc.runtime.layout import ALIGNMENT_BYTES
from poetc.scheduling import Compute, Decision, PageIn, PageOut, complete, keep_all, pack
from poetc.training import TrainingOptions

PAGE_CLASSES = ("PageOut", "PageIn")
MOVE_CLASS = "Move"
CODE_BYTES = 128 << 10  # of a board's flash, for kernels and tables
BOARD_BYTES = 1 << 20  # of the tensors of a network, where there is room: few networks are built soon
ROOMY_BYTES = 64 << 20  # of RAM, for the networks of larger boards
PAGED = 3  # every so manieth network of a board is run with paging
BENCH_CFLAGS = "-O3 -march=native"
OTHER_LOSS = (*(f"layer.{number}" for number in range(0, 100, 2)), *(f"boards.{number}" for number in range(1, 100, 3)))
OPTIMIZERS = ("sgd", "sgd", "adam", "sgd", "momentum")
NOT_FUSED, HOST_PAGED = 3, 11  # every so manieth network of the host
UNBOUNDED_BYTES = 1 << 62
_WHOLE = re.compile("[0-9]{1,18}")  # a number in a log


@dataclass(frozen=True, slots=True)
class Measurement:
    """One execution of one operator (or of one page transfer, whose class is PageIn or PageOut).

    `network` groups rows that were measured together, for cross-validation. `simd` names the vectors that the kernels
    were compiled for, the caches are the processor's (0: none). `loops` maps "group.loop" to how often it ran.
    """

    network: str
    operator: str
    cost_class: str
    simd: str
    first_cache_bytes: int
    cache_bytes: int
    loops: Mapping[str, int]
    time_ns: int


def plain_program(step: TrainingGraph, profile: DeviceProfile) -> Program:
    """A step with every tensor kept until its last use."""
    problem = build_problem(step, profile, budget_bytes=UNBOUNDED_BYTES)
    schedule = keep_all(problem)
    return lower(step, problem, schedule, pack(problem, schedule))


def paging_program(step: TrainingGraph, profile: DeviceProfile) -> Program:
    """A step that pages every tensor out and in again between two uses that are not next to each other."""
    problem = build_problem(step, profile, budget_bytes=UNBOUNDED_BYTES)
    uses: dict[int, list[int]] = defaultdict(list)
    for at, op in enumerate(problem.operators):
        for t in {*op.inputs, *op.outputs}:
            if problem.tensors[t].initial == "" and problem.tensors[t].pageable:
                uses[t].append(at)
    out: dict[int, list[int]] = defaultdict(list)
    back: dict[int, list[int]] = defaultdict(list)
    for t, positions in uses.items():
        gaps = [(x, y) for x, y in pairwise(positions) if y > x + 1]
        taken_over = any(pair.input == t for op in problem.operators for pair in op.in_place)
        if gaps and not taken_over:
            out[gaps[-1][0]].append(t)
            back[gaps[-1][1]].append(t)
    decisions: list[Decision] = []
    for at in range(len(problem.operators)):
        decisions += [PageIn(t) for t in sorted(back[at])]
        decisions.append(Compute(at))
        decisions += [PageOut(t) for t in sorted(out[at])]
    kept = keep_all(problem)
    schedule = replace(kept, actions=complete(problem, decisions))
    return lower(step, problem, schedule, pack(problem, schedule))


def bench(
    target: str,
    models: Sequence[Path] = (),
    *,
    batch: int | None = None,
    dim: Sequence[str] = (),
    shape: Sequence[str] = (),
    repeats: int = 9,
    cflags: str = BENCH_CFLAGS,
    progress: Progress = silent,
) -> list[Measurement]:
    """Measure `target`: "host", or an emulated board, where a nanosecond is an instruction. Raises UsageError.

    `batch`, `dim` and `shape` give lengths to dimensions of `models`, as on the command line.
    """
    if target != "host" and target not in boards.BOARDS:
        raise UsageError(f"--target {target}: choose from host, {', '.join(boards.BOARDS)}")
    sizes = frontend.Sizes.parse(batch, dim, shape)
    own = [  # only times matter
        frontend.load(path, batch=batch, dims=sizes.dims, shapes=sizes.shapes, random_weights=0) for path in models
    ]
    if target == "host":
        return measure([*networks(), *own], repeats=repeats, cflags=cflags, progress=progress)
    profile = load_profile(f"qemu-{target}")
    result: list[Measurement] = []
    part_bytes = min(profile.ram_bytes // 4, (profile.flash_bytes or 2 * BOARD_BYTES) // 2, BOARD_BYTES)
    own = [*(roomy_networks() if profile.ram_bytes >= ROOMY_BYTES else ()), *own]
    for number, graph in enumerate([*board_networks(part_bytes), *own]):
        step = step_of(graph, "sgd", fusion=number % 2 == 0)
        result += measure_on_board(step, target, profile, progress, paging=number % PAGED == 0)
    for step in itertools.chain(integer_steps(), coded_steps()):
        result += measure_on_board(step, target, profile, progress, paging=False)
    if not result:
        raise UsageError(f"none of the networks fits {target}")
    return result


def host_cache_bytes() -> tuple[int, int]:
    """The first level of cache for data and the second of this machine, as Linux says; usual ones where it does not."""
    bytes_of_level = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level, size = (
                (index / name).read_text(encoding="ascii").strip() for name in ("type", "level", "size")
            )
            if kind != "Instruction":
                bytes_of_level[int(level)] = int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return bytes_of_level.get(1, 32 << 10), bytes_of_level.get(2, 1 << 20)


def host_profile(cflags: str) -> DeviceProfile:
    """The profile `host`, with the vectors that `cflags` compile for here and this machine's caches."""
    profile = load_profile("host")
    cpu = msgspec.structs.replace(profile.cpu, simd=host_simd(cflags))
    source = Source(kind="measured", text="the operating system's facts on this machine")
    first, second = (Quantity(value=size, source=source) for size in host_cache_bytes())
    memory = msgspec.structs.replace(profile.memory, first_cache_bytes=first, cache_bytes=second)
    return msgspec.structs.replace(profile, cpu=cpu, memory=memory)


def measure(
    graphs: Iterable[Graph], *, repeats: int = 9, cflags: str = BENCH_CFLAGS, progress: Progress = silent
) -> list[Measurement]:
    """Train each of `graphs` on this machine and time its operators.

    The optimizers take turns; some are run without fused operators, some with paging.
    """
    profile = host_profile(cflags)
    result: list[Measurement] = []
    for number, graph in enumerate(graphs):
        progress(graph.name)
        step = step_of(graph, OPTIMIZERS[number % len(OPTIMIZERS)], fusion=number % NOT_FUSED != NOT_FUSED - 1)
        program = (paging_program if number % HOST_PAGED == 0 else plain_program)(step, profile)
        times = time_program(program, step.values, repeats=repeats, cflags=cflags, numerics=profile.cpu.numerics)
        result += rows_of(graph.name, step, program, times.instruction_ns, profile)
    return result


def step_of(graph: Graph, optimizer: str, *, fusion: bool = True) -> TrainingGraph:
    loss = "mse" if graph.name in OTHER_LOSS else "auto"
    return passes.run_standard(training.build(graph, TrainingOptions(optimizer=optimizer, loss=loss, fusion=fusion)))


def measure_on_board(
    step: TrainingGraph, board: str, profile: DeviceProfile, progress: Progress, *, paging: bool
) -> list[Measurement]:
    """One step under emulation, its cycles counted, or its instructions; nothing if it does not fit the board.

    Instructions count where the core has no table of cycles. An instruction costs the same wherever its operands lie:
    bytes moved are left out.
    """
    program = paging_program(step, profile) if paging else plain_program(step, profile)
    image_bytes = program.state_bytes + program.flash_bytes + CODE_BYTES
    if program.arena_bytes + profile.base_bytes > profile.ram_bytes or image_bytes > (
        profile.flash_bytes or image_bytes
    ):
        return []
    progress(f"{step.name} on {board}")
    with scratch_directory("poetc-bench-") as scratch:
        firmware = build_firmware(program, step.values, board, scratch, numerics=profile.cpu.numerics)
        run = execute(firmware, [sample_inputs(program, 0)])
    rows = rows_of(step.name, step, program, run.step_ns, profile)
    return [row if row.cost_class in PAGE_CLASSES else replace(row, loops=_counted(row.loops)) for row in rows]


def _counted(loops: Mapping[str, int]) -> dict[str, int]:
    """Without bytes, unless there is little else."""
    left = {name: n for name, n in loops.items() if not name.endswith((".byte", ".second", ".far", ".far_written"))}
    return left if len(left) > 1 else dict(loops)


def rows_of(
    name: str, step: TrainingGraph, program: Program, times_ns: Sequence[int], profile: DeviceProfile
) -> list[Measurement]:
    """The measured instructions of a program, with the loops that ran in them on the device."""
    operators = {op.name: op for op in step.operators}
    machine, simd = machine_of(profile.cpu), profile.cpu.simd
    memory = profile.memory
    first, second = (0 if q is None else int(q.value) for q in (memory.first_cache_bytes, memory.cache_bytes))
    fetched = fetched_bytes(step, memory)
    shares = zero_shares(step) if machine.is_soft else {}
    rows: list[Measurement] = []
    for instruction, time_ns in zip(program.instructions, times_ns, strict=True):
        if isinstance(instruction, Call):
            operator = operators[instruction.operator]
            f, part = (
                features_of(
                    operator,
                    step.tensors,
                    machine,
                    fetched.get(operator.name, Fetched()),
                    zero_factors(operator, shares),
                ),
                operator.source,
            )
            row = Measurement(name, operator.name, f.cost_class, simd, first, second, f.loops, time_ns)
        elif isinstance(instruction, flat.Move):
            tensor, part = instruction.operand.tensor, ""
            size = instruction.operand.type.size_bytes
            loops = {"Move.call": 1, "Move.unit": -(-size // ALIGNMENT_BYTES)}
            row = Measurement(name, tensor, MOVE_CLASS, simd, first, second, loops, time_ns)
        else:
            kind = "PageOut" if isinstance(instruction, flat.PageOut) else "PageIn"
            page, part = program.pages[instruction.page], ""
            moved = page.block_count * program.block_bytes
            loops = {f"{kind}.call": 1, f"{kind}.byte": moved, f"{kind}.checked": page.size_bytes}
            row = Measurement(name, page.tensor, kind, simd, first, second, loops, time_ns)
        rows.append(replace(row, network=f"{name}/{part}") if part else row)
    return rows


def write_csv(rows: Sequence[Measurement], path: Path) -> None:
    """One line a measurement, the names of the columns first. Loops are "group.loop=times", separated by spaces."""
    text = io.StringIO()
    names = [f.name for f in fields(Measurement)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        loops = " ".join(f"{name}={n}" for name, n in row.loops.items())
        writer.writerow([loops if name == "loops" else getattr(row, name) for name in names])
    write_text(path, text.getvalue())


def read_csv(path: Path) -> list[Measurement]:
    """The rows of a file of `write_csv`, or of the log of a benchmark firmware.

    They follow the line of column names; lines that begin with # are passed over. Raises UsageError naming file and
    line.
    """
    try:
        log = path.read_text(encoding="utf-8").splitlines()
        begin = next((i for i, line in enumerate(log) if line.startswith("network,")), 0)
        lines = [line for line in csv.DictReader(log[begin:]) if not str(line.get("network")).startswith("#")]
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (UnicodeDecodeError, csv.Error):
        raise UsageError(f"{path}: not a text file") from None
    rows: list[Measurement] = []
    for number, line in enumerate(lines, begin + 2):
        cells: dict[str, str] = {}
        for f in fields(Measurement):
            text = line.get(f.name)
            if text is None:
                raise UsageError(f"{path}:{number}: no column {f.name!r}; poetc profile bench writes them")
            cells[f.name] = text
        whole: dict[str, int] = {}
        for name in ("time_ns", "first_cache_bytes", "cache_bytes"):
            text = cells.pop(name)
            if not _WHOLE.fullmatch(text):
                raise UsageError(f"{path}:{number}: {name} is {text!r}, not a whole number")
            whole[name] = int(text)
        loops: dict[str, int] = {}
        for item in cells.pop("loops").split():
            name, _, times = item.partition("=")
            if not _WHOLE.fullmatch(times) or "." not in name:
                raise UsageError(f"{path}:{number}: loops has {item!r}, which is not group.loop=times")
            loops[name] = int(times)
        rows.append(Measurement(**cells, **whole, loops=loops))  # type: ignore[arg-type]
    if not rows:
        raise UsageError(f"{path}: no measurements in it")
    return rows
