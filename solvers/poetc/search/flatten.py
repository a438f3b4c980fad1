"""Flattening: a sequence that needs too much RAM is brought below the capacity from its highest peak down.

At the peak, the tensor with the least cost per byte that is not read there leaves RAM. It comes back right before its
next use. The eviction heuristic decides in the order of execution; flattening decides where RAM is short the most.

A tensor that is made again later anyway costs nothing to be made again earlier, if there is room to keep it from then
on. So stretches of the forward pass that are computed again grow one operator at a time.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poetc.scheduling import Action, Completer, Problem, ScheduleError
from poetc.solvers.liveness import Profile, Residency, early_page_outs, improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.settings import FLATTEN


@dataclass(slots=True)
class _Gap:
    """`tensors`, made by one operator, are away from behind position `after` until right before `before`.

    There they are read from the store (`page`, one tensor) or made again by `operators`. `later`: the page-in at
    `after` is only put off.
    """

    tensors: list[int]
    after: int
    before: int
    operators: list[int]
    page: bool
    cost: float
    later: bool = False

    @property
    def plain(self) -> bool:
        """Whether it only adds a page-in, and a page-out."""
        return self.page and not self.later


def in_less_ram(problem: Problem, actions: Sequence[Action], stop_at: float) -> tuple[Action, ...] | None:
    """Steps that take more RAM than `problem` has, flattened; None where that leads nowhere."""
    model = Model(problem)
    capacity = model.capacity_for(model.can_page)
    steps = flatten(
        model,
        model.codes(actions),
        capacity,
        paging=model.can_page,
        beta=FLATTEN.lateness,
        most=2 * model.n_ops,
        stop_at=stop_at,
    )
    try:
        return (
            None if steps is None else Completer(problem).run(model.decisions(improve(model, steps, capacity))).actions
        )
    except ScheduleError:
        return None


def flatten(
    model: Model,
    codes: Sequence[int],
    capacity: int,
    *,
    paging: bool,
    beta: float,
    most: int,
    cutoff: float = math.inf,
    stop_at: float = math.inf,
) -> list[int] | None:
    """The sequence with gaps that bring it below `capacity`.

    `beta`: how much it counts that a tensor is needed late. None if it takes more than `most` steps or longer than
    `stop_at`, costs `cutoff` or more, or leads nowhere.
    """
    plan, steps, unmoved, lowest = list(codes), 0, 0, (math.inf, math.inf)
    while True:
        search = _Search(model, Profile(model, early_page_outs(model, plan) if paging else plan), capacity, paging)
        ram, taken, cost = search.profile.ram, list[_Gap](), model.cost(plan)
        while cost < cutoff and steps < most and unmoved < FLATTEN.patience and time.monotonic() < stop_at:
            highest = int(ram.max(initial=0))
            if highest <= capacity:
                break
            state = highest, int(np.maximum(ram - capacity, 0).sum())
            unmoved = 0 if state[0] < lowest[0] or state[1] < lowest[1] else unmoved + 1
            lowest = min(lowest[0], state[0]), min(lowest[1], state[1])
            gap = search.best(int(np.argmax(ram)), beta)
            if gap is None or (taken and not gap.plain):
                break
            steps += 1
            taken.append(gap)
            cost += gap.cost
            if not gap.plain:
                break
            search.take(gap)
        if not taken:
            fits = cost < cutoff and ram.max(initial=0) <= capacity
            return search.profile.remaining() if fits else None
        plan = _with(model, search.profile, taken[0], capacity) if not taken[0].plain else _paged(search, taken)


class _Search:
    """The search for the next gap, in a sequence with its highest peak."""

    def __init__(self, model: Model, profile: Profile, capacity: int, paging: bool) -> None:
        self.model, self.profile, self.capacity, self.paging = model, profile, capacity, paging
        self.peak = 0
        self.positions: dict[int, list[int]] = {}
        for j, code in enumerate(profile.codes):
            self.positions.setdefault(code, []).append(j)
        self.next_operator = [len(profile.codes)] * (len(profile.codes) + 1)  # behind a position; the last: behind -1
        for j in range(len(profile.codes) - 1, -1, -1):
            code = profile.codes[j]
            self.next_operator[j - 1] = j if code < model.n_ops else self.next_operator[j]

    def take(self, gap: _Gap) -> None:
        """Update RAM and stays for a plain gap, but for tensors that can now be in place where it begins."""
        model, t = self.model, gap.tensors[0]
        self.profile.ram[gap.after + 1 : gap.before] -= model.size[t]
        stays = self.profile.stays[t]
        at = next(k for k, stay in enumerate(stays) if stay.birth < self.peak < stay.end)
        uses = stays[at].uses
        split = bisect.bisect_left(uses, gap.before)
        stays.insert(at + 1, Residency(t, gap.before - 1, uses[split:]))
        del uses[split:]
        self.positions.setdefault(model.n_ops + model.n_tensors + t, []).append(gap.after)

    def best(self, peak: int, beta: float) -> _Gap | None:
        self.peak = peak
        sizes, need = self.model.size, int(self.profile.ram[self.peak]) - self.capacity
        cheapest, least = None, math.inf
        for after, before, tensors in self._unread():
            gap = self._gap(after, before, tensors)
            if gap is None:
                continue
            useful = min(need, sum(sizes[t] for t in gap.tensors))
            score = (gap.cost + 1e-3) / max(1, useful) / float(before - self.peak) ** beta
            if score < least:
                cheapest, least = gap, score
        return cheapest

    def _unread(self) -> list[tuple[int, int, list[int]]]:
        """Tensors that are there at the peak and read only later, by the operator that made them.

        With each come the positions of the last use before and the first after the peak.
        """
        model, profile = self.model, self.profile
        of_maker: dict[int, tuple[int, int, list[int]]] = {}
        for t in range(model.n_tensors):
            for stay in profile.stays[t]:
                if not stay.birth < self.peak < stay.end:
                    continue
                at = bisect.bisect_left(stay.uses, self.peak)
                after, before = stay.uses[at - 1] if at else stay.birth, stay.uses[at]
                if before == self.peak or before >= len(profile.codes):
                    continue
                if self.next_operator[after] == before:  # between are page-ins of other tensors that it reads
                    continue
                maker = model.producer[t] if model.producer[t] >= 0 else -1 - t
                last, first, tensors = of_maker.get(maker, (after, before, []))
                of_maker[maker] = (max(last, after), min(first, before), [*tensors, t])
        return list(of_maker.values())

    def _gap(self, after: int, before: int, tensors: list[int]) -> _Gap | None:
        model = self.model
        largest = max(tensors, key=lambda t: model.size[t])
        if after >= 0 and self.profile.codes[after] == model.n_ops + largest:
            return _Gap([largest], after, before, [], True, 0.0, True)
        page_cost = math.inf
        if self.paging and model.pageable[largest]:
            page_cost = model.in_cost[largest]
            if not (model.on_store[largest] or model.n_ops + model.n_tensors + largest in self.positions):
                page_cost += model.out_cost[largest]
        cost, operators = self._closure(tensors, before, page_cost)
        if min(cost, page_cost) == math.inf:
            return None
        if page_cost <= cost:
            return _Gap([largest], after, before, [], True, page_cost)
        return _Gap(tensors, after, before, operators, False, cost)

    def _closure(self, tensors: list[int], before: int, limit: float) -> tuple[float, list[int]]:
        """The cost of making `tensors` again right before a position, infinite above `limit`, and the operators."""
        model, gone = self.model, set(tensors)
        cost, operators, stack = 0.0, set[int](), [tensors[0]]
        while stack:
            v = model.producer[stack.pop()]
            if v in operators:
                continue
            too_long = len(operators) >= FLATTEN.longest
            if v < 0 or not model.recomputable[v] or too_long or gone.intersection(model.inputs[v]):
                return math.inf, []
            operators.add(v)
            if not self._comes_anyway(v, before):
                cost += model.op_cost[v]
                if cost > limit:
                    return math.inf, []
            stack += [u for u in model.inputs[v] if not self._there(u, before)]
        return cost, sorted(operators)

    def _there(self, t: int, position: int) -> bool:
        return any(stay.birth < position <= stay.end for stay in self.profile.stays[t])

    def _comes_anyway(self, v: int, position: int) -> bool:
        """Whether `v` is executed again later anyway, and its results can stay from here to there."""
        positions, profile = self.positions[v], self.profile
        k = bisect.bisect_left(positions, position)
        if k == len(positions):
            return False
        later = positions[k]
        read: list[Residency] = [stay for stay in profile.born[later] if stay.uses]
        room = self.capacity - sum(self.model.size[stay.tensor] for stay in read)
        return bool(profile.ram[position:later].max(initial=0) <= room)


def _paged(search: _Search, gaps: Sequence[_Gap]) -> list[int]:
    """The sequence with all of `gaps`, none of which makes anything again."""
    model, codes = search.model, search.profile.codes
    n, m = model.n_ops, model.n_tensors
    page_in: dict[int, list[int]] = {}  # before a position
    page_out: dict[int, list[int]] = {}  # behind one, -1 the start
    for gap in gaps:
        page_in.setdefault(gap.before, []).append(n + gap.tensors[0])
    for t in sorted({gap.tensors[0] for gap in gaps}):
        if not model.on_store[t]:  # one write is enough, but it has to come before the first read
            page_out.setdefault(min(search.positions[n + m + t]), []).append(n + m + t)
    again = {code for written in page_out.values() for code in written}
    paged = page_out.get(-1, [])
    for j, code in enumerate(codes):
        paged += page_in.get(j, [])
        if code not in again:
            paged.append(code)
        paged += page_out.get(j, [])
    return paged


def _with(model: Model, profile: Profile, gap: _Gap, capacity: int) -> list[int]:
    """The sequence with one gap that is not plain."""
    codes = profile.codes
    if gap.later:
        return [*codes[: gap.after], *codes[gap.after + 1 : gap.before], codes[gap.after], *codes[gap.before :]]
    merged = [*codes[: gap.before], *gap.operators, *codes[gap.before :]]
    again = set(gap.operators)
    result = Profile(model, merged)
    for j in range(gap.before + len(gap.operators), len(merged)):
        if merged[j] in again and result.alive[j]:  # its next execution, which may be needless now
            again.discard(merged[j])
            result.try_remove(j, capacity)
    return result.remaining()
