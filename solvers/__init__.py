"""Solvers: each answers a Problem with a Schedule. See docs/how-to/add-a-solver.md.

`interface` and `registry` say how a solver looks and is found. `published/` holds the methods of others, `poetc/` the
engine of this project. `model`, `highs`, `liveness` and `dependences` serve both.
"""

from poetc.solvers.interface import (
    ENGINE_NAME,
    ROUNDING,
    BudgetError,
    Event,
    NotFoundError,
    Progress,
    SolverInfo,
    bound_beside,
)
from poetc.solvers.poetc.bounds.ladder import has_wide_gap
from poetc.solvers.poetc.bounds.ram import lower_bound_bytes
from poetc.solvers.poetc.lists import race_of_lists
from poetc.solvers.poetc.options import EngineOptions, WarmStart
from poetc.solvers.poetc.orders.best_order import best_order, cheapest_order, clear_order
from poetc.solvers.poetc.orders.reordering import reordered, restored
from poetc.solvers.poetc.placement.kernel import kernel_of_fullest
from poetc.solvers.poetc.placement.phases import phased_bound
from poetc.solvers.poetc.placement.search import PlacementSearch, bound_of_any_placement, thrifty_placements
from poetc.solvers.poetc.search.flatten import in_less_ram
from poetc.solvers.poetc.search.race import at_once
from poetc.solvers.poetc.search.smallest_budget import MinimumBudget, has_schedule, min_budget
from poetc.solvers.poetc.work import Work
from poetc.solvers.processors import critical_path_ns, shortest_ns
from poetc.solvers.registry import available, info, solve

__all__ = [
    "ENGINE_NAME",
    "ROUNDING",
    "BudgetError",
    "EngineOptions",
    "Event",
    "MinimumBudget",
    "NotFoundError",
    "PlacementSearch",
    "Progress",
    "SolverInfo",
    "WarmStart",
    "Work",
    "at_once",
    "available",
    "best_order",
    "bound_beside",
    "bound_of_any_placement",
    "cheapest_order",
    "clear_order",
    "critical_path_ns",
    "has_schedule",
    "has_wide_gap",
    "in_less_ram",
    "info",
    "kernel_of_fullest",
    "lower_bound_bytes",
    "min_budget",
    "phased_bound",
    "race_of_lists",
    "reordered",
    "restored",
    "shortest_ns",
    "solve",
    "thrifty_placements",
]
