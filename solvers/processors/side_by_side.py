"""From actions one after another to actions side by side: list scheduling that counts memory.

The actions of a schedule for one processor decide about keeping, recomputing and paging. Here they get processors and
an order in which these seldom wait for each other. An action overtakes others only if these still fit behind it, in
turn. So a list never gets stuck. Frees come as late as RAM allows, so that no action waits for one. An operator
overwrites an operand unless it begins sooner without that: others, on other processors, may still read it.
The checker's own simulation prices the cheapest of several such lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from poetc.scheduling import (
    Action,
    Compute,
    Free,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Proof,
    Schedule,
    ScheduleError,
    Scope,
    Status,
    Trace,
    complete,
    keep_all_decisions,
    verify_parts,
)
from poetc.solvers.interface import SolverInfo, bound_beside
from poetc.solvers.processors.bounds import relaxed
from poetc.solvers.processors.placing import Placement, cost_the_same, placed

# How far an action may overtake the first one that waits, a page-in likewise, and whether long chains of readers come
# first.
RULES = (
    (1, 1, False),
    (8, 8, False),
    (32, 32, False),
    (32, 64, True),
    (128, 128, False),
    (300, 300, True),
    (1000, 1000, True),
)
LARGE_RULES = ((64, 64, False), (128, 128, False))  # of many actions, for which a list takes a second
LARGE = 4000
ROOMY_BYTES = 2**50
GONE = -(2**62)  # bytes: of an item that is in the list
WIDEST = 64  # actions that are weighed at once
Decision = Compute | PageIn | PageOut
Pairs = tuple[tuple[int, int], ...]


def side_by_side(
    problem: Problem, actions: Sequence[Action], placement: Placement | None, within_bytes: int | None = None
) -> tuple[tuple[Action, ...], Trace] | None:
    """The cheapest list found of the actions in `actions`, none of which is a Move; None if no list fits.

    `within_bytes`: the RAM for actions that overtake others. Those in turn have all of the budget.
    An execution may run on another processor than that of `placement`, if that one does it for the same cost. Without
    a placement each action says where it runs.

    Deterministic; O(rules * actions * overtaken actions).
    """
    plain = replace(problem, deadline_ns=None)
    is_large = len(actions) >= LARGE
    rules = LARGE_RULES if is_large else RULES
    lists: list[tuple[tuple[int, int, int], tuple[Action, ...]]] = []
    for rule in rules:
        listing = _List(problem, actions, placement, *rule, within_bytes)
        if (complete_list := listing.run()) is not None:
            lists.append((_rank(problem, listing.waiting_fj, listing.finish_ns), complete_list))
    # They do the same work: energies differ by idling and hand-overs alone.
    candidates = [listed for _, listed in sorted(lists, key=lambda pair: pair[0])]
    best: tuple[tuple[Action, ...], Trace] | None = None
    for listed in candidates:
        try:
            best = listed, verify_parts([(plain, listed)])
            break
        except ScheduleError:
            continue  # its estimate of RAM was too low
    if best is None or not is_large:
        in_turn = one_after_another(actions, placement)
        with suppress(ScheduleError):
            trace = verify_parts([(plain, in_turn)])
            priced = [(in_turn, trace)] if best is None else [best, (in_turn, trace)]
            best = min(priced, key=lambda p: _rank(problem, 1000 * p[1].energy_pj, p[1].time_ns))
    is_late = best is not None and problem.deadline_ns is not None and best[1].time_ns > problem.deadline_ns
    return None if is_late else best


def estimate(problem: Problem, actions: Sequence[Action], placement: Placement) -> tuple[int, int]:
    """By how much a placement misses the deadline, ns, and its cost, with RAM left aside: of one list, by one rule."""
    listing = _List(replace(problem, budget_bytes=ROOMY_BYTES), actions, placement, 32, 32, False)
    listing.run()
    return _rank(problem, listing.energy_fj, listing.finish_ns)[:2]


def estimate_in_ram(problem: Problem, actions: Sequence[Action], placement: Placement) -> tuple[int, int] | None:
    """The same for one list within the RAM, by another rule; None where it does not fit."""
    listing = _List(problem, actions, placement, *RULES[3])
    return None if listing.run() is None else _rank(problem, listing.energy_fj, listing.finish_ns)[:2]


def _rank(problem: Problem, energy_fj: int, time_ns: int) -> tuple[int, int, int]:
    """By how much a list misses the deadline, ns, its cost, and when it ends: the least is the best."""
    late_ns = 0 if problem.deadline_ns is None else max(0, time_ns - problem.deadline_ns)
    return late_ns, problem.objective.cost(energy_fj // 1000, time_ns), time_ns


def one_after_another(actions: Sequence[Action], placement: Placement | None) -> tuple[Action, ...]:
    """The actions with their processors, and a fence where another processor goes on."""
    result: list[Action] = []
    before = 0
    for action in actions:
        if isinstance(action, Compute):
            own = action.processor if placement is None else placement[action.operator]
            action = replace(action, processor=own, fence=own != before)
        if not isinstance(action, Free):
            before = action.processor if isinstance(action, Compute) else 0
        result.append(action)
    return tuple(result)


def scheduled(info: SolverInfo, problem: Problem, placement: Placement) -> Schedule | None:
    """A schedule that runs every operator once where `placement` says; None if that does not fit."""
    plain = placed(problem, placement)
    best = side_by_side(problem, complete(plain, keep_all_decisions(plain)), placement)
    if best is None:
        return None
    actions, trace = best
    cost = problem.objective.cost(trace.energy_pj, trace.time_ns)
    method = "every operator once; bound: work and hand-overs divided among processors, critical path"
    bound = bound_beside(relaxed(problem).least, cost, method)
    proof = Proof(status=Status.FEASIBLE, objective=cost, bound=bound, scope=Scope(), method=method)
    return Schedule(solver=info.name, actions=actions, proof=proof)


def _required(problem: Problem, action: Compute) -> set[tuple[int, int]]:
    """The pairs of tensors of which an execution has to overwrite the first one."""
    return {(p.input, p.output) for p in problem.operators[action.operator].in_place if p.required}


@dataclass(slots=True)
class _Stay:
    """A residency: an action makes it, others read it, and one may take its bytes over."""

    tensor: int
    size_bytes: int
    readers_left: int = 0  # users that are not in the list yet
    lasts: bool = False  # to the end
    is_overwritten: bool = False  # another one takes its bytes over
    takes_over: bool = False  # the bytes of another one
    written_ns: int = 0
    used_ns: int = 0
    last_use: tuple[int, int] = (-1, 0)  # the processor of the last computation that used it, and the number there


@dataclass(slots=True)
class _Item:
    decision: Decision
    reads: list[int] = field(default_factory=list)  # stays
    makes: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)  # items that wait for it
    waits: int = 0
    rank_ns: int = 0
    duration_ns: int = 0
    processor: int = 0
    taken: list[int] = field(default_factory=list)  # stays that it reads and has to overwrite
    may_take: list[tuple[int, int]] = field(default_factory=list)  # others that it may, and those that it makes there
    new_bytes: int = 0
    workspace_bytes: int = 0


class _List:
    def __init__(
        self,
        problem: Problem,
        actions: Sequence[Action],
        placement: Placement | None,
        reach: int,
        ahead: int,
        by_rank: bool,
        within_bytes: int | None = None,
    ) -> None:
        """`ahead`: how far a page-in may overtake; `within_bytes`: the RAM for actions that overtake others."""
        self.problem, self.placement, self.by_rank = problem, placement, by_rank
        self.reach, self.ahead = reach, ahead
        self.stays: list[_Stay] = []
        self.items: list[_Item] = []
        self.makers: list[int] = []  # by stay, the item that makes it; -1: it is there from the start
        self.readers: list[list[int]] = []  # by stay, items that are not in the list yet, in their order
        self._read(actions)
        pages = any(not isinstance(i.decision, Compute) for i in self.items)
        self.room = problem.budget_bytes - problem.base_bytes - (problem.page_buffer_bytes if pages else 0)
        self.room_ahead = self.room - (0 if within_bytes is None else problem.budget_bytes - within_bytes)
        count = len(problem.processors)
        self.end_ns, self.before_last, self.workspace = [0] * count, [0] * count, [0] * count
        self.hand_over_ns, self.actions = [0] * count, [0] * count
        self.bus, self.barrier = 0, 0
        self.live = sum(s.size_bytes for s in self.stays if s.written_ns < 0)
        self.ready = {k for k, item in enumerate(self.items) if not item.waits}
        self.needed = self._needed_in_turn()
        self.alike = [self._alike(item, pages=pages) for item in self.items]
        self.arrivals: dict[int, tuple[int, list[int]]] = {}  # of ready items: operands, and hand-overs by processor
        self.computed_on: dict[int, int] = {}  # by tensor; a page-out and a page-in change nothing
        self.dead: list[int] = []  # stays that nobody needs any more
        self.result: list[Action] = []

    def _read(self, actions: Sequence[Action]) -> None:
        """Items with their dependences. A tensor that is made again waits for all users of its copy before."""
        current: dict[int, int] = {}
        users: list[list[int]] = []
        out: dict[int, int] = {}  # tensor -> its last page-out

        def begin(t: int, k: int, size_bytes: int) -> int:
            if t in current:
                for user in users[current[t]]:
                    edges.add((user, k))
            self.stays.append(_Stay(t, size_bytes))
            users.append([k] if k >= 0 else [])
            current[t] = len(self.stays) - 1
            return current[t]

        edges: set[tuple[int, int]] = set()
        makers = self.makers
        for t, tensor in enumerate(self.problem.tensors):
            if tensor.initial == "ram":
                stay = begin(t, -1, tensor.size_bytes)
                self.stays[stay].written_ns = -1  # there from the start
                makers.append(-1)
        for decision in (s for s in actions if not isinstance(s, Free)):
            assert isinstance(decision, Compute | PageIn | PageOut)
            k, item = len(self.items), _Item(decision)
            self.items.append(item)
            reads: Iterable[int] = ()
            if isinstance(decision, Compute):
                operator = self.problem.operators[decision.operator]
                item.processor = decision.processor
                if self.placement is not None:
                    item.processor = self.placement[decision.operator]
                item.workspace_bytes = operator.workspace_bytes
                cost = operator.cost_on(item.processor)
                item.duration_ns = 0 if cost is None else cost[0]
                reads = dict.fromkeys(operator.inputs)
            elif isinstance(decision, PageOut):
                item.duration_ns = self.problem.tensors[decision.tensor].page_out_ns
                reads, out[decision.tensor] = (decision.tensor,), k
            else:
                item.duration_ns = self.problem.tensors[decision.tensor].page_in_ns
                if decision.tensor in out:
                    edges.add((out[decision.tensor], k))
            for t in reads:
                stay = current[t]
                item.reads.append(stay)
                self.stays[stay].readers_left += 1
                if makers[stay] >= 0:
                    edges.add((makers[stay], k))
            overwritten = {}
            if isinstance(decision, Compute):
                required = _required(self.problem, decision)
                for i, o in decision.in_place:
                    stay = current[i]
                    overwritten[o] = stay
                    if (i, o) in required:
                        edges |= {(user, k) for user in users[stay] if user >= 0}
                        self.stays[stay].is_overwritten = True
                        item.taken.append(stay)
            for stay in item.reads:
                users[stay].append(k)
            outputs = self.problem.operators[decision.operator].outputs if isinstance(decision, Compute) else ()
            for t in (decision.tensor,) if isinstance(decision, PageIn) else outputs:
                size = self.problem.tensors[t].size_bytes
                taken = overwritten.get(t)
                item.new_bytes += 0 if taken in item.taken else size
                item.makes.append(begin(t, k, size if taken is None else self.stays[taken].size_bytes))
                self.stays[-1].takes_over = taken is not None
                if taken is not None and taken not in item.taken:
                    item.may_take.append((taken, item.makes[-1]))
                makers.append(k)
        self.readers = [of_stay[maker >= 0 :] for maker, of_stay in zip(makers, users, strict=True)]
        for t, stay in current.items():
            self.stays[stay].lasts = self.problem.tensors[t].final == "ram" and not self.stays[stay].is_overwritten
        for a, b in edges:
            if a >= 0 and a != b:
                self.items[a].after.append(b)
                self.items[b].waits += 1
        for item in reversed(self.items):
            item.rank_ns = item.duration_ns + max((self.items[b].rank_ns for b in item.after), default=0)

    def run(self) -> tuple[Action, ...] | None:
        """The list; None where the actions do not fit in turn, or workspaces beside a transfer do not."""
        self.dead = [s for s, stay in enumerate(self.stays) if stay.written_ns < 0 and self._is_dead(stay)]
        for stay in self.stays:
            stay.written_ns = max(0, stay.written_ns)
        first = 0
        while first < len(self.items):
            if self.items[first].waits < 0:
                first += 1
                continue
            ready = [k for k in sorted(self.ready) if k < first + self._reach(k)][:WIDEST]
            if not self._issue_best(ready, first) and not self._issue_alone(first):
                return None
        for s in self._oldest_first():
            self._free(s)
        return tuple(self.result)

    def _reach(self, k: int) -> int:
        return self.ahead if isinstance(self.items[k].decision, PageIn) else self.reach

    def _alike(self, item: _Item, *, pages: bool) -> list[int]:
        """Processors on which an item costs the same. With transfers in the list the first one has enough to do."""
        own = item.processor
        if not isinstance(item.decision, Compute):
            return [own]
        others = range(1 if pages else 0, len(self.problem.processors))
        return [own, *(p for p in others if p != own and cost_the_same(self.problem, item.decision.operator, p, own))]

    def _needed_in_turn(self) -> NDArray[np.int64]:
        """The RAM that each item takes, if they follow in their order and nothing is beside them."""
        needed = np.zeros(len(self.items) + 1, dtype=np.int64)
        for s, stay in enumerate(self.stays):
            begin, end = self._span(s)
            if begin < end:
                needed[begin] += stay.size_bytes
                needed[end] -= stay.size_bytes
        return np.cumsum(needed)[:-1] + np.array([item.workspace_bytes for item in self.items], dtype=np.int64)

    def _span(self, s: int) -> tuple[int, int]:
        """The items during which a stay takes bytes, in their order."""
        stay, maker = self.stays[s], self.makers[s]
        begin = max(0, maker)
        if maker >= 0 and stay.takes_over:
            begin += 1
        if stay.lasts:
            return begin, len(self.items)
        return begin, max([maker, *self.readers[s][-1:]]) + 1

    def _take_out(self, k: int) -> None:
        """The RAM that others take, with item `k` in the list."""
        item, needed = self.items[k], self.needed
        for s in item.reads:
            stay, readers = self.stays[s], self.readers[s]
            was_last = readers[-1] == k
            readers.remove(k)
            if was_last and not stay.lasts:
                needed[readers[-1] + 1 if readers else 0 : k + 1] -= stay.size_bytes
        for s in item.makes:
            stay = self.stays[s]
            if stay.lasts or self.readers[s]:
                needed[: k + stay.takes_over] += stay.size_bytes
        needed[k] = GONE

    def _is_safe(self, k: int, first: int) -> bool:
        """Whether the other items, from `first` on, still fit in turn behind item `k`."""
        if k == first:
            return True
        item = self.items[k]
        more = sum(self.stays[s].size_bytes for s in item.makes if self.stays[s].lasts or self.readers[s])
        for s in item.reads:
            if len(self.readers[s]) == 1 and not self.stays[s].lasts:
                more -= self.stays[s].size_bytes
        return more <= 0 or int(self.needed[first:k].max()) + more <= self.room_ahead

    @property
    def finish_ns(self) -> int:
        """When all actions in the list so far are over."""
        return max(*self.end_ns, self.bus)

    @property
    def waiting_fj(self) -> int:
        """The energy of idling all the time, and of hand-overs above that."""
        specs = self.problem.processors
        above = (ns * (p.active_uw - p.idle_uw) for p, ns in zip(specs, self.hand_over_ns, strict=True))
        return self.finish_ns * sum(p.idle_uw for p in specs) + sum(above)

    @property
    def energy_fj(self) -> int:
        """The energy of all actions, of idling and of hand-overs."""
        specs, tensors, energy_fj = self.problem.processors, self.problem.tensors, self.waiting_fj
        for item in self.items:
            decision, own_pj = item.decision, 0
            if isinstance(decision, Compute):
                own_pj = (self.problem.operators[decision.operator].cost_on(item.processor) or (0, 0))[1]
            elif isinstance(decision, PageOut):
                own_pj = tensors[decision.tensor].page_out_pj
            else:
                own_pj = tensors[decision.tensor].page_in_pj
            waits = isinstance(decision, Compute) or self.problem.paging is Paging.SYNC
            energy_fj += 1000 * own_pj - waits * specs[item.processor].idle_uw * item.duration_ns
        return energy_fj

    def _oldest_first(self) -> list[int]:
        """The stays that nobody needs any more."""
        return sorted(self.dead, key=lambda s: (self.stays[s].used_ns, s))

    def _issue_best(self, ready: list[int], first: int) -> bool:
        """Put the item that can begin first into the list, with the frees that it needs room from."""
        best: tuple[tuple[int, int], int, list[int], Pairs] | None = None
        dead = self._oldest_first()
        free_ns = self._free_ns()
        for k in ready:
            earliest = self._choose(k, free_ns)
            last = -self.items[k].rank_ns if self.by_rank else k
            if best is not None and (earliest, last) >= best[0]:
                continue
            if not self._is_safe(k, first):
                continue
            for pairs in dict.fromkeys((self._free_to_take(k), ())):
                start = self._begin(k, dead, earliest, pairs, self.room if k == first else self.room_ahead)
                if start is not None and (best is None or (start[0], last) < best[0]):
                    best = (start[0], last), k, start[1], pairs
        if best is None:
            return False
        for s in best[2]:
            self._free(s)
        self._issue(best[1], best[3])
        return True

    def _free_to_take(self, k: int) -> Pairs:
        """The stays that item `k` may overwrite, since everybody else who reads them is in the list, and its own."""
        stays, tensors = self.stays, self.problem.tensors
        return tuple(
            (s, m)
            for s, m in self.items[k].may_take
            if stays[s].readers_left == 1 and tensors[stays[m].tensor].size_bytes <= stays[s].size_bytes
        )

    def _free_ns(self) -> list[int]:
        """When each processor may begin another computation, as far as the list says."""
        *_, second, latest = sorted([0, 0, *self.before_last])
        others = [second if ns == latest else latest for ns in self.before_last]
        return [max(end, self.barrier, other) for end, other in zip(self.end_ns, others, strict=True)]

    def _choose(self, k: int, free_ns: Sequence[int]) -> int:
        """Send item `k` to the processor on which it ends first, of equal ones; when it begins if RAM is not short."""
        item = self.items[k]
        if not isinstance(item.decision, Compute):
            return self._earliest(item)
        if k not in self.arrivals:  # of an item that is ready, nothing moves any more
            self.arrivals[k] = self._operands_ns(item), [self._hand_over_ns(item, p) for p in self.alike[k]]
        at, hand_overs = self.arrivals[k]
        begins = [max(at, free_ns[p]) for p in self.alike[k]]
        best = min(range(len(begins)), key=lambda n: begins[n] + hand_overs[n])
        item.processor = self.alike[k][best]
        return begins[best]

    def _operands_ns(self, item: _Item) -> int:
        """When its operands are there, and nobody needs those that it overwrites."""
        stays = self.stays
        return max([0, *(stays[s].written_ns for s in item.reads), *(stays[s].used_ns for s in item.taken)])

    def _issue_alone(self, k: int) -> bool:
        """The first item with all frees before it, and behind all that is in flight."""
        for s in self._oldest_first():
            self._free(s)
        pairs, item = self._free_to_take(k), self.items[k]
        if not isinstance(item.decision, Compute):
            if self._begin(k, self._oldest_first(), self._earliest(item), (), self.room) is None:
                return False
        elif self.live + self._new_bytes(item, pairs) + item.workspace_bytes > self.room:
            return False
        self._issue(k, pairs, fence=isinstance(item.decision, Compute))
        return True

    def _new_bytes(self, item: _Item, pairs: Pairs) -> int:
        return item.new_bytes - sum(self.problem.tensors[self.stays[m].tensor].size_bytes for _, m in pairs)

    def _earliest(self, item: _Item) -> int:
        """When it would begin if RAM were not short."""
        own, compute = item.processor, isinstance(item.decision, Compute)
        others = [ns for q, ns in enumerate(self.before_last) if compute and q != own]
        return max(self.end_ns[own], self.barrier, self._operands_ns(item), *others)

    def _begin(self, k: int, dead: Sequence[int], begin: int, pairs: Pairs, room: int) -> tuple[int, list[int]] | None:
        """When an item would begin, no sooner than `begin`, and the frees right before it, in the order of `dead`.

        `pairs`: it overwrites these. None if it does not fit into `room` bytes.
        """
        item = self.items[k]
        own = item.processor
        begin = max([begin, *(self.stays[s].used_ns for s, _ in pairs)])
        needed = self.live + self._new_bytes(item, pairs) + item.workspace_bytes
        workspaces = [0 if q == own else w for q, w in enumerate(self.workspace)]
        needed += sum(workspaces)
        frees = []
        outputs = {self.stays[m].tensor for m in item.makes} if dead else set()
        for s in dead:
            stay = self.stays[s]
            if stay.used_ns <= begin or needed > room or stay.tensor in outputs:
                frees.append(s)
                needed -= stay.size_bytes
                begin = max(begin, stay.used_ns)
                over = self._is_last_action_over(stay)
                if over is not None:
                    needed, workspaces[over] = needed - workspaces[over], 0
        return (begin, frees) if needed <= room else None

    def _issue(self, k: int, pairs: Pairs, *, fence: bool = False) -> None:
        """Put item `k` into the list. It overwrites `pairs`, besides those that it has to."""
        item = self.items[k]
        decision, own = item.decision, item.processor
        self.live += self._new_bytes(item, pairs)
        item.taken += (s for s, _ in pairs)
        if isinstance(decision, Compute):
            if fence:
                self.barrier = max(self.barrier, *self.end_ns)
                self.workspace = [0] * len(self.workspace)
            begin = self._earliest(item)
            extra_ns = self._hand_over_ns(item, own)
            self.hand_over_ns[own] += extra_ns
            end = begin + item.duration_ns + extra_ns
            self.before_last[own], self.end_ns[own] = self.end_ns[own], end
            self.workspace[own] = item.workspace_bytes
            self.actions[own] += 1
            in_place = tuple((self.stays[s].tensor, self.stays[m].tensor) for s, m in pairs)
            in_place += tuple(p for p in decision.in_place if p in _required(self.problem, decision))
            self.result.append(replace(decision, in_place=in_place, processor=own, fence=fence))
        else:
            begin = self._earliest(item)
            if self.problem.paging is Paging.DMA:
                self.bus = end = max(begin, self.bus) + item.duration_ns
            else:
                end = begin + item.duration_ns
                self.before_last[0], self.end_ns[0] = self.end_ns[0], end
            self.result.append(decision)
        self._settle(k, pairs)
        for s in item.reads:
            stay = self.stays[s]
            stay.readers_left -= 1
            stay.used_ns = max(stay.used_ns, end)
            if isinstance(decision, Compute):
                stay.last_use = own, self.actions[own]
            if not stay.readers_left and self._is_dead(stay):
                self.dead.append(s)
        for s in item.makes:
            stay = self.stays[s]
            stay.written_ns = stay.used_ns = end
            if isinstance(decision, Compute):
                self.computed_on[stay.tensor], stay.last_use = own, (own, self.actions[own])
            if self._is_dead(stay):
                self.dead.append(s)
        self._take_out(k)
        item.waits = -1  # done
        self.ready.remove(k)
        for b in item.after:
            self.items[b].waits -= 1
            if not self.items[b].waits:
                self.ready.add(b)

    def _settle(self, k: int, pairs: Pairs) -> None:
        """The bytes of the stays that item `k` makes: until then they were those of its order."""
        for s, m in self.items[k].may_take:
            stay, size = self.stays[m], self.problem.tensors[self.stays[m].tensor].size_bytes
            if (s, m) in pairs:
                self.stays[s].is_overwritten, size = True, self.stays[s].size_bytes
            begin, end = self._span(m)
            self.needed[begin:end] -= stay.size_bytes - size
            stay.size_bytes = size

    def _is_dead(self, stay: _Stay) -> bool:
        return not stay.readers_left and not stay.lasts and not stay.is_overwritten

    def _is_last_action_over(self, stay: _Stay) -> int | None:
        """The processor that used the tensor last, where it has begun nothing since, so that its workspace is free."""
        own, number = stay.last_use
        return own if own >= 0 and number == self.actions[own] else None

    def _free(self, s: int) -> None:
        stay = self.stays[s]
        over = self._is_last_action_over(stay)
        if over is not None:
            self.workspace[over] = 0
        self.result.append(Free(stay.tensor))
        self.dead.remove(s)
        self.live -= stay.size_bytes
        self.barrier = max(self.barrier, stay.used_ns)

    def _hand_over_ns(self, item: _Item, own: int) -> int:
        processors, time_ns, flushed_ps = self.problem.processors, 0, 0
        for s in item.reads:
            tensor = self.stays[s].tensor
            maker = self.computed_on.get(tensor, own)
            if maker != own:
                pair = processors[own], processors[maker]
                time_ns = max(time_ns, *(p.hand_over_ns for p in pair))
                flushed_ps += self.problem.tensors[tensor].size_bytes * max(p.flush_ps_per_byte for p in pair)
        return time_ns + flushed_ps // 1000
