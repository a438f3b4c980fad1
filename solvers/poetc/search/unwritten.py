"""Fewer writes: tensors that a sequence writes to the store and reads back are made again instead.

Near the smallest budget, the eviction heuristic often finds schedules by paging alone. These write nearly all that the
backward pass reads, and a write is the dearest of all actions. Here the sequence stays as it is, but for one tensor at
a time. The tensor is no longer written. Where it was read back, its maker runs again. Of the operands of that maker,
those on the store are read, and others are made again as well.

A change is taken where it costs less and fits in RAM. If it does not fit, tensors that are on the store anyway may be
away meanwhile. A round takes all changes that do not touch each other. Chains of changes end by themselves: making a
tensor again gets dearer with the distance to the next one that is still written.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from poetc.solvers.liveness import Profile, Residency, early_page_outs, improve
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.settings import UNWRITTEN


def unwritten(model: Model, codes: Sequence[int], capacity: int, stop_at: float = math.inf) -> list[int]:
    """`codes`, which fit in `capacity` bytes, with fewer writes; never dearer. `stop_at`: a clock time."""
    best = list(codes)
    if model.n_ops > UNWRITTEN.most_operators or not model.can_page:
        return best
    for _ in range(UNWRITTEN.rounds):
        sequence = _Sequence(model, early_page_outs(model, best), capacity)
        changes = _Changes()
        for number, t in enumerate(sequence.written_tensors()):
            if number % UNWRITTEN.unlooked == 0 and time.monotonic() >= stop_at:
                break
            changes.take(sequence.without_writing(t))
        if not changes.unwritten:
            break
        changed = improve(model, sequence.changed(changes), capacity)
        was, now = model.cost(best), model.cost(changed)
        if Profile(model, changed).peak > capacity or now >= was:
            break
        best = changed
        if was - now < UNWRITTEN.least_saved * was:
            break
    return best


@dataclass(frozen=True, slots=True)
class _Again:
    """`codes` make a tensor again before a position, from tensors in RAM (`held`) and on the store (`read`)."""

    codes: list[int]
    cost: float
    held: frozenset[int]
    read: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Change:
    """`tensor` is not written, but made `again` at positions. `away`: tensors that leave RAM, until a position."""

    tensor: int
    again: dict[int, _Again]
    away: dict[int, int]

    @property
    def held(self) -> set[int]:
        return set[int]().union(*(again.held for again in self.again.values()))

    @property
    def read(self) -> set[int]:
        return self.away.keys() | set[int]().union(*(again.read for again in self.again.values()))


@dataclass(slots=True)
class _Changes:
    """Changes of one sequence that do not touch each other."""

    unwritten: set[int] = field(default_factory=set)
    again: dict[int, _Again] = field(default_factory=dict)
    away: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)

    def take(self, change: _Change | None) -> None:
        """Add a change, unless one of them reads or holds a tensor that the other gives up."""
        if change is None or change.tensor in self.read or not self.unwritten.isdisjoint(change.read):
            return
        if not self.away.keys().isdisjoint(change.held | change.away.keys()):
            return
        if not self.held.isdisjoint(change.away):
            return
        self.unwritten.add(change.tensor)
        self.again |= change.again
        self.away |= change.away
        self.held |= change.held
        self.read |= change.read


class _Sequence:
    """A sequence, and the tensors in RAM and on the store at each position."""

    def __init__(self, model: Model, codes: list[int], capacity: int) -> None:
        self.model, self.codes, self.capacity = model, codes, capacity
        n, m = model.n_ops, model.n_tensors
        self.profile = Profile(model, codes)
        self.births = [[stay.birth for stay in stays] for stays in self.profile.stays]
        self.written = [-1 if there else NEVER for there in model.on_store]  # by tensor, the position of its write
        self.reads: dict[int, list[int]] = {}  # by tensor, positions of page-ins
        self.executed: list[int] = []  # by position, the last operator that was executed for the first time before it
        last = -1
        for j, code in enumerate(codes):
            self.executed.append(last)
            if code < n:
                last = max(last, code)
            elif code < n + m:
                self.reads.setdefault(code - n, []).append(j)
            else:
                self.written[code - n - m] = min(self.written[code - n - m], j)
        self.executed.append(last)
        self.stored = [u for u, j in enumerate(self.written) if j < NEVER and model.size[u]]
        change = np.zeros(len(codes) + 2, dtype=np.int64)
        for stays, size in zip(self.profile.stays, model.size, strict=True):
            for stay in stays:
                change[stay.birth + 1] += size
                change[stay.end + 1] -= size
        self.between = np.cumsum(change)  # bytes in RAM between a position and the one before it

    def written_tensors(self) -> list[int]:
        """Tensors that need not be written; those first that are read back the least often."""
        model = self.model
        chosen = [t for t in self.reads if 0 <= self.written[t] < NEVER and not model.ends_on_store[t]]
        return sorted(chosen, key=lambda t: (len(self.reads[t]), t))

    def without_writing(self, t: int) -> _Change | None:
        """The change that makes `t` again instead; None where that is impossible, or not cheaper."""
        model = self.model
        left = model.out_cost[t] + len(self.reads[t]) * model.in_cost[t]
        again: dict[int, _Again] = {}
        for j in self.reads[t]:
            redone = self._made_again(t, j, left)
            if redone is None:
                return None
            again[j] = redone
            left -= redone.cost
        kept = {t}.union(*(redone.held for redone in again.values()))
        away: dict[int, int] = {}  # tensors that leave RAM meanwhile, and the positions before which they come back
        for j, redone in again.items():
            excess = self._peak(t, j, redone.codes) - self.capacity
            excess -= sum(model.size[u] for u, back in away.items() if back > j)
            if excess > 0:
                leaving = self._room(j, excess, kept | away.keys())
                left -= sum(model.in_cost[u] for u in leaving)
                away |= leaving
                if not leaving or left <= 0:
                    return None
        return _Change(t, again, away)

    def changed(self, changes: _Changes) -> list[int]:
        """The sequence with these changes."""
        n, m = self.model.n_ops, self.model.n_tensors
        back: dict[int, list[int]] = {}
        for u, position in changes.away.items():
            back.setdefault(position, []).append(n + u)
        codes: list[int] = []
        for j, code in enumerate(self.codes):
            codes += back.get(j, ())
            if j in changes.again:
                codes += changes.again[j].codes
            elif code < n + m or code - n - m not in changes.unwritten:
                codes.append(code)
        return codes + back.get(len(self.codes), [])

    def _stay(self, t: int, j: int) -> Residency | None:
        """The stay of `t` in RAM that begins before position `j` and ends there or later."""
        at = bisect.bisect_left(self.births[t], j) - 1
        stay = self.profile.stays[t][at] if at >= 0 else None
        return stay if stay is not None and stay.uses and stay.end >= j else None

    def _readable(self, t: int, j: int) -> bool:
        """Whether `t` can be read from the store at position `j`."""
        return self.written[t] < j and self.model.expiry[t] > self.executed[j]

    def _made_again(self, t: int, j: int, limit: float) -> _Again | None:
        """None where it is impossible, or costs `limit` or more."""
        model, n = self.model, self.model.n_ops
        operators, pages, held, cost = set[int](), set[int](), set[int](), 0.0
        stack = [t]
        while stack:
            v = model.producer[stack.pop()]
            if v in operators:
                continue
            if v < 0 or not model.recomputable[v]:
                return None
            operators.add(v)
            cost += model.op_cost[v]
            for u in model.inputs[v]:
                if u in pages or u in held:
                    continue
                if self._stay(u, j) is not None:
                    held.add(u)
                elif u != t and self._readable(u, j):
                    pages.add(u)
                    cost += model.in_cost[u]
                else:
                    stack.append(u)
            if cost >= limit:
                return None
        codes: list[int] = []
        waiting = set(pages)
        for v in sorted(operators):
            codes += [n + u for u in model.inputs[v] if u in waiting]
            waiting.difference_update(model.inputs[v])
            codes.append(v)
        return _Again(codes, cost, frozenset(held), frozenset(pages))

    def _peak(self, t: int, j: int, codes: list[int]) -> int:
        """The most bytes in RAM while `codes`, which make `t`, run before position `j`."""
        model, n = self.model, self.model.n_ops
        last = {u: k for k, code in enumerate(codes) if code < n for u in model.inputs[code]} | {t: len(codes)}
        here, used = set[int](), int(self.between[j])
        peak = used
        for k, code in enumerate(codes):
            born: Iterable[int] = (code - n,) if code >= n else model.outputs[code]
            born = {u for u in born if u not in here and self._stay(u, j) is None}
            extra, over = 0, set(born)  # those that may lie over an operand that ends here
            if code < n:
                extra = model.workspace[code]
                for i, o, _ in model.ordered_pairs[code]:
                    if i in here and last[i] == k and o in over:
                        over.discard(o)
                        extra -= model.size[o]
            used += sum(model.size[u] for u in born)
            peak = max(peak, used + extra)
            here |= born
            ended = {u for u in here if last.get(u, -1) <= k}
            used -= sum(model.size[u] for u in ended)
            here -= ended
        return peak

    def _room(self, j: int, excess: int, kept: set[int]) -> dict[int, int]:
        """Tensors on the store whose leaving RAM before position `j` frees `excess` bytes, and where they come back.

        Nothing if they do not suffice. None of `kept` leaves.
        """
        model = self.model
        candidates: list[tuple[float, int, int]] = []
        for u in self.stored:
            stay = self._stay(u, j) if self.written[u] < j and u not in kept else None
            if stay is not None:
                back = stay.uses[bisect.bisect_left(stay.uses, j)]
                if back > j and self._readable(u, back):
                    candidates.append((model.in_cost[u] / model.size[u], u, back))
        leaving: dict[int, int] = {}
        for _, u, back in sorted(candidates):
            if excess > 0:
                leaving[u] = back
                excess -= model.size[u]
        return leaving if excess <= 0 else {}
