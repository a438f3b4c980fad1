"""Budgets that share their work: what is said of each is as true as if it had been solved alone, for less work."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from poetc.errors import InfeasibleError
from poetc.planning import plain, solve_curve
from poetc.planning.curve import refusal_for_less, visiting_order
from poetc.planning.solution import bound_holds
from poetc.scheduling import (
    Problem,
    Scope,
    SolveOptions,
    first_executions,
    keep_all_peak_bytes,
    verify,
)
from tests.support.oracle import optimum
from tests.support.planning import planner
from tests.support.problems import training_problem
from tests.support.ram import order_free_bound_bytes

OPTIONS = SolveOptions(time_limit_s=60)


def budgets_of(problem: Problem, count: int = 10) -> list[int]:
    low, high = order_free_bound_bytes(problem) - 16, keep_all_peak_bytes(problem) + 32
    return [low + (high - low) * k // (count - 1) for k in range(count)]


def test_ends_first_then_middles() -> None:
    assert visiting_order([1, 2, 3, 4, 5]) == [5, 1, 3, 2, 4]
    assert visiting_order([7]) == [7]
    assert visiting_order([6, 7]) == [7, 6]
    assert sorted(visiting_order(list(range(11)))) == list(range(11))


def test_every_point_is_the_optimum_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []
    real = plain.solve_and_pack
    monkeypatch.setattr(plain, "solve_and_pack", lambda p, *more: (solved.append(p.budget_bytes), real(p, *more))[1])
    infeasible = packed_worse = 0
    for seed in range(4):
        problem = training_problem(Random(seed), 1, paging=seed % 2 == 0)
        budgets = budgets_of(problem)
        points = solve_curve(problem, budgets, planner("ram", options=OPTIONS))
        assert [p.budget_bytes for p in points] == budgets
        for budget, point in zip(budgets, points, strict=True):
            limited = replace(problem, budget_bytes=budget)
            best = optimum(limited)
            if point.solution is None:
                infeasible += 1
                assert isinstance(point.error, InfeasibleError) == (best is None)
                continue
            assert best is not None
            proof = point.solution.schedule.proof
            assert verify(limited, point.solution.schedule).energy_pj == proof.objective
            assert problem.base_bytes + point.solution.plan.arena_bytes <= budget
            assert proof.bound <= best.cost <= proof.objective, (seed, budget)
            packed_worse += best.cost < proof.objective
        costs = [p.solution.proof.objective for p in points if p.solution is not None]
        bounds = [p.solution.proof.bound for p in points if p.solution is not None]
        assert costs == sorted(costs, reverse=True)
        assert bounds == sorted(bounds, reverse=True)
    assert infeasible >= 4
    assert packed_worse < 4, "an arena is rarely larger than its live tensors"
    assert len(solved) < 4 * 10 * 0.9, "neighbours settle some budgets"


@pytest.mark.parametrize("solver", ["poetc", "keep_all"])
def test_every_budget_has_its_own_verdict(solver: str) -> None:
    """A proof for a larger budget is told as one of the smaller ones, which are not solved."""
    problem = training_problem(Random(1), 1)
    points = solve_curve(problem, [16, 32, 48], replace(planner("ram", options=OPTIONS), solver=solver))
    assert [p.solved for p in points].count(True) == 1
    for point in points:
        assert isinstance(point.error, InfeasibleError)
        others = {16, 32, 48} - {point.budget_bytes}
        assert f" {point.budget_bytes}" in str(point.error)
        assert not any(f" {other} " in str(point.error) for other in others)
        assert point.error.details.get("budget_bytes", point.budget_bytes) == point.budget_bytes


def test_a_proof_that_names_no_budget_says_which_it_was_for() -> None:
    text = str(refusal_for_less(InfeasibleError("nothing fits"), 48, 16))
    assert text == "nothing fits (proven for 48 bytes, so that 16 are too few)"


@pytest.mark.long
def test_a_wider_gap_needs_fewer_solves() -> None:
    counts = {0.0: 0, 0.5: 0}
    for seed in range(2):
        problem = training_problem(Random(seed), 1)
        for gap in counts:
            points = solve_curve(problem, budgets_of(problem, 20), planner("ram", options=replace(OPTIONS, gap=gap)))
            counts[gap] += sum(p.solved for p in points)
            assert all(p.solution.proof.gap() <= gap for p in points if p.solution is not None)
    assert counts[0.5] < counts[0.0]


def test_a_schedule_that_is_known_already_is_a_point() -> None:
    problem = training_problem(Random(2), 1)
    budget = 280
    (found,) = solve_curve(problem, [budget], planner("ram", options=OPTIONS))
    assert found.solution is not None
    (alone,) = solve_curve(problem, [budget], planner("ram", "keep_all", OPTIONS))
    assert alone.solution is None, "keep-all does not fit"
    (point,) = solve_curve(problem, [budget], planner("ram", "keep_all", OPTIONS), found.solution)
    assert point.solution is not None and point.solution.cost == found.solution.cost


def test_bounds_about_an_order_are_lent_to_schedules_of_that_order_only() -> None:
    problem = training_problem(Random(3), 1)
    points = solve_curve(problem, [keep_all_peak_bytes(problem)], planner("ram", options=OPTIONS))
    solution = points[0].solution
    assert solution is not None
    order = first_executions(solution.schedule.actions)
    assert order == tuple(range(len(problem.operators)))
    proven = solution.with_proof(replace(solution.proof, scope=Scope(order=order)))
    assert bound_holds(proven, solution)
    computes = [s for s in solution.schedule.actions if hasattr(s, "operator")]
    actions = (computes[1], computes[0], *computes[2:])
    swapped = replace(solution, schedule=replace(solution.schedule, actions=actions))
    assert not bound_holds(proven, swapped)
    assert bound_holds(solution, swapped), "all schedules are in its scope"
