"""Transfers in a queue of their own, in a program by hand: what they wait for beside the bytes of their tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poetc.graph import TensorType
from poetc.program import (
    Absence,
    Call,
    Operand,
    PageIn,
    PageOut,
    Program,
    ProgramError,
    Space,
    check_queues,
    queues_of,
    workers_of,
)


def operand(tensor: str, offset_bytes: int) -> Operand:
    return Operand(Space.ARENA, offset_bytes, TensorType((16,)), tensor)


def call(output: Operand, *inputs: Operand) -> Call:
    return Call(f"make {output.tensor}", "Relu", {}, inputs, (output,), "relu", (), ())


W, A, B, C = (operand(name, 64 * n) for n, name in enumerate("wabc"))
A_AT_W = operand("a", 0)
OF_W, OF_A = 0, 1  # pages
A_OUT, A_IN = 2, 4  # instructions
PROGRAM = Program(
    name="by hand",
    instructions=(
        call(A, W),
        PageOut(W, OF_W),
        PageOut(A, OF_A),
        call(B, C),
        PageIn(A_AT_W, OF_A),  # over the place of state, after a call that has nothing to do with it
        call(C, A_AT_W),
        PageIn(W, OF_W),
    ),
    arena_bytes=320,
    state_bytes=64,
    flash_bytes=0,
    inputs=(),
    target=None,
    outputs=(),
    state=(),
    constants=(),
    block_bytes=64,
    page_buffer_offset=256,
    absences=(Absence(A_IN, 7, OF_W, W),),
)


def test_transfers_of_two_queues_take_turns_at_the_page_buffer_and_none_writes_over_state_early() -> None:
    workers = workers_of(PROGRAM, (), (), overlaps=True)
    assert workers == [0, 0, 1, 0, 1, 0, 0], "transfers of state that is away are the first processor's"
    of_processor, of_store = queues_of(PROGRAM, workers, 2)
    assert [(s.instruction, s.waits[1]) for s in of_processor] == [(0, 0), (1, 0), (3, 0), (5, 2), (6, 0)]
    out, came_in = of_store
    assert (out.instruction, out.waits[0]) == (A_OUT, 2), "for w, which goes through the page buffer too"
    assert (came_in.instruction, came_in.waits[0]) == (A_IN, 3), "for all that the processor did before"


@pytest.mark.parametrize(
    ("action", "waits_for", "said"),
    [
        (0, 1, f"instruction {A_OUT} may overtake 1, which touches the same bytes"),
        (1, 2, f"instruction {A_IN} may write where state is before that is said to be away"),
    ],
)
def test_the_check_finds_a_transfer_that_waits_for_one_action_less(action: int, waits_for: int, said: str) -> None:
    of_processor, of_store = queues_of(PROGRAM, workers_of(PROGRAM, (), (), overlaps=True), 2)
    early = list(of_store)
    early[action] = replace(early[action], waits=(waits_for, 0))
    with pytest.raises(ProgramError, match=said):
        check_queues(PROGRAM, (of_processor, early))
