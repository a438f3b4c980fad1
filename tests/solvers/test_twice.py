"""Operators on two processors, each for its own readers: lists, and what they cost beside exact search."""

from __future__ import annotations

from random import Random

import pytest

from poetc.scheduling import (
    Elsewhere,
    InPlace,
    OperatorSpec,
    Problem,
    ProcessorSpec,
    TensorSpec,
    validate_problem,
    verify_parts,
)
from poetc.solvers.processors import (
    can_search,
    relaxed,
    repeated_elsewhere,
    search,
)
from tests.solvers.test_processors import NODES, with_processors
from tests.support.problems import random_dag


def test_an_operator_on_two_processors_saves_a_hand_over() -> None:
    """The loss runs on the first processor alone, and the rest is cheaper on the second one. Both make `a`."""
    tensors = tuple(TensorSpec(name=n, size_bytes=16, final="ram" if n in "cd" else "") for n in "abcd")

    def operator(name: str, inputs: tuple[int, ...], output: int, elsewhere: bool = True) -> OperatorSpec:
        other = (Elsewhere(processor=1, time_ns=10, energy_pj=10),) if elsewhere else ()
        return OperatorSpec(
            name=name, inputs=inputs, outputs=(output,), time_ns=10, energy_pj=40, elsewhere=other, recomputable=True
        )

    operators = (
        operator("a", (), 0),
        operator("loss", (0,), 3, elsewhere=False),
        operator("b", (0,), 1),
        operator("c", (1,), 2),
    )
    processors = (
        ProcessorSpec(name="main", active_uw=4_000_000),
        ProcessorSpec(name="dsp", active_uw=1_000_000, hand_over_ns=1000),
    )
    problem = Problem(name="twice", operators=operators, tensors=tensors, budget_bytes=1024, processors=processors)
    validate_problem(problem)
    traces = [trace for _, trace in repeated_elsewhere(problem, problem)]
    costs = [problem.objective.cost(trace.energy_pj, trace.time_ns) for trace in traces]
    exact = search(problem, 2**60, NODES)
    assert exact.is_complete and min(costs) == exact.cost == 40 + 40 + 30
    assert 0.95 * exact.cost < relaxed(problem).least <= exact.cost
    assert search(problem, 2**60, NODES, once=True).cost > exact.cost


def test_an_order_that_overwrites_a_tensor_too_early_has_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main processor updates `w`, which an operator of the other one reads. A defect of a list is not hidden."""
    finals = dict.fromkeys("cdu", "ram")
    tensors = tuple(
        TensorSpec(name=n, size_bytes=16, initial="ram" if n == "w" else "", final=finals.get(n, "")) for n in "abcdwu"
    )

    def operator(name: str, inputs: tuple[int, ...], output: int, in_place: tuple[InPlace, ...] = ()) -> OperatorSpec:
        other = () if name in ("loss", "update") else (Elsewhere(processor=1, time_ns=10, energy_pj=10),)
        return OperatorSpec(
            name=name,
            inputs=inputs,
            outputs=(output,),
            time_ns=10,
            energy_pj=40,
            elsewhere=other,
            recomputable=not in_place,
            in_place=in_place,
        )

    update = operator("update", (3, 4), 5, (InPlace(input=4, output=5, required=True),))
    readers = operator("a", (), 0), operator("loss", (0,), 3), operator("b", (0, 4), 1), operator("c", (1,), 2)
    processors = (
        ProcessorSpec(name="main", active_uw=4_000_000),
        ProcessorSpec(name="dsp", active_uw=1_000_000, hand_over_ns=1000),
    )
    problem = Problem(
        name="update", operators=(*readers, update), tensors=tensors, budget_bytes=1024, processors=processors
    )
    validate_problem(problem)
    lists = list(repeated_elsewhere(problem, problem))
    assert len(lists) == 2  # in one of three orders the update comes too early
    assert all(verify_parts([(problem, actions)]) == trace for actions, trace in lists)

    def broken(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("poetc.solvers.processors.twice.side_by_side", broken)
    with pytest.raises(KeyError, match="a defect"):
        list(repeated_elsewhere(problem, problem))


def test_lists_with_repeated_operators_cost_no_less_than_the_cheapest() -> None:
    compared = 0
    for seed in range(300):
        random = Random(seed)
        problem = with_processors(random, random_dag(random, random.randint(2, 4)))
        if not can_search(problem):
            continue
        for actions, trace in repeated_elsewhere(problem, problem):
            assert verify_parts([(problem, actions)]) == trace
            exact = search(problem, 2**60, NODES)
            cost = problem.objective.cost(trace.energy_pj, trace.time_ns)
            assert not exact.is_complete or exact.cost <= cost, f"seed {seed}"
            compared += 1
    assert compared >= 10
