"""The optimum of a tiny problem by best-first search over states: operators done, tensors in RAM, tensors on the store.

The search covers all schedules whose first executions are in the problem's order. Costs that nothing avoids are not
counted. So the remaining first executions are free, and the queue's least cost is a lower bound at any moment. To let a
tensor go costs nothing, and to hold it never hurts. So tensors leave RAM only when an action needs the room, in
inclusion-minimal sets; tensors that are of no use any more leave at once.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from poetc.solvers.model import Model
from poetc.solvers.poetc.pruning import ALL, Rules
from poetc.solvers.poetc.settings import EXHAUSTIVE

_State = tuple[int, int, int]  # operators done, RAM and store as bit masks


@dataclass(frozen=True, slots=True)
class ExactResult:
    """The best sequence, or None, and a lower bound in the problem's unit.

    `bound` is infinite if no schedule below the cutoff exists.
    """

    codes: list[int] | None
    bound: float
    complete: bool  # False: the limit on states came first


def search(
    model: Model, *, max_states: int, stop_at: float, cutoff: float = math.inf, rules: Rules = ALL
) -> ExactResult:
    """The cheapest schedule below `cutoff`: the better of not paging at all and paging."""
    results = []
    if not model.must_page:
        results.append(_Search(model, False, max_states, stop_at, cutoff, rules).run())
        if results[0].codes is not None:
            cutoff = min(cutoff, model.cost(results[0].codes))
    if model.can_page:
        results.append(_Search(model, True, max_states, stop_at, cutoff, rules).run())
    best = min((r for r in results if r.codes is not None), key=lambda r: model.cost(r.codes or []), default=None)
    return ExactResult(
        best.codes if best is not None else None, min(r.bound for r in results), all(r.complete for r in results)
    )


class _TooMuch(Exception):
    """A state has too many successors to look at them in time."""


class _Search:
    def __init__(self, model: Model, pages: bool, max_states: int, stop_at: float, cutoff: float, rules: Rules) -> None:
        self.model, self.pages, self.rules = model, pages, rules
        self.max_states, self.stop_at = max_states, stop_at
        self.tries = 0
        self.spare_cost = cutoff - model.base_cost if rules.search_cutoff else math.inf
        self.room = model.capacity_for(pages)
        n, m = model.n_ops, model.n_tensors
        self.reads = [_mask(model.inputs[v]) for v in range(n)]
        self.makes = [_mask(model.outputs[v]) for v in range(n)]
        self.end_ram = _mask([t for t in range(m) if model.ends_in_ram[t]])
        self.end_store = _mask([t for t in range(m) if model.ends_on_store[t]])
        deadline = model.problem.deadline_ns
        self.spare_ns = None if deadline is None else deadline - sum(model.op_ns)
        # By operator, every admissible choice of in-place pairs, as (mask of overwritten inputs, bytes saved).
        self.choices = [list(self._choices(v)) for v in range(n)]

    def _choices(self, v: int) -> Iterator[tuple[int, int]]:
        pairs = self.model.pairs[v]
        seen = set()
        for bits in range(1 << len(pairs)):
            chosen = [p for i, p in enumerate(pairs) if bits >> i & 1]
            if any(p[2] for p in pairs if p not in chosen):
                continue
            sources, targets = {p[0] for p in chosen}, {p[1] for p in chosen}
            if len(sources) == len(targets) == len(chosen):
                choice = (_mask(sorted(sources)), sum(self.model.size[o] for o in sorted(targets)))
                if choice not in seen:
                    seen.add(choice)
                    yield choice

    def _size(self, mask: int) -> int:
        size, total = self.model.size, 0
        while mask:
            low = mask & -mask
            total += size[low.bit_length() - 1]
            mask ^= low
        return total

    def run(self) -> ExactResult:
        model = self.model
        start = (0, _mask([t for t in range(model.n_tensors) if model.in_ram[t]]), self._initial_store())
        if self._size(start[1]) > self.room:
            return ExactResult(None, math.inf, True)
        labels: dict[_State, list[tuple[float, int]]] = {start: [(0.0, 0)]}
        parents: dict[tuple[_State, float, int], tuple[tuple[_State, float, int], tuple[int, ...]]] = {}
        # Page-ins and page-outs that nothing avoids are in the base cost too: a path gets credit for them.
        credit = model.base_cost - sum(model.op_cost)
        queue: list[tuple[float, int, int, _State]] = [(0.0, 0, 0, start)]
        while queue:
            cost, _, ns, state = heapq.heappop(queue)
            if (cost, ns) not in labels[state]:
                continue
            if cost - credit >= self.spare_cost:
                return ExactResult(None, math.inf, True)
            if self._finished(state):
                return ExactResult(_path(parents, (state, cost, ns)), model.base_cost + cost - credit, True)
            try:
                for following, codes, more, more_ns in self._moves(state):
                    new, new_ns = cost + more, ns + more_ns if self.spare_ns is not None else 0
                    if self.spare_ns is not None and new_ns > self.spare_ns:
                        continue
                    if new - credit >= self.spare_cost:
                        continue
                    known = labels.setdefault(following, [])
                    if any(c <= new and t <= new_ns for c, t in known):
                        continue
                    known[:] = [(c, t) for c, t in known if not (new <= c and new_ns <= t)] + [(new, new_ns)]
                    parents[following, new, new_ns] = ((state, cost, ns), codes)
                    heapq.heappush(queue, (new, -following[0], new_ns, following))
            except _TooMuch:  # its successors cost no less
                return ExactResult(None, model.base_cost + max(0.0, cost - credit), False)
            if len(labels) > self.max_states or time.monotonic() > self.stop_at:
                bound = model.base_cost + max(0.0, min(q[0] for q in queue) - credit) if queue else math.inf
                return ExactResult(None, bound, False)
        return ExactResult(None, math.inf, True)

    def _initial_store(self) -> int:
        return _mask([t for t in range(self.model.n_tensors) if self.model.on_store[t]])

    def _finished(self, state: _State) -> bool:
        done, ram, store = state
        return done == self.model.n_ops and not self.end_ram & ~ram and not self.end_store & ~store

    def _useful(self, done: int, store: int) -> int:
        """Tensors that an operator to come, the end, or the recomputation of such a tensor can read."""
        if not self.rules.search_useless_leaves:
            return (1 << self.model.n_tensors) - 1
        useful = self.end_ram | (self.end_store & ~store)
        for v in range(self.model.n_ops - 1, -1, -1):
            if v >= done or (self.model.recomputable[v] and self.makes[v] & useful):
                useful |= self.reads[v]
        return useful

    def _moves(self, state: _State) -> Iterator[tuple[_State, tuple[int, ...], float, int]]:
        model = self.model
        n, m = model.n_ops, model.n_tensors
        done, ram, store = state
        useful = self._useful(done, store)
        ram &= useful
        useful_again = self.rules.search_useful_again
        for v in range(min(done + 1, n)):
            again = v < done
            if self.reads[v] & ~ram:
                continue
            if again and not (model.recomputable[v] and (not useful_again or self.makes[v] & useful & ~ram)):
                continue
            cost, ns = (model.op_cost[v], model.op_ns[v]) if again else (0.0, 0)
            rest = ram & ~self.makes[v]
            grown = self._size(self.makes[v]) + model.workspace[v]
            for consumed, saved in self.choices[v]:
                for dropped in self._drops(rest, self.reads[v], grown - saved):
                    after = (rest & ~dropped & ~consumed) | self.makes[v]
                    for written, more, more_ns in self._writes((dropped | consumed) & useful, store):
                        codes = (*(n + m + t for t in _bits(written)), v)
                        yield (done + (not again), after, store | written), codes, cost + more, ns + more_ns
        if not self.pages:
            return
        for t in _bits(store & useful & ~ram):
            for dropped in self._drops(ram, 0, model.size[t]):
                for written, more, more_ns in self._writes(dropped, store):
                    codes = (*(n + m + u for u in _bits(written)), n + t)
                    state_after = (done, (ram & ~dropped) | 1 << t, store | written)
                    yield state_after, codes, model.in_cost[t] + more, model.in_ns[t] + more_ns
        left = ram & self.end_store & ~store
        if done == n and left:
            for written, more, more_ns in self._writes(left, store):
                if written == left:
                    yield (done, ram, store | written), tuple(n + m + t for t in _bits(written)), more, more_ns

    def _try(self) -> None:
        self.tries += 1
        if self.tries > EXHAUSTIVE.tries_a_state * self.max_states:
            raise _TooMuch
        if self.tries % EXHAUSTIVE.tries_a_look == 0 and time.monotonic() > self.stop_at:
            raise _TooMuch

    def _writes(self, leaving: int, store: int) -> Iterator[tuple[int, float, int]]:
        """Every choice of tensors to page out, of those that leave RAM."""
        model = self.model
        able = [t for t in _bits(leaving & ~store) if model.pageable[t]] if self.pages else []
        for bits in range(1 << len(able)):
            self._try()
            chosen = [t for i, t in enumerate(able) if bits >> i & 1]
            mask = _mask(chosen)
            written = (store | mask) & ~self._initial_store()
            if chosen and sum(model.footprint[t] for t in _bits(written)) > model.store_free:
                continue
            yield mask, sum(model.out_cost[t] for t in chosen), sum(model.out_ns[t] for t in chosen)

    def _drops(self, ram: int, locked: int, growth: int) -> Iterator[int]:
        """Inclusion-minimal sets of unlocked tensors whose leaving makes room for `growth` bytes more."""
        excess = self._size(ram) + growth - self.room
        if excess <= 0:
            yield 0
            return
        size = self.model.size
        candidates = sorted((t for t in _bits(ram & ~locked) if size[t]), key=lambda t: (-size[t], t))
        tails = [0] * (len(candidates) + 1)
        for i in range(len(candidates) - 1, -1, -1):
            tails[i] = tails[i + 1] + size[candidates[i]]
        stack = [(0, 0, 0)]
        while stack:
            self._try()
            i, chosen, freed = stack.pop()
            if freed >= excess and i < len(candidates) and not self.rules.search_minimal_drops:
                stack.append((i + 1, chosen, freed))
                stack.append((i + 1, chosen | 1 << candidates[i], freed + size[candidates[i]]))
            elif freed >= excess:
                # Sizes fall, so the last one chosen is the smallest; without it the set was too small.
                yield chosen
            elif i < len(candidates) and freed + tails[i] >= excess:
                stack.append((i + 1, chosen, freed))
                stack.append((i + 1, chosen | 1 << candidates[i], freed + size[candidates[i]]))


def _path(
    parents: dict[tuple[_State, float, int], tuple[tuple[_State, float, int], tuple[int, ...]]],
    node: tuple[_State, float, int],
) -> list[int]:
    parts: list[tuple[int, ...]] = []
    while node in parents:
        node, codes = parents[node]
        parts.append(codes)
    return [c for part in reversed(parts) for c in part]


def _mask(tensors: Iterable[int]) -> int:
    mask = 0
    for t in tensors:
        mask |= 1 << t
    return mask


def _bits(mask: int) -> list[int]:
    bits = []
    while mask:
        low = mask & -mask
        bits.append(low.bit_length() - 1)
        mask ^= low
    return bits
