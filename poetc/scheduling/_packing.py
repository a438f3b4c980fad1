"""From a schedule to a MemoryPlan: the tenants of the arena, when each lives there, and its offset.

At the bottom lies state that never leaves RAM. Then `place` puts everything else, with state that is paged out for a
while as low as it can be. The page buffer is at the top, if the schedule pages: nothing that is there all the time lies
better elsewhere. State begins and ends a step in its fixed place, a version made in place at its predecessor's. In
between it may come back anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from poetc.scheduling._banks import arrival_banks
from poetc.scheduling._placement import SEARCH_PLACEMENTS, fit, max_live, place
from poetc.scheduling._queues import workspace_ends
from poetc.scheduling._state import state_chains
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import Allocation, BankUse, Compute, Free, MemoryPlan, Move, PageIn, PageOut, Schedule

# Placements to find places in one piece; then, as often as it says, for places with less and less room between.
ONE_PIECE_PLACEMENTS, STATE_BISECTIONS, STATE_PLACEMENTS = 40_000, 6, 12_000
CLOSE = 1.01  # an arena within this factor of max-live is as good as the best, where it is enough


@dataclass(slots=True)
class Lifetime:
    size_bytes: int
    start: int
    end: int
    tensors: list[tuple[int, int]] = field(default_factory=list)
    operator: int | None = None
    offset_bytes: int | None = None


FixedPlace = tuple[Lifetime, Lifetime]
Ints = npt.NDArray[np.int64]


def pack(
    problem: Problem,
    schedule: Schedule,
    *,
    enough_bytes: int = 0,
    stop_at: float = math.inf,
    effort: float = 1.0,
) -> MemoryPlan:
    """Offsets for a schedule that `verify` accepts (but for its budget). Deterministic.

    `max_live_bytes` is the peak that `verify` finds without base_bytes; `arena_bytes` equals it or lies close above.
    The search ends at an arena of `enough_bytes`, if that is at most CLOSE x max-live, and at the latest when
    `time.monotonic()` is `stop_at`. `effort`: the share of the most placements that a search takes. Where the problem
    names banks, each of them is packed apart: as low as is needed for its budget.
    """
    action_count = len(schedule.actions)
    lifetimes = lifetimes_of(problem, schedule)
    if problem.banks:
        return _pack_banks(problem, schedule, lifetimes, stop_at, effort)
    places = fixed_places_of(problem, lifetimes, action_count)
    buffer_bytes = problem.page_buffer_bytes if any(isinstance(s, PageIn | PageOut) for s in schedule.actions) else 0
    enough = min(enough_bytes - buffer_bytes, int(CLOSE * _max_live(lifetimes)))
    _place(problem, lifetimes, places, action_count, enough, stop_at, effort)
    return memory_plan_of(problem, schedule, lifetimes, places)


def _pack_banks(
    problem: Problem, schedule: Schedule, lifetimes: list[Lifetime], stop_at: float, effort: float
) -> MemoryPlan:
    action_count, arrivals = len(schedule.actions), arrival_banks(problem, schedule)
    pages = any(isinstance(s, PageIn | PageOut) for s in schedule.actions)

    def bank_of(a: Lifetime) -> int:
        return schedule.workspace_banks[a.operator] if a.operator is not None else arrivals[a.tensors[0]]

    places = fixed_places_of(problem, lifetimes, action_count)
    uses: list[BankUse] = []
    packed: list[Lifetime] = []
    for b, bank in enumerate(problem.banks):
        own = [a for a in lifetimes if bank_of(a) == b]
        fixed = [p for p in places if bank_of(p[0]) == b]
        buffer_bytes = problem.page_buffer_bytes if pages and b == 0 else 0
        enough = bank.budget_bytes - buffer_bytes - (problem.base_bytes if b == 0 else 0)
        if own:
            _place(problem, own, fixed, action_count, min(enough, int(CLOSE * _max_live(own))), stop_at, effort)
        if buffer_bytes:
            own.append(Lifetime(buffer_bytes, 0, action_count, offset_bytes=_aligned(problem, _top(own))))
        uses.append(BankUse(arena_bytes=_top(own), state_bytes=_state_bytes(problem, fixed)))
        packed += own
    return MemoryPlan(
        allocations=_sorted(packed),
        arena_bytes=sum(u.arena_bytes for u in uses),
        max_live_bytes=_max_live(packed),
        state_bytes=sum(u.state_bytes for u in uses),
        banks=tuple(uses),
    )


def memory_plan_of(
    problem: Problem, schedule: Schedule, lifetimes: list[Lifetime], places: list[FixedPlace]
) -> MemoryPlan:
    """The plan of lifetimes that all have their offsets, with the page buffer on top."""
    if problem.page_buffer_bytes and any(isinstance(s, PageIn | PageOut) for s in schedule.actions):
        top = _aligned(problem, _top(lifetimes))
        buffer = Lifetime(problem.page_buffer_bytes, 0, len(schedule.actions), offset_bytes=top)
        lifetimes = [*lifetimes, buffer]
    return MemoryPlan(
        allocations=_sorted(lifetimes),
        arena_bytes=_top(lifetimes),
        max_live_bytes=_max_live(lifetimes),
        state_bytes=_state_bytes(problem, places),
    )


def pack_around(
    problem: Problem,
    schedule: Schedule,
    state: Mapping[int, int],
    taken: Sequence[tuple[int, int]],
    *,
    inputs: Mapping[int, int] | None = None,
    buffer_offset: int | None = None,
    wishes: Mapping[int, int] | None = None,
    enough_bytes: int = 0,
    stop_at: float = math.inf,
) -> MemoryPlan:
    """`pack` for an arena that another program lays out.

    `state` says at which offset each state is when a run begins and ends, by its first version. `taken` lists
    (offset, size) of all else that is there all the time. `inputs` says where other tensors are when a run begins,
    `buffer_offset` where the page buffer is, which stays free if `schedule` does not page. Both lie where they pack
    best unless they are given. `wishes`: offsets of tensors, granted where no tensor with a place is in the way; those
    of long lives and of many bytes come first.
    """
    action_count, unit = len(schedule.actions), problem.alignment_bytes
    lifetimes = lifetimes_of(problem, schedule)
    items: list[tuple[Lifetime, Lifetime | None]] = []
    for offset, size in taken:
        items.append((Lifetime(size, 0, action_count, offset_bytes=offset), None))
    in_fixed_places = set()
    for first, last in fixed_places_of(problem, lifetimes, action_count):
        first.offset_bytes = last.offset_bytes = state[first.tensors[0][0]]
        items.append((first, None if first is last else last))
        in_fixed_places |= {id(first), id(last)}
    persistent = len(items)
    pages = any(isinstance(s, PageIn | PageOut) for s in schedule.actions)
    buffer_bytes = problem.page_buffer_bytes if pages else 0
    if buffer_offset is not None:
        buffer = Lifetime(problem.page_buffer_bytes, 0, action_count, offset_bytes=buffer_offset)
        items.append((buffer, None))
        in_fixed_places.add(id(buffer))
        if pages:
            lifetimes.append(buffer)
        buffer_bytes = 0
    for a in lifetimes:
        if inputs and id(a) not in in_fixed_places and a.start == 0 and a.tensors and a.tensors[0][0] in inputs:
            a.offset_bytes = inputs[a.tensors[0][0]]
    items += [(a, None) for a in lifetimes if id(a) not in in_fixed_places]
    if wishes:
        _grant(wishes, items)
    starts = np.array([a.start for a, _ in items], np.int64)
    ends = np.array([a.end for a, _ in items], np.int64)
    sizes = np.array([-(-a.size_bytes // unit) for a, _ in items], np.int64)
    fixed = np.array([-1 if a.offset_bytes is None else a.offset_bytes // unit for a, _ in items], np.int64)
    again = (
        np.array([0 if b is None else b.start for _, b in items], np.int64),
        np.array([0 if b is None else b.end for _, b in items], np.int64),
    )
    enough = max(0, enough_bytes - buffer_bytes) // unit
    offsets = place(starts, ends, sizes, fixed, SEARCH_PLACEMENTS, enough=enough, again=again, stop_at=stop_at)
    for (first, _), offset in zip(items, offsets, strict=True):
        if first.offset_bytes is None:
            first.offset_bytes = int(offset) * unit
    state_bytes = max(
        (_aligned(problem, (a.offset_bytes or 0) + a.size_bytes) for a, _ in items[:persistent]),
        default=0,
    )
    if buffer_bytes:
        top = _aligned(problem, max(_top(lifetimes), state_bytes))
        lifetimes.append(Lifetime(buffer_bytes, 0, action_count, offset_bytes=top))
    return MemoryPlan(
        allocations=_sorted(lifetimes),
        arena_bytes=max(_top(lifetimes), state_bytes),
        max_live_bytes=_max_live(lifetimes) + sum(size for _, size in taken),
        state_bytes=state_bytes,
    )


def _grant(wishes: Mapping[int, int], items: Sequence[tuple[Lifetime, Lifetime | None]]) -> None:
    lives = [a for pair in items for a in pair if a is not None]
    placed = [(a, a.offset_bytes) for a in lives if a.offset_bytes is not None]
    free = [a for a, _ in items if a.offset_bytes is None and a.size_bytes and a.tensors]
    for a in sorted(free, key=lambda a: (-a.size_bytes * (a.end - a.start), a.start, a.tensors)):
        low = next((wishes[t] for t, _ in a.tensors if t in wishes), None)
        if low is None:
            continue
        at_once = (o for o in placed if o[0].start < a.end and a.start < o[0].end)
        if all(low + a.size_bytes <= offset or offset + other.size_bytes <= low for other, offset in at_once):
            a.offset_bytes = low
            placed.append((a, low))


def _sorted(lifetimes: list[Lifetime]) -> tuple[Allocation, ...]:
    allocations = (_to_allocation(a) for a in lifetimes)
    return tuple(sorted(allocations, key=lambda a: (a.start, a.offset_bytes, a.end, a.tensors, a.operator or 0)))


def _max_live(lifetimes: list[Lifetime]) -> int:
    starts, ends, sizes = (
        np.array([getattr(a, n) for a in lifetimes], np.int64) for n in ("start", "end", "size_bytes")
    )
    return max_live(starts, ends, sizes)


def _top(lifetimes: list[Lifetime]) -> int:
    return max(((a.offset_bytes or 0) + a.size_bytes for a in lifetimes), default=0)


def _place(
    problem: Problem,
    lifetimes: list[Lifetime],
    places: list[FixedPlace],
    action_count: int,
    enough: int,
    stop_at: float,
    effort: float,
) -> None:
    """Set all offsets.

    State that is away for a while comes back to the same place. Such places lie where they make the arena lowest. The
    room between them belongs to the state as seen from outside, but not while a step runs. As little of it as is found:
    none, or as much as a bisection ends with.
    """
    unit = problem.alignment_bytes  # in units of which every offset is a whole number
    absent = [place for place in places if place[0] is not place[1]]
    lasting_bytes = 0
    for first, last in places:
        if first is last:
            first.offset_bytes = lasting_bytes
            lasting_bytes += _aligned(problem, first.size_bytes)
    in_fixed_places = {id(a) for place in places for a in place}
    # State is many small pieces, mostly there all the time: one obstacle does for all of these, and is much faster.
    items: list[tuple[Lifetime, Lifetime | None]] = [(Lifetime(lasting_bytes, 0, action_count), None), *absent]
    items += [(a, None) for a in lifetimes if id(a) not in in_fixed_places]
    starts = np.array([a.start for a, _ in items], np.int64)
    ends = np.array([a.end for a, _ in items], np.int64)
    sizes = np.array([-(-a.size_bytes // unit) for a, _ in items], np.int64)
    again = (
        np.array([0 if b is None else b.start for _, b in items], np.int64),
        np.array([0 if b is None else b.end for _, b in items], np.int64),
    )
    fixed = np.full(len(items), -1, np.int64)
    fixed[0] = 0

    def put(offsets: Ints) -> None:
        for (first, last), offset in zip(items, offsets, strict=True):
            first.offset_bytes = int(offset) * unit
            if last is not None:
                last.offset_bytes = first.offset_bytes

    def with_places_below(state_bytes: int, arena_bytes: int, placements: int) -> bool:
        highest = np.full(len(items), arena_bytes // unit, np.int64)
        highest[1 : 1 + len(absent)] = state_bytes // unit
        capacity = arena_bytes // unit
        placements = int(effort * placements)
        placements_below = fit(
            starts, ends, sizes, fixed, placements, capacity=capacity, again=again, highest=highest, stop_at=stop_at
        )
        if placements_below is not None:
            put(placements_below)
        return placements_below is not None

    most, wanted = int(effort * SEARCH_PLACEMENTS), max(0, enough // unit)
    put(place(starts, ends, sizes, fixed, most, enough=wanted, again=again, stop_at=stop_at))
    arena_bytes, high = max(enough, _top(lifetimes)), _state_bytes(problem, places)
    low = lasting_bytes + sum(_aligned(problem, first.size_bytes) for first, _ in absent)
    most, placements = low, ONE_PIECE_PLACEMENTS
    for _ in range(1 + STATE_BISECTIONS):
        if high <= low:
            break
        if with_places_below(most, arena_bytes, placements):
            high = _state_bytes(problem, places)
        else:
            low = most + 1
        most, placements = (low + high) // 2, STATE_PLACEMENTS


def _state_bytes(problem: Problem, places: list[FixedPlace]) -> int:
    return max(((a.offset_bytes or 0) + _aligned(problem, a.size_bytes) for a, _ in places), default=0)


def fixed_places_of(problem: Problem, lifetimes: list[Lifetime], action_count: int) -> list[tuple[Lifetime, Lifetime]]:
    """The first and the last residency of each state (the same if it never leaves RAM); the longest absent last."""
    starting: dict[int, Lifetime] = {}
    ending: dict[int, Lifetime] = {}
    for lifetime in lifetimes:
        for t, action in lifetime.tensors:
            if action == 0 and lifetime.start == 0:
                starting[t] = lifetime
            if lifetime.end == action_count:
                ending[t] = lifetime
    places = [(starting[chain[0]], ending[chain[-1]]) for chain in state_chains(problem)]
    return sorted(places, key=lambda h: h[1].start - h[0].end if h[0] is not h[1] else -action_count)


def _aligned(problem: Problem, size_bytes: int) -> int:
    return -(-size_bytes // problem.alignment_bytes) * problem.alignment_bytes


def lifetimes_of(problem: Problem, schedule: Schedule) -> list[Lifetime]:
    lifetimes: list[Lifetime] = []
    current: dict[int, Lifetime] = {}
    ends = workspace_ends(problem, schedule.actions) if problem.processors else {}

    def begin(t: int, action: int) -> None:
        size = problem.tensors[t].size_bytes
        current[t] = Lifetime(size, action, len(schedule.actions), [(t, action)])
        lifetimes.append(current[t])

    for t, tensor in enumerate(problem.tensors):
        if tensor.initial == "ram":
            begin(t, 0)
    for index, action in enumerate(schedule.actions):
        match action:
            case Free(t):
                current.pop(t).end = index + 1
            case PageIn(t):
                begin(t, index)
            case Move(t, bank):
                current[t].end = index + (bank is not None)  # both copies are there while it goes to another bank
                begin(t, index)
            case Compute(operator, in_place):
                spec = problem.operators[operator]
                taken_over = {o: i for i, o in in_place}
                for t in spec.outputs:
                    if t in taken_over:
                        current[t] = current.pop(taken_over[t])
                        current[t].tensors.append((t, index))
                    else:
                        begin(t, index)
                if spec.workspace_bytes:
                    lifetimes.append(
                        Lifetime(spec.workspace_bytes, index, ends.get(index, index + 1), operator=operator)
                    )
    return lifetimes


def _to_allocation(lifetime: Lifetime) -> Allocation:
    assert lifetime.offset_bytes is not None
    return Allocation(
        offset_bytes=lifetime.offset_bytes,
        size_bytes=lifetime.size_bytes,
        start=lifetime.start,
        end=lifetime.end,
        tensors=tuple(lifetime.tensors),
        operator=lifetime.operator,
    )
