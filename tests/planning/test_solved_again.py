"""Problems with state that are solved a second time: they go on where the first solve ended."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from poetc import solvers
from poetc.errors import InfeasibleError, LimitError
from poetc.planning import StatePlacement
from poetc.planning.solution import cost_of_computing_once
from poetc.planning.state import everything
from poetc.scheduling import (
    ANY,
    Problem,
    SolveOptions,
    on_store,
    stored_state,
    verify,
    without_moves,
)
from poetc.scheduling.schedule import first_executions
from poetc.solvers import PlacementSearch
from poetc.solvers.poetc.options import warm_start_of
from poetc.solvers.poetc.settings import PLACEMENT
from tests.planning.test_state import LIMIT_S, OPTIONS, SEEDS, best, case
from tests.support.planning import planner
from tests.support.problems import random_dag, training_problem, with_budget


@pytest.mark.long
def test_what_is_found_beside_a_relaxation_is_begun_with(monkeypatch: pytest.MonkeyPatch) -> None:
    # Short races alone find the optimum of problems as small.
    monkeypatch.setattr("poetc.solvers.poetc.placement.search.PLACEMENT", replace(PLACEMENT, runs=1))
    longer = 0
    for seed in SEEDS:
        problem, found = case(seed)
        search = PlacementSearch(problem, OPTIONS, math.inf, None)
        search.run()
        on = search.best()
        schedule, optimum = search.schedule(on), found[on]
        if schedule is None:
            continue
        verify(on_store(problem, on), schedule)
        assert optimum is not None and optimum.cost <= schedule.proof.objective <= search.raced[on], seed
        assert search.least <= schedule.proof.objective, seed
        assert search.cuts == tuple(sorted(set(search.cuts))), seed
        longer += schedule.proof.objective < search.raced[on]
    assert longer > 0


@pytest.mark.long
def test_a_problem_without_a_choice_solved_again_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second solve begins with the first one's schedule and bound, in its order."""
    asked: list[tuple[Problem, SolveOptions]] = []
    solve_plain = solvers.solve

    def recorded(problem: Problem, solver: str, options: SolveOptions, progress: Any = None) -> Any:
        asked.append((problem, options))
        return solve_plain(problem, solver, options, progress)

    monkeypatch.setattr(solvers, "solve", recorded)
    monkeypatch.setattr(StatePlacement, "is_open", lambda self, problem: False)
    own = training_problem(Random(0), 10, paging=True), random_dag(Random(1), 9, paging=True)
    other_order = 0
    for problem in (with_budget(own[0], 0.5), with_budget(own[1], 0.25)):
        chain = planner("auto", options=SolveOptions(time_limit_s=60.0, work_limit_s=0.02, gap=0.0))
        first = chain.solve(problem)
        asked.clear()
        again = chain.part(60.0).solve(problem)
        same, options = asked[0]
        order = first_executions(first.schedule.actions)
        start = warm_start_of(options).start
        assert same == solvers.reordered(problem, order) and options.fixed_order
        assert start is not None and start.proof.objective == without_moves(problem, first.schedule).proof.objective
        assert warm_start_of(options).proven == first.proof.bound
        assert again.cost <= first.cost and again.proof.bound >= first.proof.bound
        assert verify(again.problem, again.schedule).energy_pj == again.cost
        other_order += order != tuple(range(len(order)))
    assert other_order > 0


def test_a_problem_solved_again_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same order and bound, and with the cuts of its last relaxation."""
    orders: list[Problem] = []
    best_order = solvers.best_order

    def counted(problem: Problem, *given: Any) -> Any:
        orders.append(problem)
        return best_order(problem, *given)

    monkeypatch.setattr(solvers, "best_order", counted)
    went_on, climbed = 0, list[tuple[Problem, set[int]]]()
    solve_plain = solvers.solve

    def recorded(problem: Problem, solver: str, options: SolveOptions, progress: Any = None) -> Any:
        ladder = (warm_start_of(options).ladders or {}).get(problem)
        climbed.append((problem, set() if ladder is None else set(ladder.cuts)))
        return solve_plain(problem, solver, options, progress)

    monkeypatch.setattr(solvers, "solve", recorded)
    for seed in (3, 5):
        climbed.clear()
        problem = with_budget(training_problem(Random(seed), 10, paging=True), 0.25)
        chain = planner("auto", options=SolveOptions(time_limit_s=60.0, work_limit_s=0.01, gap=0.003))
        first = chain.solve(problem)
        searched, before = len(orders), dict(climbed)
        climbed.clear()
        again = chain.part(60.0).solve(problem)
        assert len(orders) == searched > 0, seed
        went_on += any(cuts for p, cuts in climbed if p in before)
        if again.proof.scope.choices_cover(first.proof.scope):
            assert min(again.cost, first.proof.bound) <= again.proof.bound, seed
    assert went_on > 0


@pytest.mark.long
def test_what_is_proven_in_two_solves_is_no_more_than_the_optimum() -> None:
    proven = 0
    for seed in SEEDS:
        problem, found = case(seed)
        least, chain = best(found), planner("auto", options=replace(OPTIONS, work_limit_s=0.02))
        for _ in range(2):
            try:
                placed = chain.part(LIMIT_S).solve(problem)
            except (InfeasibleError, LimitError):
                break
            on = frozenset(chain[0] for chain in stored_state(placed.problem)) & everything(problem)
            there, proof = found[on], placed.proof
            assert least is not None and there is not None, seed
            limit = least if proof.scope.choice("state") in (None, ANY) else there.cost
            assert proof.bound <= limit <= placed.cost or proof.scope.order is ANY, seed
            proven += proof.bound > cost_of_computing_once(problem)
    assert proven > 10
