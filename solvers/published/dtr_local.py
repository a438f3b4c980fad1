"""DTR with h_local(t) = c(t) / (m(t) * staleness(t)): no neighbourhood (Kirisame et al., ICLR 2021, section 4.1).

See `dtr`.
"""

from __future__ import annotations

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.published._online import Online
from poetc.solvers.published.dtr import solve_with

INFO = SolverInfo(
    name="dtr_local",
    title="Online eviction by h_DTR without its neighbourhood",
    citation="M. Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021",
    notes="Greedy, without lookahead. Recomputation only.",
    read="section 4, appendix C",
    differs="no tensor is evicted that cannot be made again; a dead one stays while an evicted one needs it",
    checked="theorem 3.1: linear work with memory of the order of the square root",
)


def _h_local(run: Online, t: int) -> float:
    return run.model.op_cost[run.model.producer[t]] / (run.model.size[t] * run.staleness(t))


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises InfeasibleError, LimitError (thrashing)."""
    return solve_with(INFO, _h_local, problem, options, progress)
