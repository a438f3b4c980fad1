"""The main solver against the exhaustive optimum, and its promises."""

from __future__ import annotations

import dataclasses
import math
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling import (
    Completer,
    Objective,
    PageIn,
    Problem,
    Proof,
    Schedule,
    Scope,
    SolveOptions,
    Status,
    keep_all_peak_bytes,
    verify,
)
from poetc.solvers import (
    BudgetError,
    EngineOptions,
    Event,
    NotFoundError,
    WarmStart,
    at_once,
    min_budget,
    solve,
)
from poetc.solvers.liveness import Profile, early_page_outs, improve
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc import engine
from poetc.solvers.poetc.bounds.cuts import CutModel
from poetc.solvers.poetc.bounds.ladder import single_cut_positions
from poetc.solvers.poetc.search.eviction import Policy, Simulation, Stuck
from poetc.solvers.poetc.search.race import Race
from tests.solvers.cases import case
from tests.solvers.chains import chain
from tests.support.oracle import minimum_budget
from tests.support.problems import ProblemBuilder, random_dag, random_decisions, training_problem, with_budget

OPTIONS = SolveOptions(time_limit_s=60, fixed_order=True)  # as the oracle


def test_tiny_problems_are_solved_to_proven_optimality() -> None:
    for seed in range(30):
        problem, optimum = case(seed)
        if optimum is None:
            with pytest.raises(InfeasibleError):
                solve(problem, options=OPTIONS)
            continue
        proof = solve(problem, options=OPTIONS).proof
        assert proof.status is Status.OPTIMAL, seed
        assert proof.bound == proof.objective == optimum.cost, seed


def test_a_gap_is_closed_further_where_that_costs_next_to_nothing() -> None:
    closed = solved = 0
    for seed in range(30):
        problem, optimum = case(seed)
        if optimum is None:
            continue
        proof = solve(problem, options=dataclasses.replace(OPTIONS, gap=0.3)).proof
        assert proof.gap() <= 0.3 and optimum.cost <= proof.objective, seed
        solved += 1
        closed += proof.objective == optimum.cost
    assert closed > 0.9 * solved > 8


def test_heuristic_alone_is_valid_and_often_optimal() -> None:
    optimal = found = 0
    for seed in range(80):
        problem, optimum = case(seed)
        race = Race(problem, 0, math.inf)
        race.run(6, 0)
        if race.incumbent is None:
            continue
        assert optimum is not None, seed
        found += 1
        assert race.incumbent.cost >= optimum.cost
        optimal += race.incumbent.cost == optimum.cost
    assert found > 28
    assert optimal > found * 0.7


class Eager(Simulation):
    """Finds out what everything in RAM costs to bring back before it chooses."""

    def _cheapest(self, tensors: npt.NDArray[np.intp], score: npt.NDArray[np.float64]) -> int:
        for k in np.flatnonzero(np.isfinite(score)):
            t = int(tensors[k])
            if self.need[t] < NEVER:
                rest = score[k] - self.cost_array[t]
                self._find_cost(t)
                score[k] = rest + self.cost_array[t]
        return int(np.argmin(score))


def test_costs_found_out_when_they_matter_choose_the_same() -> None:
    evictions = 0
    for seed in range(50):
        random = Random(seed)
        make = training_problem(random, random.randint(4, 14), paging=seed % 2 == 0)
        problem = with_budget(make, random.choice((0.35, 0.5, 0.7)))
        model = Model(problem)
        policy = Policy(alpha=random.uniform(0.2, 2), beta=random.uniform(0, 2), gamma=random.uniform(0.2, 1.5))
        found = []
        for kind in (Simulation, Eager):
            try:
                found.append(kind(model, model.paging_capacity, policy, paging=seed % 4 == 0).run())
            except Stuck:
                found.append(None)
        assert found[0] == found[1], seed
        evictions += found[0] is not None and len(found[0]) > model.n_ops + 3
    assert evictions > 16


def test_cleaning_up_never_costs_and_keeps_to_the_capacity() -> None:
    improved = 0
    for seed in range(30):
        random = Random(seed)
        problem = with_budget(training_problem(random, random.randint(3, 8), paging=seed % 2 == 0), 0.4)
        model = Model(problem)
        paging = seed % 4 == 0
        capacity = model.paging_capacity if paging else model.capacity
        try:
            codes = Simulation(model, capacity, Policy(beta=0.3, gamma=0.4), paging=paging).run()
        except Stuck:
            continue
        assert codes is not None
        assert Profile(model, codes).peak <= capacity
        better = improve(model, codes, capacity)
        completion = Completer(problem).run(model.decisions(better))
        assert completion.peak_bytes <= problem.budget_bytes
        assert model.cost(better) <= model.cost(codes)
        assert model.cost(better) == completion.energy_pj
        improved += model.cost(better) < model.cost(codes)
    assert improved > 2


def test_page_outs_come_as_early_as_they_can() -> None:
    earlier = 0
    for seed in range(30):
        random = Random(seed)
        make = training_problem(random, 5, paging=True) if seed % 2 else random_dag(random, 10, paging=True)
        model, completer = Model(make), Completer(make)
        codes = model.codes(completer.run(random_decisions(random, make, 12)).actions)
        early = early_page_outs(model, codes)
        assert sorted(early) == sorted(codes)
        before, after = (completer.run(model.decisions(c)) for c in (codes, early))
        assert after.peak_bytes <= before.peak_bytes
        assert after.energy_pj == before.energy_pj
        proof = Proof(status=Status.FEASIBLE, objective=after.energy_pj, bound=0, scope=Scope())
        trace = verify(
            dataclasses.replace(make, budget_bytes=after.peak_bytes),
            Schedule(solver="", actions=after.actions, proof=proof),
        )
        assert trace.page_outs == sum(code >= model.n_ops + model.n_tensors for code in codes)
        last = {}  # position of what last makes or reads a tensor
        for position, code in enumerate(early):
            if code >= model.n_ops + model.n_tensors:
                tensor = code - model.n_ops - model.n_tensors
                between = early[last.get(tensor, -1) + 1 : position]
                assert all(c >= model.n_ops + model.n_tensors for c in between)
            else:
                touched = (code - model.n_ops,) if code >= model.n_ops else model.inputs[code] + model.outputs[code]
                last |= dict.fromkeys(touched, position)
        earlier += early != codes
    assert earlier > 5


def test_keep_all_where_it_fits() -> None:
    problem = training_problem(Random(1), 5)
    schedule = solve(problem, options=OPTIONS)
    assert schedule.proof.status is Status.OPTIMAL
    assert schedule.proof.objective == problem.compute_once_pj
    assert verify(problem, schedule).recomputes == 0


@pytest.mark.parametrize("paging", [False, True])
@pytest.mark.long_but("False")
def test_training_action_under_pressure(paging: bool) -> None:
    problem = with_budget(training_problem(Random(3), 6, paging=paging, scale=16), 0.5)
    schedule = solve(problem, options=SolveOptions(time_limit_s=60, gap=0.05))
    trace = verify(problem, schedule)
    assert trace.recomputes + trace.page_ins > 0
    assert trace.peak_bytes <= problem.budget_bytes
    assert problem.compute_once_pj < schedule.proof.bound <= schedule.proof.objective
    assert schedule.proof.gap() <= 0.05


def test_deadline_is_met_and_costs_energy() -> None:
    random = Random(5)
    problem = with_budget(training_problem(random, 4, paging=True, scale=4), 0.4)
    free = solve(problem, options=SolveOptions(time_limit_s=60, gap=0.05))
    time_ns = verify(problem, free).time_ns
    least = solve(
        dataclasses.replace(problem, objective=Objective.TIME), options=SolveOptions(time_limit_s=60, gap=0.05)
    )
    fastest_ns = least.proof.objective
    assert fastest_ns <= time_ns
    tight = dataclasses.replace(problem, deadline_ns=(fastest_ns + time_ns) // 2 if fastest_ns < time_ns else time_ns)
    schedule = solve(tight, options=SolveOptions(time_limit_s=60, gap=0.05))
    assert verify(tight, schedule).time_ns <= (tight.deadline_ns or 0)
    assert schedule.proof.objective >= free.proof.bound


def test_same_input_same_schedule() -> None:
    problem = with_budget(training_problem(Random(7), 4, paging=True), 0.4)
    first, second = (solve(problem, options=SolveOptions(time_limit_s=300, gap=0.03)) for _ in range(2))
    assert first == second


def test_progress_is_monotone() -> None:
    events: list[Event] = []
    problem = with_budget(training_problem(Random(1), 3), 0.6)
    schedule = solve(problem, options=OPTIONS, progress=events.append)
    costs = [e.objective for e in events if e.objective is not None]
    bounds = [e.bound for e in events]
    assert events
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds)
    assert schedule.proof.objective == costs[-1]
    assert len(schedule.log) == len(events)


def test_events_have_the_schedules_that_they_tell_of() -> None:
    """In the problem's own order of operators, whatever order they were found under."""
    seen = 0
    for seed in range(8):
        problem = with_budget(training_problem(Random(seed), 3, paging=seed % 2 == 1), 0.4)

        def check(event: Event, problem: Problem = problem) -> None:
            nonlocal seen
            if event.schedule is not None:
                seen += 1
                trace = verify(problem, event.schedule())
                assert trace.energy_pj == event.objective

        try:
            solve(problem, options=SolveOptions(time_limit_s=10, work_limit_s=0.2), progress=check)
        except (InfeasibleError, LimitError):
            continue
    assert seen > 20


def test_a_budget_that_cannot_work_says_which_does() -> None:
    problem = training_problem(Random(4), 6)
    smallest = min_budget(problem)
    with pytest.raises(BudgetError) as raised:
        solve(dataclasses.replace(problem, budget_bytes=smallest.lower_bound_bytes - 1), options=OPTIONS)
    error = raised.value
    assert error.smallest_bytes is not None
    assert str(error.smallest_bytes) in str(error)
    assert error.lower_bound_bytes == smallest.lower_bound_bytes
    assert error.tensors
    assert error.tensors[0][0] in str(error)
    assert "\n" not in str(error)
    works = dataclasses.replace(problem, budget_bytes=error.smallest_bytes)
    assert (
        verify(works, solve(works, options=SolveOptions(time_limit_s=60, gap=1.0))).peak_bytes == error.smallest_bytes
    )


def test_a_deadline_that_cannot_work() -> None:
    problem = training_problem(Random(4), 4)
    with pytest.raises(InfeasibleError, match=str(problem.compute_once_ns)):
        solve(dataclasses.replace(problem, deadline_ns=problem.compute_once_ns - 1), options=OPTIONS)


def test_smallest_budget_against_the_oracle() -> None:
    equal = count = 0
    for seed in range(16):
        random = Random(seed)
        problem = random_dag(random, random.randint(3, 5), paging=seed % 2 == 0)
        true = minimum_budget(problem)
        found = min_budget(problem)
        assert true is not None
        assert found.smallest_bytes is not None
        assert found.lower_bound_bytes <= true <= found.smallest_bytes <= keep_all_peak_bytes(problem), seed
        assert found.schedule is not None
        equal += found.smallest_bytes == true
        count += 1
    assert equal > count * 0.7


def test_little_work_finds_less_ram_within_a_deadline() -> None:
    """A large step has work for a few budgets alone; none near the bound obeys the deadline."""
    problem = training_problem(Random(4), 60)
    problem = dataclasses.replace(problem, deadline_ns=round(1.05 * problem.compute_once_ns))
    work_s = 3 * 6e-5 * len(problem.operators) * 4.5  # three runs for each of five budgets
    found, kept = min_budget(problem, work_limit_s=work_s), keep_all_peak_bytes(problem)
    assert found.smallest_bytes is not None and found.schedule is not None
    assert found.lower_bound_bytes < found.smallest_bytes < kept
    trace = verify(dataclasses.replace(problem, budget_bytes=found.smallest_bytes), found.schedule)
    assert problem.deadline_ns is not None and trace.time_ns <= problem.deadline_ns


def test_the_least_ram_is_found_where_recomputing_what_is_cheap_takes_too_much() -> None:
    """y = f(x) for next to nothing; g, as large, is made of something as large, and then read beside y."""
    build = ProblemBuilder(Random(0), paging=True)
    sizes = {"data": 1, "x": 8, "y": 8, "z": 1, "u": 8, "g": 8, "w": 1}
    data, x, y, z, u, g, w = (build.tensor(name, units) for name, units in sizes.items())
    build.tensors = [dataclasses.replace(t, pageable=True, page_in_pj=900, page_out_pj=900) for t in build.tensors]
    build.tensors[data] = dataclasses.replace(build.tensors[data], initial="ram", final="ram", pageable=False)
    for read, made in ((data, x), (x, y), (y, z), (z, u), (u, g)):
        build.operator("f", (read,), (made,), cost=1)
    build.operator("b", (y, g), (w,), phase="backward")
    problem = build.problem("paging alone")
    found = min_budget(problem)
    assert found.smallest_bytes == minimum_budget(problem) == found.lower_bound_bytes
    assert found.schedule is not None and any(isinstance(action, PageIn) for action in found.schedule.actions)
    tight = dataclasses.replace(problem, budget_bytes=found.smallest_bytes)
    first = at_once(tight, OPTIONS)
    assert first is not None
    verify(tight, first)


@pytest.mark.long
def test_neither_a_schedule_nor_a_proof() -> None:
    problem = with_budget(training_problem(Random(3), 3), 0.5)
    with pytest.raises(NotFoundError) as raised:
        solve(problem, options=dataclasses.replace(OPTIONS, work_limit_s=0.1))
    known = raised.value.smallest_bytes
    assert known is not None and known > problem.budget_bytes
    assert str(raised.value) == f"{raised.value.why}; the smallest budget with a schedule is {known} bytes"


def test_larger_gap_is_honest() -> None:
    problem = with_budget(training_problem(Random(9), 6), 0.6)
    schedule: Schedule = solve(problem, options=SolveOptions(time_limit_s=60, gap=0.2))
    assert schedule.proof.gap() <= 0.2
    assert schedule.proof.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert schedule.proof.scope.order == tuple(range(len(problem.operators)))


def test_a_gap_from_a_lower_bound_that_is_known_takes_more() -> None:
    """That of a larger budget, say: here it cannot be reached, and the search goes on to the optimum."""
    problem = with_budget(training_problem(Random(6), 4), 0.6)
    options = SolveOptions(time_limit_s=600, work_limit_s=60, gap=0.05, fixed_order=True)
    near = solve(problem, options=options).proof
    assert near.bound < near.objective
    looser = WarmStart(looser_bound=int(0.93 * near.objective))
    best = solve(problem, options=EngineOptions.of(options, looser)).proof
    assert best.status is Status.OPTIMAL and best.bound == best.objective
    same = WarmStart(looser_bound=near.objective)
    assert solve(problem, options=EngineOptions.of(options, same)).proof == near


def test_a_schedule_is_reported_before_orders_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = with_budget(training_problem(Random(3), 6), 0.6)
    events: list[Event] = []
    known: list[int] = []

    def no_order(*_: object) -> None:
        known.append(len(events))

    monkeypatch.setattr("poetc.solvers.poetc.engine.best_order", no_order)
    schedule = solve(problem, options=SolveOptions(time_limit_s=10), progress=events.append)
    assert known == [1]
    first = events[0].objective
    assert first is not None
    assert all(e.objective is not None and e.objective <= first for e in events)
    assert schedule.proof.objective <= first
    monkeypatch.setattr("poetc.solvers.poetc.engine._solve_any_order", raise_limit)
    kept = solve(problem, options=SolveOptions(time_limit_s=10))
    assert kept.proof.objective == first
    assert kept.proof.status is Status.LIMIT
    verify(problem, kept)


def raise_limit(*_: object) -> None:
    raise LimitError("found nothing")


def test_a_start_is_kept_until_something_cheaper_is_found() -> None:
    problem = with_budget(training_problem(Random(11), 20), 0.4)
    good = solve(problem, options=dataclasses.replace(OPTIONS, gap=0.05))
    hasty = dataclasses.replace(OPTIONS, time_limit_s=0.0)
    started = solve(problem, options=EngineOptions.of(hasty, WarmStart(start=good)))
    assert started.proof.objective == good.proof.objective < solve(problem, options=hasty).proof.objective


def test_no_further_cut_is_tried_once_the_optimum_is_proven() -> None:
    for seed in (1, 2, 6):  # the cut at the loss proves the optimum of each
        problem = with_budget(training_problem(Random(seed), 12), 0.9)
        events: list[Event] = []
        solve(problem, options=dataclasses.replace(OPTIONS, fixed_order=True), progress=events.append)
        at_the_loss = next(e for e in events if e.stage == "cut at the loss")
        assert at_the_loss.objective == at_the_loss.bound, seed
        assert "single cuts" not in [e.stage for e in events], seed


def test_it_goes_on_from_a_bound() -> None:
    problem = with_budget(training_problem(Random(11), 15), 0.4)
    near = dataclasses.replace(OPTIONS, gap=0.02, fixed_order=True)
    bound = solve(problem, options=near).proof.bound
    known = WarmStart(proven=bound, cuts=(7, 9, 10, 12))
    told = solve(problem, options=EngineOptions.of(dataclasses.replace(near, time_limit_s=0.0), known))
    assert told.proof.bound == bound
    verify(problem, told)


def test_the_operator_of_a_cut_is_the_one_whose_lp_proves_the_most() -> None:
    """Not the one with the largest working set of its stretch."""
    problem = chain(160, sizes=[180 - k for k in range(160)], costs=[10] * 160, budget_units=8000)
    solving = engine._Solve(problem, SolveOptions(time_limit_s=60, fixed_order=True), None)
    first = single_cut_positions(solving.model)[0]
    best = solving.relaxing.best_cut(0, solving.bound, math.inf, None)
    stretch = range(solving.model.cut, solving.model.cut + 6)
    bounds = {v: CutModel(solving.model, (v,)).solve(time_limit_s=10, relax=True).bound for v in stretch}
    assert bounds[best] == max(bounds.values()) > bounds[first]
