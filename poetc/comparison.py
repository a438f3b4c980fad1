"""Every solver on the same problem: same budgets, same checker, same packing, one bound."""

from __future__ import annotations

import csv
import dataclasses
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from poetc import homes, solvers, variants
from poetc.devices import build_problem, format_bytes, load_profile, parse_duration, parse_size
from poetc.errors import InfeasibleError, LimitError, PoetcError, UnsupportedProblemError, UsageError
from poetc.files import read_file
from poetc.output_directory import Kind, check_replaceable, replacing
from poetc.pipeline import ModelRequest, training_graph
from poetc.scheduling import (
    Paging,
    Problem,
    ScheduleError,
    SolveOptions,
    keep_all_peak_bytes,
    pack,
    problem_from_json,
    verify,
)

OURS = "poetc"
OnCell = Callable[[int, int, str], None]  # done, of, what comes next


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One solver at one budget.

    `status`: optimal, feasible or limit with a schedule; infeasible, timeout, unsupported or failed without one, and
    `reason` says why. `gap`: (objective - our bound) / objective; the bound holds for poetc's class of schedules, and a
    solver that reorders operators may undercut it. All of it is for the same homes of state (`Comparison.homes`).
    """

    solver: str
    budget_bytes: int
    status: str
    seconds: float
    energy_pj: int | None = None
    time_ns: int | None = None
    peak_bytes: int | None = None
    arena_bytes: int | None = None
    arena_fits: bool | None = None  # base and packed arena within the budget
    recomputes: int | None = None
    page_outs: int | None = None
    page_ins: int | None = None
    gap: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """By budget in bytes: `bounds`, ours on the objective, `classes`, of the schedules that they hold for, and `homes`,
    where state lives for every solver alike, in words (not there where a problem has no state to place).
    `homes_are_open`: `solve` would choose them one by one, and may find less.
    """

    problem: str
    device: str
    objective: str
    operators: int
    keep_all_peak_bytes: int
    compute_once_pj: int
    compute_once_ns: int
    deadline_ns: int | None
    bounds: dict[int, int]
    rows: tuple[Row, ...]
    classes: dict[int, str] = dataclasses.field(default_factory=dict)
    homes: dict[int, str] = dataclasses.field(default_factory=dict)
    homes_are_open: bool = False

    @classmethod
    def of(cls, problem: Problem, bounds: dict[int, int], rows: Sequence[Row]) -> Comparison:
        return cls(
            problem=problem.name,
            device=problem.device,
            objective=problem.objective,
            operators=len(problem.operators),
            keep_all_peak_bytes=keep_all_peak_bytes(problem),
            compute_once_pj=problem.compute_once_pj,
            compute_once_ns=problem.compute_once_ns,
            deadline_ns=problem.deadline_ns,
            bounds=bounds,
            rows=tuple(rows),
        )

    def document(self) -> dict[str, Any]:
        """What `--json` prints and comparison.json holds."""
        document = dataclasses.asdict(self)
        document["bounds"] = [
            {"budget_bytes": b, "bound": bound, "schedule_class": self.classes.get(b, ""), "homes": self.homes.get(b)}
            for b, bound in sorted(self.bounds.items())
        ]
        document["homes"] = [{"budget_bytes": b, "homes": words} for b, words in sorted(self.homes.items())]
        del document["classes"]
        document["rows"] = [dataclasses.asdict(row) for row in self.rows]
        return document

    def csv(self) -> str:
        out = io.StringIO()
        names = [f.name for f in dataclasses.fields(Row)]
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in self.rows)
        return out.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """What is compared. `budgets` and `deadline` as typed by the user; no `names`: every solver."""

    model: ModelRequest
    budgets: tuple[str, ...]
    names: tuple[str, ...] = ()
    deadline: str | None = None
    objective: Literal["energy", "time"] | None = None  # None: the problem's own, energy for a model
    paging: bool = True
    state: str = "auto"  # where state lives: the same for all solvers; see `poetc.homes.without_search`
    options: SolveOptions = dataclasses.field(default_factory=lambda: SolveOptions(time_limit_s=20.0))


def run(request: CompareRequest, on_cell: OnCell | None = None) -> Comparison:
    """Read the model (or a Problem in JSON) and compare. Raises the errors of `poetc.errors` for a wrong request."""
    problem = _problem(request.model)
    if not request.paging:
        problem = replace(problem, paging=Paging.NONE)
    deadline = problem.deadline_ns
    if request.deadline is not None:
        deadline = parse_duration(request.deadline, of=problem.compute_once_ns, option="--deadline")
    problem = replace(problem, deadline_ns=deadline, objective=request.objective or problem.objective)
    peak = keep_all_peak_bytes(problem)
    if not request.budgets:
        raise UsageError("--budgets is empty: give at least one, such as 60%")
    budgets = [parse_size(text, of=peak, option="--budgets") for text in request.budgets]
    state = "ram" if request.state == "auto" and request.model.source.suffix == ".json" else request.state
    return compare(problem, budgets, request.names, request.options, on_cell, state)


def compare(
    problem: Problem,
    budgets: Sequence[int],
    names: Sequence[str] = (),
    options: SolveOptions | None = None,
    on_cell: OnCell | None = None,
    state: str = "ram",
) -> Comparison:
    """Every solver at every budget, ours first. Raises UsageError for a solver that is not there."""
    known = solvers.available()
    for name in names:
        if name not in known:
            raise UsageError(f"unknown solver {name!r}; there are {', '.join(known)}")
    problem = variants.fastest(problem)  # the same kernels for all
    chosen = sorted(dict.fromkeys(names or known), key=lambda n: (n != OURS, n))
    rows: list[Row] = []
    bounds: dict[int, int] = {}
    classes: dict[int, str] = {}
    places: dict[int, str] = {}
    total = len(budgets) * len(chosen)
    for budget in dict.fromkeys(budgets):
        at_budget = homes.without_search(replace(problem, budget_bytes=budget), state)
        if words := homes.in_words(at_budget):
            places[budget] = words
        for name in chosen:
            if on_cell is not None:
                on_cell(len(rows), total, f"{name} at {format_bytes(budget)}")
            rows.append(_row(at_budget, name, options or SolveOptions(), bounds, classes))
    result = Comparison.of(problem, bounds, rows)
    return replace(result, classes=classes, homes=places, homes_are_open=state == "auto")


def _problem(request: ModelRequest) -> Problem:
    source = request.source
    if source.suffix != ".json":
        return build_problem(training_graph(request)[1], load_profile(request.device), budget_bytes=0)
    try:
        return problem_from_json(read_file(source), source=str(source))
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from error


def _row(problem: Problem, name: str, options: SolveOptions, bounds: dict[int, int], classes: dict[int, str]) -> Row:
    started = time.perf_counter()

    def without(status: str, error: Exception) -> Row:
        seconds = round(time.perf_counter() - started, 3)
        return Row(solver=name, budget_bytes=problem.budget_bytes, status=status, seconds=seconds, reason=str(error))

    try:
        schedule = solvers.solve(problem, name, options)
    except UnsupportedProblemError as error:
        return without("unsupported", error)
    except InfeasibleError as error:
        return without("infeasible", error)
    except LimitError as error:
        return without("timeout", error)
    except (PoetcError, ScheduleError) as error:
        return without("failed", error)
    seconds = round(time.perf_counter() - started, 3)
    trace, proof = verify(problem, schedule), schedule.proof
    if name == OURS:
        bounds[problem.budget_bytes], classes[problem.budget_bytes] = proof.bound, proof.schedule_class
    bound = bounds.get(problem.budget_bytes)
    gap = None if bound is None or proof.objective <= 0 else (proof.objective - bound) / proof.objective
    arena = pack(problem, schedule).arena_bytes
    return Row(
        solver=name,
        budget_bytes=problem.budget_bytes,
        status=proof.status.value,
        seconds=seconds,
        energy_pj=trace.energy_pj,
        time_ns=trace.time_ns,
        peak_bytes=trace.peak_bytes,
        arena_bytes=arena,
        arena_fits=problem.base_bytes + arena <= problem.budget_bytes,
        recomputes=trace.recomputes,
        page_outs=trace.page_outs,
        page_ins=trace.page_ins,
        gap=gap,
    )


KIND = Kind("comparison.json", "what poetc compare wrote")
NAMES = ("comparison.csv", "comparison.md", "comparison.svg")


def check_out(folder: Path, *, force: bool = False) -> None:
    """Raises UsageError where `write` would, before anything is solved."""
    check_replaceable(folder, KIND, force=force, names=NAMES)


def write(comparison: Comparison, folder: Path, *, force: bool = False) -> list[str]:
    """comparison.csv, comparison.json, comparison.md and comparison.svg. The names of the copies that `force` made of
    files that the user had changed; without it such a file is a UsageError.
    """
    from poetc.reporting.comparison import markdown, plot

    texts = dict(zip(NAMES, (comparison.csv(), markdown(comparison), plot(comparison)), strict=True))
    with replacing(folder, KIND, force=force) as staging:
        staging.document = comparison.document()
        for name, text in texts.items():
            (staging.directory / name).write_text(text, encoding="utf-8")
    return staging.copies
