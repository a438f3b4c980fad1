"""Which cuts to try: single ones first, then more and more, where plans made from the last ones need too much RAM."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from poetc.solvers.interface import ROUNDING
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.ram import tiny_tensors, working_set_bytes

SINGLE_CUTS = 24
COARSE_TENSORS, FREE_SHARE = 100, 1e-3  # larger problems first do without their smallest tensors, so much of the RAM
# Of the gap left, what a relaxation with several cuts is asked to close: less where it could not tell in time. What is
# dearer is not looked at, which fixes many columns; a plan that is cheaper shows that other cuts are needed.
REACH, LEAST_REACH, SMALL_GAP = 0.35, 0.05, 1e-3  # a small gap is closed at once
SLACK = 0.1  # how exactly, of the gap left, relaxations are solved at first: where plans need too much RAM shows soon
CLIMB = 2.5  # relaxations go on beside the search for schedules for at least so many times its counted work
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
    slack: float = SLACK
    reach: float = REACH

    def __post_init__(self) -> None:
        if self.model.n_tensors > COARSE_TENSORS:
            self.free = tiny_tensors(self.model, FREE_SHARE)

    def aim(self, bound: float, cost: float, gap: float) -> float:
        """A bound as good as this is enough of the next relaxation, where `gap` was asked for."""
        if not bound < cost * (1 - SMALL_GAP) < math.inf:
            return cost
        aim, enough = bound + self.reach * (cost - bound), cost * (1 - gap) + 1
        return enough if bound < enough < aim else aim

    def climb(self, relaxation: Relaxation, aim: float, excess: list[tuple[int, int]], *, followed: bool) -> bool:
        """After a relaxation: `excess` (how much, where) is what its plan needs too much, if it could be `followed`.
        False where another leads no further.
        """
        if relaxation.bound >= aim * (1 - ROUNDING):
            return True
        if not relaxation.held and self.reach > LEAST_REACH:
            self.reach /= 2
            return True
        new = new_cuts(self.cuts, [v for _, v in excess], self.model.n_ops, self.most_new)
        self.cuts.update(new)
        fine = not excess or excess[0][0] <= 2 * FREE_SHARE * self.model.capacity
        if self.free and fine and (followed or relaxation.exact):
            self.free = frozenset()  # now the smallest tensors matter
        elif not new:
            if relaxation.exact and self.slack == 0.0:
                return False
            self.effort, self.slack = self.effort * 4, self.slack / 4 if self.slack > SLACK / 16 else 0.0
        return True
