"""Windows: what they make of a schedule is a schedule, never dearer; over all of a small one, the optimum."""

from __future__ import annotations

import math
from random import Random

import pytest

from poetc.scheduling import Completer, Problem, Proof, Schedule, Scope, SolveOptions, Status, verify
from poetc.solvers import Event, solve
from poetc.solvers.liveness import improve
from poetc.solvers.model import Model
from poetc.solvers.poetc.search.neighbourhoods import WindowModel, Windows
from poetc.solvers.poetc.search.race import Race
from tests.solvers.cases import case, worn
from tests.support.problems import training_problem, with_budget


def raced(problem: Problem, runs: int = 2) -> Race:
    race = Race(problem, 0, math.inf)
    race.run(runs, 0.0)
    return race


def check(race: Race) -> None:
    assert race.incumbent is not None
    cost = race.incumbent.cost
    actions = Completer(race.problem).run(race.model.decisions(race.incumbent.codes)).actions
    proof = Proof(status=Status.FEASIBLE, objective=cost, bound=0, scope=Scope())
    verify(race.problem, Schedule(solver="test", actions=actions, proof=proof))


def slid(race: Race) -> int:
    Windows(race).run(math.inf, 0.0)
    check(race)
    assert race.incumbent is not None
    return race.incumbent.cost


def test_small_schedules_become_optimal_and_stay_schedules() -> None:
    cheaper = optimal = 0
    for seed in range(150):
        problem, best = case(seed)
        race = raced(problem)
        if best is None or race.incumbent is None:
            continue
        before = race.incumbent.cost
        after = slid(race)
        assert best.cost <= after <= before
        cheaper += after < before
        optimal += after == best.cost
    assert cheaper >= 3 and optimal >= 60


def test_limits_of_the_store_are_kept() -> None:
    runs = 0
    for seed in range(120):
        found = worn(seed)
        if found is None or found[1] is None:
            continue
        race = raced(found[0], 4)
        if race.incumbent is None:
            continue
        before = race.incumbent.cost
        assert found[1].cost <= slid(race) <= before
        assert race.model.stored_bytes(race.incumbent.codes) <= race.model.store_free
        runs += 1
    assert runs >= 8


@pytest.mark.parametrize("paging", [False, True])
def test_the_mip_costs_what_its_schedule_costs(paging: bool) -> None:
    """Rows allow the schedule it began with, and an optimum is taken as it is."""
    improved = 0
    for seed in range(6):
        problem = with_budget(training_problem(Random(seed), 8, paging=paging, scale=4), 0.35)
        race = raced(problem, 3)
        if race.incumbent is None:
            continue
        model, codes, cost = race.model, race.incumbent.codes, race.incumbent.cost
        paged = any(code >= model.n_ops for code in codes)
        length = sum(code < model.n_ops for code in codes)
        for start, stop in ((0, length), (length // 3, 2 * length // 3)):
            window = WindowModel(model, codes, race.model.capacity_for(paged), paged, start, stop, 2)
            answer = window.mip.solve(time_limit_s=60.0, max_nodes=500, start=window.initial)
            assert answer.values is not None
            assert answer.objective <= window.cost_now() + 1e-6
            found = window.codes_of(answer.values)
            predicted = cost + (answer.objective - window.cost_now()) * window.unit
            assert model.cost(found) <= predicted + 1
            assert race.offer(found, "test")
            check(race)
            improved += answer.objective < window.cost_now() - 1e-3
    assert improved >= 3


def test_a_window_leaves_alone_what_is_outside() -> None:
    problem = with_budget(training_problem(Random(3), 4, paging=True, scale=4), 0.35)
    race = raced(problem, 3)
    assert race.incumbent is not None
    codes, model = race.incumbent.codes, race.model
    again = [code for code in codes if code < model.n_ops]
    window = WindowModel(model, codes, race.model.capacity_for(True), True, 4, 10, 2)
    answer = window.mip.solve(time_limit_s=60.0, start=window.initial)
    assert answer.values is not None
    found = [code for code in window.codes_of(answer.values) if code < model.n_ops]
    assert found[:4] == again[:4]


def test_what_an_lp_and_the_schedule_agree_about_stays() -> None:
    improved = 0
    for seed in range(4):
        problem = with_budget(training_problem(Random(seed), 10, paging=True, scale=4), 0.3)
        race = raced(problem, 3)
        assert race.incumbent is not None
        model, codes = race.model, race.incumbent.codes
        length = sum(code < model.n_ops for code in codes)
        whole = WindowModel(model, codes, race.model.capacity_for(True), True, 0, length, 2)
        sparse = WindowModel(model, codes, race.model.capacity_for(True), True, 0, length, 2, dense=False)
        plan = whole.mip.solve(time_limit_s=60.0, relax=True)
        other = sparse.mip.solve(time_limit_s=60.0, relax=True)
        assert plan.values is not None and math.isclose(plan.objective, other.objective, rel_tol=1e-6)
        sizes = []
        for wide in (False, True):
            decided = whole.agreed(plan.values, wide=wide)
            rest = WindowModel(model, codes, race.model.capacity_for(True), True, 0, length, 2, decided=decided)
            assert len(rest.initial) <= len(whole.initial) - len(decided) // 2
            answer = rest.mip.solve(time_limit_s=60.0, max_nodes=100, start=rest.initial)
            assert answer.values is not None and answer.objective <= rest.cost_now() + 1e-6
            assert race.offer(rest.codes_of(answer.values), "test")
            check(race)
            improved += answer.objective < rest.cost_now() - 1e-3
            sizes.append(len(rest.initial))
        assert sizes[0] < sizes[1] < len(whole.initial)
    assert improved >= 3


def test_the_same_work_finds_the_same() -> None:
    problem = with_budget(training_problem(Random(5), 6, paging=True, scale=4), 0.3)
    found = []
    for _ in range(2):
        race = raced(problem, 2)
        Windows(race).run(0.5, 0.0)
        assert race.incumbent is not None
        found.append(race.incumbent.codes)
    assert found[0] == found[1]


def test_nothing_is_left_to_find_where_keep_all_costs_least() -> None:
    problem = with_budget(training_problem(Random(1), 3, paging=False), 1.0)
    race = raced(problem, 1)
    assert race.incumbent is not None
    model = Model(problem)
    race.offer(improve(model, model.keep_all(), race.model.capacity_for(False)), "keep-all")
    assert slid(race) == race.model.base_cost


def test_poetc_slides_them() -> None:
    class Reached(Exception):
        pass

    def stop(event: Event) -> None:
        if event.stage == "windows":
            raise Reached

    problem = with_budget(training_problem(Random(5), 8, paging=True, scale=4), 0.3)
    with pytest.raises(Reached):
        solve(problem, options=SolveOptions(time_limit_s=60, gap=0.0, fixed_order=True), progress=stop)


@pytest.mark.long
def test_the_clock_does_not_choose_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a time limit differs from run to run; the work limit does not."""
    problem = with_budget(training_problem(Random(0), 5, paging=True, scale=4), 0.25)
    shares: list[float] = []
    run = Windows.run

    def recorded(windows: Windows, work_s: float, target: float) -> float:
        shares.append(work_s)
        return run(windows, work_s, target)

    monkeypatch.setattr(Windows, "run", recorded)
    found = []
    for time_limit_s in (200.0, 300.0):
        shares.clear()
        options = SolveOptions(time_limit_s=time_limit_s, work_limit_s=0.2, gap=0.0, fixed_order=True)
        found.append((solve(problem, options=options), tuple(shares)))
    assert found[0] == found[1]
    assert found[0][1][0] < 0.2
