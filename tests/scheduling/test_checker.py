"""Each rule of the checker has a test that fails without it: a schedule that breaks this rule and no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetc.scheduling import (
    Action,
    Completer,
    Compute,
    Free,
    InPlace,
    Move,
    Objective,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Proof,
    Schedule,
    ScheduleError,
    Scope,
    Status,
    TensorSpec,
    Trace,
    movable_state,
    on_store,
    stored_state,
    verify,
)
from poetc.solvers.model import Model
from tests.support.problems import random_dag, random_decisions, training_problem

X, W, A, B, G, W1 = range(6)
MATMUL, RELU, GRAD, UPDATE = range(4)


def example(**changes: object) -> Problem:
    """x·w = a, b = relu(a) (in place if wanted), g from b and x with workspace, w updated in place by g."""
    paged = {"page_out_ns": 7, "page_out_pj": 70, "page_in_ns": 5, "page_in_pj": 50}
    problem = Problem(
        name="example",
        tensors=(
            TensorSpec(name="x", size_bytes=16, initial="ram", **paged),
            TensorSpec(name="w", size_bytes=32, initial="ram", pageable=False, move_ns=2, move_pj=4),
            TensorSpec(name="a", size_bytes=64, move_ns=3, move_pj=9, **paged),
            TensorSpec(name="b", size_bytes=64, move_ns=3, move_pj=9, **paged),
            TensorSpec(name="g", size_bytes=32),
            TensorSpec(name="w@1", size_bytes=32, final="ram", move_ns=2, move_pj=4),
        ),
        operators=(
            OperatorSpec(name="matmul", inputs=(X, W), outputs=(A,), time_ns=10, energy_pj=100),
            OperatorSpec(
                name="relu", inputs=(A,), outputs=(B,), time_ns=1, energy_pj=20, in_place=(InPlace(input=A, output=B),)
            ),
            OperatorSpec(name="grad", inputs=(B, X), outputs=(G,), time_ns=10, energy_pj=100, workspace_bytes=16),
            OperatorSpec(
                name="update",
                inputs=(W, G),
                outputs=(W1,),
                time_ns=2,
                energy_pj=30,
                recomputable=False,
                in_place=(InPlace(input=W, output=W1, required=True),),
            ),
        ),
        budget_bytes=1000,
        paging=Paging.SYNC,
        base_bytes=100,
        page_buffer_bytes=16,
    )
    return replace(problem, **changes)  # type: ignore[arg-type]


UPDATE_ACTION = Compute(UPDATE, ((W, W1),))
PLAIN: tuple[Action, ...] = (
    Compute(MATMUL),
    Compute(RELU),
    Free(A),
    Compute(GRAD),
    Free(B),
    Free(X),
    UPDATE_ACTION,
    Free(G),
)


def schedule(actions: Sequence[Action], cost: int | None = None, *, bound: int = 0) -> Schedule:
    if cost is None:
        cost = 0
        for action in actions:
            match action:
                case Compute(k):
                    cost += example().operators[k].energy_pj
                case PageOut(t):
                    cost += example().tensors[t].page_out_pj
                case PageIn(t):
                    cost += example().tensors[t].page_in_pj
                case Move(t) if t < len(example().tensors):
                    cost += example().tensors[t].move_pj
    proof = Proof(status=Status.FEASIBLE, objective=cost, bound=bound, scope=Scope())
    return Schedule(solver="test", actions=tuple(actions), proof=proof)


def check(actions: Sequence[Action], **changes: object) -> Trace:
    return verify(example(**changes), schedule(actions))


def refused(actions: Sequence[Action], action: int | None, reason: str, **changes: object) -> ScheduleError:
    with pytest.raises(ScheduleError, match=reason) as caught:
        check(actions, **changes)
    assert caught.value.action == action
    return caught.value


def test_trace() -> None:
    trace = check(PLAIN)
    assert trace.ram_bytes == tuple(100 + n for n in (112, 176, 176, 160, 144, 80, 64, 64))
    assert (trace.peak_bytes, trace.peak_action) == (276, 1)
    assert (trace.energy_pj, trace.time_ns) == (250, 23)
    assert (trace.executions, trace.recomputes, trace.page_ins, trace.page_outs) == ((1, 1, 1, 1), 0, 0, 0)
    assert trace.store_bytes == 0
    assert [trace.resident_at(i) for i in (0, 1, 2, 3, 6, 7)] == [
        (X, W, A),
        (X, W, A, B),
        (X, W, A, B),
        (X, W, B, G),
        (W, G, W1),
        (G, W1),
    ]


def test_in_place_saves_the_output() -> None:
    trace = check((Compute(MATMUL), Compute(RELU, ((A, B),)), *PLAIN[3:]))
    assert trace.ram_bytes[1] == 212
    assert trace.peak_bytes == 100 + 16 + 32 + 64 + 32 + 16


def test_paging_and_recomputation_are_counted() -> None:
    actions = (
        Compute(MATMUL),
        PageOut(A),
        Compute(RELU, ((A, B),)),
        Free(B),
        PageIn(A),
        Compute(RELU, ((A, B),)),
        *PLAIN[3:],
    )
    trace = check(actions)
    assert (trace.recomputes, trace.page_ins, trace.page_outs, trace.store_bytes) == (1, 1, 1, 64)
    assert trace.executions == (1, 2, 1, 1)
    assert (trace.energy_pj, trace.time_ns) == (250 + 20 + 70 + 50, 23 + 1 + 7 + 5)
    assert trace.ram_bytes[0] == 100 + 16 + 112, "the page buffer counts at every action of a schedule that pages"


def test_moves_cost_time_and_energy_and_take_no_ram() -> None:
    trace = check((Compute(MATMUL), Move(A), *PLAIN[1:3], Move(B), Move(B), *PLAIN[3:]))
    plain = check(PLAIN)
    assert (trace.energy_pj, trace.time_ns) == (plain.energy_pj + 3 * 9, plain.time_ns + 3 * 3)
    assert (trace.moves, trace.moved_bytes, trace.move_pj, trace.move_ns) == (3, 192, 27, 9)
    assert trace.ram_bytes[1] == trace.ram_bytes[0] == plain.ram_bytes[0]
    assert trace.peak_bytes == plain.peak_bytes
    assert [trace.resident_at(i) for i in (1, 4)] == [(X, W, A), (X, W, B)]


def test_what_may_not_be_moved() -> None:
    refused((Compute(MATMUL), Move(B), *PLAIN[1:]), 1, "moves 'b', which is not in RAM")
    refused((Compute(MATMUL), Move(6), *PLAIN[1:]), 1, "moves '6', which is not in RAM")
    refused((*PLAIN[:3], Move(A), *PLAIN[3:]), 3, "moves 'a', which is not in RAM")
    refused((Compute(MATMUL), Move(X), *PLAIN[1:]), 1, "moves 'x', which may not be moved")
    refused((Compute(MATMUL), Move(W), *PLAIN[1:]), 1, "moves 'w', which is state in its fixed place")
    refused((*PLAIN, Move(W1)), 8, "moves 'w@1', which is state in its fixed place")
    refused((Compute(MATMUL), Move(A), *PLAIN[1:]), None, "takes 26 ns, the deadline is 25", deadline_ns=25)
    given = tuple(replace(t, move_ns=1) for t in example().tensors)
    refused((Move(X), *PLAIN), 0, "moves 'x' before anything is done", tensors=given)


def test_state_that_was_paged_out_may_be_moved_until_it_is_home() -> None:
    tensors = tuple(replace(t, pageable=True) for t in example().tensors)
    back = (PageOut(W), Compute(MATMUL), Free(W), *PLAIN[1:6], PageIn(W))
    assert check((*back, Move(W), *PLAIN[6:]), tensors=tensors).moves == 1
    assert check((*back, *PLAIN[6:], Move(W1)), tensors=tensors).moves == 1
    refused((PageOut(W), Compute(MATMUL), Move(W), *PLAIN[1:]), 2, "state in its fixed place", tensors=tensors)


def test_input_must_be_resident() -> None:
    error = refused((Compute(MATMUL), Free(A), *PLAIN[1:]), 2, "'relu' reads 'a', which is not in RAM")
    assert error.names == ("relu", "a")


def test_input_must_have_been_made() -> None:
    refused(PLAIN[1:], 0, "'relu' reads 'a', which is not in RAM")


def test_input_of_the_step_must_be_there_at_the_start() -> None:
    tensors = list(example().tensors)
    tensors[X] = replace(tensors[X], initial="store")
    refused(PLAIN, 0, "'matmul' reads 'x', which is not in RAM", tensors=tuple(tensors))


def test_output_must_not_be_resident() -> None:
    refused((Compute(MATMUL), *PLAIN), 1, "'matmul' makes 'a', which is in RAM already")


def test_free_needs_a_copy() -> None:
    refused((*PLAIN, Free(G)), 8, "frees 'g', which is not in RAM")
    refused((*PLAIN, Free(99)), 8, "frees '99', which is not in RAM")


def test_unknown_operator() -> None:
    refused_with = pytest.raises(ScheduleError, match="computes operator 9, there are 4")
    with refused_with:
        verify(example(), schedule((*PLAIN, Compute(9)), 250))


def test_in_place_must_be_allowed() -> None:
    refused((Compute(MATMUL, ((X, A),)), *PLAIN[1:]), 0, "'matmul' may not work in place")
    refused((Compute(MATMUL), Compute(RELU, ((B, A),)), *PLAIN[2:]), 1, "'relu' may not work in place")


def test_in_place_consumes_its_input() -> None:
    refused((Compute(MATMUL), Compute(RELU, ((A, B),)), *PLAIN[2:]), 2, "frees 'a', which is not in RAM")


def test_in_place_must_fit() -> None:
    tensors = list(example().tensors)
    tensors[B] = replace(tensors[B], size_bytes=80)
    actions = (Compute(MATMUL), Compute(RELU, ((A, B),)), *PLAIN[3:])
    refused(actions, 1, "'relu' in place: 'b' does not fit in the bytes of 'a'", tensors=tuple(tensors))
    tensors[B] = replace(tensors[B], size_bytes=16)
    assert check(actions, tensors=tuple(tensors)).ram_bytes[3] == 244, "it holds on to all the bytes of its input"


def test_in_place_pairs_are_disjoint() -> None:
    operators = list(example().operators)
    pairs = (InPlace(input=A, output=B), InPlace(input=X, output=B))
    operators[RELU] = replace(operators[RELU], inputs=(A, X), in_place=pairs)
    tensors = list(example().tensors)
    tensors[X] = replace(tensors[X], size_bytes=64)
    actions = (Compute(MATMUL), Compute(RELU, ((A, B), (X, B))))
    changes = {"operators": tuple(operators), "tensors": tuple(tensors)}
    refused(actions, 1, "'relu' uses one tensor in two in-place pairs", **changes)


def test_required_in_place() -> None:
    refused((*PLAIN[:6], Compute(UPDATE), Free(W), Free(G)), 6, "'update' must make 'w@1' in place of 'w'")


def test_state_has_versions() -> None:
    actions = (*PLAIN[:5], UPDATE_ACTION, Compute(MATMUL))
    refused(actions, 6, "'matmul' reads 'w', which is not in RAM")


def test_not_recomputable() -> None:
    operators = list(example().operators)
    operators[RELU] = replace(operators[RELU], recomputable=False)
    actions = (Compute(MATMUL), Compute(RELU), Free(B), Compute(RELU), *PLAIN[2:])
    assert check(actions).recomputes == 1
    refused(actions, 3, "'relu' must be executed once only", operators=tuple(operators))


def test_every_operator_is_executed() -> None:
    operators = (*example().operators, OperatorSpec(name="extra", inputs=(), outputs=(), time_ns=1, energy_pj=1))
    refused(PLAIN, None, "never executes 'extra'", operators=operators)


def test_page_out_needs_a_copy() -> None:
    refused((Compute(MATMUL), PageOut(B), *PLAIN[1:]), 1, "pages out 'b', which is not in RAM")


def test_page_out_needs_a_pageable_tensor() -> None:
    refused((PageOut(W), *PLAIN), 0, "'w', which is not pageable")
    refused((PageOut(X), *PLAIN), 0, "'x', which is not pageable", paging=Paging.NONE)


def test_page_in_needs_a_store_copy() -> None:
    refused((Compute(MATMUL), Free(A), PageIn(A), *PLAIN[1:]), 2, "pages in 'a', which is not on the store")
    actions = (PageOut(X), Free(X), PageIn(X), *PLAIN)
    assert check(actions).page_ins == 1
    tensors = list(example().tensors)
    tensors[X] = replace(tensors[X], initial="store")
    assert check((PageIn(X), *PLAIN), tensors=tuple(tensors)).page_ins == 1


def test_page_in_must_not_be_resident() -> None:
    refused((PageOut(X), PageIn(X), *PLAIN), 1, "pages in 'x', which is in RAM already")


def test_store_capacity() -> None:
    actions = (PageOut(X), Compute(MATMUL), PageOut(A), *PLAIN[1:])
    assert check(actions, store_capacity_bytes=80).store_bytes == 80
    refused(actions, 2, "would hold 80 bytes, its capacity is 79", store_capacity_bytes=79)
    tensors = list(example().tensors)
    tensors[A] = replace(tensors[A], store_bytes=512)
    assert check(actions, store_capacity_bytes=528, tensors=tuple(tensors)).store_bytes == 528, "in whole blocks"
    refused(actions, 2, "would hold 528 bytes, its capacity is 527", store_capacity_bytes=527, tensors=tuple(tensors))
    tensors[X] = replace(tensors[X], initial="store", store_bytes=32)
    assert check((PageIn(X), *PLAIN), tensors=tuple(tensors)).store_bytes == 32
    again = (PageOut(X), PageOut(X), *PLAIN)
    assert check(again, store_capacity_bytes=16).store_bytes == 16, "paging out again writes the same page"


def test_limit_on_what_is_written() -> None:
    actions = (PageOut(X), Compute(MATMUL), PageOut(A), *PLAIN[1:])
    assert check(actions, write_limit_bytes=80).written_bytes == 80
    refused(actions, 2, "80 bytes would be written to the store, the limit is 79", write_limit_bytes=79)
    again = (PageOut(X), PageOut(X), *PLAIN)
    assert check(again, write_limit_bytes=32).written_bytes == 32, "the same page twice wears twice"
    refused(again, 1, "32 bytes would be written", write_limit_bytes=31)
    refused((PageOut(X), *PLAIN), 0, "16 bytes would be written", write_limit_bytes=0)


@pytest.mark.parametrize("place, where", [("ram", "in RAM"), ("store", "on the store")])
def test_final_places(place: str, where: str) -> None:
    tensors = list(example().tensors)
    tensors[B] = replace(tensors[B], final=place)  # type: ignore[arg-type]
    refused(PLAIN, None, f"ends without 'b' {where}", tensors=tuple(tensors))
    extra = PageOut(B) if place == "store" else Compute(RELU)
    good = (*PLAIN[:2], extra, *PLAIN[2:]) if place == "store" else tuple(s for s in PLAIN if s != Free(B))
    check(good, tensors=tuple(tensors))


def test_state_on_the_store_is_written_back() -> None:
    """Without the write of an updated version, or with one of the version before it, a schedule is refused."""
    refusals = 0
    for seed in range(30):
        random = Random(seed)
        problem = training_problem(random, random.randint(1, 3), paging=True)
        problem = on_store(problem, {chain[0] for chain in movable_state(problem)})
        completion = Completer(problem).run(Model(problem).decisions(Model(problem).keep_all()))
        problem = replace(problem, budget_bytes=completion.peak_bytes)
        actions, energy_pj = list(completion.actions), completion.energy_pj
        proof = Proof(status=Status.FEASIBLE, objective=energy_pj, bound=0, scope=Scope())
        verify(problem, Schedule(solver="test", actions=tuple(actions), proof=proof))
        for chain in stored_state(problem):
            if len(chain) == 1:
                continue
            first, last = chain[0], chain[-1]
            saved_pj = problem.tensors[last].page_out_pj
            without = [s for s in actions if s != PageOut(last)]
            read = without.index(PageIn(first)) + 1
            for other, extra_pj in ((without, 0), ([*without[:read], PageOut(first), *without[read:]], saved_pj)):
                cheaper = replace(proof, objective=energy_pj - saved_pj + extra_pj)
                with pytest.raises(ScheduleError, match=f"ends without '{problem.tensors[last].name}' on the store"):
                    verify(problem, Schedule(solver="test", actions=tuple(other), proof=cheaper))
                refusals += 1
    assert refusals > 30


@pytest.mark.parametrize(
    "actions, action, needs",
    [
        (PLAIN, 1, 276),
        ((PageOut(X), *PLAIN), 2, 292),
        ((Compute(MATMUL), Compute(RELU, ((A, B),)), *PLAIN[3:]), 2, 260),  # at the workspace
    ],
)
def test_budget(actions: tuple[Action, ...], action: int, needs: int) -> None:
    assert check(actions, budget_bytes=needs).peak_bytes == needs
    error = refused(actions, action, f"needs {needs} bytes of RAM, the budget is {needs - 1}", budget_bytes=needs - 1)
    assert "a" in error.names or "b" in error.names


def test_budget_holds_while_paging_in_and_for_what_is_there_at_the_start() -> None:
    tensors = list(example().tensors)
    tensors[X] = replace(tensors[X], size_bytes=512, initial="store")
    tensors.append(TensorSpec(name="unused", size_bytes=1024, initial="ram"))
    actions = (Free(6), PageIn(X), *PLAIN)
    refused(actions, 0, "needs 1172 bytes", tensors=tuple(tensors), budget_bytes=1171)
    tensors[6] = replace(tensors[6], size_bytes=16)
    refused(actions, 1, "needs 660 bytes", tensors=tuple(tensors), budget_bytes=659)


def test_claims() -> None:
    with pytest.raises(ScheduleError, match="claims an objective of 249 pJ, the actions cost 250"):
        verify(example(), schedule(PLAIN, 249))
    with pytest.raises(ScheduleError, match="claims an objective of 250 ns, the actions cost 23"):
        verify(example(objective=Objective.TIME), schedule(PLAIN, 250))
    assert verify(example(objective=Objective.TIME), schedule(PLAIN, 23)).time_ns == 23
    with pytest.raises(ScheduleError, match="claims a bound of 251 pJ, but the actions cost only 250"):
        verify(example(), schedule(PLAIN, 250, bound=251))


def test_deadline() -> None:
    assert check(PLAIN, deadline_ns=23).time_ns == 23
    refused(PLAIN, None, "takes 23 ns, the deadline is 22", deadline_ns=22)
    assert check((PageOut(X), *PLAIN), deadline_ns=30).time_ns == 30
    refused((PageOut(X), *PLAIN), None, "takes 30 ns, the deadline is 29", deadline_ns=29)


@given(st.randoms(use_true_random=False), st.booleans())
def test_a_tampered_schedule_never_passes_for_what_it_was(random: Random, paging: bool) -> None:
    """Drop, repeat or swap one action of a good schedule: refused, or still one whose claim and peak hold."""
    make = random.choice((random_dag, training_problem))
    problem = make(random, random.randint(1, 6), paging=paging)
    completion = Completer(problem).run(random_decisions(random, problem, 4))
    problem = replace(problem, budget_bytes=completion.peak_bytes)
    actions = list(completion.actions)
    at = random.randrange(len(actions))
    tampering = random.choice(("drop", "repeat", "swap"))
    if tampering == "drop":
        gone = actions.pop(at)
    elif tampering == "repeat":
        gone = actions[at]
        actions.insert(at, gone)
    else:
        other = random.randrange(len(actions))
        gone = actions[at]
        actions[at], actions[other] = actions[other], actions[at]
    proof = Proof(status=Status.FEASIBLE, objective=completion.energy_pj, bound=0, scope=Scope())
    try:
        trace = verify(problem, Schedule(solver="test", actions=tuple(actions), proof=proof))
    except ScheduleError as error:
        assert error.reason
        assert error.action is None or 0 <= error.action < len(actions)
    else:
        assert trace.energy_pj == completion.energy_pj
        assert trace.peak_bytes <= problem.budget_bytes
        free = isinstance(gone, Free)
        assert tampering == "swap" or free or trace.energy_pj == proof.objective
        assert not (tampering == "repeat" and isinstance(gone, Free | PageIn))
