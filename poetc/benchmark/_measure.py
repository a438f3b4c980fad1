"""Measurements of kernels and their CSV."""

from __future__ import annotations

import csv
import io
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

from poetc import codegen, frontend, passes, training
from poetc.benchmark._networks import networks
from poetc.codegen import program as flat
from poetc.codegen import time_program
from poetc.codegen.program import Call, Program
from poetc.devices import DeviceProfile, build_problem, load_profile
from poetc.devices.features import Features, features_of
from poetc.errors import UsageError
from poetc.files import write_text
from poetc.graph import Graph, TrainingGraph
from poetc.scheduling import Action, Compute, PageIn, PageOut, complete, keep_all, pack
from poetc.training import TrainingOptions

PAGE_CLASSES = ("PageOut", "PageIn")
CODE_BYTES = 128 << 10  # of a board's flash, for kernels and tables
OPTIMIZERS = ("sgd", "adam")
UNBOUNDED_BYTES = 1 << 62
Progress = Callable[[str], None]


def _silent(message: str) -> None:
    del message


@dataclass(frozen=True, slots=True)
class Measurement:
    """One execution of one operator (or of one page transfer, whose class is PageIn or PageOut). `network` groups what
    was measured together, for cross-validation.
    """

    network: str
    operator: str
    cost_class: str
    macs: int
    flops: int
    bytes_moved: int
    width: int
    time_ns: int

    @property
    def features(self) -> Features:
        return Features(self.cost_class, self.macs, self.flops, self.bytes_moved, self.width)


def keep_all_program(step: TrainingGraph, profile: DeviceProfile) -> Program:
    """A step with every tensor kept until its last use."""
    problem = build_problem(step, profile, budget_bytes=UNBOUNDED_BYTES)
    schedule = keep_all(problem)
    return codegen.lower(step, problem, schedule, pack(problem, schedule))


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
    actions: list[Action] = []
    for at in range(len(problem.operators)):
        actions += [PageIn(t) for t in sorted(back[at])]
        actions.append(Compute(at))
        actions += [PageOut(t) for t in sorted(out[at])]
    kept = keep_all(problem)
    schedule = replace(kept, steps=complete(problem, actions))
    return codegen.lower(step, problem, schedule, pack(problem, schedule))


def bench(
    target: str,
    models: Sequence[Path] = (),
    *,
    batch: int | None = None,
    repeats: int = 9,
    cflags: str = "-O3 -march=native",
    progress: Progress = _silent,
) -> list[Measurement]:
    """Measure `target`: "host", or an emulated board, where a nanosecond is an instruction. Raises UsageError."""
    if target != "host" and target not in codegen.BOARDS:
        raise UsageError(f"--target {target}: choose from host, {', '.join(codegen.BOARDS)}")
    own = [frontend.load(path, batch=batch) for path in models]
    if target == "host":
        return measure([*networks(), *own], repeats=repeats, cflags=cflags, progress=progress)
    profile = load_profile(f"qemu-{target}")
    rows = [_measure_on_board(graph, target, profile, progress) for graph in [*networks(merged=False), *own]]
    return [row for measured in rows for row in measured]


def measure(
    graphs: Iterable[Graph], *, repeats: int = 9, cflags: str = "-O3 -march=native", progress: Progress = _silent
) -> list[Measurement]:
    """Train each of `graphs` on this machine and time its operators. The optimizers take turns; the first graph is
    also run with paging.
    """
    profile = load_profile("host")
    result: list[Measurement] = []
    for number, graph in enumerate(graphs):
        progress(graph.name)
        step = _step(graph, OPTIMIZERS[number % len(OPTIMIZERS)])
        program = paging_program(step, profile) if number == 0 else keep_all_program(step, profile)
        times = time_program(program, step.values, repeats=repeats, cflags=cflags)
        result += rows_of(graph.name, step, program, times.instruction_ns)
    return result


def _step(graph: Graph, optimizer: str) -> TrainingGraph:
    """Not fused: a fused operator costs like its parts (`OpSpec.cost_like`)."""
    return passes.run_standard(training.build(graph, TrainingOptions(optimizer=optimizer, fusion=False)))


def _measure_on_board(graph: Graph, board: str, profile: DeviceProfile, progress: Progress) -> list[Measurement]:
    """One step under emulation, its instructions counted; nothing if it does not fit the board."""
    step = _step(graph, "sgd")
    program = keep_all_program(step, profile)
    image_bytes = program.state_bytes + program.flash_bytes + CODE_BYTES
    if program.arena_bytes + profile.base_bytes > profile.ram_bytes or image_bytes > (
        profile.flash_bytes or image_bytes
    ):
        return []
    progress(f"{graph.name} on {board}")
    with tempfile.TemporaryDirectory(prefix="poetc-bench-") as scratch:
        firmware = codegen.build_firmware(program, step.values, board, Path(scratch), numerics="portable")
        run = codegen.execute(firmware, [codegen.sample_inputs(program, 0)])
    counted = {count.name: count.instructions for count in run.counts}
    times = [counted[i.operator] if isinstance(i, Call) else 0 for i in program.instructions]
    return rows_of(graph.name, step, program, times)


def rows_of(name: str, step: TrainingGraph, program: Program, times_ns: Sequence[int]) -> list[Measurement]:
    """The measured instructions of a program, with the features of what they do."""
    operators = {op.name: op for op in step.operators}
    rows: list[Measurement] = []
    for instruction, time_ns in zip(program.instructions, times_ns, strict=True):
        if isinstance(instruction, Call):
            f = features_of(operators[instruction.operator], step.tensors)
            part = operators[instruction.operator].source
            row = (instruction.operator, f.cost_class, f.macs, f.flops, f.bytes_moved, f.width)
        else:
            kind = "PageOut" if isinstance(instruction, flat.PageOut) else "PageIn"
            page, part = program.pages[instruction.page], ""
            row = (page.tensor, kind, 0, 0, page.block_count * program.block_bytes, 1)
        rows.append(Measurement(f"{name}/{part}" if part else name, *row, time_ns))
    return rows


def write_csv(rows: Sequence[Measurement], path: Path) -> None:
    """One line a measurement, the names of the columns first."""
    text = io.StringIO()
    names = [f.name for f in fields(Measurement)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[getattr(row, name) for name in names] for row in rows])
    write_text(path, text.getvalue())


def read_csv(path: Path) -> list[Measurement]:
    """What `write_csv` or a benchmark firmware wrote. Raises UsageError naming file and line."""
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file") from None
    rows: list[Measurement] = []
    for number, line in enumerate(lines, 2):
        values: list[int | str] = []
        for f in fields(Measurement):
            text = line.get(f.name)
            if text is None:
                raise UsageError(f"{path}:{number}: no column {f.name!r}; poetc profile bench writes them")
            try:
                values.append(text if f.type == "str" else int(text))
            except ValueError:
                raise UsageError(f"{path}:{number}: {f.name} is {text!r}, not a whole number") from None
        rows.append(Measurement(*values))  # type: ignore[arg-type]
    if not rows:
        raise UsageError(f"{path}: no measurements in it")
    return rows
