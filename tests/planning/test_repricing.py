"""A bound that is carried over to other prices is one: never above the optimum that exhaustive search finds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from poetc.planning.repricing import carried_bound
from poetc.scheduling import Elsewhere, Objective, Paging, Problem, ProcessorSpec, keep_all_peak_bytes
from poetc.solvers.processors import above_idle, placed, relaxed, search
from tests.support.oracle import optimum
from tests.support.problems import random_dag

SHORT = (4, 15, 22, 35, 54, 57, 76, 91, 95, 111)  # seeds of problems with too little RAM to keep everything


def least_of(problem: Problem, *, fixed_order: bool = True) -> int | None:
    found = optimum(problem, fixed_order=fixed_order)
    return None if found is None else found.cost


def at_other_prices(random: Random, problem: Problem, low: float) -> Problem:
    """Operators and transfers at `low` to twice their prices."""

    def price(value: int) -> int:
        return round(value * random.uniform(low, 2))

    operators = tuple(replace(o, energy_pj=price(o.energy_pj)) for o in problem.operators)
    tensors = tuple(
        replace(t, page_out_pj=price(t.page_out_pj), page_in_pj=price(t.page_in_pj)) for t in problem.tensors
    )
    return replace(problem, operators=operators, tensors=tensors)


@pytest.mark.parametrize("paging", [False, True])
def test_a_carried_bound_holds(paging: bool) -> None:
    beyond = 0
    for seed in SHORT:
        random = Random(seed)
        problem = random_dag(random, 5, paging=paging)
        problem = replace(problem, budget_bytes=int(0.9 * keep_all_peak_bytes(problem)))
        least = least_of(problem)
        if least is None:
            continue
        assert carried_bound(problem, least, problem) == least
        for low in (0.5, 1.0):
            other = at_other_prices(random, problem, low)
            carried, there = carried_bound(problem, least, other), least_of(other)
            assert carried is not None and there is not None and carried <= there
            beyond += carried > other.compute_once_pj
    assert beyond > 3


def test_a_bound_is_not_carried_where_more_may_be_done() -> None:
    problem = random_dag(Random(1), 5)
    assert carried_bound(problem, 1, replace(problem, budget_bytes=problem.budget_bytes + 16)) is None
    assert carried_bound(problem, 1, replace(problem, paging=Paging.SYNC)) is None
    assert carried_bound(problem, 1, replace(problem, objective=Objective.TIME)) is None
    late = replace(problem, deadline_ns=problem.compute_once_ns)
    assert carried_bound(late, 1, problem) is None
    quick = replace(late, operators=tuple(replace(o, time_ns=o.time_ns - 1) for o in problem.operators))
    assert carried_bound(late, 1, quick) is None
    assert carried_bound(quick, 1, late) is not None


def test_a_bound_of_operators_in_turn_holds_side_by_side() -> None:
    """Two equal cores: the recomputations that one core cannot avoid, two cannot avoid either."""
    beyond = 0
    for seed in (4, 54, 91, 95, 111):
        random = Random(seed)
        plain = random_dag(random, 5)
        idle, active = random.randint(0, 900), 3000
        cores = tuple(ProcessorSpec(name=f"p{p}", active_uw=active * 1000, idle_uw=idle * 1000) for p in range(2))
        operators = tuple(
            replace(
                o,
                energy_pj=active * o.time_ns,
                elsewhere=(Elsewhere(processor=1, time_ns=o.time_ns, energy_pj=active * o.time_ns),),
            )
            for o in plain.operators
        )
        beside = replace(plain, operators=operators, processors=cores)
        alone = replace(placed(beside, (0,) * len(operators)), processors=())
        budget = int(0.9 * keep_all_peak_bytes(alone))
        one, both = replace(alone, budget_bytes=budget), replace(beside, budget_bytes=budget)
        least = least_of(one, fixed_order=False)
        assert least is not None
        found = search(both, 2 * least, 20_000)
        assert found.is_complete
        rest = above_idle(both)
        assert rest is not None
        carried = carried_bound(one, least, rest[0])
        assert carried is not None and carried + rest[1] <= found.cost
        beyond += carried + rest[1] > relaxed(both).least
    assert beyond == 5
