"""Fewer writes: what paging alone writes is made again, in schedules that the checker accepts, at less cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from poetc.scheduling import (
    Completer,
    InPlace,
    OperatorSpec,
    Paging,
    Problem,
    Proof,
    Schedule,
    Scope,
    Status,
    TensorSpec,
    keep_all_peak_bytes,
    verify,
)
from poetc.solvers.liveness import improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.search import unwritten as search
from poetc.solvers.poetc.search.eviction import Policy, Simulation, Stuck
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.search.unwritten import unwritten
from poetc.solvers.poetc.settings import UNWRITTEN
from tests.support.oracle import optimum
from tests.support.problems import training_problem, with_budget


def cost_of(problem: Problem, codes: Sequence[int]) -> int:
    """By the checker, which refuses what does not fit."""
    model = Model(problem)
    actions = Completer(problem).run(model.decisions(codes)).actions
    proof = Proof(status=Status.FEASIBLE, objective=int(model.cost(codes)), bound=0, scope=Scope())
    return verify(problem, Schedule(solver="test", actions=actions, proof=proof)).energy_pj


def paged_alone(problem: Problem) -> list[int] | None:
    model = Model(problem)
    policy = Policy(recompute=False)
    try:
        codes = Simulation(model, model.paging_capacity, policy, paging=True).run()
    except Stuck:
        return None
    assert codes is not None
    codes = improve(model, codes, model.paging_capacity)
    return codes if Race(problem, 0, float("inf")).offer(codes, "paging alone") else None


def writes(problem: Problem, codes: Sequence[int]) -> int:
    return sum(code >= len(problem.operators) + len(problem.tensors) for code in codes)


def dear_writes(problem: Problem) -> Problem:
    tensors = tuple(replace(t, page_out_pj=(1 if t.final else 20) * t.page_out_pj) for t in problem.tensors)
    return replace(problem, tensors=tensors)


def test_random_schedules_get_cheaper_and_still_fit() -> None:
    tried, cheaper = 0, 0
    for seed in range(60):
        for share in (0.0, 0.1, 0.3):
            problem = dear_writes(with_budget(training_problem(Random(seed), 3, paging=True, scale=3), share))
            codes = paged_alone(problem)
            if codes is None or not writes(problem, codes):
                continue
            model = Model(problem)
            fewer = unwritten(model, codes, model.paging_capacity)
            was, now = cost_of(problem, codes), cost_of(problem, fewer)
            assert now <= was and (now < was or fewer == codes)
            tried, cheaper = tried + 1, cheaper + (now < was)
    assert tried >= 40 and cheaper >= 5, (tried, cheaper)


def test_a_schedule_whose_time_is_up_gets_fewer_writes() -> None:
    """Windows may end with the time, and leave writes that recomputation makes cheaper."""
    cheaper = 0
    for case in range(90):
        share = (0.0, 0.1, 0.3)[case % 3]
        problem = dear_writes(with_budget(training_problem(Random(case // 3), 3, paging=True, scale=3), share))
        codes = paged_alone(problem)
        if codes is not None:
            race = Race(problem, 0, 0.0)  # ended long ago
            race.offer(codes, "paging alone")
            race.offer_unwritten(codes, "paging alone")
            assert race.incumbent is not None
            cheaper += race.incumbent.cost < Model(problem).cost(codes)
    assert cheaper


def test_none_is_cheaper_than_the_optimum() -> None:
    compared = 0
    for seed in range(60):
        problem = dear_writes(with_budget(training_problem(Random(seed), 1, paging=True), 0.3))
        codes, best = paged_alone(problem), optimum(problem, fixed_order=True)
        if codes is not None and best is not None:
            model = Model(problem)
            assert cost_of(problem, unwritten(model, codes, model.paging_capacity)) >= best.cost
            compared += 1
    assert compared >= 10, compared


def steps(count: int, budget_units: int) -> Problem:
    """A chain of equal steps with a weight on the store, and the way back: writes cost 10 times as much as a step."""
    size = 16
    tensors = [TensorSpec(name="weight", size_bytes=4 * size, initial="store", page_in_pj=1, page_in_ns=1)]
    tensors += [
        TensorSpec(name=name, size_bytes=size, page_out_pj=30, page_out_ns=1, page_in_pj=1, page_in_ns=1)
        for name in [f"x{k}" for k in range(count + 1)] + [f"g{k}" for k in range(count + 1)]
    ]
    operators = [OperatorSpec(name="x0", inputs=(), outputs=(1,), time_ns=1, energy_pj=1, recomputable=False)]
    for k in range(count):
        inputs = (0, 1 + k)
        operators.append(OperatorSpec(name=f"x{k + 1}", inputs=inputs, outputs=(2 + k,), time_ns=1, energy_pj=3))
    first = count + 2
    phase = {"phase": "backward", "time_ns": 1, "energy_pj": 3}
    operators.append(OperatorSpec(name="g0", inputs=(1 + count,), outputs=(first,), **phase))  # type: ignore[arg-type]
    for k in range(count):
        inputs = (first + k, 1 + count - k - 1)
        operators.append(OperatorSpec(name=f"g{k + 1}", inputs=inputs, outputs=(first + k + 1,), **phase))  # type: ignore[arg-type]
    return Problem(
        name="steps",
        operators=tuple(operators),
        tensors=tuple(tensors),
        budget_bytes=budget_units * size,
        paging=Paging.SYNC,
    )


def test_every_few_steps_one_is_written() -> None:
    """As with checkpoints: between two that are written, steps are made again from the earlier one."""
    problem = steps(12, 7)
    assert keep_all_peak_bytes(problem) > problem.budget_bytes
    codes = paged_alone(problem)
    assert codes is not None
    model = Model(problem)
    fewer = unwritten(model, codes, model.paging_capacity)
    assert 0 < writes(problem, fewer) <= writes(problem, codes) / 2
    assert cost_of(problem, fewer) < 0.75 * cost_of(problem, codes)
    race = Race(problem, 0, float("inf"))
    race.offer(codes, "paging alone")
    race.offer_unwritten(codes, "paging alone")
    assert race.incumbent is not None
    assert race.incumbent.cost == cost_of(problem, fewer)
    assert race.incumbent.origin == "paging alone, fewer writes"


def test_weights_on_the_store_make_room() -> None:
    """A weight that the way back reads at every step is away while a step is made again."""
    problem = steps(6, 8)
    held = replace(problem.tensors[0], name="other", page_in_pj=1)
    tensors = (*problem.tensors, held)
    other = len(tensors) - 1
    operators = tuple(replace(o, inputs=(*o.inputs, other)) if o.phase == "backward" else o for o in problem.operators)
    problem = replace(problem, tensors=tensors, operators=operators)
    codes = paged_alone(problem)
    assert codes is not None
    model = Model(problem)
    fewer = unwritten(model, codes, model.paging_capacity)
    reads = [c for c in fewer if c == len(operators) + other]
    assert len(reads) > sum(c == len(operators) + other for c in codes)
    assert cost_of(problem, fewer) < cost_of(problem, codes)


def test_state_that_an_update_has_taken_over_is_not_read() -> None:
    """Where a weight is gone, tensors made of it stay written."""
    problem = steps(4, 7)
    count = len(problem.tensors)
    after = TensorSpec(name="after", size_bytes=64, final="store", page_out_pj=1, page_out_ns=1)
    first_backward = next(k for k, o in enumerate(problem.operators) if o.phase == "backward")
    update = OperatorSpec(
        name="update",
        phase="update",
        inputs=(0,),
        outputs=(count,),
        time_ns=1,
        energy_pj=1,
        recomputable=False,
        in_place=(InPlace(input=0, output=count, required=True),),
    )
    operators = (*problem.operators[: first_backward + 1], update, *problem.operators[first_backward + 1 :])
    problem = replace(problem, tensors=(*problem.tensors, after), operators=operators)
    codes = paged_alone(problem)
    assert codes is not None
    model = Model(problem)
    fewer = unwritten(model, codes, model.paging_capacity)
    assert cost_of(problem, fewer) == cost_of(problem, codes)


def test_a_round_that_saves_little_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many such rounds would take the time of searches that save more."""
    problem = steps(12, 7)
    codes = paged_alone(problem)
    assert codes is not None
    model = Model(problem)
    costs: list[float] = []

    def improved(*arguments: Any) -> list[int]:
        codes = improve(*arguments)
        costs.append(model.cost(codes))
        return codes

    monkeypatch.setattr(search, "improve", improved)
    for least, more in ((0.0, False), (1.0, True)):
        costs.clear()
        monkeypatch.setattr(search, "UNWRITTEN", replace(UNWRITTEN, least_saved=least))
        assert model.cost(unwritten(model, codes, model.paging_capacity)) < model.cost(codes)
        assert (len(costs) == 1) == more, costs
