"""Placement of state: claims for any placement against the exhaustive optimum over all of them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from dataclasses import replace
from random import Random

import pytest

from poetc import solvers
from poetc.errors import InfeasibleError, LimitError
from poetc.events import Progress, silent
from poetc.planning import Planner, Solution, StatePlacement, reductions
from poetc.planning.state import everything
from poetc.scheduling import (
    ANY,
    InPlace,
    OperatorSpec,
    PageOut,
    Paging,
    Problem,
    SolveOptions,
    Status,
    TensorSpec,
    keep_all_peak_bytes,
    movable_state,
    on_store,
    stored_state,
    unchanged_state,
    verify,
)
from poetc.solvers import PlacementSearch, min_budget
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.ladder import fullest_operator
from poetc.solvers.poetc.placement.relaxation import OpenPlacement, open_model
from poetc.solvers.poetc.settings import PLACEMENT
from tests.support.oracle import Optimum, optimum
from tests.support.planning import planner
from tests.support.problems import random_dag, training_problem, with_budget
from tests.support.ram import order_free_bound_bytes

SEEDS = (*range(60), 77, 78, 84, 93, 98)  # the last five have seldom properties
LIMIT_S = 20.0
OPTIONS = SolveOptions(time_limit_s=LIMIT_S, fixed_order=True)


@functools.cache
def case(seed: int) -> tuple[Problem, dict[frozenset[int], Optimum | None]]:
    """A problem with state in RAM, its budget down to what only the store makes possible, and the optimum of each
    choice of placements.
    """
    random = Random(seed)
    while True:
        small = random.random() < 0.5
        problem = (
            training_problem(random, 1, paging=True) if small else random_dag(random, random.randint(3, 6), paging=True)
        )
        problem = _heavier(problem, random.choice((2, 4, 8)))
        chains = movable_state(problem)
        if chains:
            break
    first = [chain[0] for chain in chains]
    low = order_free_bound_bytes(on_store(problem, first))
    high = max(low, random.choice((order_free_bound_bytes(problem), keep_all_peak_bytes(problem))))
    budget = low + int((high - low) * random.choice((0.05, 0.1, 0.3, 0.5, 0.9)))
    problem = replace(problem, budget_bytes=budget)
    if random.random() < 0.2:
        problem = replace(problem, deadline_ns=int(problem.compute_once_ns * random.uniform(1.05, 1.8)))
    if random.random() < 0.1:
        limit = sum(problem.tensors[chain[-1]].footprint_bytes for chain in chains[: random.randint(0, 1)])
        problem = replace(problem, write_limit_bytes=limit)
    subsets = itertools.chain.from_iterable(itertools.combinations(first, k) for k in range(len(first) + 1))
    return problem, {frozenset(s): optimum(on_store(problem, s)) for s in subsets}


def _heavier(problem: Problem, times: int) -> Problem:
    """With larger state."""
    state = {t for chain in movable_state(problem) for t in chain}
    tensors = tuple(
        replace(t, size_bytes=t.size_bytes * times) if i in state else t for i, t in enumerate(problem.tensors)
    )
    return replace(problem, tensors=tensors)


def solve(problem: Problem, options: SolveOptions, progress: Progress = silent) -> Solution:
    return planner("auto", options=options, progress=progress).solve(problem)


ROUNDED = 1.001  # a progress line shows four digits


def energy_pj(text: str) -> float:
    """A line's energy, such as "12.3 nJ", in pJ."""
    number, unit = text.split()
    return float(number) * {"pJ": 1, "nJ": 1e3, "uJ": 1e6, "µJ": 1e6, "mJ": 1e9, "J": 1e12}[unit]


def best(found: dict[frozenset[int], Optimum | None]) -> int | None:
    return min((o.cost for o in found.values() if o is not None), default=None)


def test_cases_need_every_home() -> None:
    """Some are cheapest with state in RAM, some on the store, some are possible only there."""
    kinds = {"ram": 0, "store": 0, "only store": 0}
    for seed in SEEDS:
        _, found = case(seed)
        least = best(found)
        in_ram = found[frozenset()]
        if least is not None:
            kinds["only store" if in_ram is None else "ram" if in_ram.cost == least else "store"] += 1
    assert all(count > 2 for count in kinds.values()), kinds


def test_open_placement_is_a_relaxation_of_all_placements() -> None:
    tight = 0
    by_deadline = 0
    for seed in SEEDS:
        problem, found = case(seed)
        least = best(found)
        chains = movable_state(problem)
        model = open_model(problem)
        if problem.deadline_ns is not None:
            limited, free = (
                OpenPlacement(m, range(model.n_ops), chains).solve(time_limit_s=10)
                for m in (model, open_model(replace(problem, deadline_ns=None)))
            )
            assert limited.infeasible or limited.bound >= free.bound, seed
            by_deadline += limited.infeasible or limited.bound > free.bound
        if least is None:
            continue
        every = range(model.n_ops)
        for cuts, between in (((model.cut,), False), (every, False), (every[::2], True), (every[1::3], True)):
            relaxation = OpenPlacement(model, cuts, chains, between=between).solve(time_limit_s=10)
            assert not relaxation.infeasible, (seed, cuts)
            assert relaxation.bound <= least, (seed, cuts)
            tight += len(cuts) == model.n_ops and relaxation.bound == least
    assert tight > 9
    assert by_deadline > 5


def test_choice_and_its_bound() -> None:
    same = 0
    cheapest = []
    for seed in SEEDS:
        problem, found = case(seed)
        least = best(found)
        if least is None:
            continue
        search = PlacementSearch(problem, OPTIONS, math.inf, None)
        search.run()
        assert search.bound <= least, seed
        optimum_there, cost = found[search.best()], search.raced.get(search.best(), math.inf)
        assert cost == math.inf or (optimum_there is not None and optimum_there.cost <= cost), seed
        cheapest.append(seed)
        same += optimum_there is not None and optimum_there.cost == least
    assert same >= 0.9 * len(cheapest), (same, len(cheapest))


def test_the_plan_of_a_cut_at_the_fullest_operator_is_a_schedule() -> None:
    """A loss with a large workspace, as one that has the head of a language model in it: one relaxation is enough."""
    problem = training_problem(Random(3), 48, paging=True, scale=1000)
    loss = next(k for k, op in enumerate(problem.operators) if op.phase == "loss")
    workspace = keep_all_peak_bytes(problem) // 3
    operators = list(problem.operators)
    operators[loss] = replace(operators[loss], workspace_bytes=workspace)
    problem = replace(problem, operators=tuple(operators))
    assert fullest_operator(Model(problem)) == loss
    for share in (0.4, 0.5, 0.6):
        limited = replace(problem, budget_bytes=int(share * keep_all_peak_bytes(problem)))
        search = PlacementSearch(limited, SolveOptions(gap=0.001), math.inf, None)
        search.run(1e-9)  # the first stage alone
        schedule = search.schedule(search.best())
        assert schedule is not None and search.proven
        assert verify(on_store(limited, search.best()), schedule).energy_pj == search.least
        assert search.least <= search.bound / 0.999


def test_state_stays_in_ram_where_the_steps_of_the_best_schedule_still_fit() -> None:
    cheaper = 0
    for seed in SEEDS[:30]:
        problem, found = case(seed)
        stored = everything(problem)
        if (known := found[stored]) is None:
            continue
        search = PlacementSearch(replace(problem, budget_bytes=2 * problem.budget_bytes), OPTIONS, math.inf, None)
        search.run(1e-9)
        placed = on_store(search.problem, stored)
        schedule = solvers.at_once(placed, OPTIONS)
        assert schedule is not None and schedule.proof.objective <= 4 * known.cost
        search.known.clear()
        search.raced.clear()
        search.take(stored, schedule)
        search.keep_in_ram()
        for on in search.known:
            kept = search.schedule(on)
            assert kept is not None and on <= stored
            assert verify(on_store(search.problem, on), kept).energy_pj == search.known[on]
        cheaper += search.least < schedule.proof.objective
    assert cheaper


@pytest.mark.long
def test_cuts_are_added_as_far_as_the_relaxation_can_be_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan asks for more than that: the worst of them come first, and prove more than none."""
    problem = _heavier(training_problem(Random(4), 3, paging=True), 4)
    low = order_free_bound_bytes(on_store(problem, [chain[0] for chain in movable_state(problem)]))
    problem = replace(problem, budget_bytes=low + (keep_all_peak_bytes(problem) - low) // 10)
    solved: list[tuple[int, int, float]] = []
    relax = PlacementSearch._relax

    def recorded(search: PlacementSearch, cuts: tuple[int, ...], lp: bool = False) -> Relaxation | None:
        relaxation = relax(search, cuts, lp)
        if len(cuts) > 1 and relaxation is not None:
            solved.append((len(cuts), search.relaxed.mip.entries, relaxation.bound))
        return relaxation

    monkeypatch.setattr(PlacementSearch, "_relax", recorded)

    def run() -> list[tuple[int, int, float]]:
        solved.clear()
        PlacementSearch(problem, OPTIONS, math.inf, None).run(0.5)
        return list(solved)

    (few, small, weak), (many, large, _), *_ = run()
    assert many >= few + 3
    monkeypatch.setattr("poetc.solvers.poetc.placement.search.PLACEMENT", replace(PLACEMENT, most_entries=large - 1))
    first, second, *_ = run()
    assert first == (few, small, weak)
    assert few < second[0] < many and second[2] > weak


@pytest.mark.long
def test_what_a_relaxation_proves_impossible_is() -> None:
    proven = 0
    for seed in SEEDS:
        problem, found = case(seed)
        search = PlacementSearch(problem, OPTIONS, math.inf, None)
        search.run(0.5)
        assert not search.impossible or best(found) is None, seed
        if search.impossible and problem.deadline_ns is not None:
            proven += 1
            with pytest.raises(InfeasibleError, match=r"no schedule fits in .* within the deadline"):
                solve(problem, OPTIONS)
    assert proven


@pytest.mark.long
def test_solved_with_any_placement() -> None:
    """Never dearer than with the placement that it was given, nor a bound above what others allow."""
    optimal = stored = unpacked = 0
    for seed in SEEDS[:60]:
        problem, found = case(seed)
        least = best(found)
        try:
            placed = solve(problem, OPTIONS)
        except InfeasibleError:
            assert least is None, seed
            continue
        except LimitError:
            unpacked += least is not None  # packing may need more than any schedule does
            continue
        trace = verify(placed.problem, placed.schedule)
        first = frozenset(chain[0] for chain in stored_state(placed.problem)) & {c[0] for c in movable_state(problem)}
        assert placed.problem == on_store(problem, first), seed
        optimum_there = found[first]
        assert least is not None and optimum_there is not None and least <= optimum_there.cost <= trace.energy_pj, seed
        proof = placed.schedule.proof
        if proof.scope.choice("state") is ANY and proof.scope.order is not ANY:
            stored += 1
            assert proof.bound <= least, seed
            if proof.status is Status.OPTIMAL:
                assert trace.energy_pj == least, seed
        updated = {chain[-1] for chain in stored_state(placed.problem) if len(chain) > 1}
        assert updated <= {s.tensor for s in placed.schedule.actions if isinstance(s, PageOut)}, seed
        optimal += trace.energy_pj == least
    assert stored > 6 and optimal > 25 and unpacked < 2, (stored, optimal, unpacked)


def test_state_that_was_kept_in_ram_goes_to_the_store_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatePlacement, "is_open", lambda self, problem: False)
    rescued = 0
    for seed in SEEDS:
        problem, found = case(seed)
        if found[frozenset()] is not None or best(found) is None:
            continue
        try:
            placed = solve(problem, OPTIONS)
        except LimitError:
            continue  # packing may need more than any schedule does
        assert stored_state(placed.problem), seed
        rescued += 1
    assert rescued > 0


def test_a_schedule_is_reported_before_orders_and_placements_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is reported never gets worse, nor is a bound above what other placements allow."""
    lines: list[str] = []
    searched = []
    monkeypatch.setattr("poetc.solvers.best_order", lambda *_: searched.append(list(lines)))
    for seed in SEEDS[:20]:
        problem, found = case(seed)
        least = best(found)
        if least is None:
            continue
        lines.clear()
        with contextlib.suppress(LimitError):  # where packing needs more than any schedule does
            solve(problem, replace(OPTIONS, fixed_order=False), lines.append)
        if searched and any(line.endswith("(ordering operators)") for line in lines):
            at_once = next(line for line in lines if line.endswith("(ordering operators)"))
            bound = at_once.partition("bound ")[2].partition(",")[0].partition(" (")[0]
            assert energy_pj(bound) <= least * ROUNDED, seed
    assert (
        sum(any("best " in line and line.endswith("(ordering operators)") for line in before) for before in searched)
        > 5
    )


def test_the_same_bytes_on_slow_and_fast_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends a search is counted work, as long as the time limit is not reached: the clock may run as it likes."""
    calls, step_s = 0, 0.0

    def clock() -> float:
        nonlocal calls
        calls += 1
        return calls * step_s

    monkeypatch.setattr(time, "monotonic", clock)
    options, compared = SolveOptions(time_limit_s=LIMIT_S), 0
    for seed in SEEDS[30:36]:
        problem, found = case(seed)
        if best(found) is None:
            continue
        calls, step_s = 0, 0.0
        try:
            fast = solve(problem, options)
        except LimitError:
            continue  # packing may need more than any schedule does
        calls, step_s = 0, LIMIT_S / 2 / calls  # half the limit
        assert solve(problem, options) == fast, seed
        compared += bool(stored_state(fast.problem))
    assert compared > 1


@pytest.mark.long
def test_placements_that_leave_packing_too_little_give_way() -> None:
    """A little more goes to the store, at a price that a race knows, where it can."""
    loosened = 0
    for seed in SEEDS:
        problem = replace(case(seed)[0], deadline_ns=None, write_limit_bytes=None)
        if not StatePlacement().is_open(problem):
            continue
        search = PlacementSearch(problem, OPTIONS, math.inf, None)
        search.run(until_settled=True)
        on, before = search.best(), dict(search.raced)
        if search.loosen(on, 1):
            other = search.best()
            assert other != on and search.raced[other] < math.inf, seed
            assert other in before or (len(other - on) == 1 and on < other), seed
            schedule = search.schedule(other)
            assert schedule is not None
            verify(on_store(problem, other), schedule)
            loosened += 1
        else:
            assert search.best() == on, seed
    assert loosened > 10


def test_errors_claim_only_what_holds_for_any_placement() -> None:
    proven = 0
    for seed in SEEDS[:20]:
        problem, _ = case(seed)
        problem = replace(problem, write_limit_bytes=0)
        least_bytes = planner().lower_bound_bytes(problem)
        for budget in (least_bytes - 16, least_bytes, (least_bytes + order_free_bound_bytes(problem)) // 2):
            try:
                solve(replace(problem, budget_bytes=budget), OPTIONS)
            except (InfeasibleError, LimitError) as error:
                bound = error.details.get("min_budget_bound_bytes", 0)
                assert isinstance(bound, int) and bound <= least_bytes, (seed, error)
                if isinstance(error, LimitError):
                    assert not str(error).startswith("no schedule"), (seed, error)
                proven += "wherever state lives" in str(error)
                assert "wherever state lives" not in str(error) or isinstance(error, InfeasibleError), (seed, error)
    assert proven > 0


def test_smallest_ram_is_known_where_only_ram_meets_the_deadline() -> None:
    """Or what may be written."""
    known = 0
    for seed in SEEDS:
        problem = replace(case(seed)[0], deadline_ns=None, write_limit_bytes=None)
        least_bytes = planner().lower_bound_bytes(problem)
        if order_free_bound_bytes(problem) == least_bytes:
            continue
        for limits in ({"deadline_ns": problem.compute_once_ns}, {"write_limit_bytes": 0}):
            limited = replace(problem, **limits)
            if min_budget(limited, time_limit_s=1.0).smallest_bytes is None:
                continue
            found = planner().search_ram(limited, 1.0).result
            assert found.ram_bytes is not None, (seed, limits)
            assert found.bound_bytes <= least_bytes
            known += 1
    assert known > 0


def test_what_is_left_for_a_schedule_is_of_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the search for a placement took all of it: a little more, of a short limit less."""
    limits: list[float] = []

    def impossible(problem: Problem, planner: Planner) -> None:
        limits.append(planner.options.time_limit_s)
        raise LimitError("found nothing")

    monkeypatch.setattr("poetc.planning.plain.solve_and_pack", impossible)
    monkeypatch.setattr(StatePlacement, "is_open", lambda self, problem: True)
    for limit_s in (1e-6, 60.0):
        clock = iter(range(0, 100_000, 100))  # no call comes in time
        monkeypatch.setattr(time, "monotonic", lambda clock=clock: float(next(clock)))
        limits.clear()
        with pytest.raises(LimitError):
            solve(case(0)[0], SolveOptions(time_limit_s=limit_s))
        assert set(limits) == {min(0.1 * limit_s, 1.0)}


def test_frozen_weights_on_the_store_and_trained_ones_in_ram_is_tried_first() -> None:
    """A frozen weight has a copy on the store for good: it leaves RAM, and comes back, without a write."""

    def tensor(name: str, size: int, *, is_state: bool = False, final: bool = False) -> TensorSpec:
        paging = {"page_out_ns": 50 + size, "page_out_pj": 50 + size, "page_in_ns": size, "page_in_pj": size}
        initial, last = "ram" if is_state else "", "ram" if final else ""
        return TensorSpec(name=name, size_bytes=size, initial=initial, final=last, store_bytes=size, **paging)  # type: ignore[arg-type]

    tensors = (
        *(tensor(name, 4096, is_state=True, final=True) for name in ("w1", "w2")),
        *(tensor(f"adapter{k}", 64, is_state=True) for k in range(4)),
        *(tensor(f"adapter{k}.new", 64, final=True) for k in range(4)),
        *(tensor(name, 64) for name in ("h", "y", "g")),
    )
    h, y, g = 10, 11, 12
    layers = (
        OperatorSpec(name="first", inputs=(0,), outputs=(h,), time_ns=10, energy_pj=10),
        OperatorSpec(name="second", inputs=(1, h), outputs=(y,), time_ns=10, energy_pj=10),
        OperatorSpec(name="back", inputs=(0, y), outputs=(g,), time_ns=10, energy_pj=10),
    )
    updates = tuple(
        OperatorSpec(
            name=f"update{k}",
            inputs=(2 + k, g),
            outputs=(6 + k,),
            time_ns=1,
            energy_pj=1,
            recomputable=False,
            in_place=(InPlace(input=2 + k, output=6 + k, required=True),),
        )
        for k in range(4)
    )
    problem = Problem(
        name="tuned", operators=(*layers, *updates), tensors=tensors, budget_bytes=5000, paging=Paging.SYNC
    )
    assert unchanged_state(problem) == {0, 1}
    search = PlacementSearch(problem, OPTIONS, math.inf, None)
    next(search._stages)
    assert search.best() == {0, 1} and search.raced[frozenset({0, 1})] < search.raced[search.everything]
    schedule = search.schedule(frozenset({0, 1}))
    assert schedule is not None
    trace = verify(on_store(problem, {0, 1}), schedule)
    assert (trace.page_outs, trace.written_bytes) == (0, 0) and trace.page_ins >= 2


@pytest.mark.parametrize("share", [0.3, 0.95])
def test_the_first_schedule_is_not_lost_when_time_is_up(share: float) -> None:
    """A large problem keeps its order, so that the schedule that was shown at once is an answer.

    It is the cheapest of both ends: where RAM has room for nearly all, little of the state is better on the store.
    """
    problem = with_budget(training_problem(Random(1), 260, paging=True), share)
    ends = (StatePlacement().fix(problem, on) for on in (everything(problem), frozenset[int]()))
    costs = [first.proof.objective for end in ends if (first := solvers.at_once(end, OPTIONS)) is not None]
    options = SolveOptions(time_limit_s=0.01)
    solution = Planner(options=options, reductions=(StatePlacement(),)).solve(problem)
    assert solution.cost <= min(costs) * 1.001  # moves cost something
    assert len(costs) == 2 and min(costs) < 0.99 * max(costs)


@pytest.mark.parametrize("seed", range(8))
def test_state_that_saves_the_most_stays_in_ram_at_once(seed: int) -> None:
    problem = with_budget(training_problem(Random(seed), 40, paging=True), 0.4)
    reduction = StatePlacement()
    firsts = dict(reduction.at_once(problem, Planner(options=OPTIONS, reductions=(reduction,))))
    costs = [schedule.proof.objective for schedule in firsts.values()]
    assert costs == sorted(costs)
    for placement in solvers.thrifty_placements(problem):
        placed = on_store(problem, placement)
        in_ram = sum(problem.tensors[t].size_bytes for t in everything(problem) - placement)
        assert in_ram <= problem.budget_bytes - solvers.lower_bound_bytes(on_store(problem, everything(problem)))
        if placement in firsts:
            verify(placed, firsts[placement])


@pytest.mark.parametrize("seed", [123, 312])
def test_spread_cuts_that_prove_a_budget_impossible(seed: int) -> None:
    """With little time they come before the relaxation that would have said so."""
    random = Random(seed)
    problem = training_problem(random, random.randint(3, 8), paging=True)
    if random.random() < 0.5:
        tensors = tuple(replace(t, pageable=t.pageable and random.random() < 0.3) for t in problem.tensors)
        problem = replace(problem, tensors=tensors)
    least = solvers.lower_bound_bytes(on_store(problem, [c[0] for c in movable_state(problem)]))
    problem = replace(problem, budget_bytes=int(least * random.choice((1.0, 1.02, 1.1))))
    options = SolveOptions(time_limit_s=0.2, work_limit_s=3, fixed_order=True)
    with contextlib.suppress(InfeasibleError, LimitError):
        assert Planner(options=options, reductions=reductions("auto")).solve(problem).proof.gap() >= 0
