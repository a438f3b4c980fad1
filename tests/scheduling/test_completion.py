"""Completed action sequences are valid, need the least RAM that this order allows, and cost what is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetc.errors import InfeasibleError
from poetc.scheduling import (
    Completer,
    Compute,
    Decision,
    Free,
    InPlace,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Proof,
    Schedule,
    Scope,
    SolveOptions,
    Status,
    TensorSpec,
    choose_pairs,
    complete,
    keep_all,
    keep_all_decisions,
    keep_all_peak_bytes,
    state_chains,
    validate_problem,
    verify,
)
from poetc.solvers import solve
from tests.support.oracle import minimum_budget
from tests.support.problems import random_dag, random_decisions, training_problem
from tests.support.ram import order_free_bound_bytes

randoms = st.randoms(use_true_random=False)


def any_problem(random: Random, *, most: int = 7) -> Problem:
    paging = random.random() < 0.5
    if random.random() < 0.5:
        return training_problem(random, random.randint(1, 2 if most > 5 else 1), paging=paging)
    return random_dag(random, random.randint(1, most), paging=paging)


def op(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *pairs: tuple[int, int]) -> OperatorSpec:
    in_place = tuple(InPlace(input=i, output=o) for i, o in pairs)
    return OperatorSpec(name=name, inputs=inputs, outputs=outputs, time_ns=1, energy_pj=1, in_place=in_place)


def tensors(*sizes: int) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=f"t{i}", size_bytes=s) for i, s in enumerate(sizes))


@given(randoms)
def test_completed_schedules_verify_and_cost_what_is_said(random: Random) -> None:
    problem = any_problem(random, most=10)
    validate_problem(problem)
    completion = Completer(problem).run(random_decisions(random, problem, 6))
    proof = Proof(status=Status.FEASIBLE, objective=completion.energy_pj, bound=0, scope=Scope())
    tight = replace(problem, budget_bytes=completion.peak_bytes)
    trace = verify(tight, Schedule(solver="test", actions=completion.actions, proof=proof))
    assert (trace.peak_bytes, trace.energy_pj, trace.time_ns) == (
        completion.peak_bytes,
        completion.energy_pj,
        completion.time_ns,
    )


@given(randoms)
@settings(max_examples=25)
def test_the_peak_is_the_least_for_the_order(random: Random) -> None:
    problem = any_problem(random, most=4)
    decisions = random_decisions(random, problem, 3)
    assert Completer(problem).run(decisions).peak_bytes == least_peak(problem, decisions)


def least_peak(problem: Problem, decisions: Sequence[Decision]) -> int:
    """By trying every choice of what to free before each action and of in-place pairs."""
    sizes = [t.size_bytes for t in problem.tensors]
    base = problem.base_bytes
    if any(isinstance(a, PageIn | PageOut) for a in decisions):
        base += problem.page_buffer_bytes
    start = frozenset(t for t, tensor in enumerate(problem.tensors) if tensor.initial == "ram")
    peaks = {start: base + sum(sizes[t] for t in start)}  # what may be resident -> the least peak so far
    for decision in decisions:
        following: dict[frozenset[int], int] = {}
        for resident, peak in peaks.items():
            for kept in map(frozenset, subsets(resident)):
                before = sum(sizes[t] for t in kept)
                if isinstance(decision, Compute):
                    operator = problem.operators[decision.operator]
                    if not kept.issuperset(operator.inputs) or kept & set(operator.outputs):
                        continue
                    for pairs in subsets([(p.input, p.output) for p in operator.in_place]):
                        if not {(p.input, p.output) for p in operator.in_place if p.required} <= set(pairs):
                            continue
                        if len({i for i, _ in pairs}) < len(pairs) or len({o for _, o in pairs}) < len(pairs):
                            continue
                        made = sum(sizes[t] for t in operator.outputs) - sum(sizes[o] for _, o in pairs)
                        during = base + before + made + operator.workspace_bytes
                        after = (kept - {i for i, _ in pairs}) | set(operator.outputs)
                        following[after] = min(following.get(after, 2**60), max(peak, during))
                elif isinstance(decision, PageOut):
                    if decision.tensor in kept:
                        following[kept] = min(following.get(kept, 2**60), max(peak, base + before))
                elif decision.tensor not in kept:
                    after = kept | {decision.tensor}
                    during = base + before + sizes[decision.tensor]
                    following[after] = min(following.get(after, 2**60), max(peak, during))
        peaks = following
    final = {t for t, tensor in enumerate(problem.tensors) if tensor.final == "ram"}
    return min(peak for resident, peak in peaks.items() if final <= resident)


def subsets(items: Sequence[tuple[int, int]] | frozenset[int]) -> list[tuple]:  # type: ignore[type-arg]
    ordered = sorted(items)
    return list(chain.from_iterable(combinations(ordered, n) for n in range(len(ordered) + 1)))


def test_frees_stand_right_after_the_last_use() -> None:
    problem = Problem(
        name="chain",
        tensors=tensors(16, 32, 48, 16),
        operators=(op("a", (), (0,)), op("b", (0,), (1,)), op("c", (1, 0), (2,)), op("d", (2,), (3,))),
        budget_bytes=1000,
    )
    actions = complete(problem, [Compute(k) for k in range(4)])
    assert actions == (Compute(0), Compute(1), Compute(2), Free(0), Free(1), Compute(3), Free(2), Free(3))


def test_recomputation_ends_the_first_residency_at_its_last_use() -> None:
    problem = Problem(
        name="two outputs",
        tensors=tensors(16, 16, 16, 16),
        operators=(op("pair", (), (0, 1)), op("first", (0,), (2,)), op("second", (1,), (3,))),
        budget_bytes=1000,
    )
    actions = complete(problem, [Compute(0), Compute(1), Compute(0), Compute(2)])
    assert actions == (
        *(Compute(0), Free(1), Compute(1), Free(0), Free(2)),
        *(Compute(0), Free(0), Compute(2), Free(1), Free(3)),
    )


def test_paging_out_is_a_use_and_paging_in_a_beginning() -> None:
    problem = Problem(
        name="paged",
        tensors=tensors(16, 16, 16),
        operators=(op("a", (), (0,)), op("b", (), (1,)), op("c", (0, 1), (2,))),
        budget_bytes=1000,
        paging=Paging.SYNC,
    )
    actions = complete(problem, [Compute(0), PageOut(0), Compute(1), PageIn(0), Compute(2)])
    assert actions == (
        *(Compute(0), PageOut(0), Free(0), Compute(1)),
        *(PageIn(0), Compute(2), Free(1), Free(0), Free(2)),
    )


def test_in_place_only_at_the_end_of_the_input_and_for_equal_sizes() -> None:
    operators = (op("make", (), (0,)), op("relu", (0,), (1,), (0, 1)), op("use", (1,), (2,)))
    problem = Problem(name="in place", tensors=tensors(32, 32, 16), operators=operators, budget_bytes=1000)
    assert complete(problem, [Compute(k) for k in range(3)])[1] == Compute(1, ((0, 1),))
    later = replace(problem, operators=(*operators[:2], op("use", (1, 0), (2,))))
    assert complete(later, [Compute(k) for k in range(3)])[1] == Compute(1)
    final = replace(problem, tensors=(replace(problem.tensors[0], final="ram"), *problem.tensors[1:]))
    assert complete(final, [Compute(k) for k in range(3)])[1] == Compute(1)
    smaller = replace(problem, tensors=tensors(32, 16, 16))
    assert complete(smaller, [Compute(k) for k in range(3)])[1] == Compute(1)


def test_pairs_overlap_as_much_as_possible() -> None:
    # Greedily 0 -> 2 would leave 3 without a partner.
    assert choose_pairs((), [(0, 2), (0, 3), (1, 2)], [16] * 4) == ((0, 3), (1, 2))
    assert choose_pairs((), [(0, 2), (0, 3)], [64, 0, 16, 64]) == ((0, 3),)
    assert choose_pairs(((4, 5),), [], [16] * 6) == ((4, 5),)


def test_choice_of_in_place_given_by_the_caller_is_ignored() -> None:
    problem = training_problem(Random(1), 2)
    decisions = keep_all_decisions(problem)
    actions = complete(problem, decisions)
    assert complete(problem, [s for s in actions if not isinstance(s, Free)]) == actions


@given(randoms)
def test_keep_all(random: Random) -> None:
    problem = any_problem(random, most=10)
    trace = verify(problem, keep_all(problem))
    assert trace.recomputes == 0
    assert trace.peak_bytes == keep_all_peak_bytes(problem) == problem.budget_bytes
    assert trace.energy_pj >= problem.compute_once_pj
    if trace.page_ins == trace.page_outs == 0:
        assert trace.energy_pj == problem.compute_once_pj
    assert solve(problem, "keep_all", SolveOptions()) == keep_all(problem)
    with pytest.raises(InfeasibleError, match=r"keep-all needs \d+ bytes, the budget is \d+"):
        solve(replace(problem, budget_bytes=trace.peak_bytes - 1), "keep_all")
    with pytest.raises(InfeasibleError, match=r"keep-all takes \S+ ms, the deadline is"):
        solve(replace(problem, deadline_ns=trace.time_ns - 1), "keep_all")


def test_keep_all_of_stored_parameters() -> None:
    update = replace(op("update", (1, 2), (3,)), in_place=(InPlace(input=1, output=3, required=True),))
    t = [
        TensorSpec(name="x", size_bytes=16, initial="ram"),
        TensorSpec(name="w", size_bytes=32, initial="store", page_in_pj=5, page_in_ns=3),
        TensorSpec(name="g", size_bytes=32),
        TensorSpec(name="w@1", size_bytes=32, final="store", page_out_pj=7, page_out_ns=4),
        TensorSpec(name="frozen", size_bytes=16, initial="store", final="ram", page_in_pj=1, page_in_ns=1),
    ]
    operators = (op("grad", (0, 1), (2,)), update)
    problem = Problem(name="stored", tensors=tuple(t), operators=operators, budget_bytes=1000, paging=Paging.SYNC)
    trace = verify(problem, keep_all(problem))
    assert (trace.page_ins, trace.page_outs, trace.energy_pj, trace.time_ns) == (2, 1, 15, 10)
    assert trace.store_bytes == 32 + 16 + 32, "the old and the new version both lie on the store"


@given(randoms)
@settings(max_examples=20)
def test_first_lower_bound(random: Random) -> None:
    problem = random_dag(random, random.randint(1, 4), paging=random.random() < 0.5)
    smallest = minimum_budget(problem, fixed_order=False)
    assert smallest is not None
    assert order_free_bound_bytes(problem) <= smallest <= keep_all_peak_bytes(problem)


def test_lower_bound_counts_state_beside_the_largest_operator() -> None:
    problem = training_problem(Random(0), 3)
    state = sum(problem.tensors[c[0]].size_bytes for c in state_chains(problem))
    assert [[problem.tensors[t].name for t in c] for c in state_chains(problem)] == [
        [f"w{i}", f"w{i}@1"] for i in range(3)
    ]
    assert order_free_bound_bytes(problem) > problem.base_bytes + state
    paged = replace(problem, paging=Paging.SYNC, tensors=tuple(replace(t, pageable=True) for t in problem.tensors))
    assert order_free_bound_bytes(paged) < order_free_bound_bytes(problem)
