"""Exact search for offsets within a capacity: a skyline rises over time, and one rectangle after another lies on it.

Only instants count at which something begins after something ended, so few are left. Each instant has a floor, above
which all that is not placed yet lies. The floor and all sizes that are left may not exceed the capacity together: most
branches end there. Where nothing that is left can lie on a floor, the floor rises.

A branch is about one instant of a stretch of floors between two higher ones. Either one of the rectangles that fit on
the stretch lies there, or the floor of that instant rises. An instant with a single choice comes first.

A failure has a reason: the decisions that made the floor. If a decision is no part of the reason, its other choices
fail as well, and the search goes back behind it. Searches with several orders are cut short and begin anew. Instants
where they failed come earlier then.

Along the order of offsets, any placement has one in which each rectangle lies on another one, or on the floor. So the
search is complete for rectangles with one life. It leaves out a few placements of rectangles with two.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Lives = Sequence[tuple[int, int]]  # [start, end) of each

NODE_PLACEMENTS, PLACEMENT_INCIDENCES = 12, 1200  # a node takes as long as so many placements, and one for so many
ROUND_NODES, LATER_NODES = (2.0, 5.0), 2.0  # of an attempt, for each rectangle, by rounds of orders
DESCENT_NODES = 1.2  # that a search takes, for each rectangle, if hardly any choice fails
SURE_PLACEMENTS = 15_000  # of a first attempt that the clock does not end: a few tenths of a second
FAILED, BRANCHED = 1.0, 1.0  # weights of an instant where a floor was too high, and where all choices failed
NOISE = 0.4  # on the logarithms that orders go by, in later rounds
FAR = np.int64(1) << 60


@dataclass(slots=True)
class _Node:
    """Floors and their reasons, before any of the choices; `choices` are rectangles, or -1: the floor rises."""

    floors: Ints
    left: Ints
    reasons: Ints
    placed: Mask
    at: int = 0
    low: int = 0
    raised: int = 0
    base: int = 0  # the decisions that explain the floor, and why others cannot lie on it
    wider: int = 0  # those that explain how far it rises
    choices: list[int] = field(default_factory=list)
    blamed: int = 0
    chosen: int = -2


class Skyline:
    """Rectangles to be placed above obstacles, of which the tops are told."""

    def __init__(self, lives: Sequence[Lives], sizes: Ints, obstacles: Sequence[tuple[Lives, int]]) -> None:
        self.count, self.sizes = len(sizes), sizes
        instants = _instants(lives, [own for own, _ in obstacles])
        self.instants = len(instants)

        def at(own: Lives) -> Ints:
            return np.concatenate([np.arange(*np.searchsorted(instants, life)) for life in own])

        self.of_rectangle = each = [at(own) for own in lives]
        self.twice = sum(len(own) > 1 for own in lives)  # where any does, only the lowest floors are branched on
        self.first = np.array([e[0] for e in each], np.int64)
        self.last = np.array([e[-1] for e in each], np.int64)
        self.lengths = np.array([len(e) for e in each], np.int64)
        self.flat = np.concatenate(each)
        self.begins = np.cumsum(self.lengths) - self.lengths
        self.floors = np.zeros(self.instants, np.int64)
        for own, top in obstacles:
            self.floors[at(own)] = np.maximum(self.floors[at(own)], top)
        self.there = np.repeat(np.arange(self.count), self.lengths)[np.argsort(self.flat, kind="stable")]
        self.counts = np.bincount(self.flat, minlength=self.instants)
        self.ends = np.cumsum(self.counts)
        self.there_begins = self.ends - self.counts
        self.totals = np.zeros(self.instants, np.int64)
        np.add.at(self.totals, self.flat, np.repeat(sizes, self.lengths))
        self.node_placements = NODE_PLACEMENTS + len(self.flat) // PLACEMENT_INCIDENCES
        self.descent_placements = int(DESCENT_NODES * self.count * self.node_placements)
        self.weights = np.ones(self.instants)
        self.next_attempts = self.attempts()  # a search goes on with orders that those before did not take
        self.bits = [0]  # decisions that a floor is due to, by reason
        same: dict[tuple[object, ...], int] = {}
        shapes = [(*e.tolist(), size) for e, size in zip(each, sizes.tolist(), strict=True)]
        self.kinds = [same.setdefault(shape, len(same)) for shape in shapes]

    def search(self, highest: Ints, placements: int, stop_at: float) -> Ints | None:
        """Offsets with no end above `highest` of each; None if none were found with so much work.

        The clock does not end a first attempt of little work.
        """
        self.capacity = int(highest.max())
        self.lasts = highest - self.sizes
        if (self.floors + self.totals > self.capacity).any():
            return None
        is_sure = 0 < min(placements, self.descent_placements) <= SURE_PLACEMENTS
        for nodes, by_slack, order in self.next_attempts:
            nodes = min(nodes, placements // self.node_placements)
            placements -= nodes * self.node_placements
            offsets, is_open = self.attempt(order, by_slack, nodes, math.inf if is_sure else stop_at)
            is_sure = False
            if offsets is not None or not is_open or placements < self.node_placements or time.monotonic() >= stop_at:
                return offsets
        return None

    def attempts(self) -> Iterator[tuple[int, bool, Floats]]:
        """Nodes, whether instants of the least slack come first, and the order of choices, ever again."""
        random = np.random.default_rng(0)
        fullest = np.maximum.reduceat(self.totals[self.flat], self.begins).astype(float)
        long, size = np.log(self.lengths.astype(float)), np.log(self.sizes.astype(float))
        full = 4 * fullest / fullest.max()
        kinds = (
            (True, 1e3 * full + 20 * long + size),
            (False, 20 * size + long),
            (False, 1e3 * full + long + size),
            (False, long + 2 * size),
            (False, 2 * long + size),
            (True, 1e3 * full + 20 * size + long),
            (False, 1e3 * full + 20 * long + size),
        )
        for round_, nodes in enumerate(itertools.chain(ROUND_NODES, itertools.repeat(LATER_NODES))):
            for by_slack, key in kinds:
                is_early = round_ < len(ROUND_NODES)
                if is_early:
                    self.weights[:] = 1.0
                noise = 0.0 if is_early else NOISE
                yield int(nodes * self.count), by_slack, key + noise * random.standard_normal(self.count)

    def attempt(self, order: Floats, by_slack: bool, nodes: int, stop_at: float) -> tuple[Ints | None, bool]:
        """Offsets, and whether others than those looked at may be left."""
        floors = self.floors.copy()
        self.bits, reasons = [0], np.zeros(self.instants, np.int64)
        stack: list[_Node] = []
        node = _Node(floors, self.totals.copy(), reasons, np.zeros(self.count, bool))
        conflict: int | None = self.open(node, order, by_slack, len(stack))
        offsets = np.zeros(self.count, np.int64)
        while True:
            if conflict is None:
                if not node.choices:
                    for n in stack:
                        if n.chosen >= 0:
                            offsets[n.chosen] = n.low
                    return offsets, True
                stack.append(node)
                nodes -= 1
                if nodes <= 0 or (nodes % 64 == 0 and time.monotonic() >= stop_at):
                    return None, True
            else:
                while stack:
                    bit = 1 << (len(stack) - 1)
                    node = stack[-1]
                    if conflict & bit:
                        node.blamed |= conflict & ~bit
                        if node.choices:
                            break
                        conflict = node.blamed | (node.base if node.chosen == -1 else node.wider)
                        self.weights[node.at] += BRANCHED
                    stack.pop()
                if not stack:
                    return None, False
            node = self.child(stack[-1], len(stack) - 1)
            conflict = self.open(node, order, by_slack, len(stack))

    def child(self, node: _Node, depth: int) -> _Node:
        """The next choice of `node`, made."""
        floors, left, reasons, placed = node.floors.copy(), node.left, node.reasons.copy(), node.placed
        i = node.chosen = node.choices.pop(0)
        if i < 0:
            floors[node.at] = node.raised
            reasons[node.at] = len(self.bits)
            self.bits.append(node.wider | 1 << depth)
            return _Node(floors, left, reasons, placed)
        own = self.of_rectangle[i]
        left, placed = left.copy(), placed.copy()
        bits = self.why(reasons[own]) | 1 << depth
        floors[own] = node.low + self.sizes[i]
        left[own] -= self.sizes[i]
        floors[own[left[own] == 0]] = FAR  # nothing is left there
        reasons[own] = len(self.bits)
        self.bits.append(bits)
        placed[i] = True
        return _Node(floors, left, reasons, placed)

    def why(self, reasons: Ints) -> int:
        bits = 0
        for r in set(reasons.tolist()):
            bits |= self.bits[r]
        return bits

    def open(self, node: _Node, order: Floats, by_slack: bool, depth: int) -> int | None:
        """Raise floors and find the choices of `node`; otherwise the decisions that are to blame."""
        floors, left, reasons = node.floors, node.left, node.reasons
        capacity = self.capacity
        while True:
            lows = np.maximum.reduceat(floors[self.flat], self.begins)
            lows[node.placed] = FAR
            over = (lows > self.lasts) & ~node.placed
            if over.any():
                own = self.of_rectangle[int(over.argmax())]
                at = own[floors[own].argmax()]
                self.weights[at] += FAILED
                return self.bits[int(reasons[at])]
            there = lows[self.there]
            least = np.minimum.reduceat(there, self.there_begins)
            rising = least > floors
            if not rising.any():
                break
            raised = floors.copy()
            raised[rising] = least[rising]
            new = reasons.copy()
            for at in np.flatnonzero(rising).tolist():
                new[at] = len(self.bits)
                self.bits.append(self.bits[reasons[at]] | self.walls(node, at, least[at], floors, reasons))
            full = rising & (raised + left > capacity) & (left > 0)
            if full.any():
                at = int(full.argmax())
                self.weights[at] += FAILED
                return self.bits[int(new[at])]
            floors, reasons = raised, new
        node.floors, node.reasons = floors, reasons
        full = (floors + left > capacity) & (left > 0)
        if full.any():
            at = int(full.argmax())
            self.weights[at] += FAILED
            return self.bits[int(reasons[at])]
        if node.placed.all():
            return None
        self.branch(node, lows, there, order, by_slack)
        return None

    def walls(self, node: _Node, at: int, level: int, floors: Ints, reasons: Ints) -> int:
        """Why nothing that is left at an instant lies lower than `level`: walls to the left and to the right."""
        there = self.there[self.there_begins[at] : self.ends[at]]
        there = there[~node.placed[there]]
        below = np.flatnonzero(floors[:at] >= level)
        above = np.flatnonzero(floors[at + 1 :] >= level)
        bits = 0
        right = at + 1 + int(above[0]) if len(above) else self.instants
        if len(above) and (self.last[there] >= right).any():
            bits |= self.bits[reasons[right]]
        if len(below) and (self.last[there] < right).any():
            bits |= self.bits[reasons[below[-1]]]
        return bits

    def branch(self, node: _Node, lows: Ints, there: Ints, order: Floats, by_slack: bool) -> None:
        floors, left, reasons = node.floors, node.left, node.reasons
        on = there == np.repeat(floors, self.counts)
        choices = np.add.reduceat(on, self.there_begins, dtype=np.int64)
        higher = np.minimum.reduceat(np.where(on, FAR, there), self.there_begins)
        smallest = int(self.sizes[~node.placed].min())
        slack = self.capacity - floors - left
        choices += np.minimum(higher - floors, smallest) <= slack
        edges = np.flatnonzero(np.diff(floors)) + 1
        starts = np.concatenate(([0], edges))
        levels = floors[starts]
        walls = np.concatenate(([FAR], levels, [FAR]))
        is_low = levels == levels.min() if self.twice else (levels < walls[:-2]) & (levels < walls[2:])
        lengths = np.diff(np.concatenate((starts, [self.instants])))
        key = slack * 1e3 + choices if by_slack else choices / self.weights
        key = np.where(choices <= 1, choices - 1e18, key)
        key[~np.repeat(is_low, lengths)] = np.inf
        at = int(key.argmin())
        run = int(starts.searchsorted(at, "right")) - 1
        begin, end = int(starts[run]), int(starts[run] + lengths[run])
        low = int(floors[at])
        near = np.unique(self.there[self.there_begins[begin] : self.ends[end - 1]])
        near = near[~node.placed[near]]
        here = self.there[self.there_begins[at] : self.ends[at]]
        fitting = here[lows[here] == low]
        outside = near[lows[near] > low]
        beside = np.setdiff1d(near[lows[near] == low], here, assume_unique=True)
        raised = min(
            int(higher[at]),
            low + int(self.sizes[beside].min(initial=FAR)),
            int((lows[outside] + self.sizes[outside]).min(initial=FAR)),
        )
        node.at, node.low, node.raised = at, low, raised
        walls_bits = 0
        if begin > 0 and (self.first[outside] < begin).any():
            walls_bits |= self.bits[reasons[begin - 1]]
        if end < self.instants and (self.last[outside] >= end).any():
            walls_bits |= self.bits[reasons[end]]
        node.base = self.bits[reasons[at]] | walls_bits
        node.wider = node.base | self.why(reasons[begin:end])
        seen = set()
        for i in fitting[np.argsort(-order[fitting], kind="stable")].tolist():
            if self.kinds[i] not in seen:  # of equal ones, one is tried
                seen.add(self.kinds[i])
                node.choices.append(i)
        if raised < FAR and raised + int(left[at]) <= self.capacity:
            node.choices.append(-1)


def _instants(lives: Sequence[Lives], obstacles: Sequence[Lives]) -> Ints:
    """Those before which something began after the last end: any two lives that meet do so at one of them.

    Instants at which only obstacles are there are left out.
    """
    begins = {start for own in (*lives, *obstacles) for start, _ in own}
    ends = {end for own in (*lives, *obstacles) for _, end in own}
    instants: list[int] = []
    last = None
    for now in sorted(begins | ends):
        if now in ends and last is not None:
            instants.append(last)
            last = None
        if now in begins:
            last = now
    every = np.array(instants, np.int64)
    there = np.zeros(len(every) + 1, np.int64)
    for own in lives:
        for start, end in own:
            there[every.searchsorted(start)] += 1
            there[every.searchsorted(end)] -= 1
    return every[np.cumsum(there)[:-1] > 0]
