"""The ways of using several processors: none costs more than the main processor alone, and none passes the limit."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import poetc
from poetc.planning import Planner, Solution, processors, reductions
from poetc.planning.alternatives import with_lowest_bound
from poetc.planning.kernels import Kernels
from poetc.planning.micro_batches import MicroBatches
from poetc.planning.order import in_order
from poetc.planning.processors import Processors
from poetc.planning.raced import raced_on_several, worth_racing
from poetc.planning.same_steps import widest
from poetc.planning.search_log import SearchLog
from poetc.planning.settings import WAYS
from poetc.planning.solution import cost_of_computing_once
from poetc.planning.state import StatePlacement
from poetc.planning.streaming import Streaming
from poetc.planning.ways import ALONE, SIDE_BY_SIDE, CoreUsage
from poetc.scheduling import (
    Compute,
    Elsewhere,
    Objective,
    Paging,
    Problem,
    ProcessorSpec,
    SolveOptions,
    keep_all_peak_bytes,
    verify,
    verify_plan,
)
from poetc.scheduling.schedule import Status, first_executions
from poetc.scheduling.scope import ANY, Scope
from poetc.solvers import solve
from poetc.solvers.processors import as_ready, placed, transfers_apart
from tests.solvers.bounds.test_phases import frozen_chain, with_stream
from tests.solvers.test_lists import paged
from tests.support.oracle import optimum
from tests.support.problems import random_dag, training_problem

DIGITS = Path(__file__).resolve().parents[3] / "demo" / "digits.onnx"
THREADS = 2


def several(random: Random, plain: Problem, idle_uw: int) -> Problem:
    """Two equal processors."""
    processors = tuple(
        ProcessorSpec(name=f"p{p}", active_uw=3_000_000, idle_uw=idle_uw, hand_over_ns=3) for p in range(2)
    )
    operators = []
    for operator in plain.operators:
        ns = random.randint(20, 60)
        operators.append(
            replace(
                operator,
                time_ns=ns,
                energy_pj=3000 * ns,
                elsewhere=(Elsewhere(processor=1, time_ns=ns, energy_pj=3000 * ns),),
            )
        )
    return replace(plain, operators=tuple(operators), processors=processors, budget_bytes=2**30)


def ways_of(problem: Problem) -> dict[int, Problem]:
    """Threads halve the time, in every operator."""
    plain = replace(
        problem,
        operators=tuple(replace(o, elsewhere=()) for o in problem.operators),
        processors=(),
    )
    halved = tuple(replace(o, time_ns=o.time_ns // 2, energy_pj=6000 * (o.time_ns // 2) - 1) for o in plain.operators)
    return {ALONE: plain, SIDE_BY_SIDE: problem, THREADS: replace(plain, operators=halved)}


def planner(ways: dict[int, Problem], time_limit_s: float = 1.0) -> Planner:
    options = SolveOptions(time_limit_s=time_limit_s, work_limit_s=0.2)
    return Planner(options=options, reductions=reductions("ram", ways=[ways]))


def test_no_way_costs_more_than_the_main_processor_alone(tmp_path: Path) -> None:
    """A second core that draws nearly as much while it waits saves no energy; before, two cost more than one."""
    device = tmp_path / "warm.yaml"
    power = "{active_w: {value: 0.2, source: none}, idle_w: {value: 0.19, source: none}}"
    sources = "sources: {none: {kind: estimated, text: for this test}}"
    device.write_text(f"inherits: stm32h745\n{sources}\nprocessors: {{m4: {{power: {power}}}}}\n")
    model = poetc.load(DIGITS, batch=4)
    options: dict[str, Any] = {"device": device, "paging": False, "time_limit_s": 1.0}
    one, both = model.solve(**options, processors="main"), model.solve(**options, processors="all")
    assert both.summary["energy_pj"] <= one.summary["energy_pj"]
    (note,) = [n for n in both.summary["notes"] if n.startswith("cores: ")]
    assert note.startswith("cores: the main processor alone, ") and "; instead of operators side by side: " in note
    assert not both.artifact.problem.processors


def test_steps_of_one_processor_serve_every_way() -> None:
    """Where no time is left after them: within the same RAM, at prices that the checker confirms."""
    random = Random(5)
    problem = several(random, training_problem(random, 4), 2_000_000)
    ways = ways_of(problem)
    tight = replace(ways[ALONE], budget_bytes=keep_all_peak_bytes(ways[ALONE]) - 16)
    alone = planner(ways).inner.solve(CoreUsage([ways]).fix(tight, ALONE))
    for way in (SIDE_BY_SIDE, THREADS):
        chain = CoreUsage([ways])
        chain.restore(tight, ALONE, alone)
        found = chain.at_hand(tight, way, planner(ways))
        assert found is not None and found.choices["threads"] == way
        trace = verify(found.problem, found.schedule)
        verify_plan(found.problem, found.schedule, found.plan)
        assert found.problem.base_bytes + found.plan.arena_bytes <= tight.budget_bytes
        assert bool(found.problem.processors) == (way == SIDE_BY_SIDE)
        assert trace.time_ns <= alone.cost // 3000
    best = planner(ways).solve(tight)
    assert best.proof.bound <= best.cost <= alone.cost
    assert [t.count for t in best.ways] == [ALONE, SIDE_BY_SIDE, THREADS]


def test_steps_at_hand_in_a_way_are_not_forgotten() -> None:
    """They were, once another way was asked for, or a dearer schedule was found: ResNet-50 lost 1 % so."""
    random = Random(5)
    ways = ways_of(several(random, training_problem(random, 4), 2_000_000))
    tight, chain = replace(ways[ALONE], budget_bytes=keep_all_peak_bytes(ways[ALONE]) - 16), CoreUsage([ways])
    alone = chain.restore(tight, ALONE, planner(ways).inner.solve(chain.fix(tight, ALONE)))
    threads = chain.at_hand(tight, THREADS, planner(ways))
    assert threads is not None and threads.cost < alone.cost
    dearer = threads.with_proof(replace(threads.proof, objective=alone.cost + 1))
    chain.restore(tight, THREADS, dearer)
    assert chain.at_hand(tight, THREADS, planner(ways)) == threads


@pytest.mark.parametrize("seed", range(4))
def test_steps_that_fill_the_ram_make_room_for_other_stacks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each core has a stack of its own, for which steps of one core had no room: nothing was listed then."""
    random = Random(seed)
    beside = replace(several(random, training_problem(random, 4, paging=True), 2_000_000), paging=Paging.SYNC)
    ways = ways_of(beside)
    tight = replace(ways[ALONE], budget_bytes=keep_all_peak_bytes(ways[ALONE]) * 8 // 10)
    alone = Planner(options=SolveOptions(time_limit_s=2.0, work_limit_s=0.2), reductions=reductions("ram")).solve(tight)
    room_bytes = tight.budget_bytes - verify(alone.problem, alone.schedule).peak_bytes
    ways[SIDE_BY_SIDE] = replace(beside, base_bytes=tight.base_bytes + room_bytes + 32)
    chain = CoreUsage([ways])
    chain.restore(tight, ALONE, alone)
    listed = chain.at_hand(tight, SIDE_BY_SIDE, planner(ways))
    assert listed is not None
    trace = verify(listed.problem, listed.schedule)
    verify_plan(listed.problem, listed.schedule, listed.plan)
    assert trace.peak_bytes <= tight.budget_bytes and listed.cost == trace.energy_pj
    assert chain.at_hand(tight, SIDE_BY_SIDE, planner(ways)) is listed  # once
    monkeypatch.setattr("poetc.solvers.in_less_ram", lambda *_: None)
    chain.hints.clear()
    chain.beside = None
    assert chain.at_hand(tight, SIDE_BY_SIDE, planner(ways)) is None


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_ways_in_turn_under_the_order_of_a_list(seed: int) -> None:
    """A list has an order of its own, so that the bounds of ways in turn said nothing there."""
    random = Random(seed)
    beside = replace(several(random, training_problem(random, 2, paging=True), 2_000_000), paging=Paging.SYNC)
    ways = ways_of(beside)
    tight = replace(ways[ALONE], budget_bytes=keep_all_peak_bytes(ways[ALONE]) - 16)
    chain = CoreUsage([ways])
    chain.restore(tight, ALONE, planner(ways).inner.solve(chain.fix(tight, ALONE)))
    listed = chain.at_hand(tight, SIDE_BY_SIDE, planner(ways))
    assert listed is not None
    order = first_executions(listed.schedule.actions)
    listed = listed.with_proof(replace(listed.proof, objective=10 * listed.cost))
    listed = listed.with_scope(replace(listed.proof.scope, order=order))
    for way in (ALONE, THREADS):
        bound = chain._in_order_of_list(tight, way, listed, planner(ways))
        least = optimum(in_order(chain.fix(tight, way), order))
        assert least is not None
        assert 0 < bound <= least.cost
        assert way != ALONE or bound > cost_of_computing_once(ways[ALONE]) or bound == least.cost


def test_bounds_of_ways_are_in_the_scope_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in the order of another way's plan, say, was shown beside the answer."""
    random = Random(5)
    ways = ways_of(several(random, training_problem(random, 4), 2_000_000))
    tight = replace(ways[ALONE], budget_bytes=keep_all_peak_bytes(ways[ALONE]) - 16)
    record = CoreUsage._record
    monkeypatch.setattr(CoreUsage, "_record", lambda usage, solution, least: record(usage, solution, solution.cost))
    best = planner(ways).solve(tight)
    assert min(way.least for way in best.ways) == best.proof.bound < best.cost


@pytest.mark.parametrize(("gap", "status"), [(0.05, Status.FEASIBLE), (0.01, Status.LIMIT)])
def test_a_limit_of_one_way_is_none_where_the_gap_for_all_is_reached(gap: float, status: Status) -> None:
    problem = training_problem(Random(3), layers=4)
    known = Planner(options=SolveOptions(time_limit_s=5)).solve(problem)
    bound = round(0.98 * known.cost)
    at_hand = known.with_proof(replace(known.proof, bound=bound, status=Status.LIMIT))
    assert with_lowest_bound(at_hand, [bound, known.cost], gap).proof.status is status


@pytest.mark.parametrize(("narrow", "wide", "is_narrow"), [(900, 850, True), (900, 891, False), (999, 998, True)])
def test_a_claim_about_fewer_schedules_closes_much_of_the_gap(narrow: int, wide: int, is_narrow: bool) -> None:
    """The last one is within the gap that was asked for."""
    asked = planner(ways_of(several(Random(1), training_problem(Random(1), 4), 2_000_000)))
    asked = replace(asked, options=replace(asked.options, gap=0.0015))
    best = asked.solve(replace(asked.reductions[0].sets[0][ALONE], budget_bytes=2**30))
    best = best.with_proof(replace(best.proof, objective=1000))
    scopes = {Scope(): wide, Scope(order=(1, 0)): narrow}
    assert (widest(scopes, best, asked) == Scope(order=(1, 0))) == is_narrow


@pytest.mark.parametrize("seed", [1, 6])
def test_the_bound_for_all_ways_is_shown_while_the_first_is_searched(seed: int) -> None:
    """It is carried over from that of the way at hand, and never above the cost of another way."""
    random = Random(seed)
    ways = ways_of(several(random, training_problem(random, 4), 2_000_000))
    budget_bytes = int(0.75 * keep_all_peak_bytes(ways[ALONE]))
    tight = {way: replace(problem, budget_bytes=budget_bytes) for way, problem in ways.items()}
    asked = planner(tight, time_limit_s=10)
    asked.best.log = SearchLog()
    found = asked.solve(tight[ALONE])
    bounds = [row.bound for row in asked.best.log.rows]
    assert asked.least_cost(tight[ALONE]) < max(bounds) <= found.cost


class Dearer(Streaming):
    """An option n makes every operator cost n times as much more."""

    def is_open(self, problem: Problem) -> bool:
        return False

    def fix(self, problem: Problem, choice: tuple[int, ...]) -> Problem:
        times = 1 + sum(choice)
        return replace(
            problem, operators=tuple(replace(op, energy_pj=times * op.energy_pj) for op in problem.operators)
        )


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_the_best_schedule_that_is_shown_never_gets_dearer(seed: int) -> None:
    """Searches for steps that run side by side have costs of their own, for other budgets."""
    random = Random(seed)
    problem = several(random, training_problem(random, 12, paging=True, scale=100), idle_uw=1_000_000)
    ways = {way: p for way, p in ways_of(replace(problem, objective=Objective.TIME)).items() if way != THREADS}
    budget_bytes = keep_all_peak_bytes(ways[ALONE]) * 9 // 10
    asked = {way: replace(p, budget_bytes=budget_bytes) for way, p in ways.items()}
    solver = planner(asked)
    solver.best.log = SearchLog()
    solution = solver.solve(asked[ALONE])
    shown = [row.best for row in solver.best.log.rows if row.best is not None]
    assert shown == sorted(shown, reverse=True)
    assert CoreUsage.option(solution) == SIDE_BY_SIDE
    assert solver.best.packed_cost(asked[ALONE]) == solution.cost


def test_a_bound_with_streams_is_one_for_all_ways_with_these_streams() -> None:
    random = Random(1)
    ways = ways_of(several(random, training_problem(random, 4), 2_000_000))
    budget_bytes = int(0.9 * keep_all_peak_bytes(ways[ALONE]))
    tight = {way: replace(problem, budget_bytes=budget_bytes) for way, problem in ways.items()}
    streaming, usage = Dearer(), CoreUsage([tight])
    asked = Planner(options=SolveOptions(time_limit_s=10), reductions=(usage, streaming))
    for streams in ((), (1,)):
        problems = {way: streaming.fix(problem, streams) for way, problem in tight.items()}
        best = {
            way: solve(problem, options=SolveOptions(time_limit_s=5, work_limit_s=0.3)).proof
            for way, problem in problems.items()
            if way != SIDE_BY_SIDE
        }
        for way, proof in best.items():
            bound = usage._for_all_ways(tight[ALONE], way, asked, {}, proof.bound, {"streaming": streams})
            assert 0 < bound <= min(p.objective for p in best.values())
            assert bound > sum(op.energy_pj for op in tight[ALONE].operators) or not streams


def test_a_core_that_does_transfers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers beside the work of the other core cost less than waiting for them, as the checker confirms."""
    random = Random(2)
    problem = several(random, training_problem(random, 3), 500_000)
    page = {"page_in_ns": 40, "page_out_ns": 40, "page_in_pj": 24_000, "page_out_pj": 24_000, "pageable": True}
    tensors = tuple(replace(t, **page) for t in problem.tensors)
    problem = replace(problem, tensors=tensors, paging=Paging.SYNC, page_buffer_bytes=16)
    alone = placed(problem, (0,) * len(problem.operators))
    problem = replace(problem, budget_bytes=int(0.6 * keep_all_peak_bytes(alone)) // 16 * 16)

    def solved() -> Solution:
        options = SolveOptions(time_limit_s=60.0, work_limit_s=0.1)
        found = Planner(options=options, reductions=reductions("ram")).solve(problem)
        trace = verify(problem, found.schedule)
        verify_plan(problem, found.schedule, found.plan)
        assert found.cost == trace.energy_pj >= found.proof.bound
        assert found.problem.base_bytes + found.plan.arena_bytes <= problem.budget_bytes
        return found

    apart = solved()
    used = {s.processor for s in apart.schedule.actions if isinstance(s, Compute)}
    monkeypatch.setattr(processors, "transfers_apart", lambda problem: None)
    monkeypatch.setattr(processors, "as_ready", lambda problem, first=0: as_ready(problem))
    assert apart.cost < 0.97 * solved().cost and 1 in used


def frozen(budget_bytes: int) -> Problem:
    """Frozen weights, twice as much as fits, are read forward and backward. Waiting draws power on the first core."""
    base = frozen_chain()
    tensors = tuple(replace(t, page_in_pj=210) if t.initial == "store" else t for t in base.tensors)
    core = Elsewhere(processor=1, time_ns=50, energy_pj=150)
    operators = tuple(replace(o, energy_pj=250, elsewhere=(core,)) for o in base.operators)
    specs = (ProcessorSpec(name="m", active_uw=5000, idle_uw=2000), ProcessorSpec(name="p", active_uw=3000))
    return replace(base, operators=operators, tensors=tensors, processors=specs, budget_bytes=budget_bytes)


def test_transfers_beside_the_work_come_first_where_state_is_read_again_and_again() -> None:
    problem = frozen(480)
    ways = {ALONE: placed(problem, (0,) * len(problem.operators)), SIDE_BY_SIDE: problem}
    assert CoreUsage([ways])._is_better_apart(ways, set())
    assert not CoreUsage([ways])._is_better_apart(ways, {SIDE_BY_SIDE})
    full = {way: replace(p, budget_bytes=432) for way, p in ways.items()}
    assert not CoreUsage([full])._is_better_apart(full, set())
    roomy = {way: replace(p, budget_bytes=4000) for way, p in ways.items()}
    assert not CoreUsage([roomy])._is_better_apart(roomy, set())
    enough = sum(t.size_bytes for t in problem.tensors if t.initial and t.pageable)
    stacks = {way: replace(p, budget_bytes=enough) for way, p in ways.items()}
    stacks[SIDE_BY_SIDE] = replace(stacks[SIDE_BY_SIDE], base_bytes=8)
    assert not CoreUsage([stacks])._is_better_apart(stacks, set())  # one stack leaves room for all state
    asked = planner(ways, time_limit_s=10.0)
    found = asked.solve(ways[ALONE])
    assert CoreUsage.option(found) == SIDE_BY_SIDE
    assert Processors.note(problem, found).startswith("processors: m the transfers alone, busy ")
    (alone,) = [w for w in found.ways if w.count == ALONE]
    assert alone.cost is None and alone.least > found.cost >= found.proof.bound > 0.8 * found.cost
    actions = [replace(a, processor=1) if isinstance(a, Compute) else a for a in found.schedule.actions]
    for more, words in (
        ((), "one core computes, the main one does the transfers, "),
        ((Compute(0),), "operators side by side, "),
    ):
        apart = replace(found, schedule=replace(found.schedule, actions=(*actions, *more)))
        assert CoreUsage.note(ways[ALONE], apart).startswith(f"cores: {words}")


def test_state_that_is_read_again_stays_in_the_ram_that_a_list_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = frozen(240)
    tensors = (replace(t, initial="ram", final="ram") if t.initial == "store" else t for t in problem.tensors)
    operators = (replace(o, workspace_bytes=0) for o in problem.operators)
    problem = replace(problem, tensors=tuple(tensors), operators=tuple(operators))
    listed: list[tuple[processors._Side, Solution]] = []
    keep = processors._Side._with_state_kept

    def recorded(side: processors._Side, packed: Solution) -> Solution:
        listed.append((side, packed))
        return keep(side, packed)

    monkeypatch.setattr(processors._Side, "_with_state_kept", recorded)
    options = SolveOptions(time_limit_s=60.0, work_limit_s=0.2)
    found = Planner(options=options, reductions=reductions("auto")).solve(problem)
    verify_plan(found.problem, found.schedule, found.plan)
    side, packed = listed[0]
    stored = StatePlacement.option(packed)
    assert stored is not None and len(stored) > 1
    side.problem = replace(problem, budget_bytes=400)  # one weight more
    kept = keep(side, replace(packed, problem=replace(packed.problem, budget_bytes=400)))
    left = StatePlacement.option(kept)
    assert left is not None and left < stored and len(left) == len(stored) - 1
    assert kept.cost == verify(kept.problem, kept.schedule).energy_pj < packed.cost
    verify_plan(kept.problem, kept.schedule, kept.plan)
    assert kept.problem.tensors[max(stored - left)].initial == "ram"


def test_a_bound_in_order_is_for_no_other_streams_or_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, high = frozen(4000), 10**15
    ways = {ALONE: placed(problem, (0,) * len(problem.operators)), SIDE_BY_SIDE: problem}
    usage, asked = CoreUsage([ways]), planner(ways)
    monkeypatch.setattr(usage, "_in_order", lambda *_: high)
    alone = asked.inner.solve(usage.fix(ways[ALONE], ALONE))
    scope = replace(alone.proof.scope, order=tuple(range(len(problem.operators))))
    for option, is_high in (((), True), (ANY, False)):
        for name in ("streaming", "saved"):
            known = alone.with_scope(scope.with_choice(name, option))
            usage.solved[ALONE] = usage.restore(ways[ALONE], ALONE, known)
            assert (usage._least(ways[ALONE], SIDE_BY_SIDE, known.proof.scope, asked, 2 * high) == high) is is_high


def test_streamed_operators_run_on_the_processor_that_has_the_store() -> None:
    problem = with_stream(Random(1), frozen(480))
    (streamed,) = [k for k, o in enumerate(problem.operators) if o.is_streamed]
    apart = transfers_apart(problem)
    assert apart is not None
    assert [k for k, own in enumerate(apart[1]) if own == 0] == [streamed]
    options = SolveOptions(time_limit_s=60.0, work_limit_s=0.1)
    found = Planner(options=options, reductions=reductions("ram")).solve(problem)
    assert verify(problem, found.schedule).energy_pj == found.cost >= found.proof.bound
    verify_plan(problem, found.schedule, found.plan)
    assert all(s.processor == 0 for s in found.schedule.actions if isinstance(s, Compute) and s.operator == streamed)


class Counting(Kernels):
    """Counts the plain problems that are solved."""

    def __init__(self) -> None:
        self.solved = 0

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        self.solved += 1
        return planner.inner.solve(problem)


def test_a_search_whose_time_is_up_solves_one_placement() -> None:
    random, counting = Random(2), Counting()
    problem = several(random, training_problem(random, 4), 0)
    options = SolveOptions(time_limit_s=1e-3, work_limit_s=3.0)
    chain = (Processors(), counting, StatePlacement("ram"))
    late = Planner(options=options, reductions=chain, started=time.monotonic() - 1.0)
    verify(problem, late.solve(problem).schedule)
    assert counting.solved == 1


def test_exact_search_ends_with_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [several(Random(seed), random_dag(Random(seed), 7), 2_000_000) for seed in range(4)]
    chain = Planner(options=SolveOptions(time_limit_s=3.0), reductions=(Processors(), Kernels(), StatePlacement("ram")))
    stops, search = [], processors.search

    def recorded(*given: Any, stop_at: float, **options: Any) -> Any:
        stops.append(stop_at)
        return search(*given, stop_at=stop_at, **options)

    monkeypatch.setattr(processors, "search", recorded)
    monkeypatch.setattr(time, "monotonic", lambda: chain.started + 2.9)
    for problem in problems:
        chain.solve(replace(problem, objective=Objective.TIME))
    assert stops and max(stops) <= chain.stop_at


def test_an_option_gets_no_time_that_is_not_left() -> None:
    random = Random(3)
    problem = placed(several(random, training_problem(random, 2), 0), (0,) * 40)
    problems = {
        1: problem,
        2: replace(
            problem,
            operators=tuple(replace(o, energy_pj=o.energy_pj - 9) for o in problem.operators),
            budget_bytes=keep_all_peak_bytes(problem) - 1,
        ),
    }
    options = SolveOptions(time_limit_s=1e-3, work_limit_s=3.0)
    late = Planner(options=options, reductions=(MicroBatches(problems),), started=time.monotonic() - 1.0)
    found = late.solve(problem)
    assert sorted(t.outcome for t in found.results) == ["no time was left", "optimal"]


@pytest.mark.parametrize("paging", [False, True])
def test_of_equal_energies_the_faster_way_is_taken(paging: bool) -> None:
    """Threads that halve the time at the same energy, and then a second core that only idles for nothing."""
    random = Random(5)
    ways = ways_of(several(random, training_problem(random, 4), 0))
    plain = ways[ALONE]
    plain = plain if paging else replace(plain, paging=type(plain.paging).NONE)
    halved = tuple(replace(o, time_ns=o.time_ns // 2) for o in plain.operators)
    ways = {ALONE: plain, THREADS: replace(plain, operators=halved)}
    found = planner(ways).solve(plain)
    assert CoreUsage.option(found) == THREADS and found.cost == plain.compute_once_pj
    assert verify(found.problem, found.schedule).time_ns < plain.compute_once_ns
    dearer = tuple(replace(o, energy_pj=o.energy_pj + 10) for o in halved)
    found = planner({ALONE: plain, THREADS: replace(plain, operators=dearer)}).solve(plain)
    assert CoreUsage.option(found) == ALONE


def test_a_second_core_that_does_nothing_is_not_taken() -> None:
    """Side by side an operator at a time is the schedule of one processor, at the same energy."""
    random = Random(5)
    both = several(random, training_problem(random, 4), 0)
    alone = replace(both, operators=tuple(replace(o, elsewhere=()) for o in both.operators))
    ways = {ALONE: ways_of(both)[ALONE], SIDE_BY_SIDE: alone}
    found = planner(ways).solve(ways[ALONE])
    assert CoreUsage.option(found) == ALONE and not found.problem.processors


@pytest.mark.parametrize(("operators_per_s", "known"), [(50.0, [ALONE]), (0.0, [])])
def test_a_schedule_in_turn_comes_before_transfers_apart(
    monkeypatch: pytest.MonkeyPatch, operators_per_s: float, known: list[int]
) -> None:
    """Side by side may find nothing in all of its time; a problem too large for a first schedule begins with it."""
    random = Random(0)
    beside = replace(several(random, training_problem(random, 5, paging=True), 0), paging=Paging.SYNC)
    operators = tuple(replace(op, elsewhere=()) for op in beside.operators)
    alone = replace(placed(beside, (0,) * len(operators)), processors=(), operators=operators)
    before: list[list[int]] = []
    solved = CoreUsage._solved

    def recorded(usage: CoreUsage, problem: Problem, way: int, inner: Planner, *shares: float) -> Solution:
        before.append(list(usage.solved))
        return solved(usage, problem, way, inner, *shares)

    monkeypatch.setattr(CoreUsage, "_solved", recorded)
    monkeypatch.setattr(CoreUsage, "_is_better_apart", lambda *_, **__: True)
    monkeypatch.setattr("poetc.planning.ways.WAYS", replace(WAYS, first_operators_per_s=operators_per_s))
    options = SolveOptions(time_limit_s=3, work_limit_s=0.3, fixed_order=True)
    budget_bytes = int(0.55 * keep_all_peak_bytes(alone))
    chain = reductions("auto", ways=[{ALONE: alone, SIDE_BY_SIDE: beside}])
    Planner(options=options, reductions=chain).solve(replace(alone, budget_bytes=budget_bytes))
    assert before[0] == known


def test_bounds_of_one_budget_are_not_those_of_another() -> None:
    """One chain of reductions may solve several problems."""
    random = Random(0)
    beside = replace(several(random, training_problem(random, 5, paging=True), 0), paging=Paging.SYNC)
    operators = tuple(replace(op, elsewhere=()) for op in beside.operators)
    alone = replace(placed(beside, (0,) * len(operators)), processors=(), operators=operators)
    ways = {ALONE: alone, SIDE_BY_SIDE: beside}
    options = SolveOptions(time_limit_s=3, work_limit_s=0.3, fixed_order=True)
    little, much = (int(share * keep_all_peak_bytes(alone)) for share in (0.55, 0.95))
    planner = Planner(options=options, reductions=reductions("auto", ways=[ways]))
    planner.solve(replace(alone, budget_bytes=little))
    again = planner.solve(replace(alone, budget_bytes=much))
    schedule = Planner(options=options, reductions=reductions("auto")).solve(replace(beside, budget_bytes=much))
    assert all(way.least <= schedule.cost for way in again.ways if way.count == SIDE_BY_SIDE)


def test_a_way_whose_steps_are_dearer_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-50 at 25 % spent the time of the best way on another one."""
    random = Random(0)
    beside = replace(several(random, training_problem(random, 5, paging=True), 0), paging=Paging.SYNC)
    ways = ways_of(beside)
    dear = tuple(replace(op, energy_pj=op.energy_pj * 12 // 10) for op in ways[THREADS].operators)
    ways[THREADS] = replace(ways[THREADS], operators=dear)
    begun, solved = list[int](), CoreUsage._solved

    def recorded(usage: CoreUsage, problem: Problem, way: int, inner: Planner, share: float, *_: float) -> Solution:
        begun.append(way)
        return solved(usage, problem, way, inner, min(share, 0.3))

    monkeypatch.setattr(CoreUsage, "_solved", recorded)
    monkeypatch.setattr(CoreUsage, "propose", lambda *_: iter((ALONE, THREADS, SIDE_BY_SIDE)))
    monkeypatch.setattr(CoreUsage, "_least", lambda *_, **__: 0)
    options = SolveOptions(time_limit_s=6, work_limit_s=0.3, fixed_order=True, gap=1e-9)
    tight = replace(ways[ALONE], budget_bytes=int(0.55 * keep_all_peak_bytes(ways[ALONE])))
    Planner(options=options, reductions=reductions("auto", ways=[ways])).solve(tight)
    assert begun[:2] == [ALONE, SIDE_BY_SIDE]


def test_where_ram_is_short_a_race_is_judged_by_lists_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs once, before the time is up, and no answer is dearer than its list."""
    beside = paged(4)
    ways = {ALONE: placed(beside, (0,) * len(beside.operators)), SIDE_BY_SIDE: beside}
    found: list[Solution | None] = []
    race = raced_on_several

    def recorded(problem: Problem, in_turn: Solution, inner: Planner) -> Solution | None:
        assert inner.left_s > 0
        found.append(race(problem, in_turn, inner))
        return found[-1]

    monkeypatch.setattr("poetc.planning.ways.raced_on_several", recorded)
    best = planner(ways, time_limit_s=8.0).solve(ways[ALONE])
    (raced,) = found
    assert raced is not None and best.proof.bound <= best.cost <= raced.cost
    roomy = {way: replace(p, budget_bytes=2 * p.budget_bytes) for way, p in ways.items()}
    assert worth_racing(beside) and not worth_racing(roomy[SIDE_BY_SIDE])
    planner(roomy).solve(roomy[ALONE])
    assert found == [raced]


def test_a_list_is_kept_where_cheaper_steps_in_turn_have_a_dearer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = paged(4)
    ways = {ALONE: placed(beside, (0,) * len(beside.operators)), SIDE_BY_SIDE: beside}
    chain = planner(ways, time_limit_s=8.0)
    usage = next(r for r in chain.reductions if isinstance(r, CoreUsage))
    alone = replace(chain, reductions=chain.reductions[chain.reductions.index(usage) :])
    in_turn = usage.restore(ways[ALONE], ALONE, alone.inner.solve(ways[ALONE]))
    first = usage.at_hand(ways[ALONE], SIDE_BY_SIDE, alone)
    assert first is not None
    usage.in_turn = replace(in_turn)  # other steps
    monkeypatch.setattr("poetc.planning.ways.on_several", lambda *_: None)
    again = usage.at_hand(ways[ALONE], SIDE_BY_SIDE, alone)
    assert again is not None and again.cost == first.cost
