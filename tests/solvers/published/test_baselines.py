"""What all published methods have in common: checked schedules, honest refusals, never cheaper than poetc."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from random import Random

import pytest

from poetc.errors import InfeasibleError, LimitError, PoetcError, UnsupportedProblemError
from poetc.scheduling import (
    Paging,
    Problem,
    Schedule,
    Scope,
    SolveOptions,
    Status,
    keep_all_peak_bytes,
    schedule_to_json,
    verify,
)
from poetc.solvers import Event, available, solve
from poetc.solvers.poetc.search import heuristics
from poetc.solvers.poetc.search.race import Race
from tests.problems import best_known, problems
from tests.solvers.chains import chain
from tests.support.problems import random_dag, training_problem, with_budget

BASELINES = sorted(set(available()) - {"poetc", "poet"})
OPTIONS = SolveOptions(time_limit_s=10)


def attempt(problem: Problem, solver: str) -> Schedule | None:
    """None if the method says that it cannot."""
    try:
        return solve(problem, solver, OPTIONS)
    except (InfeasibleError, LimitError, UnsupportedProblemError) as error:
        assert solver in str(error).replace("-", "_")  # says who
        return None


@functools.cache
def cases() -> tuple[Problem, ...]:
    found = []
    for seed in range(4):
        random = Random(seed)
        paging = seed % 2 == 1
        found.append(with_budget(training_problem(random, 4 + seed % 3, paging=paging), 0.7 + 0.05 * (seed % 3)))
    return tuple(dataclasses.replace(p, name=f"case{k}") for k, p in enumerate(found))


@functools.cache
def solved_by_us(name: str) -> Schedule:
    problem = next(p for p in cases() if p.name == name)
    return solve(problem, "poetc", SolveOptions(time_limit_s=20))


@pytest.mark.parametrize(
    "solver", [pytest.param(name, marks=pytest.mark.long) if name == "checkmate" else name for name in BASELINES]
)
def test_no_method_beats_ours(solver: str) -> None:
    for problem in cases():
        schedule = attempt(problem, solver)
        if schedule is None:
            continue
        ours = solved_by_us(problem.name)
        assert ours.proof.objective <= schedule.proof.objective, problem.name
        assert schedule.solver == solver
        trace = verify(problem, schedule)
        if not available()[solver].paging:
            assert trace.page_ins == trace.page_outs == 0


QUICK = (*heuristics.QUICK, *heuristics.PROGRAMS, *heuristics.SLOW)


def test_ours_is_never_behind_a_published_heuristic(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little time the search gets: here it gets none."""
    monkeypatch.setattr(Race, "run", lambda *_: None)
    fixed = SolveOptions(time_limit_s=20, fixed_order=True)
    for problem in cases():
        found = [s for s in (attempt(problem, method.INFO.name) for method in QUICK) if s is not None]
        assert found
        least = min(schedule.proof.objective for schedule in found)
        events: list[Event] = []
        solve(problem, "poetc", fixed, events.append)
        known = next(e.objective for e in events if e.stage == "published heuristics")
        assert known is not None and known <= least, problem.name
        with monkeypatch.context() as patch:
            patch.setattr("poetc.solvers.poetc.engine._solve_any_order", no_time)
            first = solve(problem, "poetc", SolveOptions(time_limit_s=20))
        assert first.proof.objective <= least, problem.name
        assert verify(problem, first).peak_bytes <= problem.budget_bytes


def no_time(*_: object) -> Schedule:
    raise LimitError("no time")


@pytest.mark.parametrize("solver", BASELINES)
def test_any_graph_is_solved_or_refused_in_words(solver: str) -> None:
    for seed in range(4):
        problem = with_budget(random_dag(Random(seed), 8, paging=seed % 2 == 1), 0.5)
        attempt(problem, solver)


@pytest.mark.parametrize("solver", BASELINES)
def test_the_same_problem_gives_the_same_schedule(solver: str) -> None:
    problem = chain(12, budget_units=11, page=(3, 2))
    first, again = attempt(problem, solver), attempt(problem, solver)
    if first is None or again is None:
        assert first is again
        return
    assert schedule_to_json(first) == schedule_to_json(again)


@pytest.mark.parametrize("solver", BASELINES)
def test_the_deadline_is_obeyed(solver: str) -> None:
    problem = chain(12, budget_units=9)
    late = dataclasses.replace(problem, deadline_ns=problem.compute_once_ns)
    with pytest.raises(PoetcError):
        solve(late, solver, OPTIONS)


@pytest.mark.parametrize("solver", BASELINES)
def test_no_method_refuses_transfers_that_overlap_compute(solver: str) -> None:
    problem = dataclasses.replace(with_budget(training_problem(Random(1), 3, paging=True), 0.9), paging=Paging.DMA)
    schedule = attempt(problem, solver)
    if schedule is not None:
        trace = verify(problem, schedule)
        assert available()[solver].paging or trace.page_ins == trace.page_outs == 0


def test_what_works_on_chains_refuses_other_graphs() -> None:
    problem = with_budget(random_dag(Random(3), 8), 0.5)
    for solver in ("rotor", "revolve", "pofo", "gpipe"):
        assert not available()[solver].general_graphs
        with pytest.raises(UnsupportedProblemError, match=solver):
            solve(problem, solver, OPTIONS)


def test_swapping_alone_needs_a_store() -> None:
    for solver in ("vdnn", "vdnn_all", "swapadvisor"):
        with pytest.raises(UnsupportedProblemError, match="may be paged"):
            solve(chain(8, budget_units=6), solver, OPTIONS)


def test_every_published_method_is_there_with_its_citation() -> None:
    infos = available()
    published = {"chen", "chen_greedy", "revolve", "checkmate", "checkmate_lp", "poet", "dtr", "dtr_eq", "dtr_local"}
    published |= {"vdnn", "vdnn_all", "superneurons", "swapadvisor", "capuchin", "pofo", "rotor", "kusumoto"}
    published |= {"kusumoto_approx", "gpipe", "melon", "sage", "moccasin"}
    assert published | {"keep_all", "poetc"} <= set(infos)
    for name in set(infos) - {"keep_all", "poetc"}:
        assert infos[name].citation, name
        json.dumps(dataclasses.asdict(infos[name]))


@pytest.mark.long
def test_problem_library() -> None:
    real, random = list(problems("real")), list(problems("random"))
    assert (len(real), len(random)) == (30, 200)
    names = [p.name for p in (*real, *random)]
    assert len(set(names)) == len(names)
    known = best_known()
    assert set(known) <= set(names)
    for name, entry in known.items():
        assert entry.objective is None or entry.bound <= entry.objective, name
    compared = 0
    for problem in random[:40:5]:
        entry = known[problem.name]
        schedule = solve(problem, "poetc", SolveOptions(time_limit_s=3, gap=0.1, fixed_order=True))
        if "this schedule's order" not in entry.schedule_class and "at most once again" not in entry.schedule_class:
            assert schedule.proof.objective >= entry.bound
            compared += 1
    assert compared >= 4


def test_tables_of_a_long_chain_end_with_the_time() -> None:
    """They are filled before any schedule is made; for so many blocks that takes some 20 s."""
    problem = with_budget(training_problem(Random(0), 120, skips=0.0), 0.5)
    begun = time.process_time()
    with pytest.raises(LimitError, match=r"rotor: found no schedule in 0.1 s"):
        solve(problem, "rotor", SolveOptions(time_limit_s=0.1))
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("solver", ["checkmate", "moccasin"])
def test_a_bound_of_a_formulation_that_has_no_such_schedule_is_not_stated(solver: str) -> None:
    """The rounded LP fits by the exact rules. The formulation needs more RAM for it, and its optimum costs more."""
    random = Random(0)
    problem = training_problem(random, random.randint(2, 5), paging=random.random() < 0.5)
    budget = problem.base_bytes + int((keep_all_peak_bytes(problem) - problem.base_bytes) * random.uniform(0.6, 1))
    schedule = solve(dataclasses.replace(problem, budget_bytes=budget), solver, OPTIONS)
    verify(dataclasses.replace(problem, budget_bytes=budget), schedule)
    assert "rounded LP" in schedule.proof.method and schedule.proof.method.endswith("every operator once")
    assert schedule.proof.status is Status.FEASIBLE and schedule.proof.scope == Scope()
    least = problem.objective.cost(problem.compute_once_pj, problem.compute_once_ns)
    assert schedule.proof.bound == least < schedule.proof.objective
