"""DTR, dynamic tensor rematerialization: a simulated run whose events are the schedule.

The method is that of Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen and Tatlock, ICLR 2021.

On out-of-memory the unlocked tensor of the least

    h_DTR(t) = (c(t) + sum of c over the evicted neighbourhood e*(t)) / (m(t) * staleness(t))          (section 4.1)

goes, e* being the evicted ancestors that recomputing t takes and the evicted descendants whose recomputation takes t.
Parents are locked during recursive rematerialization; a tensor is freed when its last reader has run (eager eviction).
The step's order is known here, so a tensor with no way back is not evicted. The paper's other scores are the
solvers dtr_eq and dtr_local.
"""

from __future__ import annotations

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.published._baseline import Baseline, Irretrievable
from poetc.solvers.published._online import Online, Rules, Score

INFO = SolverInfo(
    name="dtr",
    title="Online eviction by h_DTR, logged into a schedule",
    citation="M. Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021",
    notes="Greedy, without lookahead. Recomputation only.",
    read="section 4, appendix C",
    differs="no tensor is evicted that cannot be made again; a dead one stays while an evicted one needs it",
    checked="theorem 3.1: linear work with memory of the order of the square root",
)


def h_dtr(run: Online, t: int) -> float:
    model = run.model
    neighbours = sum(model.op_cost[v] for v in run.evicted_neighbourhood(t))
    own = model.op_cost[model.producer[t]]
    return (own + neighbours) / (model.size[t] * run.staleness(t))


def solve_with(
    info: SolverInfo, score: Score, problem: Problem, options: SolveOptions, progress: Progress | None
) -> Schedule:
    """One run with a score. Raises InfeasibleError, LimitError (thrashing)."""
    baseline = Baseline(info, problem, options, progress)
    run = Online(baseline, baseline.model.capacity, Rules(score=score))
    try:
        baseline.offer(run.run(), "one run")
    except Irretrievable as error:
        baseline.refusal = baseline.refusal or str(error)
    return baseline.finish()


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises InfeasibleError, LimitError (thrashing)."""
    return solve_with(INFO, h_dtr, problem, options, progress)
