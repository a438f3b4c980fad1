"""The exact dynamic program over all lower sets of the forward graph.

Source: Kusumoto, Inoue, Watanabe, Akiba, Koyama, "A graph theoretic framework of recomputation algorithms for
memory-efficient backpropagation", NeurIPS 2019, section 4.2.

A chain of lower sets {} = L_0 < L_1 < ... < L_k = V cuts the forward graph into segments V_i. The border of L_i, the
part of V_i that feeds later segments, is cached. The rest is recomputed when V_i is undone. Beside the cache this takes
2 m(V_i) + m(d+(L_i) - L_i) + m(d-(d+(L_i)) - L_i) bytes. State: (L, recomputation so far) -> the least cache. The
paper's unit costs are the problem's own here, rounded to 1/400 of the forward pass. The last segment is held, as it is
undone at once. The decisions are replayed exactly.
"""

from __future__ import annotations

from poetc.solvers.interface import SolverInfo
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._lower_sets import run

INFO = SolverInfo(
    name="kusumoto",
    title="Dynamic program over all lower sets",
    citation="M. Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient "
    "Backpropagation, NeurIPS 2019",
    energy=True,
    notes="Up to 600 lower sets: nearly a chain. Each operator is recomputed at most once. Recomputation only.",
    read="section 4",
    differs="costs in place of counts of operators",
    checked="the best of all sets of checkpoints on chains",
)

MOST_SETS = 600  # lower sets: time and memory of the program grow with the square of their number


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises UnsupportedProblemError (no backward pass, too many lower sets), InfeasibleError."""
    run(baseline, exact=True, limit=MOST_SETS)
