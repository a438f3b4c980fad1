"""The methods' common part that choose a processor for each operator and compute everything once."""

from __future__ import annotations

from collections.abc import Callable

from poetc.errors import InfeasibleError, UnsupportedProblemError
from poetc.scheduling import Problem, Schedule
from poetc.solvers.interface import SolverInfo
from poetc.solvers.processors import Placement, scheduled


def solve_placed(info: SolverInfo, problem: Problem, place: Callable[[Problem], Placement]) -> Schedule:
    """Everything once, where `place` says. Raises InfeasibleError where that does not fit."""
    if not problem.processors:
        raise UnsupportedProblemError(f"{info.name}: the problem has one processor")
    schedule = scheduled(info, problem, place(problem))
    if schedule is None:
        raise InfeasibleError(
            f"{info.name}: every operator once does not fit the budget of {problem.budget_bytes} bytes or the deadline;"
            " take a larger one, or --solver poetc, which recomputes and pages"
        )
    return schedule
