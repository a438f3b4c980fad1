"""Planners for tests: the chain of `poetc solve` for a problem at hand."""

from __future__ import annotations

from dataclasses import replace

from poetc.events import Progress, silent
from poetc.planning import Planner, RamSearch, Solution, reductions
from poetc.scheduling import Problem, SolveOptions
from poetc.scheduling.schedule import MemoryPlan, Schedule
from poetc.solvers import WarmStart

QUICK = SolveOptions(time_limit_s=20.0)


def planner(
    state: str = "auto", solver: str = "poetc", options: SolveOptions = QUICK, progress: Progress = silent
) -> Planner:
    """The chain without micro-batches; `state` as `--state` takes it."""
    return Planner(options=options, solver=solver, reductions=reductions(state), progress=progress)


def solve_plain(
    problem: Problem,
    solver: str = "poetc",
    options: SolveOptions = QUICK,
    progress: Progress = silent,
    smallest_ram: RamSearch | None = None,
    warm_start: WarmStart | None = None,
) -> tuple[Schedule, MemoryPlan]:
    """A problem without open choices."""
    plain = Planner(options=options, solver=solver, progress=progress, smallest_ram=smallest_ram)
    plain = plain if warm_start is None else replace(plain, warm_start=warm_start)
    solution: Solution = plain.solve(problem)
    return solution.schedule, solution.plan


def smallest_ram_bytes(problem: Problem, state: str = "auto", search_s: float = 10.0) -> int:
    """The least RAM that a search of `search_s` finds."""
    found = planner(state).search_ram(problem, search_s).result.ram_bytes
    assert found is not None
    return found
