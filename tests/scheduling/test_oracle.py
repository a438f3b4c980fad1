"""The exhaustive oracle itself: its schedules verify, and it agrees with problems whose optimum is known by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from poetc.scheduling import (
    Completer,
    Objective,
    OperatorSpec,
    Paging,
    Problem,
    TensorSpec,
    keep_all,
    verify,
)
from tests.support.oracle import minimum_budget, optimum
from tests.support.problems import random_dag, random_decisions, training_problem, with_budget


def chain(*, paging: bool = False) -> Problem:
    """f0 -> f1 -> f2, then b2, b1, b0 read them backwards. Everything is one unit, a forward operator costs 10 (f1:
    30), paging out and in 12 each.
    """
    names = ["a0", "a1", "a2", "g2", "g1", "g0"]
    tensors = tuple(
        TensorSpec(name=n, size_bytes=16, page_out_pj=12, page_in_pj=12, final="ram" if n == "g0" else "")
        for n in names
    )
    reads = [(), (0,), (1,), (2,), (1, 3), (0, 4)]
    operators = tuple(
        OperatorSpec(name=f"make_{names[k]}", inputs=reads[k], outputs=(k,), time_ns=k, energy_pj=30 if k == 1 else 10)
        for k in range(6)
    )
    mode = Paging.SYNC if paging else Paging.NONE
    return Problem(name="chain", tensors=tensors, operators=operators, budget_bytes=64, paging=mode)


def test_known_optima() -> None:
    problem = chain()
    assert keep_all(problem).proof.objective == 80
    everything = optimum(problem)
    assert everything is not None and everything.cost == 80
    # Three units: a0 is dropped while g2 is made, and made again at the end.
    three = optimum(replace(problem, budget_bytes=48))
    assert three is not None and three.cost == 90
    assert optimum(replace(problem, budget_bytes=32)) is None
    assert minimum_budget(problem) == 48


def test_paging_against_recomputation() -> None:
    three = optimum(replace(chain(paging=True), budget_bytes=48))
    assert three is not None and three.cost == 90, "making a0 again is cheaper than paging it"
    dear = replace(chain(paging=True), budget_bytes=48)
    operators = (replace(dear.operators[0], energy_pj=100), *dear.operators[1:])
    paged = optimum(replace(dear, operators=operators))
    assert paged is not None and paged.cost == 170 + 24
    buffered = optimum(replace(dear, operators=operators, page_buffer_bytes=16))
    assert buffered is not None and buffered.cost == 170 + 100, "with the page buffer there is no room to page"
    assert optimum(replace(dear, operators=operators, store_capacity_bytes=15)) == optimum(
        replace(dear, operators=operators, paging=Paging.NONE)
    )


def test_what_starts_on_the_store_needs_the_page_buffer() -> None:
    tensors = (
        TensorSpec(name="w", size_bytes=16, initial="store", page_in_pj=3),
        TensorSpec(name="y", size_bytes=16, final="ram"),
    )
    reads = OperatorSpec(name="f", inputs=(0,), outputs=(1,), time_ns=1, energy_pj=1)
    problem = Problem(
        name="stored", tensors=tensors, operators=(reads,), budget_bytes=64, paging=Paging.SYNC, page_buffer_bytes=32
    )
    found = optimum(problem)
    assert found is not None and found.cost == 4
    assert optimum(replace(problem, budget_bytes=63)) is None
    assert minimum_budget(problem) == 64


def test_deadline_trades_energy_for_time() -> None:
    problem = replace(chain(paging=True), budget_bytes=48)
    slow = replace(problem.operators[0], time_ns=50)
    problem = replace(problem, operators=(slow, *problem.operators[1:]))
    free = optimum(problem)
    assert free is not None and free.cost == 90
    hurried = optimum(replace(problem, deadline_ns=problem.compute_once_ns))
    assert hurried is not None and hurried.cost == 80 + 24
    assert optimum(replace(problem, deadline_ns=problem.compute_once_ns - 1)) is None
    quickest = optimum(replace(problem, objective=Objective.TIME))
    assert quickest is not None and quickest.cost == problem.compute_once_ns


@given(st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_its_schedules_verify_and_nothing_known_is_cheaper(random: Random) -> None:
    paging = random.random() < 0.5
    if random.random() < 0.5:
        problem = training_problem(random, 1, paging=paging)
    else:
        problem = random_dag(random, random.randint(1, 5), paging=paging)
    problem = with_budget(problem, random.random())
    if random.random() < 0.3:
        deadline = keep_all_time(problem) + random.randint(0, problem.compute_once_ns)
        problem = replace(problem, deadline_ns=deadline)
    for fixed_order in (True, False):
        best = optimum(problem, fixed_order=fixed_order)
        for _ in range(5):
            completion = Completer(problem).run(random_decisions(random, problem, random.randint(0, 4)))
            fits = completion.peak_bytes <= problem.budget_bytes
            in_time = problem.deadline_ns is None or completion.time_ns <= problem.deadline_ns
            if fits and in_time:
                assert best is not None and best.cost <= completion.energy_pj
    fixed, any_order = optimum(problem), optimum(problem, fixed_order=False)
    assert fixed is None or (any_order is not None and any_order.cost <= fixed.cost)


def keep_all_time(problem: Problem) -> int:
    return verify(replace(problem, budget_bytes=2**40), keep_all(problem)).time_ns


@given(st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_more_room_never_costs_more(random: Random) -> None:
    problem = random_dag(random, random.randint(1, 5), paging=random.random() < 0.5)
    smallest = minimum_budget(problem)
    assert smallest is not None and smallest <= problem.budget_bytes
    last: int | None = None
    for budget in (smallest - 1, smallest, (smallest + problem.budget_bytes) // 2, problem.budget_bytes):
        found = optimum(replace(problem, budget_bytes=budget))
        assert (found is None) == (budget < smallest)
        if found is not None:
            assert last is None or found.cost <= last
            last = found.cost
    assert last == keep_all(problem).proof.objective
