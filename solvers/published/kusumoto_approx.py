"""The approximate dynamic program over lower sets: those of single operators and all that they depend on.

Source: Kusumoto et al., NeurIPS 2019, section 4.3. See `kusumoto`.
"""

from __future__ import annotations

from poetc.solvers.interface import SolverInfo
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._lower_sets import run

INFO = SolverInfo(
    name="kusumoto_approx",
    title="Dynamic program over the lower sets of single operators",
    citation="M. Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient "
    "Backpropagation, NeurIPS 2019",
    energy=True,
    notes="Each operator is recomputed at most once. Recomputation only.",
    read="section 4",
    differs="costs in place of counts of operators",
    checked="the best of all sets of checkpoints on chains",
)


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no backward pass), InfeasibleError."""
    run(baseline, exact=False, limit=0)
