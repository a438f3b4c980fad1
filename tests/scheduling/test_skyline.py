"""The exact search for offsets agrees with brute force, and packs what first fit along orders did not."""

from __future__ import annotations

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetc.scheduling import _placement, _skyline
from poetc.scheduling._skyline import Skyline
from tests.scheduling.test_packing import check_disjoint

Rectangles = tuple[np.ndarray, np.ndarray, np.ndarray]  # starts, ends, sizes


def lowest_end(starts: np.ndarray, ends: np.ndarray, sizes: np.ndarray, bottom: np.ndarray) -> int:
    """Of all placements above `bottom`: the best of first fit from below along every order."""
    best = math.inf
    for order in itertools.permutations(range(len(sizes))):
        tops = bottom.copy()
        for i in order:
            tops[starts[i] : ends[i]] = tops[starts[i] : ends[i]].max() + sizes[i]
        best = min(best, tops.max())
    return int(best)


def searched(rectangles: Rectangles, capacity: int, obstacles: list[tuple[list[tuple[int, int]], int]]) -> bool:
    starts, ends, sizes = rectangles
    lives = [[life] for life in zip(starts.tolist(), ends.tolist(), strict=True)]
    skyline = Skyline(lives, sizes, obstacles)
    offsets = skyline.search(np.full(len(sizes), capacity), 10**7, math.inf)
    if offsets is not None:
        check_disjoint(starts, ends, sizes, offsets)
        assert (offsets + sizes).max() <= capacity
        for own, top in obstacles:
            for start, end in own:
                assert (offsets[(starts < end) & (ends > start)] >= top).all()
    return offsets is not None


@given(st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_small_problems_have_their_optimum(random: Random) -> None:
    count, most = random.randint(1, 6), random.choice((3, 9))
    starts = np.array([random.randrange(8) for _ in range(count)])
    ends = starts + np.array([random.randint(1, 5) for _ in range(count)])
    sizes = np.array([random.randint(1, most) for _ in range(count)])
    bottom = np.zeros(14, int)
    obstacles: list[tuple[list[tuple[int, int]], int]] = []
    if random.random() < 0.5:
        start, top = random.randrange(8), random.randint(1, 4)
        obstacles.append(([(start, start + 4)], top))
        bottom[start : start + 4] = top
    best = lowest_end(starts, ends, sizes, bottom)
    assert searched((starts, ends, sizes), best, obstacles)
    used = np.zeros(14, bool)
    for start, end in zip(starts, ends, strict=True):
        used[start:end] = True
    if best > bottom[~used].max(initial=0):
        assert not searched((starts, ends, sizes), best - 1, obstacles)


def cut_to_pieces(random: Random, count: int, width: int, height: int) -> Rectangles:
    """A full arena, cut by guillotine: a placement without a hole exists."""
    pieces = [(0, width, 0, height)]
    while len(pieces) < count:
        left, right, low, top = pieces.pop(max(range(len(pieces)), key=lambda k: random.random() * area(pieces[k])))
        if random.random() < 0.5 and right - left > 1:
            middle = random.randint(left + 1, right - 1)
            pieces += [(left, middle, low, top), (middle, right, low, top)]
        elif top - low > 1:
            middle = random.randint(low + 1, top - 1)
            pieces += [(left, right, low, middle), (left, right, middle, top)]
        else:
            pieces.append((left, right, low, top))
    random.shuffle(pieces)
    starts, ends, lows, tops = (np.array(column) for column in zip(*pieces, strict=True))
    return starts, ends, tops - lows


def area(piece: tuple[int, int, int, int]) -> int:
    left, right, low, top = piece
    return (right - left) * (top - low)


@pytest.mark.parametrize("seed", range(4))
def test_a_full_arena_without_holes(seed: int) -> None:
    """First fit along orders, with the same work, leaves it 9 to 27 % too high."""
    starts, ends, sizes = cut_to_pieces(Random(seed), 100, 200, 10_000)
    free = np.full(100, -1)
    offsets = _placement.place(starts, ends, sizes, free)
    check_disjoint(starts, ends, sizes, offsets)
    assert (offsets + sizes).max() == 10_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Skyline, "search", lambda *_: None)
        along_orders = _placement.place(starts, ends, sizes, free)
    assert (along_orders + sizes).max() > 10_500
    assert np.array_equal(offsets, _placement.place(starts, ends, sizes, free)), "the same again"


@given(st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_two_lives_at_one_offset(random: Random) -> None:
    count = random.randint(1, 12)
    lives = []
    for _ in range(count):
        start = random.randrange(20)
        own = [(start, start + random.randint(1, 6))]
        if random.random() < 0.4:
            own.append((own[0][1] + 2, own[0][1] + 2 + random.randint(1, 9)))
        lives.append(own)
    sizes = np.array([random.randint(1, 9) for _ in range(count)])
    highest = np.array([random.choice((20, 60)) for _ in range(count)])
    offsets = Skyline(lives, sizes, []).search(highest, 10**5, math.inf)
    if offsets is None:
        return
    assert (offsets + sizes <= highest).all()
    pieces = [(start, end, i) for i, own in enumerate(lives) for start, end in own]
    starts, ends, who = (np.array(column) for column in zip(*pieces, strict=True))
    check_disjoint(starts, ends, sizes[who], offsets[who])


def test_the_clock_and_the_work_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, ends, sizes = cut_to_pieces(Random(0), 100, 200, 10_000)
    lives = [[life] for life in zip(starts.tolist(), ends.tolist(), strict=True)]
    too_low = np.full(100, 9_999)
    assert Skyline(lives, sizes, []).search(too_low, 10**9, math.inf) is None, "more than that is alive at once"
    full = np.full(100, 10_000)
    assert Skyline(lives, sizes, []).search(full, 10**9, math.inf) is not None
    assert Skyline(lives, sizes, []).search(full, 100, math.inf) is None
    assert Skyline(lives, sizes, []).search(full, 10**9, 0.0) is not None, "a first attempt of little work is sure"
    monkeypatch.setattr(_skyline, "SURE_PLACEMENTS", 0)
    assert Skyline(lives, sizes, []).search(full, 10**9, 0.0) is None
