"""Which cuts to try: single ones first, then more and more of those that bound best."""

from __future__ import annotations

from poetc.solvers._cuts import working_set_bytes
from poetc.solvers._model import Model

SINGLE_CUTS = 24
EVERY_OPERATOR = 160  # up to this many cuts, every operator of the backward pass becomes one


def single_cut_positions(model: Model) -> list[int]:
    """Positions spread over the backward pass: in each stretch, the operator with the largest working set."""
    first, n = model.cut, model.n_ops
    count = min(SINGLE_CUTS, n - first)
    positions = []
    for k in range(count):
        stretch = range(first + (n - first) * k // count, first + (n - first) * (k + 1) // count)
        positions.append(max(stretch, key=lambda v: (working_set_bytes(model, v), -v)))
    return positions


def cut_counts(model: Model) -> list[int]:
    """How many cuts to use, in this order."""
    backward = model.n_ops - model.cut
    counts = [k for k in (3, 6, 12, 24) if k < backward]
    return [*counts, backward] if backward <= EVERY_OPERATOR else counts


def choose_cuts(model: Model, profile: list[tuple[float, int]], count: int) -> tuple[int, ...]:
    """The cut at the loss and, of as many stretches of the backward pass, the best single cuts."""
    first, n = model.cut, model.n_ops
    if count >= n - first:
        return tuple(range(first, n))
    cuts = {first}
    for k in range(count):
        low, high = first + (n - first) * k // count, first + (n - first) * (k + 1) // count
        inside = [(bound, -cut) for bound, cut in profile if low <= cut < high]
        if inside:
            cuts.add(-max(inside)[1])
        elif low < high:
            cuts.add(max(range(low, high), key=lambda v: (working_set_bytes(model, v), -v)))
    return tuple(sorted(cuts))
