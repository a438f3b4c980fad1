"""Dynamic storage allocation: rectangles of given size and lifetime get offsets so that the highest end is as low as
possible.

Greedy first fit along several orders, then iterated local search over the order: a rectangle that touches the top
moves to an earlier place. First fit along the order of offsets reproduces any placement with nothing floating, so the
optimum is among what the search can reach. Work is counted in placed rectangles, not seconds: the same input gives the
same offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SEARCH_PLACEMENTS = 150_000  # about 2 s of search; beyond 10,000 rectangles the greedy orders alone use more


def place(starts: Ints, ends: Ints, sizes: Ints, fixed: Ints) -> Ints:
    """Offsets for rectangles alive in [starts, ends). `fixed` is the offset where it is given, -1 where it is free."""
    offsets = fixed.copy()
    placer = _Placer(starts, ends, sizes, offsets)
    free = np.flatnonzero((fixed < 0) & (sizes > 0))
    offsets[fixed < 0] = 0  # nothing has to be found for what is empty
    if not len(free):
        return offsets
    floor = max(max_live(starts, ends, sizes), placer.fixed_top)
    best: Ints | None = None
    best_order: list[int] = []
    best_top = int(sizes.sum()) + placer.fixed_top + 1
    for order in _greedy_orders(starts, ends, sizes, free):
        found = placer.first_fit(order, best_top - 1)
        if found is not None:
            best, best_order, best_top = found.copy(), order, placer.top(found)
        if best_top <= floor:
            break
    assert best is not None
    if best_top > floor:
        best = _search(placer, best_order, best, floor)
    offsets[free] = best[free]
    return offsets


def max_live(starts: Ints, ends: Ints, sizes: Ints) -> int:
    """The most that is alive at once: no placement ends lower."""
    change = np.zeros(int(ends.max(initial=0)) + 1, np.int64)
    np.add.at(change, starts, sizes)
    np.subtract.at(change, ends, sizes)
    return int(np.cumsum(change).max(initial=0))


def _greedy_orders(starts: Ints, ends: Ints, sizes: Ints, free: Ints) -> list[list[int]]:
    lifetime = ends - starts
    area = lifetime * sizes.astype(float)
    keys = ((-sizes, -lifetime, starts), (-area, starts), (-lifetime, -sizes, starts), (starts, -lifetime, -sizes))
    return [[int(i) for i in free[np.lexsort([k[free] for k in reversed(key)])]] for key in keys]


def _search(placer: _Placer, order: list[int], offsets: Ints, floor: int) -> Ints:
    """Iterated local search from `order`; ties are accepted, so that it drifts along plateaus."""
    random = Random(0)
    best = offsets
    top = placer.top(offsets)
    work = 0
    position = {i: p for p, i in enumerate(order)}
    while top > floor and work < SEARCH_PLACEMENTS:
        touching = [i for i in order if offsets[i] + placer.sizes[i] == top]
        moved = touching[random.randrange(len(touching))]
        old = position[moved]
        if old == 0:
            new_order = order[1:]
            new_order.insert(random.randrange(len(order)), moved)
            kept = 0
        else:
            kept = random.randrange(old)
            new_order = [*order[:kept], moved, *order[kept:old], *order[old + 1 :]]
        found = placer.first_fit(new_order, top, offsets, kept)
        work += placer.placed
        if found is None:
            continue
        order, offsets = new_order, found.copy()
        position = {i: p for p, i in enumerate(order)}
        if placer.top(offsets) < top:
            top, best = placer.top(offsets), offsets
    return best


class _Placer:
    """First fit. The placed rectangles are held sorted by offset in the columns of one array."""

    def __init__(self, starts: Ints, ends: Ints, sizes: Ints, fixed: Ints) -> None:
        self.sizes = sizes
        self._starts, self._ends = starts, ends
        self._fixed = np.flatnonzero((fixed >= 0) & (sizes > 0))
        self._fixed_offsets = fixed
        self.fixed_top = int((fixed + sizes)[self._fixed].max(initial=0))
        self._columns = np.zeros((4, len(sizes)), np.int64)  # start, end, offset, top
        self._offsets = np.zeros(len(sizes), np.int64)
        self.placed = 0

    def top(self, offsets: Ints) -> int:
        return int((offsets + self.sizes).max())

    def first_fit(self, order: Sequence[int], limit: int, known: Ints | None = None, kept: int = 0) -> Ints | None:
        """Offsets (valid until the next call) when placed along `order`, None as soon as one ends above `limit`.

        The first `kept` of the order stay at their `known` offsets.
        """
        offsets, columns = self._offsets, self._columns
        offsets[self._fixed] = self._fixed_offsets[self._fixed]
        present = self._fixed
        if known is not None and kept:
            head = np.asarray(order[:kept])
            offsets[head] = known[head]
            present = np.concatenate((present, head))
        present = present[np.argsort(offsets[present], kind="stable")]
        count = len(present)
        columns[0, :count] = self._starts[present]
        columns[1, :count] = self._ends[present]
        columns[2, :count] = offsets[present]
        columns[3, :count] = offsets[present] + self.sizes[present]
        self.placed = 0
        for i in order[kept:]:
            self.placed += 1
            start, end, size = self._starts[i], self._ends[i], self.sizes[i]
            conflicts = (columns[0, :count] < end) & (columns[1, :count] > start)
            offset = _lowest_gap(columns[2, :count][conflicts], columns[3, :count][conflicts], size)
            if offset + size > limit:
                return None
            offsets[i] = offset
            at = int(np.searchsorted(columns[2, :count], offset))
            columns[:, at + 1 : count + 1] = columns[:, at:count].copy()
            columns[:, at] = start, end, offset, offset + size
            count += 1
        return offsets


def _lowest_gap(lows: Ints, tops: Ints, size: np.int64) -> int:
    """The lowest offset where `size` fits between rectangles [lows, tops), sorted by `lows`."""
    if not len(lows) or lows[0] >= size:
        return 0
    reach = np.maximum.accumulate(tops)
    fits = lows[1:] - reach[:-1] >= size
    at = int(fits.argmax()) if len(fits) else 0
    return int(reach[at]) if len(fits) and fits[at] else int(reach[-1])
