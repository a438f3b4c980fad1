"""What does not pack is solved again: for less each time, and within the time limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import networkx as nx
import pytest

from poetc.devices import format_bytes
from poetc.errors import InfeasibleError, LimitError
from poetc.planning import RamSearch, SmallestRam, arena, plain, planner, ram_bytes, smallest_ram
from poetc.planning.settings import PLAIN
from poetc.scheduling import (
    MemoryPlan,
    Problem,
    Schedule,
    SolveOptions,
    Status,
    keep_all,
    keep_all_peak_bytes,
    pack,
    verify,
    verify_plan,
)
from poetc.solvers import Event, NotFoundError, WarmStart, at_once, available, solve
from poetc.solvers.poetc.options import warm_start_of
from tests.support.moves import tight
from tests.support.planning import solve_plain
from tests.support.problems import training_problem


@pytest.fixture
def problem() -> Problem:
    made = training_problem(Random(1), 4)
    return replace(made, budget_bytes=keep_all_peak_bytes(made))


def replace_packing(monkeypatch: pytest.MonkeyPatch, packed: Callable[..., MemoryPlan]) -> None:
    """As if nothing could be moved."""

    def no_moves(asked: Problem, schedule: Schedule, capacity_bytes: int, *, stop_at: float) -> None:
        return None

    for module in (arena, smallest_ram):
        monkeypatch.setattr(module, "pack", packed)
    monkeypatch.setattr(arena, "pack_with_moves", no_moves)


def replace_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    for module in (plain, planner, smallest_ram):
        monkeypatch.setattr(module, "time", clock)


def test_the_arena_that_fits_is_enough(problem: Problem) -> None:
    schedule, plan = solve_plain(problem, "keep_all", SolveOptions())
    assert ram_bytes(problem, plan) <= problem.budget_bytes
    assert schedule.actions == keep_all(problem).actions


@pytest.mark.parametrize("solver", sorted(set(available()) - {"poetc"}))
def test_a_named_solver_without_a_schedule_gives_nobody_elses(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, solver: str
) -> None:
    """It ends with its reason, though the schedule of least RAM fits."""

    refusals = [LimitError, InfeasibleError]

    def nothing(asked: Problem, name: str, *words: object) -> Schedule:
        raise refusals.pop()(f"{name}: it needs more")

    monkeypatch.setattr("poetc.solvers.solve", nothing)
    while refusals:
        with pytest.raises(LimitError) as raised:
            solve_plain(problem, solver, SolveOptions(time_limit_s=1))
        assert str(raised.value) == f"{solver}: it needs more"


def test_a_budget_below_every_schedule_is_infeasible_for_a_named_solver_too(problem: Problem) -> None:
    with pytest.raises(InfeasibleError, match=r"^keep-all needs 640 bytes"):
        solve_plain(replace(problem, budget_bytes=1), "keep_all", SolveOptions(time_limit_s=1))


def test_a_named_solver_whose_schedule_does_not_pack_says_so(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(asked: Problem, schedule: Schedule, *, enough_bytes: int = 0, stop_at: float, **_: float) -> MemoryPlan:
        return replace(pack(asked, schedule), arena_bytes=problem.budget_bytes - problem.base_bytes + 64)

    replace_packing(monkeypatch, packed)
    with pytest.raises(LimitError, match=r"^keep_all: its schedule does not pack into \d+ bytes; take a larger budget"):
        solve_plain(problem, "keep_all", SolveOptions(time_limit_s=1))


@pytest.mark.parametrize("found_bytes", [None, 200, 900])
def test_one_smallest_budget_is_named(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, found_bytes: int | None
) -> None:
    """The smaller one of what solver and search know."""

    def nothing(*words: object) -> Schedule:
        raise NotFoundError("found no schedule for 120 bytes", 400)

    monkeypatch.setattr("poetc.solvers.solve", nothing)
    asked = replace(problem, budget_bytes=120, base_bytes=32)
    minimum = RamSearch(asked, 1.0)
    minimum.result = SmallestRam(ram_bytes=found_bytes, bound_bytes=50, schedule=None, plan=None, tensors=(("a", 7),))
    with pytest.raises(LimitError) as raised:
        solve_plain(asked, "poetc", SolveOptions(), smallest_ram=minimum)
    said = "the smallest budget with a schedule is 400 bytes; raise --budget"
    if found_bytes == 200:
        said = "the smallest budget known to work is 200 bytes, with 32 for the runtime and the stack (no schedule of"
        said += " this training step, with these options, needs less than 50); raise --budget; at its peak: a (7)"
    assert str(raised.value) == f"found no schedule for 120 bytes; {said}"
    assert raised.value.details["min_budget_bytes"] == min(found_bytes or 400, 400)


def test_more_is_put_aside_with_each_attempt(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[tuple[int, float, bool]] = []
    bounds: list[int | None] = []

    def solve(asked: Problem, solver: str, options: SolveOptions, progress: object = None) -> Schedule:
        del solver, progress
        bounds.append(warm_start_of(options).looser_bound)
        solved.append((problem.budget_bytes - asked.budget_bytes, options.time_limit_s, options.fixed_order))
        return keep_all(problem)

    def packed(asked: Problem, schedule: Schedule, *, enough_bytes: int = 0, stop_at: float, **_: float) -> MemoryPlan:
        assert enough_bytes in (0, problem.budget_bytes - problem.base_bytes)
        assert stop_at < math.inf
        plan = pack(asked, schedule)
        return replace(plan, arena_bytes=problem.budget_bytes - problem.base_bytes + 64)

    monkeypatch.setattr("poetc.solvers.solve", solve)
    replace_packing(monkeypatch, packed)
    with pytest.raises(LimitError, match="none was found that can be packed into it"):
        solve_plain(problem, "poetc", SolveOptions(time_limit_s=300), smallest_ram=RamSearch(problem, 0.1))
    assert [less for less, _, _ in solved] == [0, 64, 160, 288, 448, 640, 864]
    limits = [limit for _, limit, _ in solved]
    assert limits[0] == PLAIN.solve_share * 300
    assert all(0 < limit <= 0.5 * 300 for limit in limits[1:])
    assert [fixed for _, _, fixed in solved] == [False, *[True] * 6], "what was proven is about one order"
    assert bounds == [None, *[keep_all(problem).proof.bound] * 6], "a gap is from what is proven for the whole budget"


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_little_is_tried_again_when_the_time_is_up(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule of least RAM, whose search has its own time, is the answer then."""
    clock, limits, until = Clock(), [], []

    def solve(asked: Problem, solver: str, options: SolveOptions, progress: object = None) -> Schedule:
        limits.append(options.time_limit_s)
        clock.now += options.time_limit_s + 1.5  # HiGHS is late
        return keep_all(problem)

    def packed(asked: Problem, schedule: Schedule, *, enough_bytes: int = 0, stop_at: float, **_: float) -> MemoryPlan:
        until.append(stop_at)
        clock.now = max(clock.now, stop_at)
        excess = 64 if enough_bytes else 0
        return replace(pack(asked, schedule), arena_bytes=problem.budget_bytes - problem.base_bytes + excess)

    replace_clock(monkeypatch, clock)
    monkeypatch.setattr("poetc.solvers.solve", solve)
    replace_packing(monkeypatch, packed)
    schedule, _ = solve_plain(problem, "poetc", SolveOptions(time_limit_s=100))
    assert schedule.proof.method.startswith("the schedule of least RAM")
    assert len(limits) == 1 and len(until) >= 3, "what short races find is packed too"
    late = PLAIN.retry_share * 100
    assert max(until[:-1]) <= 1100.0 + late
    assert clock.now <= 1100.0 + 1.5 + late + smallest_ram.search_share_s(100)


def test_what_the_search_began_with_is_the_answer_where_it_is_cheaper(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It packs, and the schedule that was found does not."""
    start = keep_all(problem)
    dear = replace(start, proof=replace(start.proof, objective=2 * start.proof.objective))
    smallest = SmallestRam(ram_bytes=64, bound_bytes=64, schedule=dear, plan=pack(problem, dear), tensors=())

    def solve(asked: Problem, solver: str, options: SolveOptions, progress: object = None) -> Schedule:
        if asked is not problem:
            raise LimitError("nothing found")
        return replace(start, solver="what does not pack")

    def packed(asked: Problem, schedule: Schedule, *, enough_bytes: int = 0, stop_at: float, **_: float) -> MemoryPlan:
        plan = pack(asked, schedule)
        return replace(plan, arena_bytes=plan.arena_bytes + (64 if schedule.solver == "what does not pack" else 0))

    monkeypatch.setattr("poetc.solvers.solve", solve)
    replace_packing(monkeypatch, packed)
    monkeypatch.setattr(smallest_ram, "find_smallest_ram", lambda *_: smallest)
    monkeypatch.setattr("poetc.solvers.at_once", lambda *_: None)
    for began, says, objective in (
        (None, "the schedule of least RAM", dear.proof.objective),
        (start, plain.KEPT, start.proof.objective),
    ):
        schedule, plan = solve_plain(problem, "poetc", SolveOptions(), warm_start=WarmStart(start=began))
        assert schedule.proof.method.startswith(says)
        assert schedule.proof.objective == objective
        assert schedule.proof.status is Status.LIMIT
        assert ram_bytes(problem, plan) <= problem.budget_bytes


def test_the_least_ram_is_searched_for_once_and_within_what_is_left(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, given = Clock(), []
    real = smallest_ram.find_smallest_ram

    def searched(asked: Problem, time_limit_s: float, work_limit_s: float) -> SmallestRam:
        assert work_limit_s == math.inf
        given.append(time_limit_s)
        return real(asked, 0.1)

    replace_clock(monkeypatch, clock)
    monkeypatch.setattr(smallest_ram, "find_smallest_ram", searched)
    minimum = RamSearch(problem, 2.0, stop_at=1005.0)
    assert minimum.result is minimum.result
    clock.now = 1004.5
    assert RamSearch(problem, 2.0, stop_at=1005.0).result.ram_bytes is not None
    assert RamSearch(problem, 2.0, stop_at=1100.0).result.ram_bytes is not None
    assert given == [5.0, 2.0, smallest_ram.LONGEST_SEARCH_S]


def test_when_the_time_is_up_short_races_find_what_packs(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the schedule of least RAM, which may cost many times as much."""
    clock, asked_bytes = Clock(), []

    def solve(asked: Problem, solver: str, options: SolveOptions, progress: object = None) -> Schedule:
        asked_bytes.append(asked.budget_bytes)
        clock.now += 120.0  # far too late
        return keep_all(problem)

    def packed(asked: Problem, schedule: Schedule, *, enough_bytes: int = 0, stop_at: float, **_: float) -> MemoryPlan:
        plan = pack(asked, schedule)
        excess = 64 if schedule.actions == keep_all(problem).actions else 0
        return replace(plan, arena_bytes=plan.arena_bytes + excess)

    replace_clock(monkeypatch, clock)
    monkeypatch.setattr("poetc.solvers.solve", solve)
    replace_packing(monkeypatch, packed)
    monkeypatch.setattr(plain, "PLAIN", replace(PLAIN, retry_share=1.0, late_s=100.0))
    schedule, plan = solve_plain(problem, "poetc", SolveOptions(time_limit_s=100))
    assert asked_bytes == [problem.budget_bytes], "there was no time to solve again"
    assert not schedule.proof.method.startswith("the schedule of least RAM")
    assert ram_bytes(problem, plan) <= problem.budget_bytes


@pytest.fixture
def tight_problem() -> Problem:
    problem, _ = tight()
    return replace(problem, budget_bytes=keep_all_peak_bytes(problem))


def test_moves_make_fit_what_does_not_pack(tight_problem: Problem) -> None:
    problem = tight_problem
    assert pack(problem, keep_all(problem)).arena_bytes > problem.budget_bytes - problem.base_bytes
    lines: list[str] = []
    schedule, plan = solve_plain(problem, "keep_all", SolveOptions(), lines.append)
    trace = verify(problem, schedule)
    verify_plan(problem, schedule, plan)
    assert ram_bytes(problem, plan) <= problem.budget_bytes
    assert trace.moves > 0 and schedule.proof.objective == problem.compute_once_pj + trace.move_pj
    assert schedule.proof.bound <= problem.compute_once_pj and schedule.proof.status is not Status.OPTIMAL
    assert lines[-1] == f"packed with {trace.moves} moves of {format_bytes(trace.moved_bytes)} within RAM"


def test_moves_obey_the_deadline(tight_problem: Problem) -> None:
    problem = tight_problem
    schedule, _ = solve_plain(problem, "keep_all", SolveOptions())
    time_ns = verify(problem, schedule).time_ns
    assert time_ns > problem.compute_once_ns
    exact = replace(problem, deadline_ns=time_ns)
    assert solve_plain(exact, "keep_all", SolveOptions())[0] == schedule
    late = replace(problem, deadline_ns=time_ns - 1)
    try:
        other, _ = solve_plain(late, "keep_all", SolveOptions(time_limit_s=2))
    except LimitError:
        return
    assert verify(late, other).time_ns <= time_ns - 1


def test_the_smallest_ram_is_what_is_live(tight_problem: Problem) -> None:
    problem = tight_problem
    smallest = smallest_ram.find_smallest_ram(problem, 2.0)
    assert smallest.schedule is not None and smallest.plan is not None and smallest.ram_bytes is not None
    least = replace(problem, budget_bytes=smallest.ram_bytes)
    verify(least, smallest.schedule)
    verify_plan(least, smallest.schedule, smallest.plan)
    assert smallest.ram_bytes == verify(least, smallest.schedule).peak_bytes


def test_a_schedule_that_packs_on_the_way_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one found costs less but does not pack; the answer costs no more than the one before."""
    problem = training_problem(Random(8), 4, paging=True)
    problem = replace(problem, budget_bytes=int(0.7 * keep_all_peak_bytes(problem)))
    found = solve(problem, options=SolveOptions(time_limit_s=10, work_limit_s=0.3))
    cheap = replace(found, proof=replace(found.proof, objective=found.proof.objective - 1))
    first = at_once(problem, SolveOptions())
    assert first is not None and first.proof.objective > 1.01 * found.proof.objective

    def solver(asked: Problem, *_: object) -> Schedule:
        if asked is not problem:
            raise LimitError("nothing for less")
        report = Event(stage="race", objective=found.proof.objective, bound=1, schedule=lambda: found)
        made._report(report)
        return cheap

    def pack_all_but_the_last(
        asked: Problem, schedule: Schedule, *_: object, **__: object
    ) -> tuple[Schedule, MemoryPlan]:
        plan = pack(asked, schedule)
        too_high = replace(plan, arena_bytes=asked.budget_bytes + 1) if schedule is cheap else plan
        return schedule, too_high

    monkeypatch.setattr(plain, "packed", pack_all_but_the_last)
    monkeypatch.setattr(plain.solvers, "solve", solver)
    monkeypatch.setattr(plain.solvers, "at_once", lambda *_: first)
    asked = planner.Planner(options=SolveOptions(time_limit_s=10))
    made = plain._PlainSolve(problem, asked)
    schedule, plan = made.run()
    assert asked.best.packed_cost(problem) == schedule.proof.objective == found.proof.objective
    assert ram_bytes(problem, plan) <= problem.budget_bytes
    verify_plan(problem, schedule, plan)


@pytest.mark.parametrize(("budget_bytes", "has_hint"), [(80, True), (100, True), (101, False)])
def test_a_budget_that_may_mean_per_cent_is_told_so(problem: Problem, budget_bytes: int, has_hint: bool) -> None:
    hint = f"raise --budget ({budget_bytes} is in bytes; {budget_bytes}% is a share of the keep-all peak)"
    with pytest.raises(InfeasibleError) as raised:
        solve_plain(replace(problem, budget_bytes=budget_bytes), "poetc", SolveOptions(time_limit_s=60))
    assert (hint in str(raised.value)) is has_hint
    assert "raise --budget" in str(raised.value)


def test_schedules_of_another_order_are_reported_by_their_own_operators(
    monkeypatch: pytest.MonkeyPatch, problem: Problem
) -> None:
    """A second search, for less RAM, reorders the operators: what it reports is packed for the problem itself."""
    asked = replace(problem, budget_bytes=problem.budget_bytes * 9 // 10)
    first = solve(asked, "poetc", SolveOptions(work_limit_s=0.1))
    operators = asked.operators
    makers = {t: k for k, operator in enumerate(operators) for t in operator.outputs}
    before = nx.DiGraph((makers[t], k) for k, operator in enumerate(operators) for t in operator.inputs if t in makers)
    for k, operator in enumerate(operators):  # an update comes after the readers of its old version
        overwritten = {pair.input for pair in operator.in_place if pair.required}
        before.add_edges_from((j, k) for j in range(k) if overwritten & set(operators[j].inputs))
    order = tuple(nx.lexicographical_topological_sort(before, key=lambda k: -k))
    assert order != tuple(sorted(order))
    seen: list[Event] = []
    again = plain._PlainSolve(asked, planner.Planner(options=SolveOptions(time_limit_s=10, work_limit_s=0.1)))
    monkeypatch.setattr(again, "_report", seen.append)
    again._again(asked, order, first, 10.0, in_haste=False)
    schedules = [event.schedule() for event in seen if event.schedule is not None]
    assert schedules
    for schedule in schedules:
        verify(asked, schedule)
