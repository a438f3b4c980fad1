"""From actions one after another to actions side by side: list scheduling that counts memory.

The actions of a schedule for one processor decide about keeping, recomputing and paging. Here they get processors and
an order in which these seldom wait for each other. Frees come as late as RAM allows, so that no action waits for one.
The checker's own simulation prices the one of several such lists that ends first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

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
from poetc.solvers.interface import SolverInfo
from poetc.solvers.processors.bounds import relaxed
from poetc.solvers.processors.placing import Placement, placed

# How far an action may overtake the first one that waits, a page-in likewise, and whether long chains of readers come
# first.
RULES = ((1, 1, False), (8, 8, False), (32, 32, False), (128, 128, False), (32, 64, True), (512, 512, True))
LARGE_RULES = ((64, 64, False), (128, 128, False))  # of many actions, for which a list takes a second
LARGE = 4000
APART_RULES = 2  # the last ones, for lists whose operators overwrite no operand
IN_TURN = (64, 256, 1024)  # actions before one that does not fit, which keep their order in the next attempt
ROOMY_BYTES = 2**50
Decision = Compute | PageIn | PageOut


def side_by_side(
    problem: Problem, actions: Sequence[Action], placement: Placement
) -> tuple[tuple[Action, ...], Trace] | None:
    """The cheapest list found of the actions in `actions`, none of which is a Move; None if no list fits.

    Deterministic; O(rules * actions * overtaken actions).
    """
    plain = replace(problem, deadline_ns=None)
    is_large = len(actions) >= LARGE
    rules = LARGE_RULES if is_large else RULES
    lists = [_fitting_list(problem, actions, placement, *rule) for rule in rules]
    if (apart := _out_of_place(problem, actions)) != tuple(actions):
        lists += [_fitting_list(problem, apart, placement, *rule) for rule in rules[-APART_RULES:]]
    # They do the same work, so that the one that ends first is the cheapest.
    candidates = [listed for _, listed in sorted((p for p in lists if p is not None), key=lambda pair: pair[0])]
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
            if best is None or trace.time_ns < best[1].time_ns:
                best = in_turn, trace
    is_late = best is not None and problem.deadline_ns is not None and best[1].time_ns > problem.deadline_ns
    return None if is_late else best


def _out_of_place(problem: Problem, actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions, with no output in place of an operand but where it has to be.

    An operator that overwrites an operand waits for all its readers, on other processors, too. This takes more RAM.
    """

    def apart(action: Action) -> Action:
        if not isinstance(action, Compute) or not action.in_place:
            return action
        required = {(p.input, p.output) for p in problem.operators[action.operator].in_place if p.required}
        return replace(action, in_place=tuple(pair for pair in action.in_place if pair in required))

    return tuple(map(apart, actions))


def _fitting_list(
    problem: Problem, actions: Sequence[Action], placement: Placement, reach: int, ahead: int, by_rank: bool
) -> tuple[int, tuple[Action, ...]] | None:
    """When it ends, ns, and a list in which no action overtakes where RAM is short, as far as that is found out."""
    in_turn: list[range] = []
    for count in IN_TURN:
        listing = _List(problem, actions, placement, reach, ahead, by_rank, in_turn)
        listed = listing.run()
        if listed is not None:
            return listing.finish_ns, listed
        if reach == 1:
            return None
        in_turn.append(range(listing.next - count, listing.next + 1))
    listing = _List(problem, actions, placement, reach, ahead, by_rank, in_turn)
    listed = listing.run()
    return None if listed is None else (listing.finish_ns, listed)


def estimate(problem: Problem, actions: Sequence[Action], placement: Placement) -> tuple[int, int]:
    """By how much a placement misses the deadline, ns, and its cost, with RAM left aside: of one list, by one rule."""
    roomy = replace(problem, budget_bytes=ROOMY_BYTES)
    schedule = _List(roomy, _out_of_place(problem, actions), placement, 32, 32, False)
    schedule.run()
    end_ns = schedule.finish_ns
    late = 0 if problem.deadline_ns is None else max(0, end_ns - problem.deadline_ns)
    power_uw = sum(p.idle_uw for p in problem.processors) * end_ns
    energy_pj = 0
    for k, operator in enumerate(problem.operators):
        time_ns, own_pj = operator.cost_on(placement[k]) or (0, 0)
        energy_pj += own_pj
        power_uw -= problem.processors[placement[k]].idle_uw * time_ns
    for own, time_ns in enumerate(schedule.hand_over_ns):
        power_uw += (problem.processors[own].active_uw - problem.processors[own].idle_uw) * time_ns
    return late, problem.objective.cost(energy_pj + power_uw // 1000, end_ns)


def one_after_another(actions: Sequence[Action], placement: Placement) -> tuple[Action, ...]:
    """The actions with their processors, and a fence where another processor goes on."""
    result: list[Action] = []
    before = 0
    for action in actions:
        if isinstance(action, Compute):
            own = placement[action.operator]
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
    proof = Proof(
        status=Status.FEASIBLE,
        objective=cost,
        bound=min(cost, relaxed(problem).least),
        scope=Scope(),
        method="every operator once; bound: work and hand-overs divided among processors, critical path",
    )
    return Schedule(solver=info.name, actions=actions, proof=proof)


@dataclass(slots=True)
class _Stay:
    """A residency: an action makes it, others read it, and one may take its bytes over."""

    tensor: int
    size_bytes: int
    readers_left: int = 0  # users that are not in the list yet
    lasts: bool = False  # to the end
    is_overwritten: bool = False  # another one takes its bytes over
    written_ns: int = 0
    used_ns: int = 0
    processor: int = -1  # that computed it
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
    taken: list[int] = field(default_factory=list)  # stays that it reads and overwrites
    new_bytes: int = 0
    workspace_bytes: int = 0


class _List:
    def __init__(
        self,
        problem: Problem,
        actions: Sequence[Action],
        placement: Placement,
        reach: int,
        ahead: int,
        by_rank: bool,
        in_turn: Sequence[range] = (),
    ) -> None:
        """`ahead`: how far a page-in may overtake; `in_turn`: actions that nothing overtakes."""
        self.problem, self.placement, self.by_rank = problem, placement, by_rank
        self.reach, self.ahead = reach, ahead
        self.in_turn, self.next = in_turn, 0  # the first action that is not in the list yet
        self.stays: list[_Stay] = []
        self.items: list[_Item] = []
        self._read(actions)
        pages = any(not isinstance(i.decision, Compute) for i in self.items)
        self.room = problem.budget_bytes - problem.base_bytes - (problem.page_buffer_bytes if pages else 0)
        count = len(problem.processors)
        self.end_ns, self.before_last, self.workspace = [0] * count, [0] * count, [0] * count
        self.hand_over_ns, self.actions = [0] * count, [0] * count
        self.bus, self.barrier = 0, 0
        self.live = sum(s.size_bytes for s in self.stays if s.written_ns < 0)
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
        makers: list[int] = []
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
                item.processor, item.workspace_bytes = self.placement[decision.operator], operator.workspace_bytes
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
                for i, o in decision.in_place:
                    stay = current[i]
                    edges |= {(user, k) for user in users[stay] if user >= 0}
                    self.stays[stay].is_overwritten = True
                    item.taken.append(stay)
                    overwritten[o] = self.stays[stay].size_bytes
            for stay in item.reads:
                users[stay].append(k)
            outputs = self.problem.operators[decision.operator].outputs if isinstance(decision, Compute) else ()
            for t in (decision.tensor,) if isinstance(decision, PageIn) else outputs:
                size = overwritten.get(t, self.problem.tensors[t].size_bytes)
                item.new_bytes += 0 if t in overwritten else size
                item.makes.append(begin(t, k, size))
                makers.append(k)
        for t, stay in current.items():
            self.stays[stay].lasts = self.problem.tensors[t].final == "ram" and not self.stays[stay].is_overwritten
        for a, b in edges:
            if a >= 0 and a != b:
                self.items[a].after.append(b)
                self.items[b].waits += 1
        for item in reversed(self.items):
            item.rank_ns = item.duration_ns + max((self.items[b].rank_ns for b in item.after), default=0)

    def run(self) -> tuple[Action, ...] | None:
        """The list; None where RAM does not suffice for this order."""
        left = dict.fromkeys(range(len(self.items)))
        self.dead = [s for s, stay in enumerate(self.stays) if stay.written_ns < 0 and self._is_dead(stay)]
        for stay in self.stays:
            stay.written_ns = max(0, stay.written_ns)
        while left:
            ready: list[int] = []
            self.next = next(iter(left))
            is_in_turn = any(self.next in decisions for decisions in self.in_turn)
            reach, ahead = (1, 1) if is_in_turn else (self.reach, self.ahead)
            for k in left:
                if len(ready) >= 64 or k >= self.next + max(reach, ahead):
                    break
                item = self.items[k]
                if not item.waits and k < self.next + (ahead if isinstance(item.decision, PageIn) else reach):
                    ready.append(k)
            if not self._issue_best(ready) and not self._issue_alone(ready):
                return None
            for k in [k for k in ready if self.items[k].waits < 0]:
                del left[k]
        for s in self._oldest_first():
            self._free(s)
        return tuple(self.result)

    @property
    def finish_ns(self) -> int:
        """When all actions in the list so far are over."""
        return max(*self.end_ns, self.bus)

    def _oldest_first(self) -> list[int]:
        """The stays that nobody needs any more."""
        return sorted(self.dead, key=lambda s: (self.stays[s].used_ns, s))

    def _issue_best(self, ready: list[int]) -> bool:
        """Put the item that can begin first into the list, with the frees that it needs room from."""
        best: tuple[tuple[int, int], int, list[int]] | None = None
        dead = self._oldest_first()
        for k in ready:
            last = -self.items[k].rank_ns if self.by_rank else k
            earliest = self._earliest(self.items[k])
            if best is not None and (earliest, last) >= best[0]:
                continue
            start = self._begin(k, dead, earliest)
            if start is not None and (best is None or (start[0], last) < best[0]):
                best = (start[0], last), k, start[1]
        if best is None:
            return False
        for s in best[2]:
            self._free(s)
        self._issue(best[1], fence=False)
        return True

    def _issue_alone(self, ready: list[int]) -> bool:
        """The first item with all frees before it, and behind all that is in flight."""
        for s in self._oldest_first():
            self._free(s)
        k = ready[0]
        if not isinstance(self.items[k].decision, Compute):
            if self._begin(k, self._oldest_first(), self._earliest(self.items[k])) is None:
                return False
            self._issue(k, fence=False)
            return True
        if self.live + self.items[k].new_bytes + self.items[k].workspace_bytes > self.room:
            return False
        self._issue(k, fence=True)
        return True

    def _earliest(self, item: _Item) -> int:
        """When it would begin if RAM were not short."""
        stays, own = self.stays, item.processor
        begin = max(self.end_ns[own], self.barrier)
        for s in item.reads:
            begin = max(begin, stays[s].written_ns)
        if isinstance(item.decision, Compute):
            for s in item.taken:
                begin = max(begin, stays[s].used_ns)
            for q, ns in enumerate(self.before_last):
                if q != own:
                    begin = max(begin, ns)
        return begin

    def _begin(self, k: int, dead: Sequence[int], begin: int) -> tuple[int, list[int]] | None:
        """When an item would begin, no sooner than `begin`, and the frees right before it, in the order of `dead`.

        None if it does not fit.
        """
        item = self.items[k]
        own = item.processor
        needed = self.live + item.new_bytes + item.workspace_bytes
        workspaces = [0 if q == own else w for q, w in enumerate(self.workspace)]
        needed += sum(workspaces)
        frees = []
        outputs = {self.stays[m].tensor for m in item.makes} if dead else set()
        for s in dead:
            stay = self.stays[s]
            if stay.used_ns <= begin or needed > self.room or stay.tensor in outputs:
                frees.append(s)
                needed -= stay.size_bytes
                begin = max(begin, stay.used_ns)
                over = self._is_last_action_over(stay)
                if over is not None:
                    needed, workspaces[over] = needed - workspaces[over], 0
        return (begin, frees) if needed <= self.room else None

    def _issue(self, k: int, *, fence: bool) -> None:
        item = self.items[k]
        decision, own = item.decision, item.processor
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
            self.result.append(replace(decision, processor=own, fence=fence))
        else:
            begin = self._earliest(item)
            if self.problem.paging is Paging.DMA:
                self.bus = end = max(begin, self.bus) + item.duration_ns
            else:
                end = begin + item.duration_ns
                self.before_last[0], self.end_ns[0] = self.end_ns[0], end
            self.result.append(decision)
        self.live += item.new_bytes
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
                stay.processor, stay.last_use = own, (own, self.actions[own])
            if self._is_dead(stay):
                self.dead.append(s)
        item.waits = -1  # done
        for b in item.after:
            self.items[b].waits -= 1

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
            maker = self.stays[s].processor
            if maker not in (-1, own):
                pair = processors[own], processors[maker]
                time_ns = max(time_ns, *(p.hand_over_ns for p in pair))
                flushed_ps += self.problem.tensors[self.stays[s].tensor].size_bytes * max(
                    p.flush_ps_per_byte for p in pair
                )
        return time_ns + flushed_ps // 1000
