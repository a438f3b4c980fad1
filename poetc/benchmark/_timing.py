"""Predicted against measured time, operator by operator."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from poetc.artifact import Artifact
from poetc.benchmark._measure import BENCH_CFLAGS, MOVE_CLASS, PAGE_CLASSES, host_profile, rows_of
from poetc.boards import Numerics
from poetc.commands import programs
from poetc.graph import TrainingGraph
from poetc.measure import time_program
from poetc.program import Program
from poetc.scheduling import Problem

FARTHEST = 10  # operators that the table names


@dataclass(frozen=True, slots=True)
class ClassTime:
    """All executions of one class in a step."""

    cost_class: str
    executions: int
    predicted_ns: int
    measured_ns: int


@dataclass(frozen=True, slots=True)
class OperatorTime:
    name: str
    cost_class: str
    predicted_ns: int
    measured_ns: int


@dataclass(frozen=True, slots=True)
class Timing:
    """The measurement of one training step on this machine: processor time, the median of `repeats`.

    Slowest classes first. `device`: the device that times were predicted for, if that is not the computer that runs
    poetc.
    """

    device: str | None
    predicted_ns: int
    measured_ns: int
    repeats: int
    classes: tuple[ClassTime, ...]
    operators: tuple[OperatorTime, ...]

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error}


def compare_times(
    problem: Problem,
    program: Program,
    step: TrainingGraph,
    *,
    device: str | None = None,
    repeats: int = 9,
    cflags: str = BENCH_CFLAGS,
    numerics: Numerics = "separate",
) -> Timing:
    """Run `program`, the lowered schedule of `problem`, and set its times against the problem's costs.

    `device`: as in `Timing`.
    """
    times = time_program(program, step.values, repeats=repeats, cflags=cflags, numerics=numerics)
    costs = {op.name: op.time_ns for op in problem.operators}
    pages = {
        t.name: {"PageOut": t.page_out_ns, "PageIn": t.page_in_ns, MOVE_CLASS: t.move_ns or 0} for t in problem.tensors
    }
    operators: list[OperatorTime] = []
    for row in rows_of(program.name, step, program, times.instruction_ns, host_profile(cflags)):
        page = row.cost_class in (*PAGE_CLASSES, MOVE_CLASS)
        predicted = pages[row.operator][row.cost_class] if page else costs[row.operator]
        operators.append(OperatorTime(row.operator, row.cost_class, predicted, row.time_ns))
    groups: dict[str, list[OperatorTime]] = defaultdict(list)
    for operator in operators:
        groups[operator.cost_class].append(operator)
    classes = [
        ClassTime(name, len(group), sum(o.predicted_ns for o in group), sum(o.measured_ns for o in group))
        for name, group in groups.items()
    ]
    return Timing(
        device=device,
        predicted_ns=sum(o.predicted_ns for o in operators),
        measured_ns=times.step_ns,
        repeats=times.repeats,
        classes=tuple(sorted(classes, key=lambda c: (-c.measured_ns, c.cost_class))),
        operators=tuple(operators),
    )


def timing_text(timing: Timing) -> str:
    """A table of classes and the total, then the operators whose prediction is farthest off."""
    lines = [f"{'operators':<28}{'times':>7}{'predicted':>13}{'measured':>13}{'error':>11}"]
    if timing.device is not None:
        note = f"predicted for {timing.device}, measured on this computer: unless that is one, solve with --device host"
        lines.insert(0, note)
    for c in timing.classes:
        error = f"{c.predicted_ns / c.measured_ns - 1:+.0%}" if c.measured_ns else ""
        times = f"{c.predicted_ns / 1e6:>10.3f} ms{c.measured_ns / 1e6:>10.3f} ms"
        lines.append(f"{c.cost_class:<28}{c.executions:>7}{times}{error:>11}")
    total = f"{timing.predicted_ns / 1e6:>10.3f} ms{timing.measured_ns / 1e6:>10.3f} ms{timing.error:>+11.1%}"
    lines.append(f"{'a training step':<28}{len(timing.operators):>7}{total}")
    off = sorted(timing.operators, key=lambda o: (-abs(o.predicted_ns - o.measured_ns), o.name))[:FARTHEST]
    lines += ["", f"{'farthest off':<64}{'predicted':>13}{'measured':>13}"]
    for o in off:
        name = o.name if o.cost_class.split("/")[0] in o.name else f"{o.cost_class}({o.name})"
        lines.append(f"{name[:62]:<64}{o.predicted_ns / 1e6:>10.3f} ms{o.measured_ns / 1e6:>10.3f} ms")
    return "\n".join(lines)


def time_solved(solved: Artifact, *, repeats: int = 9) -> Timing:
    """The schedule of a solved directory on this machine. Raises UsageError if it was solved without a model."""
    program = programs.training_program(solved)
    assert solved.graph is not None  # training_program says so
    profile = solved.profile
    device = None if profile is None or profile.cpu.core == "native" else str(solved.summary["device"])
    return compare_times(
        solved.problem,
        program,
        solved.graph,
        device=device,
        repeats=repeats,
        cflags=BENCH_CFLAGS,
        numerics=programs.numerics_of(solved),
    )
