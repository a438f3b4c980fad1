"""Plans in an arena that another program lays out, and the numbers that the searches for plans are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from poetc.scheduling import (
    Action,
    Allocation,
    BankSpec,
    Compute,
    Free,
    Move,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Proof,
    Schedule,
    Scope,
    Status,
    TensorSpec,
    pack,
    pack_around,
)
from poetc.scheduling import _packing as packing

X, W, A, B, C = range(5)  # an input, a weight that stays, and three tensors that are made
ACTIONS: tuple[Action, ...] = (Compute(0), Compute(1), Free(X), Free(A), Compute(2), Free(B), Free(C))
BUFFER = 64


def problem() -> Problem:
    """x, w → a (48 bytes); a → b (32); b → c (16, after a and x are gone)."""
    sizes = {"x": 32, "w": 64, "a": 48, "b": 32, "c": 16}
    tensors = tuple(
        TensorSpec(
            name=name, size_bytes=size, initial="ram" if name in "xw" else "", final="ram" if name == "w" else ""
        )
        for name, size in sizes.items()
    )
    operators = tuple(
        OperatorSpec(name=f"op{o}", inputs=i, outputs=(o,), time_ns=1, energy_pj=1)
        for i, o in (((X, W), A), ((A,), B), ((B,), C))
    )
    return Problem(
        name="three", operators=operators, tensors=tensors, budget_bytes=1 << 20, paging=Paging.SYNC,
        page_buffer_bytes=BUFFER,
    )  # fmt: skip


def scheduled(*actions: Action) -> Schedule:
    proof = Proof(status=Status.FEASIBLE, objective=0, bound=0, scope=Scope())
    return Schedule(solver="test", actions=actions, proof=proof)


def places(plan: Any) -> dict[int, Allocation]:
    return {t: a for a in plan.allocations for t, _ in a.tensors}


def test_state_and_what_is_taken_stay_where_they_are() -> None:
    plan = pack_around(problem(), scheduled(*ACTIONS), {W: 160}, [(0, 32), (256, 16)])
    at = places(plan)
    assert at[W].offset_bytes == 160
    for t in (X, A, B, C):
        low, high = at[t].offset_bytes, at[t].offset_bytes + at[t].size_bytes
        assert all(high <= start or end <= low for start, end in ((0, 32), (160, 224), (256, 272))), t
    assert plan.state_bytes == plan.arena_bytes == 272, "what is taken counts, although nothing lies above"
    assert plan.max_live_bytes == 64 + 32 + 48 + 32 + 32 + 16, "w, x, a and b, and what is taken"
    assert at[X].end == 3 and at[A].end == 4 and at[B].start == 1, "a tensor is there up to the action that frees it"


def test_inputs_lie_where_they_are_given() -> None:
    """A tensor that is made later under the number of an input may lie anywhere."""
    given = {X: 320, A: 640}
    at = places(pack_around(problem(), scheduled(*ACTIONS), {W: 0}, [], inputs=given))
    assert at[X].offset_bytes == 320
    later = scheduled(Compute(0), Compute(1), Free(A), Free(X), Compute(2), Free(B), Free(C))
    begun = replace(later, actions=(PageIn(X), *later.actions))
    outside = replace(
        problem(), tensors=tuple(replace(t, initial="store") if t.name == "x" else t for t in problem().tensors)
    )
    assert places(pack_around(outside, begun, {W: 0}, [], inputs=given))[A].offset_bytes != 640


def test_the_page_buffer_is_there_while_the_schedule_pages() -> None:
    still, paging = scheduled(*ACTIONS), scheduled(PageOut(X), *ACTIONS)
    for given, schedule, top in ((None, paging, True), (None, still, False), (512, paging, True), (512, still, False)):
        plan = pack_around(problem(), schedule, {W: 0}, [], buffer_offset=given)
        buffers = [a for a in plan.allocations if not a.tensors and a.operator is None]
        assert [a.size_bytes for a in buffers] == [BUFFER] * top
        assert not buffers or given in (None, buffers[0].offset_bytes)
        assert plan.max_live_bytes == 64 + 32 + 48 + 32 + BUFFER * top


def test_wishes_are_granted_where_nothing_is_in_the_way() -> None:
    """The tensor with more bytes for longer comes first, and a place that just adjoins is free."""
    wishes = {A: 64, B: 112, C: 64}
    at = places(pack_around(problem(), scheduled(*ACTIONS), {W: 0}, [], wishes=wishes))
    assert (at[A].offset_bytes, at[B].offset_bytes, at[C].offset_bytes) == (64, 112, 64)
    at = places(pack_around(problem(), scheduled(*ACTIONS), {W: 0}, [], wishes={A: 96, B: 80}))
    assert at[A].offset_bytes == 96 and at[B].offset_bytes != 80
    at = places(pack_around(problem(), scheduled(*ACTIONS), {W: 160}, [], wishes={A: 112}))
    assert at[A].offset_bytes == 112, "it ends where the weight begins"
    at = places(pack_around(problem(), scheduled(*ACTIONS), {W: 0}, [], wishes={A: 48}))
    assert at[A].offset_bytes != 48, "the weight is there"


def in_banks(*actions: Action) -> tuple[Problem, Schedule]:
    """The input and c in the second bank, all else in the first, which has 32 bytes for others."""
    banks = BankSpec(name="near", budget_bytes=1000), BankSpec(name="far", budget_bytes=400)
    whole = replace(problem(), banks=banks, base_bytes=32)
    return whole, replace(scheduled(*actions), banks=(1, 0, 0, 0, 1), workspace_banks=(0, 0, 0))


def test_each_bank_has_its_own_arena() -> None:
    """State and the page buffer count where they are."""
    still, paging = pack(*in_banks(*ACTIONS)), pack(*in_banks(PageOut(X), *ACTIONS))
    assert [(u.arena_bytes, u.state_bytes) for u in still.banks] == [(64 + 48 + 32, 64), (32, 0)]
    assert [(u.arena_bytes, u.state_bytes) for u in paging.banks] == [(64 + 48 + 32 + BUFFER, 64), (32, 0)]
    assert (paging.arena_bytes, paging.state_bytes) == (64 + 48 + 32 + BUFFER + 32, 64)


def test_the_search_may_end_at_what_is_left_beside_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    place = packing.place

    def recorded(*arguments: Any, **options: Any) -> np.ndarray:
        asked.append(options["enough"])
        return place(*arguments, **options)

    monkeypatch.setattr(packing, "place", recorded)
    unit = problem().alignment_bytes
    live = 64 + 32 + 48 + 32
    pack(problem(), scheduled(PageOut(X), *ACTIONS), enough_bytes=160)
    pack(problem(), scheduled(*ACTIONS), enough_bytes=160)
    pack(problem(), scheduled(*ACTIONS), enough_bytes=10_000)
    pack_around(problem(), scheduled(PageOut(X), *ACTIONS), {W: 0}, [], enough_bytes=160)
    assert asked == [(160 - BUFFER) // unit, 160 // unit, int(packing.CLOSE * live) // unit, (160 - BUFFER) // unit]
    asked.clear()
    whole, schedule = in_banks(PageOut(X), *ACTIONS)
    tight = tuple(replace(bank, budget_bytes=size) for bank, size in zip(whole.banks, (208, 16), strict=True))
    pack(replace(whole, banks=tight), schedule)
    assert asked == [(208 - BUFFER - 32) // unit, 16 // unit]


def lives(whole: Problem, *actions: Action) -> list[tuple[str, int, int]]:
    """Of each allocation the tensors or the operator, its first action and the action behind its last."""
    names = "xwabc"
    return [
        ("".join(names[t] for t, _ in life.tensors) or f"op{life.operator}", life.start, life.end)
        for life in packing.lifetimes_of(whole, scheduled(*actions))
    ]


def test_a_tensor_that_moves_has_both_places_only_between_banks() -> None:
    moved = (Compute(0), Move(X), Compute(1), Move(A, 1), Free(X), Free(A), Compute(2), Free(B), Free(C))
    assert lives(problem(), *moved) == [
        ("x", 0, 1), ("w", 0, 9), ("a", 0, 4), ("x", 1, 5), ("b", 2, 8), ("a", 3, 6), ("c", 6, 9),
    ]  # fmt: skip


def test_workspace_is_there_while_its_operator_runs() -> None:
    """And an output that takes over the place of an input has its life with it."""
    spec = problem().operators
    operators = (spec[0], replace(spec[1], workspace_bytes=16, in_place=((A, B),)), spec[2])
    whole = replace(problem(), operators=operators)
    taken = (Compute(0), Compute(1, ((A, B),)), Free(X), Compute(2), Free(B), Free(C))
    assert lives(whole, *taken) == [("x", 0, 3), ("w", 0, 6), ("ab", 0, 5), ("op1", 1, 2), ("c", 3, 6)]


def test_a_tensor_that_comes_back_has_a_place_from_its_transfer_on() -> None:
    actions = (Compute(0), PageOut(X), Free(X), PageIn(X), Compute(1), Free(A), Compute(2), Free(X), Free(B), Free(C))
    assert lives(problem(), *actions) == [
        ("x", 0, 3), ("w", 0, 10), ("a", 0, 6), ("x", 3, 8), ("b", 4, 9), ("c", 6, 10),
    ]  # fmt: skip
