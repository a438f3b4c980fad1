"""Every solver on the same problem: same budgets, same checker, same packing, one bound."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poetc import solvers
from poetc.devices import format_bytes
from poetc.errors import InfeasibleError, LimitError, PoetcError, UnsupportedProblemError, UsageError, nearest
from poetc.planning.chain import reductions
from poetc.planning.kernels import Kernels
from poetc.planning.plain import ENGINE
from poetc.planning.planner import Planner
from poetc.planning.processors import Processors
from poetc.scheduling import (
    Objective,
    Problem,
    ScheduleError,
    Scope,
    SolveOptions,
    keep_all_peak_bytes,
    movable_state,
    pack,
    stored_state,
    verify,
)

OnCell = Callable[[int, int, str], None]  # done, of, the name of the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One solver at one budget.

    `status`: optimal, feasible or limit with a schedule; infeasible, timeout, unsupported or failed without one, and
    `reason` says why. `gap`: (objective - our bound) / objective; the bound holds for poetc's class of schedules, and a
    solver that reorders operators may undercut it. All of it is for the same placement of state
    (`Comparison.placements`).
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
    """Schedules of several solvers under several budgets, with poetc's bounds.

    `bounds`, `scopes` and `placements` are by budget in bytes. A bound is in the unit of the objective. A placement is
    the number of state tensors on the store and in RAM, the same for every solver. `placement_is_open`: `poetc solve`
    would choose the place of each tensor, and may find a cheaper schedule.
    """

    problem: str
    device: str
    objective: Objective
    operators: int
    keep_all_peak_bytes: int
    compute_once_pj: int
    compute_once_ns: int
    deadline_ns: int | None
    bounds: dict[int, int]
    rows: tuple[Row, ...]
    scopes: dict[int, Scope] = dataclasses.field(default_factory=dict)
    placements: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    placement_is_open: bool = False

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
            raise UsageError(f"unknown solver {name!r}: {nearest(name, known)}")
    chosen = sorted(dict.fromkeys(names or known), key=lambda n: (n != ENGINE, n))
    choices = reductions(state)
    rows: list[Row] = []
    bounds: dict[int, int] = {}
    scopes: dict[int, Scope] = {}
    placements: dict[int, tuple[int, int]] = {}
    total = len(budgets) * len(chosen)
    for budget in dict.fromkeys(budgets):
        at_budget = replace(problem, budget_bytes=budget)
        side_by_side = at_budget
        for choice in choices:  # the same option for all solvers
            at_budget = choice.usual(at_budget)
        side_by_side = replace(side_by_side, tensors=at_budget.tensors)
        on_store, in_ram = len(stored_state(at_budget)), len(movable_state(at_budget))
        if on_store or in_ram:
            placements[budget] = on_store, in_ram
        for name in chosen:
            if on_cell is not None:
                on_cell(len(rows), total, f"{name} at {format_bytes(budget)}")
            places = bool(problem.processors) and (name == ENGINE or known[name].processors)
            asked = side_by_side if places else at_budget
            rows.append(_row(asked, name, options or SolveOptions(), bounds, scopes))
    result = Comparison.of(problem, bounds, rows)
    return replace(result, scopes=scopes, placements=placements, placement_is_open=state == "auto")


def _row(problem: Problem, name: str, options: SolveOptions, bounds: dict[int, int], scopes: dict[int, Scope]) -> Row:
    started = time.perf_counter()

    def without(status: str, error: Exception) -> Row:
        seconds = round(time.perf_counter() - started, 3)
        return Row(solver=name, budget_bytes=problem.budget_bytes, status=status, seconds=seconds, reason=str(error))

    try:
        if problem.processors:
            planner = Planner(options=options, solver=name, reductions=(Processors(), Kernels()))
            solution = planner.solve(problem)
            problem, schedule = solution.problem, solution.schedule
        else:
            schedule = solvers.solve(problem, name, options if name != ENGINE else replace(options, group="auto"))
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
    if name == ENGINE:
        bounds[problem.budget_bytes], scopes[problem.budget_bytes] = proof.bound, proof.scope
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
