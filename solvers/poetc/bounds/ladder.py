"""The choice of cuts: single ones first, then more and more, at operators where the last plan needs too much RAM."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from poetc.solvers.interface import ROUNDING
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.ram import tiny_tensors, working_set_bytes
from poetc.solvers.poetc.settings import ENGINE, LADDER


def single_cut_positions(model: Model) -> list[int]:
    """Positions spread over the backward pass: in each stretch, the operator with the largest working set."""
    return [max(stretch, key=lambda v: (working_set_bytes(model, v), -v)) for stretch in _stretches(model)]


def fullest_operator(model: Model) -> int:
    """The operator beside whose working set the most stays in RAM, if no state does that is read from the store."""
    return fullest_operators(model, 1)[0]


def fullest_operators(model: Model, count: int) -> list[int]:
    """Those beside which the most stays in RAM, the fullest first."""
    held = np.zeros(model.n_ops + 1)  # by operator, the change of the bytes that stay
    for t in range(model.n_tensors):
        p, uses = model.producer[t], model.consumers[t]
        if p >= 0 and uses:
            held[p] += model.size[t]
            held[uses[-1] + 1] -= model.size[t]
    ram = np.cumsum(held)
    needs = [
        ram[v] + model.workspace[v] + sum(model.size[t] for t in model.inputs[v] if model.producer[t] < 0)
        for v in range(model.n_ops)
    ]
    return [int(v) for v in np.argsort(-np.array(needs), kind="stable")[:count]]


def _stretches(model: Model) -> list[range]:
    first, n = model.cut, model.n_ops
    count = min(LADDER.single_cuts, n - first)
    return [range(first + (n - first) * k // count, first + (n - first) * (k + 1) // count) for k in range(count)]


def around(model: Model, k: int) -> list[int]:
    """The operators of the k-th stretch, the largest working sets first.

    The best cut need not be the first: operands that are cheap to make again can count for more than large ones.
    """
    return sorted(_stretches(model)[k], key=lambda v: (-working_set_bytes(model, v), v))


def new_cuts(cuts: set[int], overfull: list[int], n_ops: int, most: int | None = None) -> list[int]:
    """The operators that become cuts too, of those at which a plan needs too much RAM, the worst first.

    No two of them are neighbours. Where an operator is a cut already, the operators before it are the cause, and one
    beside it becomes a cut. `most`: how many there may be.
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


def gap_share(bound: float, cost: float) -> float:
    """The part of the cost above the bound, as a fraction."""
    return 1 - bound / cost if cost > 0 else 0.0


def has_wide_gap(bound: float, cost: float) -> bool:
    """Whether so much is left between the two that spread cuts are worth their work."""
    return bound < cost * (1 - ENGINE.wide_gap)


@dataclass(slots=True)
class Ladder:
    """The settings of the next relaxation with several cuts.

    While a thread solves one, only that thread may use this object.
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
        """The bound that is enough of the next relaxation, where `gap` was asked for."""
        if not bound < cost * (1 - LADDER.small_gap) < math.inf:
            return cost
        aim, enough = bound + self.reach * (cost - bound), cost * (1 - gap) + 1
        return enough if bound < enough < aim else aim

    def climb(self, relaxation: Relaxation, aim: float, excess: list[tuple[int, int]], *, followed: bool) -> bool:
        """Take the result of a relaxation into account. False where another leads no further.

        `excess`: by how much its plan needs too much RAM, and at which operators; `followed`: whether it is a sequence.
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
