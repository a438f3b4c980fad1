"""Schedules that run every operator once in a given order, and some a second time where their outputs are read late.

A tensor is read early and late, with a long time between. An operator that is repeated gives up its outputs for that
time, and is executed again right before the first of the late readers. An input that is given up as well comes back
before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from poetc.scheduling import Action, Compute, Problem, complete


class Order:
    """An order in which every operator is executed once."""

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem, self.order = problem, tuple(order)
        self.place = {k: n for n, k in enumerate(self.order)}
        self.maker = {t: k for k, o in enumerate(problem.operators) for t in o.outputs}
        self.lost_at: dict[int, int] = {}  # by tensor, the place at which another one takes over its bytes
        self.uses: dict[int, list[int]] = {}  # by tensor, the places of its maker and of its readers
        for n, k in enumerate(self.order):
            operator = problem.operators[k]
            for t in {*operator.inputs, *operator.outputs}:
                self.uses.setdefault(t, []).append(n)
            for p in operator.in_place:
                if p.required:
                    self.lost_at[p.input] = n

    def away(self, k: int) -> tuple[int, int] | None:
        """The longest time for which nothing reads an output of operator `k`: the places of the accesses around it."""
        problem, operator = self.problem, self.problem.operators[k]
        outputs = [t for t in operator.outputs if len(self.uses[t]) > 1]
        if not operator.recomputable or not outputs or any(t in self.lost_at for t in operator.outputs):
            return None
        uses = sorted({n for t in outputs for n in self.uses[t]})
        if any(problem.tensors[t].final for t in operator.outputs):
            return None
        first, then = max(itertools.pairwise(uses), key=lambda pair: pair[1] - pair[0], default=(0, 0))
        if then - first < 2 or any(self.lost_at.get(t, then) < then for t in operator.inputs):
            return None
        return first, then

    def repeating(self, repeats: Iterable[int]) -> tuple[Action, ...]:
        """The actions, with a second execution of each of `repeats`, which have a time `away`."""
        times = {
            k: away for k in sorted(set(repeats), key=self.place.__getitem__) if (away := self.away(k)) is not None
        }
        back = {k: then for k, (_, then) in times.items()}
        for k in reversed(times):  # readers first: an input comes back no later than its reader
            for t in self.problem.operators[k].inputs:
                maker = self.maker.get(t)
                if maker in back and times[maker][0] < back[k]:
                    back[maker] = min(back[maker], back[k])
        at: dict[int, list[int]] = {}
        for k in times:  # in order
            at.setdefault(back[k], []).append(k)
        sequence = [k for n, own in enumerate(self.order) for k in (*at.get(n, ()), own)]
        return complete(self.problem, [Compute(k) for k in sequence])
