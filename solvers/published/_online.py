"""Eviction while the step runs: a tensor is given up when RAM is short, and brought back when it is read.

The online methods (DTR, Melon, Sage, SwapAdvisor, the cache of SuperNeurons) share this. Each brings a score, and the
evictable tensor with the least score goes. A tensor dies with its last reader in the step's own order, as reference
counting sees it. Two rules are added for correctness, since a training step overwrites its state. Tensors that still
have to be recomputed from state are recomputed before an update overwrites it, and then stay. A dead tensor stays as
long as an evicted one can be made from it alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from poetc.errors import LimitError
from poetc.solvers.published._baseline import Baseline
from poetc.solvers.published._remaking import Remaking
from poetc.solvers.published._tape import Irretrievable

Score = Callable[["Online", int], float]

THRASHING = 20  # recomputation, in costs of the whole step, beyond which a simulation is given up
TIME_CHECK = 16  # operators between two looks at the clock: it costs hardly any time then


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a method: the tensor of the least `score` is evicted; `pageable` ones may go to the store.

    `change`: a position in the order, and the capacity in bytes from there on.
    """

    score: Score
    is_fixed: bool = False  # the score of a tensor never changes
    recompute: bool = True
    pageable: Collection[int] = ()
    held: Collection[int] = ()  # tensors that are never evicted
    give_up: Sequence[tuple[int, Collection[int]]] = ()  # (after operator, tensors that go in any case)
    # By operator, further tensors that must be alive for it.
    also_reads: Mapping[int, Collection[int]] = field(default_factory=dict)
    order: Sequence[int] | None = None  # of the first executions; the problem's own if None
    change: tuple[int, int] | None = None


class Online:
    """One run within `capacity` bytes; `run` returns the action codes.

    It raises Irretrievable, or LimitError on thrashing.
    """

    def __init__(self, baseline: Baseline, capacity: int, rules: Rules) -> None:
        model = baseline.model
        self.baseline, self.model, self.capacity, self.rules = baseline, model, capacity, rules
        self.resident = {t for t in range(model.n_tensors) if model.in_ram[t]}
        self.stored = {t for t in range(model.n_tensors) if model.on_store[t]}
        self.used = sum(model.size[t] for t in self.resident)
        self.executed = [False] * model.n_ops
        self.locks = [0] * model.n_tensors
        self.pinned: set[int] = set()
        self.gone: set[int] = set()  # overwritten by an update
        self.last_copies: set[int] = set()  # dead tensors from which alone evicted ones can be made
        self.closing: set[int] = set()  # readers of the state that the next operator overwrites
        self.clock: float = 0  # cost spent so far, the unit of staleness
        self.position = 0  # in the order of first executions
        self.accessed = [0.0] * model.n_tensors
        self.codes: list[int] = []
        self.changed_at = 0  # the number of actions before the change of capacity
        self.rematerialized: float = 0
        self.thrashing = THRASHING * sum(model.op_cost)
        order = range(model.n_ops) if rules.order is None else rules.order
        self.order = list(order)
        at = {v: i for i, v in enumerate(self.order)}
        self.uses = [[at[v] for v in consumers] for consumers in model.consumers]
        for v, tensors in rules.also_reads.items():
            for t in tensors:
                self.uses[t].append(at[v])
        for uses in self.uses:
            uses.sort()
        self.readers_left = [len(uses) for uses in self.uses]
        self.remaking = Remaking(model, self.resident | self.stored)
        self._missing: set[int] = set()  # tensors that left while they were still read, and are not back
        self._place = self._places() if rules.is_fixed else []
        self._first_to_go = sorted(self._place[t] for t in self.resident) if rules.is_fixed else []
        self._tensor_at = {place: t for t, place in enumerate(self._place)}
        self._version = 0  # of the set of resident tensors: caches of scores depend on it
        self._closures: dict[int, tuple[int, float]] = {}

    # --- for scores ---

    def alive(self, t: int) -> bool:
        return self.readers_left[t] > 0 or self.model.ends_in_ram[t]

    def next_use(self, t: int) -> int:
        """The position of the next reader; beyond the last operator if there is none."""
        uses = self.uses[t]
        k = len(uses) - self.readers_left[t]
        return uses[k] if k < len(uses) else self.model.n_ops

    def last_use(self, t: int) -> int:
        return self.model.n_ops if self.model.ends_in_ram[t] or not self.uses[t] else self.uses[t][-1]

    def staleness(self, t: int) -> float:
        return max(1.0, self.clock - self.accessed[t])

    def ancestors_cost(self, t: int) -> float:
        """The cost of recomputing `t` and all absent tensors that this takes; infinite if it is impossible."""
        known = self._closures.get(t)
        if known is not None and known[0] == self._version:
            return known[1]
        operators = self.closure(t)
        cost = float("inf") if operators is None else sum(self.model.op_cost[v] for v in operators)
        self._closures[t] = (self._version, cost)
        return cost

    def closure(self, t: int) -> set[int] | None:
        """The operators to execute to make `t` anew; None if that is impossible."""
        model = self.model
        operators: set[int] = set()
        stack = [model.producer[t]]
        while stack:
            v = stack.pop()
            if v in operators:
                continue
            if v < 0 or (self.executed[v] and not model.recomputable[v]):
                return None
            operators.add(v)
            for u in model.inputs[v]:
                if u in self.resident or u in self.stored:
                    continue
                if u in self.gone:
                    return None
                stack.append(model.producer[u])
        return operators

    def evicted_neighbourhood(self, t: int) -> set[int]:
        """The operators of absent ancestors and executed descendants that absent tensors connect with `t`."""
        model = self.model
        neighbours: set[int] = set()
        stack = list(model.inputs[model.producer[t]]) if model.producer[t] >= 0 else []
        while stack:
            u = stack.pop()
            v = model.producer[u]
            if u in self.resident or u in self.stored or v < 0 or v in neighbours:
                continue
            neighbours.add(v)
            stack.extend(model.inputs[v])
        down = [t]
        seen = {t}
        while down:
            for v in model.consumers[down.pop()]:
                if not self.executed[v]:
                    continue
                for o in model.outputs[v]:
                    if o not in seen and o not in self.resident and o not in self.stored and o not in self.gone:
                        seen.add(o)
                        if self.alive(o):
                            neighbours.add(v)
                        down.append(o)
        return neighbours

    # --- running ---

    def run(self) -> list[int]:
        model = self.model
        give_up = dict(self.rules.give_up)
        for t in sorted(self.resident):
            if model.ends_on_store[t]:
                self._page_out(t)
        for position, v in enumerate(self.order):
            self.position = position
            if self.rules.change is not None and position == self.rules.change[0]:
                self.capacity = self.rules.change[1]
                self._make_room(0)
                self.changed_at = len(self.codes)
            self._before_overwriting(v)
            self._with_inputs(v, first=True)
            self.closing = set()
            self.drop(give_up.get(v, ()))
            if position % TIME_CHECK == 0 and self.baseline.out_of_time:
                raise LimitError(f"{self.baseline.info.name}: the time limit ended its simulation; allow more time")
        self.position = model.n_ops
        for t in range(model.n_tensors):
            if model.ends_in_ram[t]:
                self._restore(t)
                self.locks[t] += 1
        return self.codes

    def _places(self) -> list[int]:
        """By tensor, its place in the order of scores, which never change."""
        scored = sorted((self.rules.score(self, t), t) for t in range(self.model.n_tensors))
        place = [0] * len(scored)
        for k, (_, t) in enumerate(scored):
            place[t] = k
        return place

    def drop(self, tensors: Collection[int]) -> None:
        for t in self.resident.intersection(tensors):
            if not self.locks[t] and self.remaking.may(t):
                self._leave(t)

    def _with_inputs(self, v: int, *, first: bool) -> None:
        """Execute `v`; its inputs are brought back first, each locked as soon as it is there."""
        model = self.model
        locked: list[int] = []
        for t in model.inputs[v]:
            self.locks[t] += 1
            locked.append(t)
        for t in model.inputs[v]:
            self._restore(t)
        self._execute(v, first=first)
        for t in locked:
            self.locks[t] -= 1
            self._release(t)
        for t in self.rules.also_reads.get(v, ()):
            self._release(t)

    def _execute(self, v: int, *, first: bool) -> None:
        model = self.model
        if not first:
            self.rematerialized += model.op_cost[v]
            if self.rematerialized > self.thrashing:
                raise LimitError(f"{self.baseline.info.name}: recomputes without getting on (thrashing)")
        for o in model.outputs[v]:
            if o in self.resident:
                self._leave(o)
        replaced: dict[int, int] = {}
        for i, o, required in model.pairs[v]:
            dies = self.readers_left[i] == (1 if first else 0) and self.locks[i] <= 1 and not model.ends_in_ram[i]
            free = i not in replaced and o not in replaced.values()
            own = dies and model.producer[i] >= 0 and model.size[i] == model.size[o] and not self._is_last_source(i)
            if free and (required or own):
                replaced[i] = o
        grown = sum(model.size[o] for o in model.outputs[v]) - sum(model.size[o] for o in replaced.values())
        self._make_room(grown + model.workspace[v])
        self.codes.append(v)
        self.clock += model.op_cost[v]
        for i in replaced:
            if i in self.resident:
                self._leave(i)
        self.executed[v] = True
        if first:
            for t in (*model.inputs[v], *self.rules.also_reads.get(v, ())):
                self.readers_left[t] -= 1
        for i in model.overwritten[v]:
            self.gone.add(i)
            self.remaking.is_gone(i)
        for t in model.inputs[v]:
            self.accessed[t] = self.clock
        for o in model.outputs[v]:
            self._enter(o)
            if model.ends_on_store[o]:
                self._page_out(o)
        if first:
            self.remaking.executes(v)
        for o in model.outputs[v]:
            self._release(o)

    def _release(self, t: int) -> None:
        """Free `t` if it has no later reader. A tensor that cannot be made again stays; `complete` frees it."""
        source = self.model.producer[t] < 0 or not self.model.recomputable[self.model.producer[t]]
        if t in self.resident and not self.locks[t] and not self.alive(t) and not source:
            if self._is_last_source(t):
                self.last_copies.add(t)
            else:
                self._leave(t)

    def _is_last_source(self, t: int) -> bool:
        """Whether `t` cannot be made again, and an evicted tensor that is still read can be made from it alone."""
        if self.remaking.may(t):
            return False
        seen, below = {t}, [t]
        while below:
            for v in self.model.consumers[below.pop()]:
                if not self.executed[v] or not self.model.recomputable[v]:
                    continue
                for o in self.model.outputs[v]:
                    if o in seen or o in self.resident or o in self.stored or o in self.gone:
                        continue
                    if self.alive(o):
                        return True
                    seen.add(o)
                    below.append(o)
        return False

    def _restore(self, t: int) -> None:
        if t in self.resident:
            return
        model = self.model
        if t in self.stored:
            self._make_room(model.size[t])
            self.codes.append(model.n_ops + t)
            self._enter(t)
            return
        operators = self.closure(t)
        if operators is None:
            raise Irretrievable(f"{model.problem.tensors[t].name!r} was evicted but cannot be made again")
        order = sorted(operators)
        locked = [u for v in order for u in model.inputs[v]] + [t]
        for u in locked:
            self.locks[u] += 1
        for v in order:
            if not all(o in self.resident for o in model.outputs[v]):
                for u in model.inputs[v]:
                    self._restore(u)
                self._execute(v, first=False)
            for u in model.inputs[v]:
                self.locks[u] -= 1
                self._release(u)
        self.locks[t] -= 1

    def _before_overwriting(self, v: int) -> None:
        model = self.model
        readers = {
            u
            for i in model.overwritten[v]
            for u in model.consumers[i]
            if u != v and self.executed[u] and model.recomputable[u]
        }
        if not readers:
            return
        while (t := self._lost_with(readers)) is not None:
            self._restore(t)
            self.pinned.add(t)
        self.pinned.clear()
        self.closing = readers

    def _lost_with(self, readers: set[int]) -> int | None:
        """The first tensor that is not in RAM, is still read, and can be made by `readers` alone."""
        self._missing = {t for t in self._missing if self.alive(t)}
        for t in sorted(self._missing):
            if t in self.stored or t in self.gone:
                continue
            operators = self.closure(t)
            if operators is not None and operators & readers:
                return t
        return None

    # --- coming and going ---

    def evictable(self, t: int) -> bool:
        if self.locks[t] or t in self.pinned or t in self.rules.held or t not in self.resident:
            return False
        if t in self.stored or t in self.rules.pageable:
            return True
        if not self.rules.recompute or not self.remaking.may(t):
            return False
        return not self.closing or not self.closing & (self.closure(t) or set())

    def _make_room(self, size: int) -> None:
        while self.used + size > self.capacity:
            unneeded = [t for t in sorted(self.last_copies) if not self.locks[t] and not self._is_last_source(t)]
            if unneeded:
                self._leave(unneeded[0])
                continue
            t = self._least()
            if t is None:
                name = self.baseline.info.name
                self.baseline.refusal = f"nothing is left to evict where {self.used + size} bytes are needed"
                raise Irretrievable(f"{name}: {self.baseline.refusal}, the budget leaves {self.capacity}")
            if t in self.rules.pageable and t not in self.stored and self.alive(t):
                self._page_out(t)
            self._leave(t)

    def _least(self) -> int | None:
        """The evictable tensor of the least score; None if there is none."""
        size = self.model.size
        if self.rules.is_fixed:
            ordered = (self._tensor_at[place] for place in self._first_to_go)
            return next((t for t in ordered if size[t] and self.evictable(t)), None)
        candidates = (t for t in self.resident if size[t] and self.evictable(t))
        return min(candidates, key=lambda u: (self.rules.score(self, u), u), default=None)

    def _page_out(self, t: int) -> None:
        if t not in self.stored:
            self.codes.append(self.model.n_ops + self.model.n_tensors + t)
            self.stored.add(t)
            self.remaking.comes(t)

    def _leave(self, t: int) -> None:
        self.resident.discard(t)
        self.last_copies.discard(t)
        self.used -= self.model.size[t]
        self._version += 1
        if self.rules.is_fixed:
            del self._first_to_go[bisect_left(self._first_to_go, self._place[t])]
        if self.alive(t):
            self._missing.add(t)
        if t not in self.stored:
            self.remaking.leaves(t)

    def _enter(self, t: int) -> None:
        self.resident.add(t)
        self.remaking.comes(t)
        self._missing.discard(t)
        if self.rules.is_fixed:
            insort(self._first_to_go, self._place[t])
        self.used += self.model.size[t]
        self.accessed[t] = self.clock
        self._version += 1
