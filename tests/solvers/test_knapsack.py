"""The knapsack: the optimum by brute force, equal items, tables and HiGHS, and a bound that holds."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from poetc.solvers import knapsack as module
from poetc.solvers.knapsack import knapsack


def best(sizes: list[int], values: list[int], room: int) -> int:
    """Over all subsets."""
    subsets = itertools.product((False, True), repeat=len(sizes))
    fitting = (s for s in subsets if sum(itertools.compress(sizes, s)) <= room)
    return max(sum(itertools.compress(values, s)) for s in fitting)


def drawn(random: Random) -> tuple[list[int], list[int]]:
    """Up to nine items, some of them equal, some of no size or no value."""
    unit = random.choice((1, 7, 64))
    kinds = [(unit * random.randint(0, 30), random.randint(0, 40)) for _ in range(random.randint(1, 6))]
    items = [random.choice(kinds) for _ in range(random.randint(1, 9))]
    return [size for size, _ in items], [value for _, value in items]


@pytest.mark.parametrize("table_entries", [module.TABLE_ENTRIES, 0])
def test_no_choice_has_more(monkeypatch: pytest.MonkeyPatch, table_entries: int) -> None:
    monkeypatch.setattr(module, "TABLE_ENTRIES", table_entries)
    for seed in range(150):
        random = Random(seed)
        sizes, values = drawn(random)
        room, before = random.randint(0, sum(sizes) + 1), 0
        found = knapsack(sizes, values, room)
        assert found.size == sum(sizes[i] for i in found.items) <= room
        assert found.value == sum(values[i] for i in found.items) == best(sizes, values, room)
        assert found.bound >= found.value
        if table_entries:
            assert found.bound == found.value
        for share in (0.2, 0.5, 0.9):  # monotone
            value = knapsack(sizes, values, int(share * sum(sizes))).value
            assert value >= before
            before = value


def test_an_answer_that_breaks_the_room_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS takes a row for met that is broken by a millionth."""
    monkeypatch.setattr(module, "TABLE_ENTRIES", 0)
    found = knapsack([10**9 + 1, 10**9], [11, 10], 2 * 10**9)
    assert (found.items, found.value) == ((0,), 11)
    assert found.bound >= 11


def test_a_thousand_equal_items_are_one_class() -> None:
    found = knapsack([4096 * 12] * 900 + [4096 * 7] * 100, [100] * 900 + [60] * 100, 4096 * 3001)
    assert found.value == found.bound == max(60 * n + 100 * ((3001 - 7 * n) // 12) for n in range(101))


def test_values_that_are_no_knapsack() -> None:
    for sizes, values in (([1], []), ([-1], [1]), ([1], [-1]), ([1], [2**63])):
        with pytest.raises(ValueError, match=r"a knapsack takes as many|the values add up"):
            knapsack(sizes, values, 1)
