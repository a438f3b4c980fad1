"""Packing with moves: where no offsets for whole lifetimes fit, tensors are moved aside while a step runs.

Live bytes that fit can always be packed this way. Exceptions are workspace, and state that has not left its fixed place
since the step began: these may not move. State that was away may come back anywhere, and moves to its place at the end.
A placement of as much as fits within the capacity says where tensors should go (`hints`). Then time runs: a tensor that
begins goes to its hint, or to a hole that as few later hints as possible want. Where there is no hole, the cheapest
moves make one. The tensors in a window move to other holes, or those between some holes slide together. A tensor that
needed moves is placed earlier the next time; the cheapest of several rounds is taken. Work is counted in placed
rectangles.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import numpy.typing as npt

from poetc.scheduling._packing import FixedPlace, Lifetime, fixed_places_of, lifetimes_of, memory_plan_of
from poetc.scheduling._placement import greedy_orders, hints_within
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import Action, Free, MemoryPlan, Move, PageIn, PageOut, Schedule, Status

Ints = npt.NDArray[np.int64]

PLACEMENTS, MOST_ROUNDS = 60_000, 40
LATE_S = 1.0  # beyond the time limit, at most, for a first round that finds something
LATE_LIFETIME_S = 1e-3  # the same for many lifetimes, for each of them
READ_EVERY = 64  # actions of a round, after which it reads the clock
PROMOTED = 8  # at most, from one round to the next
FULL = 0.95
NOWHERE = -1


def pack_with_moves(
    problem: Problem, schedule: Schedule, capacity_bytes: int, *, stop_at: float = math.inf
) -> tuple[Schedule, MemoryPlan] | None:
    """`schedule` with moves, and a plan whose arena ends at or below `capacity_bytes`; None if none was found.

    `schedule` has no moves. Its proof keeps its bound, which holds for schedules with moves all the more. The search
    ends when `time.monotonic()` is `stop_at`. If nothing was found by then, it ends LATE_S later, a round midway too; a
    large schedule has longer. Deterministic but for that.
    """
    pages = any(isinstance(s, PageIn | PageOut) for s in schedule.actions)
    buffer_bytes = problem.page_buffer_bytes if pages else 0
    packing = _Packing(problem, schedule, (capacity_bytes - buffer_bytes) // problem.alignment_bytes)
    if not packing.possible():
        return None
    best: _Round | None = None
    placed = 0
    orders = packing.orders()
    late_s = max(LATE_S, LATE_LIFETIME_S * len(packing.lifetimes))
    for attempt in range(MOST_ROUNDS):
        give_up_at = stop_at if best is not None else stop_at + late_s
        if time.monotonic() >= give_up_at or (best is not None and (best.cost == 0 or placed >= PLACEMENTS)):
            break
        if attempt < len(orders):
            order = orders[attempt]
        elif best is not None:
            order = packing.promoted(best.order, best.blamed, Random(attempt))
        else:
            break
        packed = packing.round(order, best.cost if best is not None else math.inf, give_up_at)
        placed += 2 * len(packing.lifetimes)
        if packed is not None and (best is None or packed.cost < best.cost):
            best = packed
    if best is None:
        return None
    moved = with_actions(problem, schedule, tuple(best.actions))
    lifetimes = lifetimes_of(problem, moved)
    for lifetime in lifetimes:
        empty = lifetime.size_bytes == 0  # whenever it begins: moves before it shift its action
        lifetime.offset_bytes = 0 if empty else best.offsets[_key(lifetime)] * problem.alignment_bytes
    return moved, memory_plan_of(problem, moved, lifetimes, fixed_places_of(problem, lifetimes, len(moved.actions)))


def with_actions(problem: Problem, schedule: Schedule, actions: tuple[Action, ...]) -> Schedule:
    """`schedule` with moves added to its actions, or taken away; its proof includes their cost."""
    cost = _move_cost(problem, actions) - _move_cost(problem, schedule.actions)
    proof = replace(schedule.proof, objective=schedule.proof.objective + cost)
    if proof.status is Status.OPTIMAL and proof.objective > proof.bound:
        proof = replace(proof, status=Status.FEASIBLE)
    return replace(schedule, actions=actions, proof=proof)


def without_moves(problem: Problem, schedule: Schedule) -> Schedule:
    """The schedule as a solver made it."""
    return with_actions(problem, schedule, tuple(s for s in schedule.actions if not isinstance(s, Move)))


def _move_cost(problem: Problem, actions: Iterable[Action]) -> int:
    tensors = problem.tensors
    costs = (
        problem.objective.cost(tensors[s.tensor].move_pj, tensors[s.tensor].move_ns or 0)
        for s in actions
        if isinstance(s, Move)
    )
    return sum(costs)


_Key = tuple[int, int, int]


def _key(lifetime: Lifetime) -> _Key:
    """The key of one stay at one place: tensor or else operator, and the action in which it begins."""
    tensor = lifetime.tensors[0][0] if lifetime.tensors else -1
    return tensor, -1 if lifetime.operator is None else lifetime.operator, lifetime.start


@dataclass(slots=True)
class _Round:
    order: list[int]
    actions: list[Action]
    offsets: dict[_Key, int]
    cost: float
    blamed: list[int]


@dataclass(slots=True)
class _Arena:
    """The lifetimes `who` in RAM, sorted by offset, with their disjoint [low, top)."""

    capacity: int
    lows: list[int] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)
    who: list[int] = field(default_factory=list)

    def is_free(self, low: int, top: int) -> bool:
        at = bisect.bisect_right(self.lows, low)
        return (
            low >= 0
            and top <= self.capacity
            and (at == 0 or self.tops[at - 1] <= low)
            and (at == len(self.lows) or self.lows[at] >= top)
        )

    def add(self, i: int, low: int, top: int) -> None:
        at = bisect.bisect_left(self.lows, low)
        self.lows.insert(at, low)
        self.tops.insert(at, top)
        self.who.insert(at, i)

    def remove(self, i: int, low: int) -> None:
        at = bisect.bisect_left(self.lows, low)
        while self.who[at] != i:
            at += 1
        del self.lows[at], self.tops[at], self.who[at]

    def holes(self) -> list[tuple[int, int]]:
        """[low, top) of every gap between neighbours, the empty ones too: one more than there are lifetimes."""
        return list(zip([0, *self.tops], [*self.lows, self.capacity], strict=True))

    def inside(self, low: int, top: int) -> range:
        """Positions of the lifetimes that meet [low, top)."""
        first = bisect.bisect_right(self.tops, low)
        return range(first, max(first, bisect.bisect_left(self.lows, top)))


class _Packing:
    """A schedule to be packed into `capacity`, in units of alignment."""

    def __init__(self, problem: Problem, schedule: Schedule, capacity: int) -> None:
        self.problem, self.actions, self.capacity = problem, schedule.actions, capacity
        unit = problem.alignment_bytes
        every = lifetimes_of(problem, schedule)
        places = fixed_places_of(problem, every, len(schedule.actions))
        self.absent: list[FixedPlace] = [place for place in places if place[0] is not place[1]]
        lasting = [first for first, last in places if first is last]
        self.lasting: dict[_Key, int] = {}
        self.bottom = 0
        for lifetime in lasting:
            self.lasting[_key(lifetime)] = self.bottom
            self.bottom += -(-lifetime.size_bytes // unit)
        stays = {id(a) for a in lasting}
        self.lifetimes = [a for a in every if id(a) not in stays and a.size_bytes > 0]
        self.empty = [_key(a) for a in every if a.size_bytes == 0]
        index = {id(a): i for i, a in enumerate(self.lifetimes)}
        self.pairs = [(index[id(a)], index[id(b)]) for a, b in self.absent if id(a) in index]
        self.not_yet_away = {a for a, _ in self.pairs}
        self.returns = {b for _, b in self.pairs}
        self.stuck = self.not_yet_away | {b for b in self.returns if self._lacks_leave(b)}
        self.starts = np.array([a.start for a in self.lifetimes], np.int64)
        self.ends = np.array([a.end for a in self.lifetimes], np.int64)
        self.sizes = np.array([-(-a.size_bytes // unit) for a in self.lifetimes], np.int64)
        self.size = [int(s) for s in self.sizes]
        self.first = [int(f) for f in np.searchsorted(self.starts, np.arange(len(schedule.actions) + 2))]
        self.begins: list[list[int]] = [[] for _ in schedule.actions]
        self.finish: list[list[int]] = [[] for _ in range(len(schedule.actions) + 1)]
        for i, a in enumerate(self.lifetimes):
            self.begins[a.start].append(i)
            self.finish[a.end].append(i)
        self.blamed: list[int] = []  # lifetimes for which the last round made moves

    def _lacks_leave(self, i: int) -> bool:
        return any(self.problem.tensors[t].move_ns is None for t, _ in self.lifetimes[i].tensors)

    def possible(self) -> bool:
        """Whether the live bytes fit at all."""
        return self.bottom + int(self.live().max(initial=0)) <= self.capacity

    def live(self) -> Ints:
        """Live bytes at every action, without those that stay."""
        change = np.zeros(len(self.actions) + 1, np.int64)
        np.add.at(change, self.starts, self.sizes)
        np.subtract.at(change, self.ends, self.sizes)
        return np.cumsum(change)

    def tight(self) -> Ints:
        """In how many of its actions each of the lifetimes finds RAM nearly full."""
        full = np.concatenate(([0], np.cumsum(self.bottom + self.live() > FULL * self.capacity)))
        return np.asarray(full[self.ends] - full[self.starts], np.int64)

    def orders(self) -> list[list[int]]:
        second = {a for _, a in self.pairs}  # placed with the first stay, at the same offset
        free = np.array([i for i in range(len(self.lifetimes)) if i not in second], np.int64)
        lifetimes = self.ends - self.starts
        orders = greedy_orders(self.starts, lifetimes, self.sizes, free)
        tight = self.tight()  # where RAM is full hints are worth the most
        for key in ((-lifetimes, -tight), (-self.sizes, -lifetimes, -tight * self.sizes)):
            orders.insert(0, [int(i) for i in free[np.lexsort([k[free] for k in key])]])
        # Fixed places lie at the bottom. The tensor that leaves last lies lowest, so that the others leave the rest in
        # one piece. In a second order it is the one that is away for the shortest time.
        leaving = sorted((a for a, _ in self.pairs), key=lambda a: (-int(self.ends[a]), a))
        below = [{a: at for at, a in enumerate(order)} for order in (leaving, [a for a, _ in self.pairs])]
        if below[0] == below[1]:
            del below[1]
        return [sorted(order, key=lambda i: first.get(i, len(first))) for order in orders for first in below]

    def promoted(self, order: Sequence[int], blamed: Sequence[int], random: Random) -> list[int]:
        """Place those sooner for which moves were made."""
        rest, movable = list(order), [i for i in blamed if i not in self.not_yet_away and i not in self.returns]
        for i in random.sample(movable, min(PROMOTED, len(movable))):
            at = rest.index(i)
            rest.insert(max(len(self.pairs), int(at * random.random())), rest.pop(at))
        return rest

    # --- one round ----------------------------------------------------------------------------------------------------

    def round(self, order: list[int], most: float, stop_at: float) -> _Round | None:
        """Along `order`; None where no moves make room, where they cost `most` or more, or where the time is up."""
        self.hints = hints_within(self.starts, self.ends, self.sizes, order, self.pairs, self.bottom, self.capacity)
        self.blamed = []
        if any(self.hints[i] == NOWHERE for i, _ in self.pairs):
            return None
        self.hint_tops = np.where(self.hints >= 0, self.hints + self.sizes, NOWHERE)
        self.arena = _Arena(self.capacity, [0], [self.bottom], [-1]) if self.bottom else _Arena(self.capacity)
        self.at: dict[int, int] = {}
        self.new: set[int] = set()
        self.emitted: list[Action] = []
        self.places: dict[_Key, int] = dict(self.lasting) | dict.fromkeys(self.empty, 0)
        self.cost = 0.0
        for now, action in enumerate(self.actions):
            if now % READ_EVERY == 0 and time.monotonic() >= stop_at:
                return None
            for i in self.finish[now]:
                self.arena.remove(i, self.at.pop(i))
            begins = self.begins[now]
            if begins:
                self.now = now
                self.new = set()
                begins = sorted(
                    begins,
                    key=lambda i: (
                        i not in self.not_yet_away,
                        i not in self.returns,
                        self.hints[i] == NOWHERE,
                        -self.size[i],
                        i,
                    ),
                )
                for i in begins:
                    if not self.put(i) or self.cost >= most:
                        return None
                    self.new.add(i)
                for i in begins:
                    a = self.lifetimes[i]
                    tensor = a.tensors[0][0] if a.tensors else -1
                    self.places[tensor, -1 if a.operator is None else a.operator, len(self.emitted)] = self.at[i]
            self.emitted.append(action)
        if not self.return_state() or self.cost >= most:
            return None
        return _Round(order, self.emitted, self.places, self.cost, self.blamed)

    def put(self, i: int) -> bool:
        size, hint = self.size[i], int(self.hints[i])
        if hint != NOWHERE and self.arena.is_free(hint, hint + size):
            self.enter(i, hint)
            return True
        if i in self.stuck:
            return self.clear(i, [hint])
        low = self.best_hole(i, self.arena.holes())
        if low is not None:
            self.enter(i, low)
            return True
        return self.clear(i, None)

    def enter(self, i: int, low: int) -> None:
        self.at[i] = low
        self.arena.add(i, low, low + self.size[i])

    def best_hole(self, i: int, holes: Iterable[tuple[int, int]]) -> int | None:
        """Where `i` fits that is wanted the least later on; of these the tightest, the lowest."""
        size = self.size[i]
        candidates = [(low, top) for low, top in holes if top - low >= size]
        if not candidates:
            return None
        lows = {low: top - low for low, top in candidates} | {top - size: top - low for low, top in candidates}
        return min(lows, key=lambda low: (self.conflict_bytes(i, low), lows[low], low))

    def conflict_bytes(self, i: int, low: int) -> int:
        """How much of later hints `i` would stand in the way of."""
        later = slice(self.first[self.now + 1], self.first[self.lifetimes[i].end])
        size = self.size[i]
        met = (self.hints[later] < low + size) & (self.hint_tops[later] > max(low, 0))
        return int(np.minimum(self.sizes[later], size)[met].sum())

    # --- moves --------------------------------------------------------------------------------------------------------

    def tensor(self, i: int) -> int:
        """Which of the tensors that share its bytes it holds before the action."""
        return next(t for t, action in reversed(self.lifetimes[i].tensors) if action < self.now or action == 0)

    def price(self, i: int) -> float:
        """The price of moving it; a lifetime that begins with this action can still go anywhere."""
        if i < 0 or i in self.stuck:
            return math.inf
        if i in self.new:
            return 0.0
        if not self.lifetimes[i].tensors or not self.emitted:
            return math.inf
        tensor = self.problem.tensors[self.tensor(i)]
        if tensor.move_ns is None:
            return math.inf
        cost = 1 + self.problem.objective.cost(tensor.move_pj, tensor.move_ns)
        # State in its fixed place has to come back again.
        return 2 * cost if i in self.returns and self.at[i] == self.hints[i] else cost

    def clear(self, i: int, lows: list[int] | None) -> bool:
        """Make room for `i`, at one of `lows` if they are given, in the cheapest way that is found."""
        arena, size = self.arena, self.size[i]
        prices = [self.price(j) for j in arena.who]
        sums = [0.0, *itertools.accumulate(p if p < math.inf else 0.0 for p in prices)]
        barriers = [0, *itertools.accumulate(p == math.inf for p in prices)]

        def price(blocks: range) -> float:
            if barriers[blocks.stop] > barriers[blocks.start]:
                return math.inf
            return sums[blocks.stop] - sums[blocks.start]

        slides = [] if lows is not None else self.slides(size, price)
        most = slides[0][0] if slides else math.inf
        if lows is None:
            ends = {*arena.tops, 0, *(low - size for low in arena.lows), self.capacity - size}
            hint = int(self.hints[i])
            lows = sorted(low for low in ends | {hint} if 0 <= low <= self.capacity - size)
        windows = sorted((price(arena.inside(low, low + size)), low) for low in lows)
        for cost, low in windows:
            if cost >= math.inf or cost > most:
                break
            moves = self.evictions(arena.inside(low, low + size), low, low + size)
            if moves is not None:
                self.execute(moves)
                self.enter(i, low)
                self.blame(i, cost)
                return True
        if not slides:
            return False
        choices = [slide for slide in slides if slide[0] == most]
        _, low, moves = min(choices, key=lambda c: (self.conflict_bytes(i, c[1]), c[1]))
        self.execute(moves)
        self.enter(i, low)
        self.blame(i, most)
        return True

    def blame(self, i: int, cost: float) -> None:
        if cost > 0:
            self.blamed.append(i)

    def slides(self, size: int, price: Callable[[range], float]) -> list[tuple[float, int, list[tuple[int, int]]]]:
        """(price, offset of the room that is made, moves in order): all between two holes slides down, or up."""
        arena = self.arena
        holes = arena.holes()
        widths = [0, *itertools.accumulate(top - low for low, top in holes)]
        moves: list[tuple[float, int, list[tuple[int, int]]]] = []
        cheapest = math.inf
        last = 0
        for first in range(len(holes)):
            last = max(last, first)
            while last < len(holes) and widths[last + 1] - widths[first] < size:
                last += 1
            if last == len(holes):
                break
            blocks = range(first, last)
            cost = price(blocks)
            if cost < math.inf and cost <= cheapest:
                cheapest = cost
                low = holes[first][0]
                down = []
                for b in blocks:
                    down.append((arena.who[b], low))
                    low += arena.tops[b] - arena.lows[b]
                top = holes[last][1]
                up = []
                for b in reversed(blocks):
                    top -= arena.tops[b] - arena.lows[b]
                    up.append((arena.who[b], top))
                moves += [(cost, holes[last][1] - size, down), (cost, holes[first][0], up)]
        return sorted((f for f in moves if f[0] == cheapest), key=lambda f: f[1])

    def evictions(self, blocks: range, low: int, top: int) -> list[tuple[int, int]] | None:
        """Moves, in order, out of the window [low, top) into holes outside; None if not all find one."""
        arena = self.arena
        leaving = [arena.who[b] for b in blocks]
        rest = _Arena(self.capacity, list(arena.lows), list(arena.tops), list(arena.who))
        for b in reversed(blocks):
            del rest.lows[b], rest.tops[b], rest.who[b]
        rest.add(-2, low, top)
        holes = {start: high for start, high in rest.holes() if high > start}
        widths = [high - start for start, high in holes.items()]
        sizes = [self.size[i] for i in leaving]
        if max(sizes, default=0) > max(widths, default=0) or sum(sizes) > sum(widths):
            return None
        target: dict[int, int] = {}
        for i in sorted(leaving, key=lambda i: (-self.size[i], i)):
            hole = self.best_hole(i, holes.items())
            if hole is None:
                return None
            target[i] = hole
            # It lies at the bottom of its hole, or else at the top.
            start = hole if hole in holes else next(s for s, high in holes.items() if s < hole < high)
            high = holes.pop(start)
            for below, above in ((start, hole), (hole + self.size[i], high)):
                if above > below:
                    holes[below] = above
        # Targets are outside the window. So only lifetimes that stick out of it can be in the way of another one.
        edges = [j for j in leaving if j not in self.new and not low <= self.at[j] <= top - self.size[j]]
        moves: list[tuple[int, int]] = []
        while leaving:
            ready = next((i for i in leaving if not self._meets(i, target[i], edges)), None)
            if ready is None:
                return None
            moves.append((ready, target[ready]))
            leaving.remove(ready)
            if ready in edges:
                edges.remove(ready)
        return moves

    def _meets(self, i: int, low: int, others: Sequence[int]) -> bool:
        """Whether `i` at `low` would meet others where they are now."""
        top = low + self.size[i]
        return any(j != i and low < self.at[j] + self.size[j] and self.at[j] < top for j in others)

    def return_state(self) -> bool:
        """Move state that came back elsewhere to its place, at the end. False where something stays in its way."""
        self.now, self.new = len(self.actions), set()
        last = self.actions[-1] if self.actions else None
        for i in self.finish[self.now]:  # of those that end with the last action, state stays for ever
            tensors = self.lifetimes[i].tensors
            if not tensors or last == Free(tensors[-1][0]):
                self.arena.remove(i, self.at.pop(i))
        away = [i for i in sorted(self.returns) if self.at[i] != self.hints[i]]
        while away:
            i = next((i for i in away if not self.in_the_way(i)), away[0])
            away.remove(i)
            low = int(self.hints[i])
            top = low + self.size[i]
            for j in self.in_the_way(i):
                holes: list[tuple[int, int]] = []
                for start, end in self.arena.holes():
                    holes += [(start, min(end, low)), (max(start, top), end)]
                hole = self.best_hole(j, holes)
                if hole is None or self.price(j) == math.inf:
                    return False
                self.execute([(j, hole)])
            self.execute([(i, low)])
        return True

    def in_the_way(self, i: int) -> list[int]:
        """The offset of the fixed place of `i`."""
        low = int(self.hints[i])
        return [j for j in (self.arena.who[b] for b in self.arena.inside(low, low + self.size[i])) if j != i]

    def execute(self, moves: list[tuple[int, int]]) -> None:
        for i, _ in moves:
            self.arena.remove(i, self.at[i])
        for i, low in moves:
            if low != self.at[i] and i not in self.new:
                tensor = self.tensor(i)
                self.cost += self.price(i)
                self.places[tensor, -1, len(self.emitted)] = low
                self.emitted.append(Move(tensor))
            self.enter(i, low)
