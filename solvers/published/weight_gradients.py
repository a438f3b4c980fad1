"""Weight gradients and updates on the second processor, beside the chain of input gradients on the first.

Source: Mandheling (Xu et al., MobiCom 2022) runs weight gradients as a second graph in a thread of their own.
"""

from __future__ import annotations

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.processors import weight_gradients
from poetc.solvers.published._placed import solve_placed

INFO = SolverInfo(
    name="weight_gradients",
    title="Weight gradients and updates on the second processor",
    citation="D. Xu et al., Mandheling: Mixed-Precision On-Device DNN Training with DSP Offloading, MobiCom 2022",
    deadline=True,
    processors=True,
    notes="A fixed rule. Neither recomputes nor pages.",
    read="its second graph of weight gradients",
    differs="all of them go to the second processor, whatever it costs there",
    checked="exactly the gradients of weights and their updates move",
)


def solve(problem: Problem, options: SolveOptions, progress: Progress | None) -> Schedule:
    """Raises InfeasibleError where every operator once does not fit the budget or the deadline."""
    del options, progress
    return solve_placed(INFO, problem, weight_gradients)
