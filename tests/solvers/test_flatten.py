"""From the highest peak down: sequences that fit, hardly dearer than the optimum, where runs are made again too."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random

import pytest

from poetc.devices import build_problem, load_profile
from poetc.frontend import load
from poetc.passes import run_standard
from poetc.scheduling import (
    Completer,
    Problem,
    Proof,
    Schedule,
    Scope,
    SolveOptions,
    Status,
    movable_state,
    on_store,
    verify,
)
from poetc.solvers import Event, min_budget, solve
from poetc.solvers.dependences import Dependences
from poetc.solvers.liveness import improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.orders.low_traffic import low_traffic_order
from poetc.solvers.poetc.orders.reordering import reordered
from poetc.solvers.poetc.search.flatten import flatten
from poetc.solvers.poetc.search.race import Race
from poetc.training import TrainingOptions, build
from tests.solvers.test_orders import stacked
from tests.support.oracle import optimum
from tests.support.problems import training_problem, with_budget

DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"


def cost_of(problem: Problem, paging: bool, beta: float = 0.05) -> int | None:
    model = Model(problem)
    capacity = model.paging_capacity if paging else model.capacity
    codes = flatten(model, model.keep_all(), capacity, paging=paging, beta=beta, most=200)
    if codes is None:
        return None
    codes = improve(model, codes, capacity)
    cost = int(model.cost(codes))
    proof = Proof(status=Status.FEASIBLE, objective=cost, bound=0, scope=Scope())
    actions = Completer(problem).run(model.decisions(codes)).actions
    trace = verify(problem, Schedule(solver="test", actions=actions, proof=proof))
    assert trace.peak_bytes <= problem.budget_bytes
    return cost


@pytest.mark.long
def test_what_fits_is_a_schedule_and_near_the_optimum() -> None:
    ratios = []
    for seed in range(60):
        random = Random(seed)
        paging = seed % 2 == 0
        problem = with_budget(training_problem(random, 1, paging=paging), random.choice((0.3, 0.5, 0.7)))
        best = optimum(problem, fixed_order=True)
        if best is None:
            continue
        cost = cost_of(problem, paging)
        if cost is not None:
            assert cost >= best.cost
            ratios.append(cost / best.cost)
    assert len(ratios) >= 10
    assert sum(ratios) / len(ratios) < 1.02


def test_what_is_read_back_twice_was_written_before_the_first_time() -> None:
    costs = []
    for seed in range(12):
        for share in (0.3, 0.5):
            problem = with_budget(training_problem(Random(seed), 4, paging=True, scale=4), share)
            costs += [cost_of(problem, True, beta) for beta in (0.05, 0.5)]
    assert sum(cost is not None for cost in costs) >= 20


def chain(steps: int, share: int) -> Problem:
    """A recurrent layer, each step undone and summed up before the one before it."""
    problem = stacked(steps, 1, 0)
    dependences = Dependences(model := Model(problem))
    problem = reordered(problem, low_traffic_order(model, dependences.before, dependences.after))
    return with_budget(problem, share / 100)


def test_runs_of_steps_are_made_again() -> None:
    problem = chain(16, 60)
    cost = cost_of(problem, False)
    assert cost is not None and cost <= 1.15 * problem.compute_once_pj
    race = Race(problem, 0, float("inf"))
    race.run(20, 0.0)
    assert race.incumbent is not None and cost < race.incumbent.cost


def test_nothing_fits_in_too_little() -> None:
    problem = chain(8, 60)
    model = Model(problem)
    assert flatten(model, model.keep_all(), 100, paging=False, beta=0.05, most=200) is None
    assert flatten(model, model.keep_all(), model.capacity, paging=False, beta=0.05, most=1) is None
    once = model.base_cost
    assert flatten(model, model.keep_all(), model.capacity, paging=False, beta=0.05, most=200, cutoff=once) is None


def test_poetc_tries_it_where_more_than_one_cut_is_needed() -> None:
    class Reached(Exception):
        pass

    def stop(event: Event) -> None:
        if event.stage == "flattened":
            raise Reached

    with pytest.raises(Reached):
        solve(chain(16, 10), options=SolveOptions(time_limit_s=60, gap=0.01, fixed_order=True), progress=stop)


def test_what_comes_back_for_one_operator_does_not_leave_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the smallest budget, where all that an operator reads is read from the store right before it.

    Beside evictions alone: neither sequence gets fewer writes afterwards.
    """
    monkeypatch.setattr(Race, "offer_unwritten", lambda *_: None)
    step = run_standard(build(load(DIGITS, batch=16), TrainingOptions()))
    problem = build_problem(step, load_profile("rpi4"), budget_bytes=0)
    problem = on_store(problem, {chain[0] for chain in movable_state(problem)})
    smallest = min_budget(problem).smallest_bytes
    assert smallest is not None
    problem = dataclasses.replace(problem, budget_bytes=int(1.05 * smallest))
    race = Race(problem, 0, float("inf"))
    race.run(20, 0.0)
    assert race.incumbent is not None
    cost = cost_of(problem, True)
    assert cost is not None and cost < race.incumbent.cost
