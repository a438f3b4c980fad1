"""A bound above a verified schedule in its scope is an internal error, and never called optimal."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import poetc
from demo.boards import networks
from poetc import solvers
from poetc.planning import Planner, Solution
from poetc.planning.alternatives import better_of, with_lowest_bound
from poetc.planning.chain import reductions
from poetc.planning.solution import with_bound_of
from poetc.scheduling import Paging, Problem, keep_all_peak_bytes
from poetc.scheduling.schedule import SolveOptions
from poetc.solvers.banks import Crossing
from poetc.solvers.processors import Relaxed, scheduled, search
from tests.solvers.test_processors import with_processors
from tests.support.banks import banked
from tests.support.problems import random_dag

ABOVE = 2**60


def solved(problem: Problem) -> Solution:
    return Planner(options=SolveOptions(time_limit_s=2.0, work_limit_s=0.5), reductions=reductions()).solve(problem)


def on_two_processors(seed: int) -> Problem:
    return replace(with_processors(Random(seed), random_dag(Random(seed), 5)), paging=Paging.NONE)


def test_rounding_is_no_crossing() -> None:
    cost = 10**12
    assert solvers.bound_beside(cost - 0.5, cost, "a cut") == cost
    assert solvers.bound_beside(cost * (1 + 0.9 * solvers.ROUNDING), cost, "a cut") == cost
    with pytest.raises(AssertionError, match="from 'a cut' exceeds a schedule of"):
        solvers.bound_beside(cost * (1 + 1.1 * solvers.ROUNDING), cost, "a cut")
    assert solvers.bound_beside(11, 10, "a cut") == 10
    with pytest.raises(AssertionError):
        solvers.bound_beside(12, 10, "a cut")


@pytest.mark.parametrize("where", ["poetc.planning.processors.relaxed", "poetc.planning.processors.search"])
def test_bounds_for_processors_are_not_cut(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    problem = on_two_processors(1)
    own = solved(problem)
    assert own.proof.bound <= own.cost
    if where.endswith("search"):
        least = own.proof.bound
        outcome = replace(search(own.problem, own.cost, 1000), cost=ABOVE, is_complete=True)
        monkeypatch.setattr(where, lambda *_, **__: replace(outcome, actions=None))
        monkeypatch.setattr("poetc.planning.processors.relaxed", lambda *_: Relaxed(None, least // 2))
    else:
        monkeypatch.setattr(where, lambda *_: Relaxed(None, ABOVE))
    with pytest.raises(AssertionError, match="exceeds a schedule"):
        solved(problem)


def test_bounds_beside_a_published_list_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = on_two_processors(1)
    placement = (0,) * len(problem.operators)
    assert scheduled(solvers.info("heft"), problem, placement) is not None
    monkeypatch.setattr(sys.modules[scheduled.__module__], "relaxed", lambda _: Relaxed(None, ABOVE))
    with pytest.raises(AssertionError, match="exceeds a schedule"):
        scheduled(solvers.info("heft"), problem, placement)


def test_bounds_for_banks_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poetc.planning.banks.placement_bound", lambda *_, **__: Crossing(ABOVE))
    with pytest.raises(AssertionError, match="exceeds a schedule"):
        solved(banked(Random(2), 3))


def test_bounds_of_overlapped_transfers_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_dag(Random(8), 8)
    budget_bytes = int(0.85 * keep_all_peak_bytes(problem))
    problem = replace(problem, paging=Paging.DMA, idle_uw=5_000_000, budget_bytes=budget_bytes)
    assert solved(problem).proof.gap() > 0
    monkeypatch.setattr(solvers, "phased_bound", lambda *_, **__: ABOVE)
    with pytest.raises(AssertionError, match="exceeds a schedule"):
        solved(problem)


def test_bounds_of_options_are_not_cut() -> None:
    solution = solved(random_dag(Random(5), 7))
    above = solution.with_proof(replace(solution.proof, bound=2 * solution.cost + 2))
    dearer = solution.with_proof(replace(above.proof, objective=2 * above.cost + 2))
    for pair in ((solution, above), (dearer, solution)):
        with pytest.raises(AssertionError, match="exceeds a schedule"):
            better_of(*pair)
    with pytest.raises(AssertionError, match="exceeds a schedule"):
        with_bound_of(solution, replace(above, problem=replace(above.problem, budget_bytes=1)))
    with pytest.raises(AssertionError, match="exceeds a schedule"):
        with_lowest_bound(solution, [above.proof.bound], 0.0)
    assert with_lowest_bound(solution, [above.proof.bound, solution.cost], 0.0).proof.bound == solution.cost


def test_the_answer_is_checked_by_the_schedule_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state may live elsewhere than that of the answer, whose bound is for any placement."""
    model = poetc.load(networks.write("mlp", tmp_path / "mlp.onnx"), batch=8)
    find, asked = Planner.first, list[Problem]()

    def found(planner: Planner, problem: Problem) -> Solution | None:
        first = find(planner, problem)
        asked.append(problem)
        if first is None or len(asked) > 1:
            return first
        cheaper = first.with_proof(replace(first.proof, objective=1, bound=0))
        return replace(cheaper, problem=replace(first.problem, budget_bytes=first.problem.budget_bytes + 1))

    monkeypatch.setattr(Planner, "first", found)
    with pytest.raises(AssertionError, match="exceeds a schedule"):
        model.solve(device="stm32f746", budget="100%", time_limit_s=2.0)
