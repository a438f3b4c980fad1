"""A smaller LP in place of one with many columns and rows that are alike, such as those of equal layers.

Columns and rows are put into classes. The folded LP has the sum of each class as its column, and the sum of the rows of
each class as its row. The columns of a class have the same cost and limits. They have the same total coefficient in
each class of rows, too. So the sums of any solution are one of the folded LP, at the same cost: its optimum is never
higher.

Both optima are equal where refinement ends by itself (colour refinement, Grohe et al., 2014). For a solution of the
folded LP, divided equally, is then one of the LP.

Refinement ends early where many classes are left. In a chain of layers that are alike each further round would set
apart operators one step further from its ends. The loss is about the layers at its ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST_COLUMNS = 4_000  # classes of columns: no further round once there are more

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Colours = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Rows:
    """A sparse matrix, row by row, with limits of columns and rows."""

    cost: Floats
    lower: Floats
    upper: Floats
    row_lower: Floats
    row_upper: Floats
    starts: Ints
    index: Ints
    value: Floats

    @property
    def row_of(self) -> Ints:
        """By coefficient, its row."""
        return np.repeat(np.arange(len(self.row_lower)), np.diff(self.starts))


@dataclass(frozen=True, slots=True)
class Folded:
    """`columns`, `rows`: the class of each."""

    lp: Rows
    columns: Ints
    rows: Ints


def folded(lp: Rows, alone: tuple[Sequence[int], Sequence[int]] = ((), ()), most: int | None = None) -> Folded | None:
    """The folded LP. None where its classes are not as they should be, or where it is no smaller.

    `alone`: columns and rows that are classes of their own, as their limits will change.
    """
    rows, columns = _classes(lp, alone, MOST_COLUMNS if most is None else most)
    count, sizes = int(columns.max(initial=-1)) + 1, np.bincount(columns)
    if count == len(columns):
        return None
    first = np.zeros(count, np.int64)
    first[columns[::-1]] = np.arange(len(columns))[::-1]
    for of_column in (lp.cost, lp.lower, lp.upper):
        if not np.array_equal(of_column, of_column[first][columns]):
            return None
    # By class of rows and column, the total coefficient; then by class of columns, all of which have to agree.
    pairs, total = _summed(rows[lp.row_of] * len(columns) + lp.index, lp.value)
    row, column = np.divmod(pairs, max(1, len(columns)))
    keys, number = np.unique(row * count + columns[column], return_inverse=True)
    least, most_of = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
    np.minimum.at(least, number, total)
    np.maximum.at(most_of, number, total)
    of_row, of_class = np.divmod(keys, count)
    if not (np.array_equal(np.bincount(number), sizes[of_class]) and np.allclose(least, most_of, rtol=1e-12, atol=0.0)):
        return None
    row_count = int(rows.max(initial=-1)) + 1
    small = Rows(
        cost=lp.cost[first],
        lower=lp.lower[first] * sizes,
        upper=lp.upper[first] * sizes,
        row_lower=_sums(rows, lp.row_lower, row_count),
        row_upper=_sums(rows, lp.row_upper, row_count),
        starts=np.searchsorted(of_row, np.arange(row_count + 1)),
        index=of_class,
        value=(least + most_of) / 2,
    )
    return Folded(small, columns, rows)


def _classes(lp: Rows, alone: tuple[Sequence[int], Sequence[int]], most: int) -> tuple[Ints, Ints]:
    """The classes of rows and those of columns, which know the classes of rows that they are in."""
    row_of, value = lp.row_of, _mixed(_bits(lp.value))
    columns = _mixed(_mixed(_mixed(_bits(lp.cost)) + _bits(lp.lower)) + _bits(lp.upper))
    rows = _mixed(_mixed(_bits(lp.row_lower)) + _bits(lp.row_upper))
    for colours, own in ((columns, alone[0]), (rows, alone[1])):
        colours[list(own)] += _mixed(np.arange(1, len(own) + 1, dtype=np.uint64))
    count = 0
    while True:
        np.add.at(rows, row_of, _mixed(columns[lp.index] + value))
        rows = _mixed(rows)
        np.add.at(columns, lp.index, _mixed(rows[row_of] ^ value))
        columns = _mixed(columns)
        classes = np.unique(columns, return_inverse=True)[1]
        before, count = count, int(classes.max(initial=-1)) + 1
        if count in (before, len(columns)) or count > most:
            return np.unique(rows, return_inverse=True)[1], classes


def _summed(keys: Ints, values: Floats) -> tuple[Ints, Floats]:
    distinct, number = np.unique(keys, return_inverse=True)
    return distinct, _sums(number, values, len(distinct))


def _sums(classes: Ints, values: Floats, count: int) -> Floats:
    return np.bincount(classes, values, count).astype(np.float64)


def _bits(values: Floats) -> Colours:
    return np.ascontiguousarray(values + 0.0).view(np.uint64)  # one zero alone


def _mixed(colours: Colours) -> Colours:
    """Well-mixed bits of each: a step of a common hash function."""
    mixed: Colours = colours ^ (colours >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed
