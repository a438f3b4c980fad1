"""Budgets that share their work: what is said of each is as true as if it had been solved alone, for less work."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from poetc import planning
from poetc.curve import solve_curve, visiting_order
from poetc.errors import InfeasibleError
from poetc.planning import bound_holds, first_executions
from poetc.scheduling import (
    Problem,
    SolveOptions,
    keep_all_peak_bytes,
    lower_bound_bytes,
    verify,
)
from tests.support.oracle import optimum
from tests.support.problems import training_problem

OPTIONS = SolveOptions(time_limit_s=60)


def quiet(message: str) -> None:
    del message


def budgets_of(problem: Problem, count: int = 10) -> list[int]:
    low, high = lower_bound_bytes(problem) - 16, keep_all_peak_bytes(problem) + 32
    return [low + (high - low) * k // (count - 1) for k in range(count)]


def test_ends_first_then_middles() -> None:
    assert visiting_order([1, 2, 3, 4, 5]) == [5, 1, 3, 2, 4]
    assert visiting_order([7]) == [7]
    assert visiting_order([6, 7]) == [7, 6]
    assert sorted(visiting_order(list(range(11)))) == list(range(11))


def test_every_point_is_the_optimum_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []
    real = planning.solve_and_pack
    monkeypatch.setattr(planning, "solve_and_pack", lambda p, *more: (solved.append(p.budget_bytes), real(p, *more))[1])
    infeasible = packed_worse = 0
    for seed in range(8):
        problem = training_problem(Random(seed), 1, paging=seed % 2 == 0)
        budgets = budgets_of(problem)
        points = solve_curve(problem, budgets, "poetc", OPTIONS, quiet)
        assert [p.budget_bytes for p in points] == budgets
        for budget, point in zip(budgets, points, strict=True):
            limited = replace(problem, budget_bytes=budget)
            best = optimum(limited)
            if point.schedule is None or point.plan is None:
                infeasible += 1
                assert isinstance(point.error, InfeasibleError) == (best is None)
                continue
            assert best is not None
            proof = point.schedule.proof
            assert verify(limited, point.schedule).energy_pj == proof.objective
            assert problem.base_bytes + point.plan.arena_bytes <= budget
            assert proof.bound <= best.cost <= proof.objective, (seed, budget)
            packed_worse += best.cost < proof.objective
        costs = [p.schedule.proof.objective for p in points if p.schedule is not None]
        bounds = [p.schedule.proof.bound for p in points if p.schedule is not None]
        assert costs == sorted(costs, reverse=True)
        assert bounds == sorted(bounds, reverse=True)
    assert infeasible >= 8
    assert packed_worse < 8, "an arena is rarely larger than what is live"
    assert len(solved) < 8 * 10 * 0.9, "neighbours settle some budgets"


def test_a_wider_gap_needs_fewer_solves() -> None:
    counts = {0.0: 0, 0.5: 0}
    for seed in range(4):
        problem = training_problem(Random(seed), 1)
        for gap in counts:
            points = solve_curve(problem, budgets_of(problem, 20), "poetc", replace(OPTIONS, gap=gap), quiet)
            counts[gap] += sum(p.solved for p in points)
            assert all(p.schedule.proof.gap() <= gap for p in points if p.schedule is not None)
    assert counts[0.5] < counts[0.0]


def test_a_schedule_that_is_known_already_is_a_point() -> None:
    problem = training_problem(Random(2), 1)
    budget = 280
    (found,) = solve_curve(problem, [budget], "poetc", OPTIONS, quiet)
    assert found.placed is not None and found.schedule is not None
    (alone,) = solve_curve(problem, [budget], "keep_all", OPTIONS, quiet)
    assert alone.schedule is None, "keep-all does not fit"
    (point,) = solve_curve(problem, [budget], "keep_all", OPTIONS, quiet, "ram", found.placed)
    assert point.schedule is not None and point.schedule.proof.objective == found.schedule.proof.objective


def test_bounds_about_an_order_are_lent_to_schedules_of_that_order_only() -> None:
    problem = training_problem(Random(3), 1)
    points = solve_curve(problem, [keep_all_peak_bytes(problem)], "poetc", OPTIONS, quiet)
    schedule = points[0].schedule
    assert schedule is not None
    assert first_executions(schedule) == tuple(range(len(problem.operators)))
    about = replace(schedule.proof, schedule_class="first executions in this schedule's order")
    proven = replace(schedule, proof=about)
    assert bound_holds(proven, schedule)
    computes = [s for s in schedule.steps if hasattr(s, "operator")]
    swapped = replace(schedule, steps=(computes[1], computes[0], *computes[2:]))
    assert not bound_holds(proven, swapped)
    assert bound_holds(schedule, swapped), "all schedules are of its class"
