"""Folded LPs beside the LPs themselves."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from poetc.solvers import folding
from poetc.solvers.highs import Mip, Series

LAYERS = 40


def layers_in_a_chain(rng: random.Random, layers: int = LAYERS) -> Mip:
    """Each layer holds, reads or makes again what the next one needs; two rows go through all of them."""
    mip = Mip(offset=10.0)
    again, read, size = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 5)
    held, others = list[int](), list[int]()
    before: tuple[int, ...] = ()
    for _ in range(layers):
        columns = mip.column(), mip.column(float(again)), mip.column(float(read))
        if before:
            mip.row([columns[1], *before], [1.0, *[-1.0] * 3], upper=0.0)  # what it is made of
        mip.row(columns, [1.0] * 3, lower=1.0)
        before = columns
        held.append(columns[0])
        others.append(columns[2])
    mip.row(held, [float(size)] * layers, upper=rng.uniform(0, size * layers))
    time = mip.column(rng.uniform(0, 5), upper=math.inf)
    mip.row([time, *others], [1.0, *[-1.0] * layers], lower=0.0)
    return mip


def least(mip: Mip) -> float:
    return mip.solve(time_limit_s=10.0, relax=True).bound


@pytest.mark.parametrize("seed", range(20))
def test_folded_to_the_end_has_the_same_optimum(seed: int) -> None:
    mip = layers_in_a_chain(random.Random(seed))
    assert Series(mip, [], []).least(time_limit_s=10.0) == pytest.approx(least(mip))


@pytest.mark.parametrize("most", [1, 10, 30])
@pytest.mark.parametrize("seed", range(20))
def test_folded_early_is_smaller_and_never_above(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MOST_COLUMNS", most)
    mip = layers_in_a_chain(random.Random(seed))
    small = folding.folded(mip.rows())
    assert small is not None
    assert len(small.lp.cost) < mip.columns / 2
    folded, whole = Series(mip, [], []).least(time_limit_s=10.0), least(mip)
    assert folded is not None
    assert 0.9 * whole <= folded <= whole + 1e-6


@pytest.mark.parametrize("most", [1, 4, 4_000])
@pytest.mark.parametrize("seed", range(200))
def test_random_lps(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few different numbers, so that many columns and rows are alike without being so."""
    monkeypatch.setattr(folding, "MOST_COLUMNS", most)
    rng, mip = random.Random(seed), Mip()
    columns = [mip.column(float(rng.choice((1, 1, 2))), upper=rng.choice((1.0, 1.0, math.inf))) for _ in range(12)]
    for _ in range(rng.randint(1, 12)):
        row = rng.sample(columns, rng.randint(1, 4))
        mip.row(row, [float(rng.choice((1, 1, -1, 2))) for _ in row], lower=rng.choice((-1.0, 0.0, 1.0)))
    folded, whole = Series(mip, [], []).least(time_limit_s=10.0), mip.solve(time_limit_s=10.0, relax=True)
    if whole.infeasible:
        return
    assert folded is not None
    assert folded <= whole.bound + 1e-6


def test_limits_that_change_have_classes_of_their_own() -> None:
    mip = layers_in_a_chain(random.Random(1))
    row, column = 2 * LAYERS - 1, 0
    small = folding.folded(mip.rows(), ([column], [row]), most=1)
    assert small is not None
    assert np.count_nonzero(small.columns == small.columns[column]) == 1
    assert np.count_nonzero(small.rows == small.rows[row]) == 1
    series = Series(mip, [row], [column])
    for room, held in ((0.0, 1.0), (3.0, 1.0), (3.0, 0.0)):
        series.row_upper(row, room)
        series.column_upper(column, held)
        mip.row_upper[row], mip.upper[column] = room, held
        assert series.least(time_limit_s=10.0) == pytest.approx(least(mip))
