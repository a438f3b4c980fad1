"""Keep-all: every operator once, in the problem's order, every tensor in RAM until its last use.

Where it fits, no schedule costs less, so its own cost is its bound. Where it does not fit, there is nothing to decide.
"""

from __future__ import annotations

from poetc.errors import InfeasibleError
from poetc.scheduling import Completer, Problem, Schedule, SolveOptions, keep_all, keep_all_decisions
from poetc.solvers.interface import Event, Progress, SolverInfo

INFO = SolverInfo(
    name="keep_all",
    title="Every operator once, tensors freed after their last use",
    energy=True,
    deadline=True,
    proof=True,
    notes="The reference that budgets in per cent refer to. Pages only tensors that start or must end on the store.",
)


def solve(problem: Problem, options: SolveOptions, progress: Progress | None) -> Schedule:
    """Raises InfeasibleError when keep-all does not fit the budget or the deadline."""
    cost = Completer(problem).run(keep_all_decisions(problem))
    if cost.peak_bytes > problem.budget_bytes:
        raise InfeasibleError(
            f"keep-all needs {cost.peak_bytes} bytes, the budget is {problem.budget_bytes}; "
            "give it that much, or take a solver that rematerializes or pages"
        )
    if problem.deadline_ns is not None and cost.time_ns > problem.deadline_ns:
        raise InfeasibleError(
            f"keep-all takes {cost.time_ns / 1e6:.6g} ms, the deadline is {problem.deadline_ns / 1e6:.6g}; "
            "no schedule is faster"
        )
    schedule = keep_all(problem)
    if progress is not None:
        progress(Event(stage="keep-all", objective=schedule.proof.objective, bound=schedule.proof.bound))
    return schedule
