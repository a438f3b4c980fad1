"""A sequence that needs too much RAM brought below the capacity from its highest peak down: of what is there and not
read, the least cost per byte leaves RAM and comes back right before its next use.

The eviction heuristic decides in the order of execution; this one where RAM is short the most. What is made again later
anyway costs nothing to be made again earlier, if there is room to keep it from then on: so runs of the forward pass
that are computed again as a whole grow one operator at a time.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poetc.solvers._liveness import Profile, Residency, early_page_outs
from poetc.solvers._model import Model

LONGEST = 60  # operators made again for one tensor


@dataclass(slots=True)
class _Gap:
    """`tensors`, made by one operator, are away from behind position `after` until right before `before`, where they
    are read from the store (`page`, one tensor) or made again by `operators`.
    """

    tensors: list[int]
    after: int
    before: int
    operators: list[int]
    page: bool
    cost: float


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
    """The sequence with what brings it below `capacity`. `beta`: how much it counts that a tensor is needed late. None
    if that takes more than `most` steps or longer than `stop_at`, costs `cutoff` or more, or cannot go on.
    """
    found = list(codes)
    for _ in range(most):
        profile = Profile(model, early_page_outs(model, found) if paging else found)
        peak = int(np.argmax(profile.ram))
        if profile.ram[peak] <= capacity:
            return profile.remaining()
        gap = _Search(model, profile, capacity, peak, paging).best(beta)
        if gap is None:
            return None
        found = _with(model, profile, gap, capacity)
        if model.cost(found) >= cutoff or time.monotonic() >= stop_at:
            return None
    return None


class _Search:
    """For the gap to make next, in a sequence and its highest peak."""

    def __init__(self, model: Model, profile: Profile, capacity: int, peak: int, paging: bool) -> None:
        self.model, self.profile, self.capacity, self.peak, self.paging = model, profile, capacity, peak, paging
        self.positions: dict[int, list[int]] = {}
        for j, code in enumerate(profile.codes):
            self.positions.setdefault(code, []).append(j)

    def best(self, beta: float) -> _Gap | None:
        sizes, need = self.model.size, int(self.profile.ram[self.peak]) - self.capacity
        found, least = None, math.inf
        for after, before, tensors in self._unread():
            gap = self._gap(after, before, tensors)
            if gap is None:
                continue
            useful = min(need, sum(sizes[t] for t in gap.tensors))
            score = (gap.cost + 1e-3) / max(1, useful) / float(before - self.peak) ** beta
            if score < least:
                found, least = gap, score
        return found

    def _unread(self) -> list[tuple[int, int, list[int]]]:
        """What is there at the peak and read only later, by the operator that made it: positions of the last use before
        and the first after.
        """
        model, profile = self.model, self.profile
        found: dict[int, tuple[int, int, list[int]]] = {}
        for t in range(model.n_tensors):
            for stay in profile.stays[t]:
                if not stay.birth < self.peak < stay.end:
                    continue
                at = bisect.bisect_left(stay.uses, self.peak)
                after, before = stay.uses[at - 1] if at else stay.birth, stay.uses[at]
                if before == self.peak or before >= len(profile.codes):
                    continue
                maker = model.producer[t] if model.producer[t] >= 0 else -1 - t
                last, first, tensors = found.get(maker, (after, before, []))
                found[maker] = (max(last, after), min(first, before), [*tensors, t])
        return list(found.values())

    def _gap(self, after: int, before: int, tensors: list[int]) -> _Gap | None:
        model = self.model
        largest = max(tensors, key=lambda t: model.size[t])
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
        """What it costs to make `tensors` again right before a position, and the operators; infinite above `limit`."""
        model, gone = self.model, set(tensors)
        cost, operators, stack = 0.0, set[int](), [tensors[0]]
        while stack:
            v = model.producer[stack.pop()]
            if v in operators:
                continue
            if v < 0 or not model.recomputable[v] or len(operators) >= LONGEST or gone.intersection(model.inputs[v]):
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
        """It is executed again later, and what it makes can stay from here to there."""
        positions, profile = self.positions[v], self.profile
        k = bisect.bisect_left(positions, position)
        if k == len(positions):
            return False
        later = positions[k]
        read: list[Residency] = [stay for stay in profile.born[later] if stay.uses]
        room = self.capacity - sum(self.model.size[stay.tensor] for stay in read)
        return bool(profile.ram[position:later].max(initial=0) <= room)


def _with(model: Model, profile: Profile, gap: _Gap, capacity: int) -> list[int]:
    n, m, codes = model.n_ops, model.n_tensors, profile.codes
    if gap.page:
        t = gap.tensors[0]
        before, between, behind = codes[: gap.after + 1], codes[gap.after + 1 : gap.before], codes[gap.before :]
        out = n + m + t  # once is enough, but not after it is read back
        if not model.on_store[t] and out not in before:
            between = [out, *(code for code in between if code != out)]
            behind = [code for code in behind if code != out]
        return [*before, *between, n + t, *behind]
    merged = [*codes[: gap.before], *gap.operators, *codes[gap.before :]]
    again = set(gap.operators)
    result = Profile(model, merged)
    for j in range(gap.before + len(gap.operators), len(merged)):
        if merged[j] in again and result.alive[j]:  # the next time, which may be one too many now
            again.discard(merged[j])
            result.try_remove(j, capacity)
    return result.remaining()
