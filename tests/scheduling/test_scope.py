"""Scopes: what covers what, and what a file keeps of it."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetc.scheduling import (
    ANY,
    Repetition,
    Scope,
    first_executions,
    keep_all,
    schedule_from_json,
    schedule_to_json,
)
from poetc.scheduling.scope import Option
from tests.support.problems import training_problem

ORDERS = (ANY, (0, 1, 2), (0, 2, 1))
STATES = (ANY, None, (), (3,))
KERNELS = (ANY, None, (0, 0, 0), (0, 1, 0))
EVERYTHING = Scope(choices=(("kernels", ANY), ("state", ANY)))


def scope_of(order: Option, repetition: Repetition, state: Option | None, kernels: Option | None) -> Scope:
    scope = Scope(order=order, repetition=repetition)
    for name, option in (("state", state), ("kernels", kernels)):
        scope = scope if option is None else scope.with_choice(name, option)
    return scope


SCOPES = [
    scope_of(order, repetition, state, kernels)
    for order, repetition, state, kernels in itertools.product(
        ORDERS, (Repetition.ANY, Repetition.STAGED), STATES, KERNELS
    )
]
scopes = st.sampled_from(SCOPES)


@given(scopes, scopes, scopes)
def test_covering_is_inclusion(a: Scope, b: Scope, c: Scope) -> None:
    """Reflexive, transitive, and both ways only where the scopes are the same."""
    assert a.covers(a) and EVERYTHING.covers(a)
    assert not (a.covers(b) and b.covers(c)) or a.covers(c)
    assert not (a.covers(b) and b.covers(a)) or a == b


@given(scopes, scopes)
def test_a_scope_covers_no_other_option_of_a_choice_that_it_fixes(a: Scope, b: Scope) -> None:
    pairs = [(a.order, b.order), *((a.choice(name), b.choice(name)) for name in ("state", "kernels"))]
    for own, other in pairs:
        if own is not ANY and own != other:
            assert not a.covers(b) and not a.choices_cover(b)


def test_a_restriction_of_repetitions_stays_with_the_claim() -> None:
    staged = Scope(repetition=Repetition.STAGED)
    assert not staged.covers(Scope()) and staged.choices_cover(Scope())
    assert not staged.is_everything and Scope().is_everything and EVERYTHING.is_everything


def test_kinds_name_each_open_choice() -> None:
    """For `--json`: an order is the problem's only where it is 0, 1, 2, ..."""
    assert Scope().kinds() == {"order": "any", "repetition": "any"}
    assert Scope(order=(0, 1, 2)).kinds()["order"] == "problem"
    assert Scope(order=(0, 2, 1)).kinds()["order"] == "own"
    mixed = scope_of((1, 0), Repetition.ONCE, (3,), ANY).with_choice("saved", (0,))
    own = {"order": "own", "state": "own", "kernels": "any", "saved": "own", "repetition": "once"}
    assert mixed.kinds() == own
    assert EVERYTHING.kinds() == dict.fromkeys(("order", "kernels", "state", "repetition"), "any")


def test_options_are_kept_in_one_form() -> None:
    """A set of numbers in ascending order; kinds in alphabetical order, whatever came first."""
    one = Scope().with_choice("state", frozenset({5, 2})).with_choice("kernels", (1, 0))
    assert one == Scope(choices=(("kernels", (1, 0)), ("state", (2, 5))))
    assert one.with_choice("kernels", ANY).choice("kernels") is ANY and one.choice("banks") is None
    assert one.open == EVERYTHING and one.only({"state"}) == Scope(choices=(("state", (2, 5)),))
    assert one.only(name for name in ("state", "kernels")) == one  # which is read once


def test_scopes_are_values() -> None:
    """They are keys of tables, and nobody changes one that others hold."""
    assert hash(Scope(order=(0, 1))) == hash(Scope(order=(0, 1)))
    with pytest.raises(FrozenInstanceError):
        Scope().order = ANY  # type: ignore[misc]
    with pytest.raises(TypeError):
        Scope(ANY)  # type: ignore[misc]


@given(scopes)
def test_a_file_keeps_the_scope(scope: Scope) -> None:
    schedule = keep_all(training_problem(Random(0), 1))
    given_order = first_executions(schedule.actions) if scope.order is not ANY else ANY
    scope = replace(scope, order=given_order)
    written = replace(schedule, proof=replace(schedule.proof, scope=scope))
    assert schedule_from_json(schedule_to_json(written, "a sentence")).proof.scope == scope
