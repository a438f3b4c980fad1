"""From a schedule to a MemoryPlan: what lives in the arena and when, and an offset for each.

From the bottom: state that never leaves RAM; state that is paged out for a while (so that the room it leaves joins what
is above it); then everything else where `place` puts it; at the top the page buffer, if the schedule pages (what is
there all the time lies nowhere better). State begins and ends a step at its home, a version made in place at its
predecessor's; in between it may come back anywhere. Where that is not enough, the homes of what is paged out need not
adjoin one another: they are placed like everything else, as low as they can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt

from poetc.scheduling._bounds import state_chains
from poetc.scheduling._placement import SEARCH_PLACEMENTS, fit, max_live, place
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import Allocation, Compute, Free, MemoryPlan, PageIn, PageOut, Schedule

HOME_MOVES, HOME_PLACEMENTS = 24, 40_000  # the second limit counts each move once a rectangle
HOME_ORDER_PLACEMENTS = 3_000
STATE_BISECTIONS, STATE_PLACEMENTS = 5, 12_000  # for homes that do not adjoin
CLOSE = 1.01  # an arena within this factor of max-live is as good as the best, where it is enough


@dataclass(slots=True)
class _Lifetime:
    size_bytes: int
    start: int
    end: int
    tensors: list[tuple[int, int]] = field(default_factory=list)
    operator: int | None = None
    offset_bytes: int | None = None


_Home = tuple[_Lifetime, _Lifetime]
Ints = npt.NDArray[np.int64]


def pack(problem: Problem, schedule: Schedule, *, enough_bytes: int = 0) -> MemoryPlan:
    """Offsets for a schedule that `verify` accepts (but for its budget). Deterministic.

    `max_live_bytes` is the peak that `verify` finds without base_bytes; `arena_bytes` equals it or lies close above.
    The search ends at an arena of `enough_bytes`, if that is at most CLOSE x max-live.
    """
    step_count = len(schedule.steps)
    lifetimes = _lifetimes(problem, schedule)
    homes = _homes(problem, lifetimes, step_count)
    buffer_bytes = problem.page_buffer_bytes if any(isinstance(s, PageIn | PageOut) for s in schedule.steps) else 0
    enough = min(enough_bytes - buffer_bytes, int(CLOSE * _max_live(lifetimes)))
    absent = [home for home in homes if home[0] is not home[1]]

    def rough_top(order: list[_Home]) -> int:
        return _place(problem, lifetimes, order, step_count, HOME_ORDER_PLACEMENTS, enough, rough=True)

    if len(absent) > 1:
        # Which of the state that is paged out lies beside which other decides how their gaps join: try some orders,
        # then change the best by moves.
        lasting = [home for home in homes if home[0] is home[1]]
        homes, top = _best_homes(lasting, absent, min(HOME_MOVES, HOME_PLACEMENTS // len(lifetimes)), enough, rough_top)
        if top <= enough or _place(problem, lifetimes, homes, step_count, SEARCH_PLACEMENTS, enough) > top:
            rough_top(homes)
    else:
        _place(problem, lifetimes, homes, step_count, SEARCH_PLACEMENTS, enough)
    if absent and _top(lifetimes) > max(enough, _max_live(lifetimes)):
        _scatter(problem, lifetimes, homes, step_count, enough)
    if buffer_bytes:
        top = _aligned(problem, _top(lifetimes))
        lifetimes.append(_Lifetime(buffer_bytes, 0, step_count, offset_bytes=top))
    allocations = sorted(
        (_to_allocation(a) for a in lifetimes),
        key=lambda a: (a.start, a.offset_bytes, a.end, a.tensors, a.operator or 0),
    )
    return MemoryPlan(
        allocations=tuple(allocations),
        arena_bytes=_top(lifetimes),
        max_live_bytes=_max_live(lifetimes),
        state_bytes=_state_bytes(problem, homes),
    )


def _max_live(lifetimes: list[_Lifetime]) -> int:
    starts, ends, sizes = (
        np.array([getattr(a, n) for a in lifetimes], np.int64) for n in ("start", "end", "size_bytes")
    )
    return max_live(starts, ends, sizes)


def _best_homes(
    lasting: list[_Home], absent: list[_Home], moves: int, enough: int, rough_top: Callable[[list[_Home]], int]
) -> tuple[list[_Home], int]:
    """The order of homes with the lowest rough placement, and its top: what is away longest, leaves first or comes back
    last lies next to the free room above; then moves of one home at a time.
    """
    random = Random(0)
    orders = [absent, sorted(absent, key=lambda home: -home[0].end), sorted(absent, key=lambda home: home[1].start)]
    tops = [rough_top(lasting + order) for order in orders]
    top = min(tops)
    order = orders[tops.index(top)]
    for _ in range(moves):
        if top <= enough:
            break
        moved = order.copy()
        home = moved.pop(random.randrange(len(moved)))
        moved.insert(random.randrange(len(order)), home)
        moved_top = rough_top(lasting + moved)
        if moved_top <= top:
            order, top = moved, moved_top
    return lasting + order, top


def _top(lifetimes: list[_Lifetime]) -> int:
    return max(((a.offset_bytes or 0) + a.size_bytes for a in lifetimes), default=0)


def _place(
    problem: Problem,
    lifetimes: list[_Lifetime],
    homes: list[tuple[_Lifetime, _Lifetime]],
    step_count: int,
    placements: int,
    enough: int,
    *,
    rough: bool = False,
) -> int:
    """Set all offsets, state from the bottom in the order of `homes`; returns the highest end."""
    at_home: set[int] = set()
    top = lasting_bytes = 0
    for first, last in homes:
        first.offset_bytes = last.offset_bytes = top
        top += _aligned(problem, first.size_bytes)
        at_home |= {id(first), id(last)}
        if first is last:
            lasting_bytes = top
    # State is many small pieces, mostly there all the time: one obstacle does for all of these, and is much faster.
    obstacles = [_Lifetime(lasting_bytes, 0, step_count, offset_bytes=0)]
    obstacles += [a for first, last in homes if first is not last for a in (first, last)]
    loose = [a for a in lifetimes if id(a) not in at_home]
    everything = obstacles + loose
    unit = problem.alignment_bytes  # in units of which every offset is a whole number
    starts = np.array([a.start for a in everything], np.int64)
    ends = np.array([a.end for a in everything], np.int64)
    sizes = np.array([-(-a.size_bytes // unit) for a in everything], np.int64)
    fixed = np.full(len(everything), -1, np.int64)
    fixed[: len(obstacles)] = [(a.offset_bytes or 0) // unit for a in obstacles]
    offsets = place(starts, ends, sizes, fixed, placements, rough=rough, enough=max(0, enough // unit))
    for lifetime, offset in zip(everything, offsets, strict=True):
        lifetime.offset_bytes = int(offset) * unit
    return _top(lifetimes)


def _scatter(problem: Problem, lifetimes: list[_Lifetime], homes: list[_Home], step_count: int, enough: int) -> None:
    """Homes of paged state where they fit best, if that makes the arena lower: with room between them that belongs to
    the state as seen from outside, but not while a step runs. As little of it as some bisection finds.
    """
    before, unit = [a.offset_bytes for a in lifetimes], problem.alignment_bytes
    top_before = _top(lifetimes)
    absent = [home for home in homes if home[0] is not home[1]]
    lasting_bytes = sum(_aligned(problem, first.size_bytes) for first, last in homes if first is last)
    at_home = {id(a) for home in homes for a in home}
    loose = [a for a in lifetimes if id(a) not in at_home]
    items = [(_Lifetime(lasting_bytes, 0, step_count, offset_bytes=0), None), *absent, *((a, None) for a in loose)]
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

    put(place(starts, ends, sizes, fixed, SEARCH_PLACEMENTS, enough=max(0, enough // unit), again=again))
    top = _top(lifetimes)
    if top >= top_before:
        for lifetime, offset in zip(lifetimes, before, strict=True):
            lifetime.offset_bytes = offset
        return
    low, high = sum(_aligned(problem, first.size_bytes) for first, _ in homes), _state_bytes(problem, homes)
    for _ in range(STATE_BISECTIONS):
        most = (low + high) // 2
        highest = np.full(len(items), top // unit, np.int64)
        highest[1 : 1 + len(absent)] = most // unit
        capacity = max(top, enough) // unit
        lower = fit(starts, ends, sizes, fixed, STATE_PLACEMENTS, capacity=capacity, again=again, highest=highest)
        if lower is None:
            low = most
        else:
            put(lower)
            high = _state_bytes(problem, homes)


def _state_bytes(problem: Problem, homes: list[_Home]) -> int:
    return max(((a.offset_bytes or 0) + _aligned(problem, a.size_bytes) for a, _ in homes), default=0)


def _homes(problem: Problem, lifetimes: list[_Lifetime], step_count: int) -> list[tuple[_Lifetime, _Lifetime]]:
    """The first and the last residency of each state (the same if it never leaves RAM); the longest absent last."""
    starting: dict[int, _Lifetime] = {}
    ending: dict[int, _Lifetime] = {}
    for lifetime in lifetimes:
        for t, step in lifetime.tensors:
            if step == 0 and lifetime.start == 0:
                starting[t] = lifetime
            if lifetime.end == step_count:
                ending[t] = lifetime
    homes = [(starting[chain[0]], ending[chain[-1]]) for chain in state_chains(problem)]
    return sorted(homes, key=lambda h: h[1].start - h[0].end if h[0] is not h[1] else -step_count)


def _aligned(problem: Problem, size_bytes: int) -> int:
    return -(-size_bytes // problem.alignment_bytes) * problem.alignment_bytes


def _lifetimes(problem: Problem, schedule: Schedule) -> list[_Lifetime]:
    lifetimes: list[_Lifetime] = []
    current: dict[int, _Lifetime] = {}

    def begin(t: int, step: int) -> None:
        size = problem.tensors[t].size_bytes
        current[t] = _Lifetime(size, step, len(schedule.steps), [(t, step)])
        lifetimes.append(current[t])

    for t, tensor in enumerate(problem.tensors):
        if tensor.initial == "ram":
            begin(t, 0)
    for index, step in enumerate(schedule.steps):
        match step:
            case Free(t):
                current.pop(t).end = index + 1
            case PageIn(t):
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
                    lifetimes.append(_Lifetime(spec.workspace_bytes, index, index + 1, operator=operator))
    return lifetimes


def _to_allocation(lifetime: _Lifetime) -> Allocation:
    assert lifetime.offset_bytes is not None
    return Allocation(
        offset_bytes=lifetime.offset_bytes,
        size_bytes=lifetime.size_bytes,
        start=lifetime.start,
        end=lifetime.end,
        tensors=tuple(lifetime.tensors),
        operator=lifetime.operator,
    )
