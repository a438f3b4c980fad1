"""Measurements of kernels and their CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from poetc import codegen, passes, training
from poetc.codegen import time_program
from poetc.codegen.program import Call, PageOut, Program
from poetc.devices import DeviceProfile, build_problem, load_profile
from poetc.devices.features import Features, features_of
from poetc.errors import UsageError
from poetc.graph import Graph, TrainingGraph
from poetc.outfile import write_text
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

PAGE_CLASSES = ("PageOut", "PageIn")
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


def measure(
    graphs: Iterable[Graph], *, repeats: int = 9, cflags: str = "-O2", progress: Progress = _silent
) -> list[Measurement]:
    """Train each of `graphs` on this machine, once with each optimizer that the fit needs, and time its operators."""
    profile = load_profile("host")
    result: list[Measurement] = []
    for number, graph in enumerate(graphs):
        progress(graph.name)
        options = TrainingOptions(optimizer=OPTIMIZERS[number % len(OPTIMIZERS)])
        step = passes.run_standard(training.build(graph, options))
        program = keep_all_program(step, profile)
        times = time_program(program, step.values, repeats=repeats, cflags=cflags)
        result += rows_of(graph.name, step, program, times.instruction_ns)
    return result


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
            kind = "PageOut" if isinstance(instruction, PageOut) else "PageIn"
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
