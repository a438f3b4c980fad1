"""Schedules that run every operator once in a given order, and some a second time where their outputs are read late.

A tensor is read early and late, with a long time between. An operator that is repeated gives up its outputs for that
time, and is executed again right before the first of the late readers. An input that is given up as well comes back
before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from poetc.scheduling import Action, Compute, Problem, complete

Repeat = tuple[int, int]  # an operator, and the place of the reader before which it is executed again


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

    def away(self, k: int) -> list[tuple[int, int]]:
        """Times in which nothing reads an output of operator `k`, the longest first: places of the accesses around."""
        problem, operator = self.problem, self.problem.operators[k]
        outputs = [t for t in operator.outputs if len(self.uses[t]) > 1]
        if not operator.recomputable or not outputs or any(t in self.lost_at for t in operator.outputs):
            return []
        if any(problem.tensors[t].final for t in operator.outputs):
            return []
        uses = sorted({n for t in outputs for n in self.uses[t]})
        lost = min((self.lost_at.get(t, len(self.order)) for t in operator.inputs), default=len(self.order))
        long = [(first, then) for first, then in itertools.pairwise(uses) if then - first >= 2 and then <= lost]
        return sorted(long, key=lambda pair: (pair[0] - pair[1], pair))

    def repeats_in(self, actions: Iterable[Action]) -> frozenset[Repeat]:
        """The repeats that come nearest to those in a schedule."""
        repeats, seen = set[Repeat](), set[int]()
        for action in actions:
            if isinstance(action, Compute) and action.operator in seen:
                k = action.operator
                thens = [then for _, then in self.away(k) if then >= len(seen)]
                repeats |= {(k, min(thens))} if thens else set()
            elif isinstance(action, Compute):
                seen.add(action.operator)
        return frozenset(repeats)

    def repeats_after(self, nowhere: Iterable[tuple[int, tuple[int, ...]]]) -> frozenset[Repeat]:
        """Repeats of operators, each behind the others at which an output of it is not in RAM."""
        repeats = set[Repeat]()
        for k, others in nowhere:
            thens = [then for _, then in self.away(k) if then > max(self.place[j] for j in others)]
            repeats |= {(k, min(thens))} if thens else set()
        return frozenset(repeats)

    def repeating(self, repeats: Iterable[Repeat]) -> tuple[Action, ...]:
        """The actions, with another execution for each of `repeats`, whose time is one `away`."""
        items = sorted(set(repeats), key=lambda r: (self.place[r[0]], r[1]))
        since = {(k, then): first for k in {k for k, _ in items} for first, then in self.away(k)}
        back = {r: r[1] for r in items}
        for r in reversed(items):  # readers first: an input comes back no later than its reader
            makers = {self.maker.get(t) for t in self.problem.operators[r[0]].inputs}
            for other in items:
                if other[0] in makers and since[other] < back[r]:
                    back[other] = min(back[other], back[r])
        at: dict[int, list[int]] = {}
        for r in items:  # in order
            if r[0] not in at.setdefault(back[r], []):
                at[back[r]].append(r[0])
        sequence = [k for n, own in enumerate(self.order) for k in (*at.get(n, ()), own)]
        return complete(self.problem, [Compute(k) for k in sequence])
