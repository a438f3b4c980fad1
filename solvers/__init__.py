"""Solvers: each module here answers a Problem with a Schedule. See docs/adding-a-solver.md."""

from poetc.solvers._minimum import MinimumBudget, lower_bound_bytes, min_budget
from poetc.solvers._orders import reordered, restored
from poetc.solvers._registry import available, solve
from poetc.solvers._types import BudgetError, Event, Progress, SolverInfo

__all__ = [
    "BudgetError",
    "Event",
    "MinimumBudget",
    "Progress",
    "SolverInfo",
    "available",
    "lower_bound_bytes",
    "min_budget",
    "reordered",
    "restored",
    "solve",
]
