"""Solvers: each module here answers a Problem with a Schedule. See docs/adding-a-solver.md."""

from poetc.solvers._homes import HomeSearch
from poetc.solvers._minimum import MinimumBudget, lower_bound_bytes, min_budget
from poetc.solvers._orders import best_order, cheapest_order, reordered, restored
from poetc.solvers._registry import available, solve
from poetc.solvers._search import at_once
from poetc.solvers._types import (
    ALL_SCHEDULES,
    CLASS,
    OWN_ORDER,
    ROUNDING,
    STAGED_CLASS,
    BudgetError,
    Event,
    NotFoundError,
    Progress,
    SolverInfo,
    Work,
)

__all__ = [
    "ALL_SCHEDULES",
    "CLASS",
    "OWN_ORDER",
    "ROUNDING",
    "STAGED_CLASS",
    "BudgetError",
    "Event",
    "HomeSearch",
    "MinimumBudget",
    "NotFoundError",
    "Progress",
    "SolverInfo",
    "Work",
    "at_once",
    "available",
    "best_order",
    "cheapest_order",
    "lower_bound_bytes",
    "min_budget",
    "reordered",
    "restored",
    "solve",
]
