"""Safe points: the switches that a bundle keeps within its flash, and how long a request waits for one at most."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poetc.planning.settings import BUNDLE
from poetc.planning.switching import Switching, action_time_ns
from poetc.scheduling import Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Of the switches from one plan to another: how many there are, and the longest wait for one in ns.

    A wait ends when the transition is done. `extra` is the cost of a switched step beyond the target plan's, as a share
    of the target plan's: the mean and the most. `gap`: the most that a better continuation could save, as such a share.
    """

    source: int
    target: int
    points: int
    switches: int
    longest_ns: int
    mean_extra: float
    most_extra: float
    most_gap: float


def within_flash(
    switching: Switching, switches: Sequence[Switch], bytes_of: Callable[[Sequence[Switch]], int], limit_bytes: int
) -> list[Switch]:
    """The switches whose longest wait is the shortest that `limit_bytes` pay for.

    For a longest wait, each pair of plans keeps the last switch before the wait would be exceeded. The longest wait is
    bisected.
    """
    if bytes_of(switches) <= limit_bytes:
        return list(switches)
    kept: list[Switch] = []
    low, high = 0.0, float(max(sum(_times(switching, i)) for i in range(len(switching.lines))))
    for _ in range(BUNDLE.halvings):
        middle = (low + high) / 2
        sparse = _sparse(switching, switches, middle)
        if bytes_of(sparse) <= limit_bytes:
            kept, high = sparse, middle
        else:
            low = middle
    return kept


def waits(switching: Switching, switches: Sequence[Switch]) -> list[Waits]:
    """For each pair of plans, in order."""
    pairs: list[Waits] = []
    solutions = switching.bundle.solutions
    for source, target in itertools.permutations(range(len(solutions)), 2):
        own = [s for s in switches if (s.source, s.target) == (source, target)]
        ends = _ends(switching, source)
        longest, before = 0, 0
        for s in own:
            longest = max(longest, ends[s.at] - before + s.time_ns)
            before = ends[s.at]
        line, whole = switching.lines[source], solutions[target].cost
        extra = [(line.rest[0] - line.rest[s.at] + s.rest - whole) / whole for s in own]
        pairs.append(
            Waits(
                source=source,
                target=target,
                points=len(switching.points(source)),
                switches=len(own),
                longest_ns=max(longest, ends[-1] - before),
                mean_extra=sum(extra) / len(extra) if extra else 0.0,
                most_extra=max(extra, default=0.0),
                most_gap=max(((s.rest - s.bound) / whole for s in own), default=0.0),
            )
        )
    return pairs


def _sparse(switching: Switching, switches: Sequence[Switch], wait_ns: float) -> list[Switch]:
    kept: list[Switch] = []
    for _, group in itertools.groupby(switches, key=lambda s: (s.source, s.target)):
        own = list(group)
        ends, before = _ends(switching, own[0].source), 0
        last: Switch | None = None
        for s in own:
            if last is not None and ends[s.at] - before > wait_ns:
                kept.append(last)
                before = ends[last.at]
            last = s
        if last is not None and ends[-1] - before > wait_ns:
            kept.append(last)
    return kept


def _times(switching: Switching, plan: int) -> list[int]:
    line = switching.lines[plan]
    return [action_time_ns(line.problem, s) for s in line.actions]


def _ends(switching: Switching, plan: int) -> list[int]:
    """The time before each action of a plan, and that of all."""
    return [0, *itertools.accumulate(_times(switching, plan))]
