"""The knapsack: the most valuable items whose sizes fit a room, with a bound that is proven.

Items of one size and one value are one class, as in equal layers of a network. So a problem of a thousand items has a
few dozen columns. Where the sizes have a large common divisor, dynamic programming over the room is exact. Elsewhere
HiGHS solves the integer program. The bound is never below the best value, whatever its tolerances are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poetc.solvers.highs import TOLERANCE, Mip

TABLE_ENTRIES = 50_000_000  # of dynamic programming, at most
MOST_VALUE = 2**62
SCALE = 1000.0  # of all values together, in the units of HiGHS


@dataclass(frozen=True, slots=True)
class Chosen:
    """`items`: the numbers of those that are taken, ascending. No choice has more than `bound`."""

    items: tuple[int, ...]
    value: int
    size: int
    bound: int


def knapsack(sizes: Sequence[int], values: Sequence[int], room: int, time_limit_s: float = 10.0) -> Chosen:
    """The items of most value within `room`. Sizes and values are at least 0. Raises ValueError for others."""
    if len(sizes) != len(values) or min([*sizes, *values], default=0) < 0:
        raise ValueError("a knapsack takes as many sizes as values, none below 0")
    if sum(values) > MOST_VALUE:
        raise ValueError(f"the values add up to {sum(values)}, more than {MOST_VALUE}")
    free = [i for i, size in enumerate(sizes) if size == 0 and values[i]]
    classes: dict[tuple[int, int], list[int]] = {}
    for i, (size, value) in enumerate(zip(sizes, values, strict=True)):
        if value and 0 < size <= room:
            classes.setdefault((size, value), []).append(i)
    kinds = sorted(classes, key=lambda kind: (-kind[1] / kind[0], kind))  # the most value for its size first
    counts = [len(classes[kind]) for kind in kinds]
    unit = math.gcd(*(size for size, _ in kinds)) if kinds else 1
    bundles = sum(count.bit_length() for count in counts)
    if sum(c * size for c, (size, _) in zip(counts, kinds, strict=True)) <= room:
        taken, bound = counts, None
    elif (room // unit + 1) * bundles <= TABLE_ENTRIES:
        taken, bound = _by_table(kinds, counts, room // unit, unit), None
    else:
        taken, bound = _by_highs(kinds, counts, room, time_limit_s)
    items = free + [i for kind, count in zip(kinds, taken, strict=True) for i in classes[kind][:count]]
    value = sum(values[i] for i in items)
    most = value if bound is None else bound + sum(values[i] for i in free)
    return Chosen(tuple(sorted(items)), value, sum(sizes[i] for i in items), max(value, most))


def _by_table(kinds: Sequence[tuple[int, int]], counts: Sequence[int], room: int, unit: int) -> list[int]:
    """Exact: the best value of each room, bundle by bundle. Classes are cut into bundles of 1, 2, 4, ... items."""
    bundles = [(k, n) for k, count in enumerate(counts) for n in _bundles(count)]
    best = np.zeros(room + 1, dtype=np.int64)
    used = np.zeros((len(bundles), room + 1), dtype=np.bool_)
    for row, (k, n) in enumerate(bundles):
        size, value = n * kinds[k][0] // unit, n * kinds[k][1]
        if size > room:
            continue
        offered = best[: room + 1 - size] + value
        used[row, size:] = offered > best[size:]
        best[size:] = np.maximum(best[size:], offered)
    taken, left = [0] * len(kinds), room
    for row in range(len(bundles) - 1, -1, -1):
        if used[row, left]:
            k, n = bundles[row]
            taken[k] += n
            left -= n * kinds[k][0] // unit
    return taken


def _bundles(count: int) -> list[int]:
    """Numbers whose sums are all numbers up to `count`."""
    sizes, n = [], 1
    while n <= count:
        sizes.append(n)
        count -= n
        n *= 2
    return [*sizes, count] if count else sizes


def _by_highs(
    kinds: Sequence[tuple[int, int]], counts: Sequence[int], room: int, time_limit_s: float
) -> tuple[list[int], int]:
    """The better one of HiGHS's answer and a greedy one, and a bound."""
    total = sum(c * value for c, (_, value) in zip(counts, kinds, strict=True))
    mip = Mip()
    scale = SCALE / total
    columns = [mip.column(-value * scale, 0.0, float(c)) for c, (_, value) in zip(counts, kinds, strict=True)]
    mip.row(columns, [size / room for size, _ in kinds], upper=1.0)
    greedy = _filled([0] * len(kinds), kinds, counts, room)
    answer = mip.solve(time_limit_s=time_limit_s, start=dict(zip(columns, map(float, greedy), strict=True)))
    fillings = [greedy]
    if answer.values is not None:
        asked = [round(float(v)) for v in answer.values]
        for k in range(
            len(kinds) - 1, -1, -1
        ):  # HiGHS has a tolerance: items go until the room suffices, the least worth first
            while asked[k] and sum(n * size for n, (size, _) in zip(asked, kinds, strict=True)) > room:
                asked[k] -= 1
        fillings.append(_filled(asked, kinds, counts, room))
    best = max(fillings, key=lambda taken: sum(n * value for n, (_, value) in zip(taken, kinds, strict=True)))
    proven = total if answer.bound == -math.inf else math.floor((TOLERANCE - answer.bound) / scale)
    return best, min(proven, _fractional(kinds, counts, room))


def _filled(taken: Sequence[int], kinds: Sequence[tuple[int, int]], counts: Sequence[int], room: int) -> list[int]:
    """With more of the items that still fit, the most value for its size first."""
    left = room - sum(n * size for n, (size, _) in zip(taken, kinds, strict=True))
    filled = list(taken)
    for k, (size, _) in enumerate(kinds):
        more = min(counts[k] - filled[k], left // size)
        filled[k] += more
        left -= more * size
    return filled


def _fractional(kinds: Sequence[tuple[int, int]], counts: Sequence[int], room: int) -> int:
    """Dantzig's bound (1957): items may be cut."""
    value = 0
    for (size, worth), count in zip(kinds, counts, strict=True):
        whole = min(count, room // size)
        value += whole * worth
        room -= whole * size
        if whole < count:
            return value + room * worth // size
    return value
