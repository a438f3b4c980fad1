"""Which cuts to try: single ones first, then more and more, where plans made from the last ones need too much RAM."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from poetc.solvers.interface import ROUNDING
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.ram import tiny_tensors, working_set_bytes
from poetc.solvers.poetc.settings import LADDER


def single_cut_positions(model: Model) -> list[int]:
    """Positions spread over the backward pass: in each stretch, the operator with the largest working set."""
    return [max(stretch, key=lambda v: (working_set_bytes(model, v), -v)) for stretch in _stretches(model)]


def _stretches(model: Model) -> list[range]:
    first, n = model.cut, model.n_ops
    count = min(LADDER.single_cuts, n - first)
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
        if at is None or not 0 <= at < n_ops or any(abs(at - u) <= LADDER.apart for u in new):
            continue
        new.append(at)
        if len(new) >= (max(LADDER.new_cuts, len(overfull) // LADDER.overfull_a_cut) if most is None else most):
            break
    return new


def left(bound: float, cost: float) -> float:
    """Of the cost, above the bound."""
    return 1 - bound / cost if cost > 0 else 0.0


@dataclass(slots=True)
class Ladder:
    """How the next relaxation with several cuts of a problem is made. While one is being solved in a thread, this is
    the thread's alone.
    """

    model: Model
    most_new: int | None = None  # cuts at a time
    free: frozenset[int] = frozenset()  # tensors that relaxations need not decide about
    cuts: set[int] = field(default_factory=set)
    effort: int = 1  # times the work on a relaxation
    slack: float = LADDER.slack
    reach: float = LADDER.reach

    def __post_init__(self) -> None:
        if self.model.n_tensors > LADDER.coarse_tensors:
            self.free = tiny_tensors(self.model, LADDER.free_share)

    def aim(self, bound: float, cost: float, gap: float) -> float:
        """A bound as good as this is enough of the next relaxation, where `gap` was asked for."""
        if not bound < cost * (1 - LADDER.small_gap) < math.inf:
            return cost
        aim, enough = bound + self.reach * (cost - bound), cost * (1 - gap) + 1
        return enough if bound < enough < aim else aim

    def climb(self, relaxation: Relaxation, aim: float, excess: list[tuple[int, int]], *, followed: bool) -> bool:
        """After a relaxation: `excess` (how much, where) is what its plan needs too much, if it could be `followed`.
        False where another leads no further.
        """
        if relaxation.bound >= aim * (1 - ROUNDING):
            return True
        if not relaxation.held and self.reach > LADDER.least_reach:
            self.reach /= 2
            return True
        new = new_cuts(self.cuts, [v for _, v in excess], self.model.n_ops, self.most_new)
        self.cuts.update(new)
        fine = not excess or excess[0][0] <= 2 * LADDER.free_share * self.model.capacity
        if self.free and fine and (followed or relaxation.exact):
            self.free = frozenset()  # now the smallest tensors matter
        elif not new:
            if relaxation.exact and self.slack == 0.0:
                return False
            factor = LADDER.effort_factor
            self.effort *= factor
            self.slack = self.slack / factor if self.slack > LADDER.slack / factor**2 else 0.0
        return True
