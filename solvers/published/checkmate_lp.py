"""Checkmate's approximation: the LP relaxation with two-phase rounding (Jain et al., MLSys 2020, section 5).

The LP is solved for 90 % of the budget and S is rounded at 1/2. R is then the least that S asks for. It has the
operators of tensors that have to be in RAM at the next stage and are not now. The operands that these miss come with
them. If the result does not fit, the LP is solved for less.
"""

from __future__ import annotations

from poetc.scheduling import Problem, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.published._rounding import offer_rounded
from poetc.solvers.published.checkmate import Checkmate

INFO = SolverInfo(
    name="checkmate_lp",
    title="Checkmate's LP with two-phase rounding",
    citation="P. Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020",
    energy=True,
    most_operators=220,  # larger LPs take minutes
    notes="Up to 220 operators. Recomputation only, no optional in-place.",
    read="section 5",
    differs="allowances from .9 down until one fits, where the paper takes .9",
    checked="between the optimum and twice the work",
)


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises UnsupportedProblemError (too large, tensors on the store), InfeasibleError, LimitError."""
    return offer_rounded(INFO, Checkmate, problem, options, progress)[0].finish()
