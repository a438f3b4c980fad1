"""Clairvoyant eviction: it executes the operators in their order and, when RAM is short, gives tensors up.

Tensors that are cheap to bring back, large, and needed late are dropped or paged out first. Such have the least score
log cost^gamma / (size^alpha * distance^beta). The cost is the cheaper of recomputing and paging. Recomputing takes the
operator and the closure of absent tensors that it needs; paging takes the write, if it is still unpaid, and the read.
The distance is counted in operators until the next read. The next need of an absent tensor that has to be recomputed
from it counts as one.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.settings import EVICTION

INFINITE = math.inf


@dataclass(frozen=True, slots=True)
class Policy:
    """The parameters of a run. `noise` is added to the scores, one number a tensor."""

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0
    noise: npt.NDArray[np.float64] | None = None
    plan: Plan | None = None
    recompute: bool = True  # False: paging alone
    depth_first: bool = False  # order of a recomputed closure: depth first rather than ascending


@dataclass(frozen=True, slots=True)
class Plan:
    """The tensors that a relaxed MIP would hold.

    `drop[v]`: the tensors to let go after operator v; `favour`: added to the scores, one number a tensor.
    """

    drop: tuple[tuple[int, ...], ...]
    favour: npt.NDArray[np.float64]
    keep: tuple[bool, ...]  # by tensor: not let go before the cut, even if nothing reads it now


class Stuck(Exception):
    """The RAM is too short for this run; `operator` could not be executed."""

    def __init__(self, operator: int) -> None:
        super().__init__(operator)
        self.operator = operator


class Simulation:
    """One run of the heuristic.

    `run` returns the action codes. It raises Stuck where RAM is too short, or at `stop_at`, and returns None once the
    cost passes `cutoff`.
    """

    def __init__(
        self,
        model: Model,
        capacity: int,
        policy: Policy,
        *,
        paging: bool,
        cutoff: float = INFINITE,
        stop_at: float = math.inf,
    ) -> None:
        self.model, self.capacity, self.policy = model, capacity, policy
        self.paging = paging
        self.cutoff, self.stop_at = cutoff, stop_at
        m = model.n_tensors
        self.position = 0
        self.resident = model.in_ram.copy()
        self.stored = model.on_store.copy()
        self.store_free = model.store_free
        self.executed = [False] * model.n_ops
        self.codes: list[int] = []
        self.executions = 0
        self.spent: float = 0
        self.remaining: float = sum(model.op_cost)
        self.used = sum(s for s, r in zip(model.size, self.resident, strict=True) if r)
        self.at = [0] * m  # index of the next unread consumer
        # By tensor, a heap of (need, absent tensor made from it).
        self.pending: list[list[tuple[int, int]]] = [[] for _ in range(m)]
        self.need = [self._direct(t) for t in range(m)]
        self.need_dirty: set[int] = set()
        self.dirty: set[int] = set()
        self.rescored: set[int] = set()  # tensors with another need or cost since scores were made
        self.cost_known = [False] * m
        self.mark = [0] * m
        self.stamp = 0
        self.guard = Counter[int]()  # how often the closures under way need it
        sizes = np.maximum(1, np.array(model.size, dtype=np.float64))
        self.bias = -policy.alpha * np.log(sizes)
        if policy.noise is not None:
            self.bias = self.bias + policy.noise
        if policy.plan is not None:
            self.bias = self.bias + policy.plan.favour
        # The tensors that need not be kept before the cut.
        self.lets_go = None if policy.plan is None else ~np.array(policy.plan.keep, dtype=bool)
        self.need_array = np.array(self.need, dtype=np.float64)
        self.cost_array = np.zeros(m)  # gamma * log cost, or of a lower bound on it
        self.known_at = [-1] * m  # the change at which cost_array was exact
        self.changes = 0  # tensors that came or went
        self.block = np.where(np.array(self.resident), 0.0, INFINITE) if m else np.zeros(0)
        for t in range(m):
            if self.resident[t]:
                self._cost_changed(t)
        self.limit = EVICTION.most_actions(model.n_ops, m)

    # --- needs ---

    def _direct(self, t: int) -> int:
        uses = self.model.consumers[t]
        k = self.at[t]
        if k < len(uses):
            return uses[k]
        return self.model.n_ops if self.model.ends_in_ram[t] else NEVER

    def _refresh_needs(self) -> None:
        queued = self.need_dirty
        if not queued:
            return
        producer, resident, stored, needs = self.model.producer, self.resident, self.stored, self.need
        heappop = heapq.heappop
        work = [(-producer[t], t) for t in queued]
        heapq.heapify(work)
        while work:
            _, t = heappop(work)
            queued.discard(t)
            need = self._direct(t)
            heap = self.pending[t]
            while heap:
                n, o = heap[0]
                if resident[o] or stored[o]:
                    heappop(heap)
                elif needs[o] != n:
                    if needs[o] >= NEVER:
                        heappop(heap)
                    else:
                        heapq.heapreplace(heap, (needs[o], o))
                else:
                    if n < need:
                        need = n
                    break
            if need != needs[t]:
                needs[t] = need
                self.need_array[t] = need
                self.rescored.add(t)
                if not resident[t] and not stored[t] and producer[t] >= 0:
                    for u in self.model.inputs[producer[t]]:
                        if need < NEVER:
                            heapq.heappush(self.pending[u], (need, t))
                        if u not in queued:
                            queued.add(u)
                            heapq.heappush(work, (-producer[u], u))

    def _needs_of_inputs_changed(self, t: int) -> None:
        p = self.model.producer[t]
        if p >= 0:
            self.need_dirty.update(self.model.inputs[p])

    # --- cost of bringing back ---

    def _cost_changed(self, t: int) -> None:
        self.cost_known[t] = False
        self.dirty.add(t)

    def _costs_below_changed(self, t: int) -> None:
        """`t` came or went, which changes the cost of the tensors that are recomputed from it."""
        model, executed = self.model, self.executed
        stack = [t]
        while stack:
            for v in model.consumers[stack.pop()]:
                if executed[v]:
                    for o in model.outputs[v]:
                        if self.resident[o]:
                            if self.cost_known[o]:
                                self.cost_known[o] = False
                                self.dirty.add(o)
                        elif self.cost_known[o]:
                            self.cost_known[o] = False
                            stack.append(o)

    def _closure(self, t: int, limit: float = INFINITE) -> float:
        """The cost of recomputing `t` from tensors in RAM or on the store, counted no further than to `limit`.

        It is infinite if that is impossible when `t` is needed, or takes more than `longest_closure` operators.
        """
        model = self.model
        if not self.policy.recompute:
            return INFINITE
        self.stamp += 1
        stamp, mark, need = self.stamp, self.mark, self.need[t]
        total: float = 0
        stack = [t]
        seen_ops, longest = set(), EVICTION.longest_closure
        self.cost_known[t] = True
        while stack:
            v = model.producer[stack.pop()]
            if v in seen_ops:
                continue
            if v < 0 or not model.recomputable[v]:
                return INFINITE
            seen_ops.add(v)
            total += model.op_cost[v]
            if total >= limit:
                return total  # the rest can only add to it
            if len(seen_ops) > longest:
                return INFINITE
            for u in model.inputs[v]:
                if mark[u] == stamp:
                    continue
                mark[u] = stamp
                if self.resident[u]:
                    if model.expiry[u] < need < NEVER:
                        return INFINITE
                elif self.stored[u]:
                    total += model.in_cost[u]
                else:
                    self.cost_known[u] = True
                    stack.append(u)
        return total

    def _page_cost(self, t: int) -> float:
        model = self.model
        if not self.paging:
            return INFINITE
        if self.stored[t]:
            return model.in_cost[t]
        if not model.pageable[t] or model.footprint[t] > self.store_free:
            return INFINITE
        return model.in_cost[t] + (0 if model.ends_on_store[t] else model.out_cost[t])

    def _cheaper_to_page(self, t: int) -> bool:
        cost = self._page_cost(t)
        return cost < INFINITE and (cost == 0 or self._closure(t, cost) > cost)

    def _refresh(self) -> None:
        """Update needs, and lower bounds on costs that changed; exact costs are found when they matter."""
        self._refresh_needs()
        model, recompute = self.model, self.policy.recompute
        for t in self.dirty:
            if self.resident[t]:
                p = model.producer[t]
                least = model.op_cost[p] if recompute and p >= 0 and model.recomputable[p] else INFINITE
                self._set_cost(t, min(self._page_cost(t), least))
        self.dirty.clear()

    def _set_cost(self, t: int, cost: float) -> None:
        self.rescored.add(t)
        self.cost_array[t] = INFINITE if cost == INFINITE else self.policy.gamma * math.log(1e-3 + cost)

    def _find_cost(self, t: int, limit: float = INFINITE) -> None:
        """The cost of `t`; any value above `limit` stands for all such."""
        cost = self._page_cost(t)
        if not (self.stored[t] and cost == 0):
            closure = self._closure(t, min(cost, limit))
            exact = closure < limit or cost <= limit
            cost = min(cost, closure)
        else:
            exact = True
        self._set_cost(t, cost)
        if exact:
            self.known_at[t] = self.changes

    def _cheapest(self, tensors: npt.NDArray[np.intp], score: npt.NDArray[np.float64]) -> int:
        """The place, in `tensors`, of the one of least score.

        `score` has lower bounds, which are made exact as far as that is needed.
        """
        while True:
            k = int(score.argmin())
            t = int(tensors[k])
            if self.known_at[t] == self.changes or self.need[t] >= NEVER or score[k] == INFINITE:
                return k
            rest = score[k] - self.cost_array[t]
            score[k] = INFINITE
            second = float(score[score.argmin()])
            limit = INFINITE
            if second < INFINITE and self.policy.gamma > 0:
                exponent = (second - rest) / self.policy.gamma
                limit = 2 * math.exp(exponent) if exponent < 600 else INFINITE
            self._find_cost(t, limit)
            score[k] = rest + self.cost_array[t]

    # --- coming and going ---

    def _leave(self, t: int) -> None:
        self.resident[t] = False
        self.block[t] = INFINITE
        if not self.stored[t]:
            need = self.need[t]
            p = self.model.producer[t]
            if p >= 0 and need < NEVER:
                for u in self.model.inputs[p]:
                    heapq.heappush(self.pending[u], (need, t))
            self._needs_of_inputs_changed(t)
        self.cost_known[t] = True
        self.changes += 1
        # Tensors that are recomputed from it become dearer, so their lower bounds stay valid. But some of them may only
        # now have become possible to make, by way of the store.
        if self.model.expiry[t] < NEVER:
            self._costs_below_changed(t)

    def _drop(self, t: int) -> None:
        self.used -= self.model.size[t]
        self._leave(t)

    def _enter(self, t: int) -> None:
        self.resident[t] = True
        self.block[t] = 0.0
        if not self.stored[t]:
            self._needs_of_inputs_changed(t)
        self.changes += 1
        self._cost_changed(t)
        self._costs_below_changed(t)

    def _page_out(self, t: int) -> None:
        model = self.model
        self.codes.append(model.n_ops + model.n_tensors + t)
        self.spent += model.out_cost[t]
        self.stored[t] = True
        self.store_free -= model.footprint[t]
        self._needs_of_inputs_changed(t)

    def _evict(self, t: int) -> None:
        """Let `t` go, in the way in which it comes back for less."""
        if (self.need[t] >= NEVER and self.model.ends_on_store[t] and not self.stored[t]) or (
            self.need[t] < NEVER and not self.stored[t] and self._cheaper_to_page(t)
        ):
            self._page_out(t)
        self._drop(t)

    def _scores(self, tensors: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """The score of each tensor in RAM, a lower bound on it where its cost is one. The least one goes."""
        needs, bias = self.need_array[tensors], self.bias[tensors]
        score = self.cost_array[tensors] + bias
        if self.policy.beta:
            score -= self.policy.beta * np.log(np.maximum(1.0, needs - self.position))
        unread = needs >= NEVER
        if np.count_nonzero(unread):
            dead = unread
            if self.lets_go is not None and self.position < self.model.cut:
                dead = unread & self.lets_go[tensors]
            score = np.where(dead, score - 1e6, score)
            # A dead tensor needs no way back, unless it still has to be written.
            np.copyto(score, bias - 1e6, where=unread & np.isinf(score))
        return score

    def _score_again(self, tensors: npt.NDArray[np.intp], known: npt.NDArray[np.float64]) -> None:
        """Put in order the scores `known` of `tensors` whose need or cost has changed: mostly few of thousands."""
        changed = [t for t in self.rescored if self.block[t] == 0.0]
        self.rescored.clear()
        if changed:
            places = tensors.searchsorted(changed)
            known[places] = self._scores(tensors[places])

    def _make_room(self, size: int, locked: Sequence[int], operator: int) -> None:
        if self.used + size <= self.capacity:
            return
        for t in locked:
            self.block[t] = INFINITE
        evicted: list[tuple[float, int]] = []
        self._refresh()
        free = np.flatnonzero(self.block == 0.0)  # in RAM, and nobody's operand
        known = self._scores(free)
        self.rescored.clear()
        while self.used + size > self.capacity:
            self._refresh()
            self._score_again(free, known)
            score = known.copy()
            k = self._cheapest(free, score) if len(free) else -1
            if k < 0 or score[k] == INFINITE:
                for u in locked:
                    self.block[u] = 0.0 if self.resident[u] else INFINITE
                raise Stuck(operator)
            t, known[k] = int(free[k]), INFINITE
            before = len(self.codes)
            cost = float(self.cost_array[t])
            is_dead = self.need[t] >= NEVER
            self._evict(t)
            if len(self.codes) == before and not is_dead:
                evicted.append((-cost, t))
        # One large eviction can make earlier small ones unnecessary.
        if len(evicted) > 1:
            for _, t in sorted(evicted):
                if not self.resident[t] and self.used + size + self.model.size[t] <= self.capacity:
                    self.used += self.model.size[t]
                    self._enter(t)
        for t in locked:
            self.block[t] = 0.0 if self.resident[t] else INFINITE

    # --- execution ---

    def _gather(self, wanted: Sequence[int], operator: int, depth: int = 0) -> None:
        """Bring all of `wanted` into RAM."""
        if depth > 60:
            raise Stuck(operator)
        for _ in range(6):
            missing = [t for t in wanted if not self.resident[t]]
            if not missing:
                return
            for t in wanted:
                self.guard[t] += 1
            try:
                for t in missing:
                    if not self.resident[t]:
                        self._restore(t, wanted, operator, depth)
            finally:
                self._release(wanted)
        raise Stuck(operator)

    def _restore(self, t: int, wanted: Sequence[int], operator: int, depth: int) -> None:
        model = self.model
        self._refresh_needs()
        by_page = self.stored[t] and (model.producer[t] < 0 or self._closure(t, model.in_cost[t]) >= model.in_cost[t])
        if by_page or (self.stored[t] and model.producer[t] < 0):
            self._page_in(t, wanted, operator)
            return
        order, pages = self._closure_order(t, operator)
        guarded = Counter(u for v in order for u in model.inputs[v])
        self.guard.update(guarded)
        try:
            for v in order:
                if not all(self.resident[o] for o in model.outputs[v]):
                    for u in model.inputs[v]:
                        if not self.resident[u] and u in pages and self.stored[u]:
                            self._page_in(u, model.inputs[v], operator)
                    if any(not self.resident[u] for u in model.inputs[v]):
                        self._gather(model.inputs[v], operator, depth + 1)
                self._release(model.inputs[v])
                guarded.subtract(model.inputs[v])
                if not all(self.resident[o] for o in model.outputs[v]):
                    self._execute(v, first=False)
        finally:
            self._release(guarded.elements())

    def _release(self, tensors: Iterable[int]) -> None:
        """One of the closures under way no longer needs them."""
        for t in tensors:
            self.guard[t] -= 1
            if not self.guard[t]:
                del self.guard[t]

    def _page_in(self, t: int, locked: Sequence[int], operator: int) -> None:
        model = self.model
        self._room(model.size[t], [u for u in locked if self.resident[u]], operator)
        self.codes.append(model.n_ops + t)
        self.spent += model.in_cost[t]
        self.used += model.size[t]
        self._enter(t)

    def _room(self, size: int, locked: list[int], operator: int) -> None:
        """Make room. Tensors that the closure under way needs later are given up only when no others are left."""
        if self.used + size <= self.capacity:
            return
        soft = sorted(t for t, g in self.guard.items() if g and self.resident[t])
        try:
            self._make_room(size, list(dict.fromkeys([*locked, *soft])), operator)
        except Stuck:
            self._make_room(size, locked, operator)

    def _closure_order(self, t: int, operator: int) -> tuple[list[int], set[int]]:
        """The operators to execute for `t`, and the tensors to page in for them."""
        model = self.model
        ops: set[int] = set()
        pages: set[int] = set()
        post: list[int] = []
        stack: list[tuple[int, bool]] = [(model.producer[t], False)]
        while stack:
            v, done = stack.pop()
            if done:
                post.append(v)
                continue
            if v in ops:
                continue
            if v < 0 or (not model.recomputable[v] and self.executed[v]):
                raise Stuck(operator)
            ops.add(v)
            stack.append((v, True))
            for u in model.inputs[v]:
                if self.resident[u]:
                    continue
                if self.stored[u]:
                    pages.add(u)
                else:
                    stack.append((model.producer[u], False))
        return (post if self.policy.depth_first else sorted(ops)), pages

    def _execute(self, v: int, *, first: bool) -> None:
        model = self.model
        self._refresh_needs()
        makes = model.outputs[v]
        for o in makes:
            if self.resident[o]:  # made anew: the old copy ends after its last use
                self._drop(o)
        replaced: dict[int, int] = {}
        for i, o, required in model.pairs[v]:
            if i in replaced or o in replaced.values() or o not in makes:
                continue
            if required or self._dies(i, v, first):
                replaced[i] = o
        growth = sum(model.size[o] for o in makes) - sum(model.size[o] for o in replaced.values())
        size = growth + model.workspace[v]
        locked = [u for u in model.inputs[v] if self.resident[u]]
        try:
            self._room(size, locked, v)
        except Stuck:
            # As a last resort an input is overwritten although it will be needed again.
            for i, o, _ in sorted(model.pairs[v], key=lambda p: -model.size[p[1]]):
                if i not in replaced and o in makes and o not in replaced.values() and not self.guard[i]:
                    if self._page_cost(i) == INFINITE and self._closure(i) == INFINITE:
                        continue
                    if self._cheaper_to_page(i) and not self.stored[i]:
                        self._page_out(i)
                    replaced[i] = o
                    size -= model.size[o]
                    growth -= model.size[o]
                    if self.used + size <= self.capacity:
                        break
            self._room(size, locked, v)
        self.codes.append(v)
        self.executions += 1
        if len(self.codes) > self.limit or (
            self.executions % EVICTION.executions_a_look == 0 and time.monotonic() >= self.stop_at
        ):
            raise Stuck(v)
        self.spent += model.op_cost[v]
        self.used += growth
        if first:
            self.executed[v] = True
            self.remaining -= model.op_cost[v]
            for u in model.inputs[v]:
                self.at[u] += 1
                self.need_dirty.add(u)
        for i in replaced:
            if model.ends_on_store[i] and not self.stored[i]:
                raise Stuck(v)
            self._leave(i)
        for o in makes:
            self._enter(o)

    def _dies(self, t: int, v: int, first: bool) -> bool:
        """Whether nothing reads `t` after the execution of `v`."""
        if self.guard[t] or self.model.ends_on_store[t]:
            return False
        uses, k = self.model.consumers[t], self.at[t]
        if first and k < len(uses) and uses[k] == v:
            k += 1
        if k < len(uses) or self.model.ends_in_ram[t]:
            return False
        return not any(
            not self.resident[o] and not self.stored[o] and n < NEVER and self.need[o] < NEVER
            for n, o in self.pending[t]
        )

    def run(self) -> list[int] | None:
        model, plan = self.model, self.policy.plan
        for t in range(model.n_tensors):
            if model.ends_on_store[t] and model.in_ram[t]:
                self._page_out(t)
        for v in range(model.n_ops):
            self.position = v
            if self.spent + self.remaining > self.cutoff:
                return None
            self._gather(model.inputs[v], v)
            self._execute(v, first=True)
            for t in model.outputs[v]:
                if model.ends_on_store[t] and self.resident[t] and not self.stored[t]:
                    self._page_out(t)
            if plan is not None:
                self._refresh()
                for t in plan.drop[v]:
                    if not self.resident[t] or self.need[t] <= v:
                        continue
                    if self.known_at[t] != self.changes:
                        self._find_cost(t)
                    if self.cost_array[t] < INFINITE:
                        self._evict(t)
                        self._refresh()
        self.position = model.n_ops
        final = [t for t in range(model.n_tensors) if model.ends_in_ram[t]]
        self._gather(final, model.n_ops - 1)
        return self.codes
