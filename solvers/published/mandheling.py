"""Mandheling: runs of operators go to the co-processor where that saves more than the switches cost.

Source: Xu et al., MobiCom 2022. With --micro-batches auto the batch has as many parts as its rule says: the fewest for
which each operator fits the cache (`poetc.devices.reuse`). Its prepared subgraphs concern operators, not their places.
"""

from __future__ import annotations

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.processors import context_switches
from poetc.solvers.published._placed import solve_placed

INFO = SolverInfo(
    name="mandheling",
    title="Profitable runs of operators on the co-processor, with few switches",
    citation="D. Xu et al., Mandheling: Mixed-Precision On-Device DNN Training with DSP Offloading, MobiCom 2022",
    energy=True,
    deadline=True,
    processors=True,
    fits_cache=True,
    notes="Greedy, in the order of the step. Neither recomputes nor pages.",
    read="its scheduling of subgraphs, and the split of the batch",
    differs="greedy, in the order of the step; preparation of subgraphs costs nothing here",
    checked="the fewest parts of a batch for which each operator fits the cache",
)


def solve(problem: Problem, options: SolveOptions, progress: Progress | None) -> Schedule:
    """Raises InfeasibleError where every operator once does not fit the budget or the deadline."""
    del options, progress
    return solve_placed(INFO, problem, context_switches)
