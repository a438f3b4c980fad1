"""Dynamic storage allocation: rectangles of given size and lifetime get offsets with the lowest highest end.

First fit goes along an order. Along the order of offsets it reproduces any placement with nothing floating, so the
optimum is within reach of a search over orders. Greedy orders come first (by size, area, lifetime, start). Then a
search against a capacity: the lower bound (the most that is alive at once) first, then bisected between it and the
best. An exact search does that (`_skyline`). "Squeaky wheel" optimisation does it where there are too many rectangles,
or some live twice. There the first rectangle that does not fit moves to an earlier place in the order.

A rectangle may be alive a second time, at the same offset: such a tensor has to come back to its place.

Work is counted in placed rectangles, not seconds: the same input gives the same offsets.
"""

from __future__ import annotations

import functools
import math
import time
from bisect import insort
from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from poetc.scheduling._skyline import SURE_PLACEMENTS, Skyline

Ints = npt.NDArray[np.int64]

SEARCH_PLACEMENTS = 150_000  # at most, after the greedy orders: about 2 s
PLACEMENTS_PER_RECTANGLE = 500  # the same for few rectangles
PLACEMENTS_X_RECTANGLES = 450_000_000  # and for many, where each takes longer
FEW = 500  # rectangles, up to which a list is quicker than arrays
LOOKED_AT = 24  # rectangles in the way, one by one
NEARLY, LESS_WORK = 1.001, 8  # within this factor of the floor, with no budget to meet, a part of the work does
MOST_TWICE = 0.1  # of the rectangles on a skyline; where more live twice, orders alone do as well
FLOOR_ATTEMPTS, OTHER_ATTEMPTS = 3, 16  # each half of the work


def place(
    starts: Ints,
    ends: Ints,
    sizes: Ints,
    fixed: Ints,
    placements: int = SEARCH_PLACEMENTS,
    *,
    enough: int = 0,
    again: tuple[Ints, Ints] | None = None,
    stop_at: float = math.inf,
) -> Ints:
    """Offsets for rectangles alive in [starts, ends). `fixed` is the offset where it is given, -1 where it is free.
    `again`: starts and ends of their second lives, empty for those that have none.

    `placements` limits the search, as does the clock (`stop_at`). Nothing lower than `enough` is looked for.
    """
    offsets = fixed.copy()
    offsets[fixed < 0] = 0
    placer = _Placer(starts, ends, sizes, fixed, again)
    free = np.flatnonzero((fixed < 0) & (sizes > 0) & (placer.lifetimes > 0))  # an empty one needs no place
    if not len(free):
        return offsets
    floor = max(placer.max_live(), placer.fixed_top, enough)
    best, best_top = placer.offsets, int(sizes.sum()) + placer.fixed_top + 1
    orders = greedy_orders(starts, placer.lifetimes, sizes, free)
    for order in orders:
        if placer.first_fit(order, best_top - 1) is None:
            best, best_top = placer.offsets.copy(), placer.top()
        if best_top <= floor:
            break
    work = min(placements, PLACEMENTS_PER_RECTANGLE * len(free), PLACEMENTS_X_RECTANGLES // len(free))
    if not enough and best_top <= NEARLY * floor:
        work //= LESS_WORK
    search = _Search(placer, free, orders, stop_at)
    if best_top > floor and search.at_floor(floor, work // 2):
        best, best_top = placer.offsets.copy(), placer.top()
    low, left = floor, work // 2  # nothing was found below `low`
    for attempt in range(OTHER_ATTEMPTS):
        if best_top <= floor or left <= 0:
            break
        capacity = (low + best_top - 1) // 2
        attempt_work = search.share(work // (2 * OTHER_ATTEMPTS))
        if search.within(capacity, min(left, attempt_work), attempt):
            best, best_top = placer.offsets.copy(), placer.top()
        else:
            low = capacity + 1
        left -= attempt_work
        if low >= best_top:
            low = floor  # once more, with other random numbers
    offsets[free] = best[free]
    return offsets


def fit(
    starts: Ints,
    ends: Ints,
    sizes: Ints,
    fixed: Ints,
    placements: int,
    *,
    capacity: int,
    again: tuple[Ints, Ints],
    highest: Ints,
    stop_at: float = math.inf,
) -> Ints | None:
    """As `place`: offsets with no end above `capacity`, nor above `highest` of each, if `placements` find them."""
    placer = _Placer(starts, ends, sizes, fixed, again, highest)
    free = np.flatnonzero((fixed < 0) & (sizes > 0))
    orders = greedy_orders(starts, placer.lifetimes, sizes, free)
    work = min(placements, PLACEMENTS_PER_RECTANGLE * len(free), PLACEMENTS_X_RECTANGLES // max(1, len(free)))
    for attempt, order in enumerate(orders):
        order.sort(key=lambda i: highest[i])  # those that have to be low first, otherwise as it was
        if _squeaky_wheel(placer, order, capacity, Random(attempt), work // len(orders), stop_at):
            return np.maximum(placer.offsets, 0)
    return None


def hints_within(
    starts: Ints, ends: Ints, sizes: Ints, order: Sequence[int], pairs: Sequence[tuple[int, int]], low: int, limit: int
) -> Ints:
    """First fit along `order` between `low` and `limit`; -1 for those that do not fit.

    In `pairs`, the second has the offset of the first, which stands for it in `order`.
    """
    again = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    for first, second in pairs:
        again[0][first], again[1][first] = starts[second], ends[second]
    bottom = np.array([0], np.int64), np.array([int(ends.max(initial=0))], np.int64), np.array([low], np.int64)
    placer = _Placer(
        np.concatenate((starts, bottom[0])),
        np.concatenate((ends, bottom[1])),
        np.concatenate((sizes, bottom[2])),
        np.concatenate((np.full(len(sizes), -1, np.int64), bottom[0])),
        (np.concatenate((again[0], bottom[0])), np.concatenate((again[1], bottom[0]))),
    )
    placer.offsets[:-1] = -1
    left_out: list[int] = []
    placer.first_fit(order, limit, left_out=left_out)
    hints = placer.offsets[:-1].copy()
    for first, second in pairs:
        hints[second] = hints[first]
    return hints


def max_live(starts: Ints, ends: Ints, sizes: Ints) -> int:
    """The most that is alive at once: no placement ends lower."""
    change = np.zeros(int(ends.max(initial=0)) + 1, np.int64)
    np.add.at(change, starts, sizes)
    np.subtract.at(change, ends, sizes)
    return int(np.cumsum(change).max(initial=0))


def greedy_orders(starts: Ints, lifetime: Ints, sizes: Ints, free: Ints) -> list[list[int]]:
    area = lifetime * sizes.astype(float)
    keys = ((-sizes, -lifetime, starts), (-area, starts), (-lifetime, -sizes, starts), (starts, -lifetime, -sizes))
    return [[int(i) for i in free[np.lexsort([k[free] for k in reversed(key)])]] for key in keys]


class _Search:
    """For offsets within a capacity, which are in the placer then."""

    def __init__(self, placer: _Placer, free: Ints, orders: list[list[int]], stop_at: float) -> None:
        self.placer, self.free, self.orders, self.stop_at = placer, free, orders, stop_at

    @functools.cached_property
    def skyline(self) -> Skyline:
        return self.placer.skyline(self.free)

    def at_floor(self, floor: int, work: int) -> bool:
        """The quickest first: a part of the orders, then the skyline, then other orders."""
        part = work // FLOOR_ATTEMPTS
        if self.along(0, floor, part, 0):
            return True
        if work > 0 and self.on_skyline(floor, work // (2 if self.twice else 1)):
            return True
        return any(self.along(k, floor, part, k) for k in range(1, FLOOR_ATTEMPTS) if self.twice)

    def share(self, work: int) -> int:
        """The work of one attempt above the floor: at least one way up the skyline."""
        return work if self.twice else max(2 * work, self.skyline.descent_placements)

    def within(self, capacity: int, work: int, attempt: int) -> bool:
        if not self.twice and self.skyline.descent_placements <= work:
            return self.on_skyline(capacity, work)
        return self.along(attempt % 2, capacity, work, attempt)

    @property
    def twice(self) -> bool:
        """Whether anything lives twice, for which orders do better above the floor."""
        return self.skyline.twice > 0

    def on_skyline(self, capacity: int, work: int) -> bool:
        descent = self.skyline.descent_placements
        if descent > max(work, SURE_PLACEMENTS) or self.skyline.twice > MOST_TWICE * len(self.free):
            return False
        work = max(work, descent)
        offsets = self.skyline.search(np.full(len(self.free), capacity), work, self.stop_at)
        if offsets is not None:
            self.placer.offsets[self.free] = offsets
        return offsets is not None

    def along(self, order: int, capacity: int, work: int, seed: int) -> bool:
        return _squeaky_wheel(self.placer, self.orders[order], capacity, Random(seed), work, self.stop_at)


def _squeaky_wheel(placer: _Placer, order: list[int], capacity: int, random: Random, work: int, stop_at: float) -> bool:
    """Whether offsets within `capacity` were found; they are in the placer then."""
    order, kept = order.copy(), 0
    stop = placer.placed + work
    while placer.placed < stop and time.monotonic() < stop_at:
        failed = placer.first_fit(order, capacity, kept)
        if failed is None:
            return True
        moved = order.pop(failed)
        if random.random() < 0.3:
            kept = random.randrange(failed + 1)
        else:  # before one of the last few that stood in its way
            rivals = [p for p in range(failed) if placer.meet(order[p], moved)]
            kept = rivals[max(0, len(rivals) - 1 - int(random.expovariate(0.3)))] if rivals else 0
        order.insert(kept, moved)
    return False


class _Placer:
    """First fit. The placed are held sorted by offset in the columns of one array, one with two lives twice."""

    def __init__(
        self,
        starts: Ints,
        ends: Ints,
        sizes: Ints,
        fixed: Ints,
        again: tuple[Ints, Ints] | None = None,
        highest: Ints | None = None,
    ) -> None:
        self.sizes, self._few_sizes = sizes, sizes.tolist()
        self.offsets = fixed.copy()  # of the last call of first_fit
        self.placed = 0  # rectangles so far, in all calls
        self._starts, self._ends = starts, ends
        never = np.zeros(len(sizes), np.int64)
        self._starts_again, self._ends_again = (never, never) if again is None else again
        self._highest = highest
        self._returns = self._ends_again > self._starts_again
        self._any_returns = bool(self._returns.any())
        first = list(zip(starts.tolist(), ends.tolist(), strict=True))
        second = zip(self._starts_again.tolist(), self._ends_again.tolist(), strict=True)
        self._lives = [(one, two) if two[1] > two[0] else (one,) for one, two in zip(first, second, strict=True)]
        self.lifetimes = ends - starts + self._ends_again - self._starts_again
        self._fixed = np.flatnonzero((fixed >= 0) & (sizes > 0))
        self.fixed_top = int((fixed + sizes)[self._fixed].max(initial=0))
        self._columns = np.zeros((4, len(sizes) + int(self._returns.sum())), np.int64)  # start, end, offset, top

    def max_live(self) -> int:
        lives = [(self._starts, self._ends), (self._starts_again[self._returns], self._ends_again[self._returns])]
        starts, ends = (np.concatenate(parts) for parts in zip(*lives, strict=True))
        return max_live(starts, ends, np.concatenate((self.sizes, self.sizes[self._returns])))

    def skyline(self, free: Ints) -> Skyline:
        tops = (self.offsets + self.sizes).tolist()
        obstacles = [(self._lives[i], tops[i]) for i in self._fixed.tolist()]
        return Skyline([self._lives[i] for i in free.tolist()], self.sizes[free], obstacles)

    def top(self) -> int:
        return int((self.offsets + self.sizes).max())

    def meet(self, i: int, j: int) -> bool:
        return any(
            start < end_j and start_j < end for start, end in self._lives[i] for start_j, end_j in self._lives[j]
        )

    def first_fit(
        self, order: Sequence[int], limit: int, kept: int = 0, left_out: list[int] | None = None
    ) -> int | None:
        """Place along `order`.

        None if every rectangle ends at or below `limit`, else the position of the first that does not.

        It stops there, unless there is a list of those that are left out. The first `kept` of the order stay where the
        last call has them.
        """
        if len(order) + len(self._fixed) <= FEW:
            return self._first_fit_of_few(order, limit, kept, left_out)
        offsets, columns = self.offsets, self._columns
        head = np.asarray(order[:kept], np.int64)
        present = np.concatenate((self._fixed, head))
        starts, ends = self._starts[present], self._ends[present]
        if self._any_returns:
            back = present[self._returns[present]]
            present = np.concatenate((present, back))
            starts = np.concatenate((starts, self._starts_again[back]))
            ends = np.concatenate((ends, self._ends_again[back]))
        sort = np.argsort(offsets[present], kind="stable")
        present, count = present[sort], len(present)
        columns[0, :count] = starts[sort]
        columns[1, :count] = ends[sort]
        columns[2, :count] = offsets[present]
        columns[3, :count] = offsets[present] + self.sizes[present]
        for position in range(kept, len(order)):
            i = order[position]
            lives, size = self._lives[i], self._few_sizes[i]
            start, end = lives[0]
            self.placed += 1
            begins, stops, lows, tops = columns[:, :count]
            conflicts = (begins < end) & (stops > start)
            if len(lives) > 1:
                again, until = lives[1]
                conflicts |= (begins < until) & (stops > again)
            offset = _lowest_gap(lows[conflicts], tops[conflicts], size)
            if offset + size > (limit if self._highest is None else min(limit, self._highest[i])):
                if left_out is None:
                    return position
                left_out.append(i)
                continue
            offsets[i] = offset
            at = int(lows.searchsorted(offset))
            columns[:, at + len(lives) : count + len(lives)] = columns[:, at:count].copy()
            for k, (begin, stop) in enumerate(lives):
                columns[:, at + k] = begin, stop, offset, offset + size
            count += len(lives)
        return None

    def _first_fit_of_few(self, order: Sequence[int], limit: int, kept: int, left_out: list[int] | None) -> int | None:
        """The same in a list, which is quicker than arrays where few rectangles are looked at."""
        lives, sizes = self._lives, self._few_sizes
        offsets = self.offsets.tolist()
        there = (*self._fixed.tolist(), *order[:kept])
        placed = sorted((offsets[i], offsets[i] + sizes[i], start, end) for i in there for start, end in lives[i])
        highest = None if self._highest is None else self._highest.tolist()
        failed = None
        for position in range(kept, len(order)):
            i = order[position]
            size, offset = sizes[i], 0
            self.placed += 1
            start, end = lives[i][0]
            again, until = lives[i][-1]  # the same where it has one life
            for low, top, begin, stop in placed:
                if top > offset and ((begin < end and stop > start) or (begin < until and stop > again)):
                    if low - offset >= size:
                        break
                    offset = top
            if offset + size > (limit if highest is None else min(limit, highest[i])):
                if left_out is None:
                    failed = position
                    break
                left_out.append(i)
                continue
            offsets[i] = offset
            for start, end in lives[i]:
                insort(placed, (offset, offset + size, start, end))
        self.offsets[:] = offsets
        return failed


def _lowest_gap(lows: Ints, tops: Ints, size: int) -> int:
    """The lowest offset where `size` fits between rectangles [lows, tops), sorted by `lows`.

    The gap is mostly among the first few, where a loop is quicker than arrays.
    """
    reach = 0
    for low, top in zip(lows[:LOOKED_AT].tolist(), tops[:LOOKED_AT].tolist(), strict=True):
        if low - reach >= size:
            return reach
        reach = max(reach, top)
    if len(lows) <= LOOKED_AT:
        return reach
    reaches = np.maximum.accumulate(tops[LOOKED_AT - 1 :])
    np.maximum(reaches, reach, out=reaches)
    fits = lows[LOOKED_AT:] - reaches[:-1] >= size
    at = int(fits.argmax())
    return int(reaches[at] if fits[at] else reaches[-1])
