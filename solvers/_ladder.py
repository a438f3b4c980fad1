"""Which cuts to try: single ones first, then more and more, where plans made from the last ones need too much RAM."""

from __future__ import annotations

from poetc.solvers._cuts import working_set_bytes
from poetc.solvers._model import Model

SINGLE_CUTS = 24
NEW_CUTS, OVERFULL_A_CUT, APART = 4, 12, 2  # cuts added at a time: at least, and for so many operators; how far apart


def single_cut_positions(model: Model) -> list[int]:
    """Positions spread over the backward pass: in each stretch, the operator with the largest working set."""
    return [max(stretch, key=lambda v: (working_set_bytes(model, v), -v)) for stretch in _stretches(model)]


def _stretches(model: Model) -> list[range]:
    first, n = model.cut, model.n_ops
    count = min(SINGLE_CUTS, n - first)
    return [range(first + (n - first) * k // count, first + (n - first) * (k + 1) // count) for k in range(count)]


def around(model: Model, k: int) -> list[int]:
    """Operators of the k-th of these stretches, the largest working sets first. What is cheap to make again but read
    there can count for more than what is large.
    """
    return sorted(_stretches(model)[k], key=lambda v: (-working_set_bytes(model, v), v))


def new_cuts(cuts: set[int], overfull: list[int], n_ops: int, most: int | None = None) -> list[int]:
    """Of operators at which a plan needs too much RAM, the worst first, those that become cuts too: not next to one
    another. Where one is a cut already, what comes before it is the culprit, and the operator beside it becomes one.
    `most`: how many.
    """
    new: list[int] = []
    for v in overfull:
        at = next((u for u in (v, v - 1, v + 1) if u not in cuts), None)
        if at is None or not 0 <= at < n_ops or any(abs(at - u) <= APART for u in new):
            continue
        new.append(at)
        if len(new) >= (max(NEW_CUTS, len(overfull) // OVERFULL_A_CUT) if most is None else most):
            break
    return new
