"""Shares of the time that ways of using several processors get, and bounds of ways that were left behind."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from poetc.errors import LimitError
from poetc.planning import Planner, Solution, reductions
from poetc.planning.ways import ALONE, SIDE_BY_SIDE, CoreUsage
from poetc.scheduling import Paging, Problem, SolveOptions, keep_all_peak_bytes
from tests.planning.parallel.test_ways import THREADS, several, ways_of
from tests.support.problems import training_problem


@pytest.mark.parametrize(("dearer", "share"), [(1.02, 1.0), (1.005, 0.5)])
def test_a_way_that_is_dearer_by_its_steps_gets_no_share(
    monkeypatch: pytest.MonkeyPatch, dearer: float, share: float
) -> None:
    random = Random(0)
    ways = ways_of(replace(several(random, training_problem(random, 5, paging=True), 0), paging=Paging.SYNC))
    shares = list[float]()

    def recorded(_usage: CoreUsage, _problem: Problem, _way: int, _inner: Planner, part: float, *_: float) -> Solution:
        shares.append(part)
        raise LimitError("its share is known")

    monkeypatch.setattr(CoreUsage, "_solved", recorded)
    monkeypatch.setattr(CoreUsage, "_is_better_apart", lambda *_, **__: True)
    monkeypatch.setattr(CoreUsage, "_least", lambda *_, **__: 0)
    costs = {ALONE: 10**6, THREADS: dearer * 10**6, SIDE_BY_SIDE: 10**9}
    monkeypatch.setattr(CoreUsage, "_cost_at_hand", lambda _usage, _problem, way, _planner: costs[way])
    options = SolveOptions(time_limit_s=60, work_limit_s=0.3, fixed_order=True, gap=1e-9)
    tight = replace(ways[ALONE], budget_bytes=int(0.55 * keep_all_peak_bytes(ways[ALONE])))
    Planner(options=options, reductions=reductions("auto", ways=[ways])).solve(tight)
    assert shares[0] == share


def test_a_bound_of_steps_that_were_beaten_by_those_at_hand_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(0)
    beside = replace(several(random, training_problem(random, 5, paging=True), 0), paging=Paging.SYNC)
    ways = {way: p for way, p in ways_of(beside).items() if way != SIDE_BY_SIDE}
    solved, least, proven = CoreUsage._solved, CoreUsage._least, list[int]()

    def dear(usage: CoreUsage, problem: Problem, way: int, inner: Planner, *shares: float) -> Solution:
        solution = solved(usage, problem, way, inner, *shares)
        if way == ALONE:
            return solution
        hint = usage.at_hand(problem, way, inner)
        assert hint is not None
        proven.append(min(hint.cost, solution.cost) - 1)
        scope = solution.proof.scope.open
        return solution.with_proof(replace(solution.proof, objective=2 * hint.cost, bound=proven[-1], scope=scope))

    monkeypatch.setattr(CoreUsage, "_solved", dear)
    monkeypatch.setattr(CoreUsage, "propose", lambda *_: iter((ALONE, THREADS)))
    monkeypatch.setattr(CoreUsage, "_least", lambda *_, **__: 0)
    options = SolveOptions(time_limit_s=6, work_limit_s=0.3, fixed_order=True, gap=1e-9)
    tight = replace(ways[ALONE], budget_bytes=int(0.55 * keep_all_peak_bytes(ways[ALONE])))
    chain = Planner(options=options, reductions=reductions("auto", ways=[ways]))
    best = chain.solve(tight)
    usage = next(r for r in chain.reductions if isinstance(r, CoreUsage))
    assert [way for way, _ in usage.beaten] == [THREADS] and proven
    alone = replace(chain, reductions=chain.reductions[chain.reductions.index(usage) :])
    assert least(usage, tight, THREADS, best.proof.scope.open, alone, 2 * best.cost) >= proven[0]
