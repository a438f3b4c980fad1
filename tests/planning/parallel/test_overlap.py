"""Transfers that overlap compute where waiting costs energy: the planner's answer, its bound and its ways."""

from __future__ import annotations

import functools
from dataclasses import replace
from random import Random

import pytest

from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve as solve_model
from poetc.errors import InfeasibleError, LimitError
from poetc.planning import Planner, Solution, reductions
from poetc.planning.overlap import expected_cost
from poetc.scheduling import Objective, Paging, Problem, verify, verify_parts, verify_plan
from poetc.scheduling.schedule import SolveOptions
from poetc.solvers import min_budget, solve
from poetc.solvers.overlap import WHOLE, at_share
from tests.support.oracle import optimum
from tests.support.problems import ProblemBuilder, random_dag, training_problem, with_budget
from tests.support.small import small_model

OPTIONS = SolveOptions(time_limit_s=60, work_limit_s=0.05, gap=0.0)
COMPARED = 8  # problems that are solved for time too


def with_waiting(problem: Problem, slow: int) -> Problem:
    """Its transfers overlap compute and take `slow` times as long; waiting draws half of an operator's power."""
    power_uw = min(1000 * op.energy_pj // max(1, op.time_ns) for op in problem.operators)
    tensors = (
        replace(t, page_out_ns=slow * t.page_out_ns, page_in_ns=slow * t.page_in_ns, move_ns=None, move_pj=0)
        for t in problem.tensors
    )
    return replace(problem, tensors=tuple(tensors), paging=Paging.DMA, idle_uw=power_uw // 2)


def solved(problem: Problem, options: SolveOptions = OPTIONS) -> Solution | None:
    try:
        return Planner(options=options, reductions=reductions()).solve(problem)
    except (InfeasibleError, LimitError):
        return None


@functools.cache
def waiting(seed: int) -> tuple[Problem, Solution | None]:
    """A training problem at half of its peak, and the answer of least energy: several tests look at it."""
    random = Random(seed)
    problem = training_problem(random, 3, paging=True)
    problem = with_budget(with_waiting(problem, random.choice((1, 4)) if seed < COMPARED else 16), 0.5)
    return problem, solved(problem)


@pytest.mark.long
def test_the_answer_has_the_energy_of_waiting_and_a_bound_below_it() -> None:
    found = waits = 0
    for problem, solution in map(waiting, range(12)):
        if solution is None:
            continue
        assert solution.problem.paging is Paging.DMA and solution.problem.idle_uw == problem.idle_uw
        trace = verify(solution.problem, solution.schedule)
        verify_plan(solution.problem, solution.schedule, solution.plan)
        assert solution.cost == trace.energy_pj >= solution.proof.bound
        waits += trace.stall_ns > 0
        found += 1
    assert found > 8 and waits > 2


def test_no_bound_is_above_the_cheapest_schedule_of_any_share() -> None:
    """Exhaustive search at each share gives schedules; none may cost less than what the planner proves."""
    compared = 0
    for seed in range(30):
        random = Random(seed)
        problem = with_waiting(random_dag(random, 5, paging=True), 4)
        problem = with_budget(problem, 0.5)
        if any(t.initial == "ram" and t.final for t in problem.tensors):
            continue  # the planner also chooses where state lives
        solution = solved(problem, replace(OPTIONS, fixed_order=True))
        if solution is None:
            continue
        for share in (0, 500, WHOLE):
            made = at_share(problem, share)
            cheapest = None if made is None else optimum(made)
            if cheapest is not None:
                assert solution.proof.bound <= verify_parts([(problem, cheapest.actions)]).energy_pj, seed
                compared += 1
    assert compared > 15


def two_branches() -> Problem:
    """The order decides which tensors fit beside each other: nothing is paged, or computed twice."""
    b = ProblemBuilder(Random(1), paging=True)
    x, *wide = b.tensor("x", 1, initial="ram"), b.tensor("left", 20), b.tensor("right", 20)
    ends = [b.tensor(name, 1) for name in ("left_end", "right_end")]
    for name, t in zip(("left", "right"), wide, strict=True):
        b.operator(name, (x,), (t,), recomputable=False)
    for name, t, end in zip(("left_end", "right_end"), wide, ends, strict=True):
        b.operator(name, (t,), (end,), recomputable=False)
    b.operator("sum", ends, (b.tensor("y", 1, final="ram"),))
    problem = with_waiting(b.problem("two branches"), 1)
    return replace(problem, tensors=tuple(replace(t, pageable=False) for t in problem.tensors))


@pytest.mark.parametrize("shrinks", [True, False])
def test_the_order_of_one_solution_rules_out_no_other(shrinks: bool) -> None:
    """With the same choices as before, a problem for less RAM is not said to be too large in the order of another."""
    roomy = two_branches()
    less_bytes = roomy.budget_bytes - 25 * 16
    tight = replace(roomy, budget_bytes=25 * 16) if shrinks else replace(roomy, base_bytes=less_bytes)
    planner = Planner(options=OPTIONS, reductions=reductions())
    assert planner.solve(roomy).cost == planner.solve(tight).cost == roomy.compute_once_pj


def test_a_budget_has_its_own_order() -> None:
    """The order that is best with much RAM may cost twice as much with little."""
    for seed in (41, 68):
        problem = with_waiting(random_dag(Random(seed), 7, paging=True), 4)
        alone, after = (Planner(options=OPTIONS, reductions=reductions()) for _ in range(2))
        after.solve(problem)
        tight = with_budget(problem, 0.05)
        assert after.solve(tight).cost == alone.solve(tight).cost


def test_a_published_solver_is_charged_for_waiting_too() -> None:
    problem = with_budget(with_waiting(training_problem(Random(3), 3, paging=True), 16), 0.9)
    schedule = solve(problem, "capuchin", OPTIONS)
    trace = verify(problem, schedule)
    assert schedule.proof.objective == trace.energy_pj > trace.energy_pj - problem.idle_uw * trace.stall_ns // 1000


def test_the_smallest_budget_has_a_schedule_with_the_energy_of_waiting() -> None:
    problem = with_waiting(training_problem(Random(3), 3, paging=True), 16)
    found = min_budget(problem)
    assert found.schedule is not None and found.smallest_bytes is not None
    trace = verify(replace(problem, budget_bytes=found.smallest_bytes), found.schedule)
    assert trace.stall_ns > 0 and found.schedule.proof.objective == trace.energy_pj


def test_a_way_that_waits_is_expected_to_cost_more() -> None:
    """Faster operators of the same energy wait longer for the same transfers."""
    slow = with_budget(with_waiting(training_problem(Random(0), 3, paging=True), 200), 0.2)
    fast = replace(slow, operators=tuple(replace(op, time_ns=op.time_ns // 4) for op in slow.operators))
    assert fast.compute_once_pj == slow.compute_once_pj
    assert expected_cost(fast) > expected_cost(slow) > slow.compute_once_pj


@pytest.mark.long
def test_a_step_that_waits_for_the_store_is_told_of_dma() -> None:
    model = ModelRequest(source=small_model(), batch=32, device="rpi4")
    limits = replace(OPTIONS, gap=0.3)
    request = SolveRequest(model=model, budget="60%", processors="main", state="store", options=limits, smallest=False)
    hint = "with --dma it may compute meanwhile"
    waiting, beside = (solve_model(replace(request, dma=dma)).summary for dma in (False, True))
    assert any(hint in note for note in waiting["notes"])
    assert not any(hint in note for note in beside["notes"])


def test_no_way_of_cores_encodes_tensors_where_operands_stream() -> None:
    """A schedule of one way serves the others only where all of them have the same operators."""
    model = ModelRequest(source=small_model(), batch=8, device="rpi4")
    limits = replace(OPTIONS, gap=0.3)
    request = SolveRequest(model=model, budget="50%", state="store", options=limits, smallest=False)
    notes = solve_model(request).summary["notes"]
    assert any("kernels in 4 threads" in note for note in notes)
    assert not any("saved for backward" in note for note in notes)


def test_moves_that_shorten_waiting_keep_to_a_deadline() -> None:
    """A move costs its energy, less that of the waiting which it takes the place of."""
    random = Random(10)
    plain = training_problem(random, 3, paging=True)
    waiting = with_waiting(plain, random.choice((1, 4, 16)))
    tensors = (
        replace(t, move_ns=p.move_ns, move_pj=p.move_pj) for t, p in zip(waiting.tensors, plain.tensors, strict=True)
    )
    power_uw = min(1000 * op.energy_pj // max(1, op.time_ns) for op in plain.operators)
    idle_uw, duplex = random.choice((power_uw // 2, power_uw, 3 * power_uw)), random.random() < 0.3
    problem = replace(waiting, tensors=tuple(tensors), idle_uw=idle_uw, dma_full_duplex=duplex)
    problem = with_budget(problem, random.choice((0.1, 0.4, 0.7)))
    problem = replace(problem, deadline_ns=int(problem.compute_once_ns * random.choice((1.0, 1.1, 1.4, 2.5))))
    solution = solved(problem, replace(OPTIONS, work_limit_s=0.1, time_limit_s=60))
    assert solution is not None
    assert verify(solution.problem, solution.schedule).energy_pj == solution.cost


def test_the_time_of_a_step_is_minimised_as_its_energy_is() -> None:
    """Beside the schedules of least energy, the fastest ones take less time, and no bound is above them."""
    faster = []
    for seed in range(COMPARED):
        cheapest, frugal = waiting(seed)
        fastest = replace(cheapest, objective=Objective.TIME)
        quick = solved(fastest)
        if frugal is None or quick is None:
            continue
        assert quick.problem.objective is Objective.TIME
        prices = [[(t.page_in_ns, t.page_in_pj) for t in s.problem.tensors] for s in (quick, frugal)]
        assert prices[0] == prices[1], "its own, not those of a share"
        trace = verify(quick.problem, quick.schedule)
        assert quick.cost == trace.time_ns >= quick.proof.bound >= fastest.compute_once_ns
        faster.append(trace.time_ns / verify(frugal.problem, frugal.schedule).time_ns)
    assert len(faster) > 5 and max(faster) < 1.05
    assert sum(faster) < len(faster)


def test_a_deadline_holds_for_the_fastest_schedule() -> None:
    problem = with_budget(with_waiting(training_problem(Random(3), 3, paging=True), 4), 0.5)
    fastest = replace(problem, objective=Objective.TIME)
    quick = solved(fastest)
    assert quick is not None
    with pytest.raises((InfeasibleError, LimitError), match=r"deadline|no schedule"):
        Planner(options=OPTIONS, reductions=reductions()).solve(replace(fastest, deadline_ns=quick.proof.bound - 1))
    in_time = solved(replace(fastest, deadline_ns=2 * quick.cost))
    assert in_time is not None and in_time.problem.deadline_ns == 2 * quick.cost


def test_a_search_without_time_left_ends_well() -> None:
    """As a second share does where the first one took longer than it was given."""
    problem = with_budget(with_waiting(training_problem(Random(3), 3, paging=True), 4), 0.5)
    planner = Planner(options=OPTIONS, reductions=reductions())
    assert planner.part(-0.5).options.time_limit_s > 0
    late = replace(planner, started=planner.started - 2 * OPTIONS.time_limit_s)
    assert late.left_s < 0
    try:
        assert late.solve(problem).cost >= problem.compute_once_pj
    except LimitError as error:
        assert "--time-limit" not in str(error)
