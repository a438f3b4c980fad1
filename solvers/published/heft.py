"""HEFT: each operator, by descending upward rank, on the processor where it ends first.

Source: Topcuoglu, Hariri and Wu, IEEE TPDS 2002. Here without insertion into gaps; RAM does not enter its choice.
"""

from __future__ import annotations

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.processors import heft
from poetc.solvers.published._placed import solve_placed

INFO = SolverInfo(
    name="heft",
    title="Heterogeneous earliest finish time, every operator once",
    citation="H. Topcuoglu, S. Hariri, M.-Y. Wu, Performance-Effective and Low-Complexity Task Scheduling for "
    "Heterogeneous Computing, IEEE TPDS 2002",
    deadline=True,
    processors=True,
    notes="Minimises time, whatever the objective is. Neither recomputes nor pages.",
    read="the algorithm HEFT",
    differs="no insertion into gaps; costs of hand-overs in place of volumes of data; RAM does not enter",
    checked="ranks and finish times, computed anew with networkx",
)


def solve(problem: Problem, options: SolveOptions, progress: Progress | None) -> Schedule:
    """Raises InfeasibleError where every operator once does not fit the budget or the deadline."""
    del options, progress
    return solve_placed(INFO, problem, heft)
