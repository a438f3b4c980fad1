"""Training deep nets with sublinear memory cost: the greedy rule.

Source: Chen, Xu, Zhang, Guestrin, arXiv 1604.06174, 2016, algorithm 3.

Walking over the forward pass, a checkpoint is set at the next candidate once the bytes made since the last one exceed
b. The limit b is swept over 50 values up to the sum, and the cheapest schedule that fits is taken. Candidates as in
`chen`.
"""

from __future__ import annotations

from collections.abc import Sequence

from poetc.solvers.interface import SolverInfo
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline, method
from poetc.solvers.published._training import Split, split
from poetc.solvers.published.chen import candidates, offer_all

INFO = SolverInfo(
    name="chen_greedy",
    title="Checkpoints whenever b bytes were made, the best b",
    citation="T. Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174, 2016",
    notes="Recomputation only.",
    read="section 4",
    differs="articulation points and all operators, the cheaper one",
    checked="memory of two square roots on chains",
)

THRESHOLDS = 50  # values of b that are tried, in even steps up to the sum of bytes


def _checkpoints(model: Model, parts: Split, points: Sequence[int], threshold: float) -> list[int]:
    allowed = set(points)
    chosen: list[int] = []
    size_bytes = 0
    for v in sorted(parts.to_loss):
        size_bytes += sum(model.size[t] for t in model.outputs[v])
        if size_bytes > threshold and v in allowed:
            chosen.append(v)
            size_bytes = 0
    return chosen


@method(INFO)
def solve(baseline: Baseline) -> None:
    """Raises InfeasibleError where no threshold fits."""
    model = baseline.model
    parts = split(model, INFO.name)
    total = sum(model.size[t] for v in parts.to_loss for t in model.outputs[v])
    choices = [
        (f"{name}, b = {int(b)}", _checkpoints(model, parts, points, b))
        for name, points in candidates(model, parts).items()
        for b in (total * k / THRESHOLDS for k in range(THRESHOLDS, -1, -1))
    ]
    offer_all(baseline, parts, choices)
