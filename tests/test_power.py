"""The attribute `power_loss` of a test: each cut point is tried, and a body that loses data is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.power import Power

Write = Callable[[dict[str, int], Power], None]


def in_place(store: dict[str, int], power: Power) -> None:
    for name in ("a", "b"):
        power.operate()
        store[name] += 1


def beside(store: dict[str, int], power: Power) -> None:
    power.operate()
    new = {name: value + 1 for name, value in store.items()}
    power.operate()
    store.update(new)


def unheard(store: dict[str, int], power: Power) -> None:
    if not power.goes():
        store.update(a=1, b=1)


def looking(store: dict[str, int], power: Power) -> None:
    try:
        in_place(store, power)
    finally:
        assert store["a"] == store["b"], "torn, as the writer saw"


def in_two_parts(store: dict[str, int], power: Power) -> None:
    beside(store, power)
    with power.may_go():
        beside(store, power)


def run(power: Power, write: Write) -> None:
    store = dict[str, int]()

    def body() -> None:
        if power.boot == 0:
            store.update(a=0, b=0)
        assert store["a"] == store["b"], "torn"
        power.outcomes.add(store["a"])
        with power.may_go():
            write(store, power)
        assert store["a"] == store["b"]

    power.run(body)


def test_every_operation_is_a_cut_point() -> None:
    power = Power(at_least=2, outcomes=[0])
    run(power, beside)
    assert power.cuts == 2
    twice = Power(twice=True)
    twice.count = 6
    assert list(twice.points()) == [(1,), (2,), (3, 1), (4,), (5,), (6, 1)]


@pytest.mark.parametrize(
    ("write", "of", "message"),
    [
        (in_place, Power(), "torn"),
        (unheard, Power(), "no error says so"),
        (looking, Power(), "as the writer saw"),
        (in_two_parts, Power(), "one part"),
        (beside, Power(at_least=3), "2 cuts"),
        (beside, Power(outcomes=[1]), "{0}"),
    ],
)
def test_a_store_that_loses_data_is_found(write: Write, of: Power, message: str) -> None:
    with pytest.raises(AssertionError) as error:
        run(of, write)
    assert message in str(error.value)


@pytest.mark.power_loss(sample=3, at_least=3, outcomes=[1])
def test_the_body_begins_anew(power: Power) -> None:
    with power.may_go():
        for _ in range(5):
            power.operate()
    power.outcomes.add(power.boot)
