"""Copies beside frees, and the times at which operators are executed again in several banks."""

from __future__ import annotations

from dataclasses import replace

from poetc.scheduling import (
    BankSpec,
    Compute,
    Move,
    OperatorSpec,
    Problem,
    TensorSpec,
    keep_all,
    trace_of,
    verify_parts,
)
from poetc.solvers.banks import Order, place_in_banks, placement_bound

DEAR_FJ = 5000
NEAR, FAR = (
    BankSpec(name="near", budget_bytes=21, read_fj_per_byte=1000, write_fj_per_byte=1000),
    BankSpec(name="far", budget_bytes=100, read_fj_per_byte=DEAR_FJ, write_fj_per_byte=DEAR_FJ),
)


def chain(reads: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], *, energy_pj: int = 1) -> Problem:
    """Operator k makes tensor k from those that it reads."""
    tensors = tuple(TensorSpec(name=f"t{k}", size_bytes=size, move_ns=0) for k, size in enumerate(sizes))
    operators = tuple(
        OperatorSpec(name=f"o{k}", inputs=own, outputs=(k,), time_ns=1, energy_pj=energy_pj, recomputable=True)
        for k, own in enumerate(reads)
    )
    return Problem(name="chain", budget_bytes=200, tensors=tensors, operators=operators, banks=(NEAR, FAR))


def test_a_copy_takes_the_room_that_a_free_leaves() -> None:
    """Two tensors leave the near bank behind operator 5. Then tensor 0 comes there, which three operators read."""
    problem = chain(((), (), (1,), (1, 2), (1, 2), (1, 2), (0, 3), (0, 4), (0, 5)), (10, 10, 10, *([0] * 6)))
    schedule = keep_all(replace(problem, banks=()))
    placed = place_in_banks(problem, schedule, (21, 100), time_limit_s=5.0)
    assert placed is not None
    assert Move(0, 0) in placed.actions
    chosen = replace(schedule, actions=placed.actions, banks=placed.banks, workspace_banks=placed.workspace_banks)
    in_banks, stays = (
        trace_of(problem, replace(chosen, actions=actions)).energy_pj
        for actions in (placed.actions, tuple(a for a in placed.actions if not isinstance(a, Move)))
    )
    assert in_banks < stays


def test_an_operator_is_repeated_at_any_of_its_times() -> None:
    """Tensor 0 is read by operators 1, 4 and 7."""
    problem = replace(chain(((), (0,), (1,), (2,), (0, 3), (4,), (5,), (0, 6)), (4,) * 8), banks=())
    order = Order(problem, range(8))
    assert order.away(0) == [(1, 4), (4, 7)]
    assert order.away(7) == []
    for repeats in ({(0, 4)}, {(0, 7)}, {(0, 4), (0, 7)}):
        actions = order.repeating(repeats)
        assert sum(a.operator == 0 for a in actions if isinstance(a, Compute)) == 1 + len(repeats)
        assert verify_parts([(problem, actions)]).energy_pj == 8 + len(repeats)
        assert order.repeats_in(actions) == repeats
    assert order.repeats_after([(0, (1, 2))]) == {(0, 4)}
    assert order.repeats_after([(0, (5,))]) == {(0, 7)}
    assert order.repeats_after([(0, (7,)), (7, (1,))]) == frozenset()


def test_an_input_comes_back_before_its_reader() -> None:
    """Operators 0 and 1 are repeated for operators 6 and 5. Operator 1 reads tensor 0."""
    problem = replace(chain(((), (0,), (1,), (2,), (3,), (1, 4), (0, 5)), (4,) * 7), banks=())
    order = Order(problem, range(7))
    actions = order.repeating({(0, 6), (1, 5)})
    assert [a.operator for a in actions if isinstance(a, Compute)] == [0, 1, 2, 3, 4, 0, 1, 5, 6]
    verify_parts([(problem, actions)])


def test_the_bound_names_operators_that_are_executed_again() -> None:
    """Tensor 0 waits while tensors 1 and 2 fill the near bank. It costs less to make it again than to write it far."""
    problem = chain(((), (0,), (1,), (0, 2)), (10, 10, 10, 1))
    crossing = placement_bound(problem, time_limit_s=5.0)
    assert [k for k, _ in crossing.repeats] == [0]
    order = Order(problem, range(4))
    repeats = order.repeats_after(crossing.repeats)
    assert repeats == {(0, 3)}
    schedule = replace(keep_all(replace(problem, banks=())), actions=order.repeating(repeats))
    placed = place_in_banks(problem, schedule, (21, 100), time_limit_s=5.0)
    assert placed is not None
    chosen = replace(schedule, actions=placed.actions, banks=placed.banks, workspace_banks=placed.workspace_banks)
    assert crossing.least <= trace_of(problem, chosen).energy_pj <= 1.05 * crossing.least
