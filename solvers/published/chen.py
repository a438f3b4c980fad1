"""Training deep nets with sublinear memory cost: the square-root rule.

Source: Chen, Xu, Zhang, Guestrin, arXiv 1604.06174, 2016, section 4.

Candidates for checkpoints are the articulation points of the undirected forward graph, or all its operators. The latter
are "linearized", as Checkmate's authors call it (Jain et al. 2020, section 6.2). Of n candidates every floor(sqrt n)-th
is kept. A segment in between is recomputed once, when the backward pass first needs it, and held until used. The stride
does not look at the budget; of the two kinds of candidates the cheaper schedule that fits is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

from poetc.solvers.interface import SolverInfo
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._training import Split, run_static, split

INFO = SolverInfo(
    name="chen",
    title="Checkpoints every sqrt(n) operators",
    citation="T. Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174, 2016",
    notes="The stride ignores the budget: one memory, one cost. Recomputation only.",
    read="section 4",
    differs="articulation points and all operators, the cheaper one",
    checked="memory of two square roots on chains",
)


def candidates(model: Model, parts: Split) -> dict[str, list[int]]:
    """The forward operators that may be checkpoints, ascending: the articulation points, and all."""
    import networkx  # takes long to import

    graph = networkx.Graph()
    graph.add_nodes_from(sorted(parts.to_loss))
    for v in sorted(parts.to_loss):
        graph.add_edges_from((model.producer[t], v) for t in model.inputs[v] if model.producer[t] in parts.to_loss)
    points = sorted(networkx.articulation_points(graph))
    return {"articulation points": points, "all operators": sorted(parts.to_loss)}


def checkpointed(model: Model, parts: Split, checkpoints: Sequence[int]) -> list[int]:
    """The sequence that keeps the outputs of `checkpoints`, and the last segment, which the backward pass enters first.

    Tensors that cannot be made again are kept too.
    """
    last = max(checkpoints, default=-1)
    keep = {t for v in checkpoints for t in model.outputs[v]}
    keep.update(t for t in parts.forward_tensors if model.producer[t] > last)
    return run_static(model, parts, keep)


def offer_all(baseline: Baseline, parts: Split, choices: Iterable[tuple[str, Sequence[int]]]) -> None:
    """Offer the schedule of every set of checkpoints, each once."""
    offered: set[tuple[int, ...]] = set()
    for label, checkpoints in choices:
        if tuple(checkpoints) in offered:
            continue
        offered.add(tuple(checkpoints))
        if baseline.out_of_time:
            break
        baseline.offer_made(partial(checkpointed, baseline.model, parts, checkpoints), label)
    baseline.check_time()


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises InfeasibleError where the rule needs more than the budget."""
    parts = split(baseline.model, INFO.name)
    choices = []
    for name, points in candidates(baseline.model, parts).items():
        stride = max(1, math.isqrt(len(points)))
        choices.append((f"every {stride}th of {len(points)} {name}", points[stride - 1 :: stride]))
    offer_all(baseline, parts, choices)
