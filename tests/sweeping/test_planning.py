"""What does not pack is solved again: for less each time, and within the time limit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from poetc import planning
from poetc.errors import LimitError
from poetc.scheduling import MemoryPlan, Problem, Schedule, SolveOptions, keep_all, keep_all_peak_bytes, pack
from tests.support.problems import training_problem


@pytest.fixture
def problem() -> Problem:
    made = training_problem(Random(1), 4)
    return replace(made, budget_bytes=keep_all_peak_bytes(made))


def test_the_arena_that_fits_is_enough(problem: Problem) -> None:
    schedule, plan = planning.solve_and_pack(problem, "keep_all", SolveOptions(), lambda text: None)
    assert planning.ram_bytes(problem, plan) <= problem.budget_bytes
    assert schedule.steps == keep_all(problem).steps


def test_more_is_put_aside_with_each_attempt(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[tuple[int, float, bool]] = []

    def solve(asked: Problem, solver: str, options: SolveOptions, progress: object = None) -> Schedule:
        del solver, progress
        solved.append((problem.budget_bytes - asked.budget_bytes, options.time_limit_s, options.fixed_order))
        return keep_all(problem)

    def packed(asked: Problem, schedule: Schedule, *, enough_bytes: int = 0) -> MemoryPlan:
        assert enough_bytes in (0, problem.budget_bytes - problem.base_bytes)
        plan = pack(asked, schedule)
        return replace(plan, arena_bytes=problem.budget_bytes - problem.base_bytes + 64)

    monkeypatch.setattr(planning.solvers, "solve", solve)
    monkeypatch.setattr(planning, "pack", packed)
    with pytest.raises(LimitError, match="none was found that can be packed into it"):
        planning.solve_and_pack(problem, "poetc", SolveOptions(time_limit_s=300), lambda text: None, 0.1)
    assert [less for less, _, _ in solved] == [0, 64, 160, 288, 448, 640, 864]
    limits = [limit for _, limit, _ in solved]
    assert limits[0] == 0.9 * 300, "the rest is for packing"
    assert all(6 <= limit <= 100 for limit in limits[1:])
    assert [fixed for _, _, fixed in solved] == [False, *[True] * 6], "what was proven is about one order"
