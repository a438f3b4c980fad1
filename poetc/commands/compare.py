"""`poetc compare`: every solver on the same problem, from a request to a directory of tables and a plot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from poetc.commands.best_updates import settled
from poetc.commands.encodings import encoded_step, encodings_of, is_lossy, require_exact
from poetc.commands.requests import ModelRequest, SolveRequest, problem_of, read_problem, training_graph, ways_of
from poetc.devices import AUTO, load_profile, parse_duration, parse_size
from poetc.errors import UsageError
from poetc.events import Progress, silent
from poetc.graph import TrainingGraph
from poetc.ops.encoding import FORMATS
from poetc.output_directory import Kind, check_replaceable, replacing
from poetc.planning.comparison import Comparison, OnCell, compare
from poetc.planning.switch_rules import Change, SwitchRow, compare_rules
from poetc.planning.ways import SIDE_BY_SIDE, CoreUsage
from poetc.reporting.comparison import document, markdown, plot, table_csv
from poetc.scheduling import Objective, Paging, Problem, keep_all_peak_bytes
from poetc.training import BEST


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """A comparison. `budgets` as typed by the user, in place of that of `task`; no `names`: every solver.

    All solvers have state in the same place, see `StatePlacement.alike`. Those that place no operators have the
    processors in turn.
    """

    task: SolveRequest
    budgets: tuple[str, ...]
    names: tuple[str, ...] = ()


def run(request: CompareRequest, on_cell: OnCell | None = None, note: Progress = silent) -> Comparison:
    """Read the model (or a Problem in JSON) and compare. Raises the errors of `poetc.errors` for a wrong request.

    With `--train best` all solvers have the same step: the set of updates that is best for the smallest budget.
    """
    task, budgets, notes = settled(request.task, request.budgets)
    for text in notes:
        note(text)
    problem, state = _asked(task)
    peak = keep_all_peak_bytes(problem)
    if not budgets:
        raise UsageError("--budgets is empty: give at least one, such as 60%")
    sizes = [parse_size(text, of=peak, option="--budgets") for text in budgets]
    return compare(problem, sizes, request.names, task.options, on_cell, state)


def run_switches(request: SolveRequest, changes: Sequence[str], progress: Progress) -> list[SwitchRow]:
    """The rules for a budget that changes in mid-step, a row each. `changes`: as in 512kB:384kB@50%."""
    if request.model.training.train == BEST:
        raise UsageError(f"--switch and --train {BEST} exclude each other; name the updates that poetc solve chooses")
    problem, state = _asked(request)
    peak = keep_all_peak_bytes(problem)
    asked = tuple(_change(text, peak) for text in changes)
    return list(compare_rules(problem, asked, request.options, "ram" if state == "auto" else state, progress))


def _change(text: str, peak_bytes: int) -> Change:
    parts = re.fullmatch(r"([^:@]+):([^:@]+)@(\d+(?:\.\d+)?)%", text)
    if parts is None or not 0 < float(parts[3]) < 100:
        raise UsageError(f"--switch {text}: write BEFORE:AFTER@SHARE%, as in 512kB:384kB@50%")
    before, after = (parse_size(part, of=peak_bytes, option="--switch") for part in parts.groups()[:2])
    if before == after:
        raise UsageError(f"--switch {text}: the two budgets are the same")
    return Change(before_bytes=before, after_bytes=after, share=float(parts[3]) / 100)


def _asked(request: SolveRequest) -> tuple[Problem, str]:
    """The problem with the limits of the request, and the place of state."""
    problem = _problem(request)
    if not request.paging:
        problem = replace(problem, paging=Paging.NONE)
    deadline = problem.deadline_ns
    if request.deadline is not None:
        deadline = parse_duration(request.deadline, of=problem.compute_once_ns, option="--deadline")
    return replace(
        problem, deadline_ns=deadline, objective=Objective(request.objective or problem.objective)
    ), request.state_mode


def _problem(request: SolveRequest) -> Problem:
    if request.is_problem:
        return read_problem(request)[3]
    step, profile = _step(request.model), load_profile(request.model.device)
    problem = problem_of(request, step, profile)
    ways = ways_of(request, problem, step, profile)
    if not ways:
        return problem
    return CoreUsage([ways]).usual(problem) if request.processors == AUTO else ways[SIDE_BY_SIDE]


def _step(request: ModelRequest) -> TrainingGraph:
    """The step that all solvers have: with a lossy format in `--saved`, each tensor is encoded that it allows."""
    step = training_graph(request)[1]
    if not is_lossy(request.training):
        return step
    if request.training.saved not in FORMATS:
        require_exact(request, "poetc compare compares schedules of one step; name a format")
    return encoded_step(step, tuple(range(len(encodings_of(step)))))


KIND = Kind("comparison.json", "files of poetc compare")
NAMES = ("comparison.csv", "comparison.md", "comparison.svg")


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Raises UsageError where `write` would, before anything is solved."""
    check_replaceable(folder, KIND, force=force, names=NAMES)


def write(comparison: Comparison, folder: Path, *, force: bool = False) -> list[str]:
    """comparison.csv, comparison.json, comparison.md and comparison.svg.

    The names of the copies that `force` made of files that the user had changed; without it such a file is a
    UsageError.
    """
    texts = dict(zip(NAMES, (table_csv(comparison), markdown(comparison), plot(comparison)), strict=True))
    with replacing(folder, KIND, force=force) as staging:
        staging.document = document(comparison)
        for name, text in texts.items():
            (staging.directory / name).write_text(text, encoding="utf-8")
    return staging.copies
