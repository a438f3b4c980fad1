"""Tensors that are moved within RAM: plans of schedules with moves, and packing that makes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetc.scheduling import (
    Action,
    Completer,
    Compute,
    Free,
    MemoryPlan,
    Move,
    Objective,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    PlanError,
    Problem,
    Proof,
    Schedule,
    Scope,
    Status,
    TensorSpec,
    _relocation,
    keep_all,
    pack,
    pack_with_moves,
    verify,
    verify_plan,
    without_moves,
)
from tests.support.moves import chain, tight, wander
from tests.support.problems import random_dag, random_decisions, training_problem


def scheduled(problem: Problem, actions: tuple[Action, ...]) -> Schedule:
    cost = 0
    for action in actions:
        match action:
            case Compute(k):
                cost += problem.operators[k].energy_pj
            case PageOut(t):
                cost += problem.tensors[t].page_out_pj
            case PageIn(t):
                cost += problem.tensors[t].page_in_pj
            case Move(t):
                cost += problem.tensors[t].move_pj
    proof = Proof(status=Status.OPTIMAL, objective=cost, bound=cost, scope=Scope())
    return Schedule(solver="test", actions=actions, proof=proof)


def moves(schedule: Schedule) -> list[int]:
    return [s.tensor for s in schedule.actions if isinstance(s, Move)]


def test_moves_where_no_offsets_fit() -> None:
    problem, schedule = tight()
    live = verify(problem, schedule).peak_bytes
    assert pack(problem, schedule).arena_bytes == live + 16
    assert pack_with_moves(problem, schedule, live - 16) is None
    found = pack_with_moves(problem, schedule, live)
    assert found is not None
    moved, plan = found
    trace = verify(problem, moved)
    verify_plan(problem, moved, plan)
    assert plan.arena_bytes == live == trace.peak_bytes
    assert 0 < trace.moves == len(moves(moved)) <= 3
    assert without_moves(problem, moved).actions == schedule.actions


def long_and_tight(random: Random) -> tuple[Problem, Schedule]:
    """600 operators whose results live for up to 20 operators."""
    frees: dict[int, tuple[int, ...]] = {}
    for k in range(579):
        reader = k + random.randint(1, 20)
        frees[reader] = (*frees.get(reader, ()), k)
    return chain(*(random.randint(1, 30) for _ in range(600)), frees=frees)


@pytest.mark.parametrize(("limit_s", "late_s", "finds"), [(2.0, 1.0, False), (9.0, 0.0, True)])
def test_the_time_limit_ends_a_round_midway(
    limit_s: float, late_s: float, finds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first round may end late. Time passes only where tensors are put: 10 ms each, and 6 s a round."""
    now_s = 0.0
    put = _relocation._Packing.put

    def slow(packing: _relocation._Packing, i: int) -> bool:
        nonlocal now_s
        now_s += 0.01
        return put(packing, i)

    problem, schedule = long_and_tight(Random(0))
    live = verify(replace(problem, budget_bytes=1 << 40), schedule).peak_bytes
    monkeypatch.setattr(_relocation._Packing, "put", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    assert pack_with_moves(problem, schedule, live) is not None and now_s > 12.0
    now_s = 0.0
    assert (pack_with_moves(problem, schedule, live, stop_at=limit_s) is not None) == finds
    assert limit_s + late_s <= now_s <= limit_s + late_s + 0.01 * _relocation.READ_EVERY


def test_no_moves_where_there_is_room() -> None:
    problem, schedule = tight()
    found = pack_with_moves(problem, schedule, 10 * 16)
    assert found is not None and found[0] == schedule


def test_the_claim_has_the_moves_in_it() -> None:
    problem, schedule = tight()
    found = pack_with_moves(problem, schedule, 8 * 16)
    assert found is not None
    proof, before = found[0].proof, schedule.proof
    assert proof.objective == before.objective + verify(problem, found[0]).move_pj > before.objective
    assert (before.status, proof.status) == (Status.OPTIMAL, Status.FEASIBLE)
    assert proof.bound == before.bound
    assert without_moves(problem, found[0]).proof.objective == before.objective
    timed = replace(problem, objective=Objective.TIME)
    spent = replace(schedule, proof=replace(before, objective=verify(problem, schedule).time_ns, bound=0))
    found = pack_with_moves(timed, spent, 8 * 16)
    assert found is not None
    verify(timed, found[0])


def test_nothing_is_moved_that_may_not_be() -> None:
    problem, schedule = tight()
    stuck = replace(problem, tensors=tuple(replace(t, move_ns=None) for t in problem.tensors))
    assert pack_with_moves(stuck, schedule, 8 * 16) is None
    assert pack_with_moves(stuck, schedule, 9 * 16) is not None
    found = pack_with_moves(problem, schedule, 8 * 16)
    assert found is not None
    one = moves(found[0])[0]
    tensors = tuple(replace(t, move_ns=None) if k == one else t for k, t in enumerate(problem.tensors))
    other = pack_with_moves(replace(problem, tensors=tensors), schedule, 8 * 16)
    assert other is None or one not in moves(other[0])


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_live_is_what_is_needed(random: Random, paging: bool) -> None:
    make = random.choice((random_dag, training_problem))
    problem = make(random, random.randint(2, 9), paging=paging)
    problem = replace(problem, tensors=tuple(replace(t, move_ns=t.move_ns or 3) for t in problem.tensors))
    completion = Completer(problem).run(random_decisions(random, problem, random.randint(0, 8)))
    schedule = scheduled(problem, completion.actions)
    live = verify(replace(problem, budget_bytes=1 << 40), schedule).peak_bytes - problem.base_bytes
    found = pack_with_moves(problem, schedule, live)
    away = {s.tensor for s in schedule.actions if isinstance(s, PageIn) and problem.tensors[s.tensor].final == "ram"}
    if found is None:  # only homes of state that leaves and comes back can be in the way, and what begins the step
        assert away or live == verify(problem, schedule).ram_bytes[0] - problem.base_bytes
        return
    moved, plan = found
    verify(replace(problem, budget_bytes=live + problem.base_bytes), moved)
    verify_plan(problem, moved, plan)
    assert plan.arena_bytes <= live
    assert pack_with_moves(problem, schedule, live) == found


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=60, deadline=None)
def test_wandering_tensors_are_accepted_and_a_shifted_one_is_not(random: Random, paging: bool) -> None:
    problem = random.choice((random_dag, training_problem))(random, random.randint(2, 6), paging=paging)
    schedule = keep_all(problem)
    problem = replace(problem, budget_bytes=1 << 40)
    moved, plan = wander(random, problem, schedule)
    trace = verify(problem, moved)
    verify_plan(problem, moved, plan)
    assert trace.moves == len(moves(moved))
    assert trace.peak_bytes == verify(problem, schedule).peak_bytes
    if not trace.moves:
        return
    # Onto its neighbour, whichever side that is: somebody is in the way, or the top is another one.
    victim = random.choice([a for a in plan.allocations if a.size_bytes])
    others = [a for a in plan.allocations if a is not victim and a.start < victim.end and victim.start < a.end]
    if others and any(a.size_bytes for a in others):
        target = random.choice([a for a in others if a.size_bytes])
        tampered = tuple(replace(a, offset_bytes=target.offset_bytes) if a is victim else a for a in plan.allocations)
        with pytest.raises(PlanError):
            verify_plan(problem, moved, replace(plan, allocations=tampered))


def overlapping() -> tuple[Problem, Schedule, MemoryPlan]:
    """t1 of three units slides down by one when t0 is gone; t2 takes what is free then."""
    problem, schedule = chain(1, 3, 2, frees={1: (0,)})
    actions = (*schedule.actions[:3], Move(1), *schedule.actions[3:])
    moved = scheduled(problem, actions)
    found = pack_with_moves(problem, schedule, 80)
    assert found is not None
    plan = pack(problem, moved)
    by = {a.tensors: a for a in plan.allocations}
    places = {((0, 0),): 0, ((1, 1),): 16, ((1, 3),): 0, ((2, 4),): 48}
    assert by.keys() == places.keys()
    allocations = tuple(replace(a, offset_bytes=places[a.tensors]) for a in plan.allocations)
    return problem, moved, replace(plan, allocations=allocations, arena_bytes=80)


def test_the_two_places_of_a_move_may_overlap() -> None:
    problem, moved, plan = overlapping()
    verify(problem, moved)
    verify_plan(problem, moved, plan)
    times = {a.tensors: (a.start, a.end) for a in plan.allocations}
    assert (times[((1, 1),)], times[((1, 3),)]) == ((1, 3), (3, 5)), "the old place ends where the new one begins"


def change(plan: MemoryPlan, entry: tuple[int, int], **changes: object) -> MemoryPlan:
    return replace(
        plan,
        allocations=tuple(
            replace(a, **changes) if entry in a.tensors else a  # type: ignore[arg-type]
            for a in plan.allocations
        ),
    )


@pytest.mark.parametrize(
    "tamper, failure",
    [
        (lambda p: change(p, (1, 3), offset_bytes=16), r"t2 \[4, 5\) and t1 \[3, 5\) overlap"),
        (
            lambda p: change(p, (1, 1), end=5),
            r"t1 \[3, 5\) and t1 \[1, 5\) overlap",
        ),
        (lambda p: change(p, (1, 3), start=4), r"t1 \[3, 5\) of 48 bytes is not covered by t1 \[4, 5\)"),
        (lambda p: change(p, (1, 1), end=2), r"t1 \[1, 3\) of 48 bytes is not covered by t1 \[1, 2\)"),
        (lambda p: change(p, (1, 3), size_bytes=32), r"t1 \[3, 5\) of 48 bytes is not covered"),
        (lambda p: change(p, (1, 3), tensors=((1, 4),)), "t1 has no place from action 3"),
        (
            lambda p: change(p, (1, 1), tensors=((1, 1), (1, 3))),
            "a tensor has two places from one action on",
        ),
    ],
)
def test_wrong_plans(tamper: Callable[[MemoryPlan], MemoryPlan], failure: str) -> None:
    problem, moved, plan = overlapping()
    with pytest.raises(PlanError, match=failure):
        verify_plan(problem, moved, tamper(plan))


def homes_in_the_way(move_ns: int | None = 4) -> tuple[Problem, Schedule]:
    """8 units of RAM: `a` (4) leaves first and is away for a shorter time than `b` (1), between which `t` (6) lives
    beside `b`; `a` comes back while `u` (4) is there, so that it fits at one end of RAM only, where its home is not."""
    a, b, s, t, v, u = range(6)
    sizes = {"a": 4, "b": 1, "s": 1, "t": 6, "v": 1, "u": 4}
    tensors = tuple(
        TensorSpec(
            name=name,
            size_bytes=16 * n,
            initial="ram" if name in "ab" else "",
            final="ram" if name in "ab" else "",
            page_out_pj=100,
            page_in_pj=100,
            move_ns=move_ns if name == "a" else n,
            move_pj=n,
        )
        for name, n in sizes.items()
    )
    reads = (((a, b), (s,)), ((s,), (t,)), ((t,), (v,)), ((v,), (u,)))
    operators = tuple(
        OperatorSpec(name=f"op{k}", inputs=inputs, outputs=outputs, time_ns=10, energy_pj=10)
        for k, (inputs, outputs) in enumerate(reads)
    )
    problem = Problem(
        name="homes", tensors=tensors, operators=operators, budget_bytes=8 * 16, paging=Paging.SYNC, page_buffer_bytes=0
    )
    actions: tuple[Action, ...] = (Compute(0), PageOut(a), Free(a), Compute(1), Free(s), Compute(2), Free(t))
    actions += (PageOut(b), Free(b), Compute(3), Free(v), PageIn(a), Free(u), PageIn(b))
    return problem, scheduled(problem, actions)


def test_state_that_comes_back_elsewhere_moves_home() -> None:
    problem, schedule = homes_in_the_way()
    assert verify(problem, schedule).peak_bytes == problem.budget_bytes
    found = pack_with_moves(problem, schedule, problem.budget_bytes)
    assert found is not None
    moved, plan = found
    verify(problem, moved)
    verify_plan(problem, moved, plan)
    assert moved.actions[-1] == Move(0) and moves(moved).count(0) == 1
    assert (plan.arena_bytes, plan.state_bytes) == (8 * 16, 5 * 16)


@pytest.mark.parametrize("units", [1, 2, 3])
def test_what_the_last_action_frees_is_not_in_the_way(units: int) -> None:
    """Frees are put off to the end where transfers overlap compute."""
    problem, schedule = homes_in_the_way()
    tensors = (*problem.tensors[:5], replace(problem.tensors[5], size_bytes=16 * units))
    problem = replace(problem, tensors=tensors)
    schedule = replace(schedule, actions=(*schedule.actions[:-2], schedule.actions[-1], schedule.actions[-2]))
    assert schedule.actions[-1] == Free(5)
    found = pack_with_moves(problem, schedule, problem.budget_bytes)
    assert found is not None and 5 not in moves(found[0])
    verify(problem, found[0])
    verify_plan(problem, *found)


def test_state_that_may_not_be_moved_comes_back_to_its_home() -> None:
    problem, schedule = homes_in_the_way(move_ns=None)
    assert pack_with_moves(problem, schedule, problem.budget_bytes) is None
    found = pack_with_moves(problem, schedule, 12 * 16)
    assert found is not None and 0 not in moves(found[0])
    verify_plan(problem, *found)
