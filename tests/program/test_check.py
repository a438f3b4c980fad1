"""Damaged programs: the checker names the instruction or the page, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from poetc.program import Call, Instruction, Move, Operand, Program, ProgramError, Space, check_program
from tests.program.models import paged_decisions, recomputed_decisions, training_case


@pytest.fixture(scope="module")
def program() -> Program:
    """An activation lies on the store for a while."""
    case = training_case()
    program = case.program(paged_decisions(case, "a"))
    check_program(program)
    return program


def call(program: Program, change: Callable[[Call], Call], kind: str) -> Program:
    """The program with its first call of a kind changed."""
    at, found = next((k, i) for k, i in enumerate(program.instructions) if isinstance(i, Call) and i.kind == kind)
    return replace(program, instructions=instead(program, at, change(found)))


def instead(program: Program, at: int, *others: Instruction) -> tuple[Instruction, ...]:
    return (*program.instructions[:at], *others, *program.instructions[at + 1 :])


def at(operand: Operand, offset_bytes: int) -> Operand:
    return replace(operand, offset_bytes=offset_bytes)


def test_pages_are_apart_and_large_enough(program: Program) -> None:
    (page,) = program.pages
    for wrong, reason in (
        (replace(program, block_bytes=24), "a block of 24 bytes: must be a multiple of 16, at least 32"),
        (replace(program, page_buffer_offset=None), "a program with pages has no page buffer"),
        (replace(program, pages=(page, replace(page, tensor="b"))), "the pages of a and b overlap"),
        (replace(program, pages=(replace(page, block_count=1),)), "the page of a is too small"),
        (replace(program, page_buffer_offset=program.arena_bytes), "the page buffer is outside the arena"),
        (replace(program, page_buffer_offset=8), "the page buffer is outside the arena or not aligned"),
        (replace(program, page_buffer_offset=0), "overlaps the page buffer"),
    ):
        with pytest.raises(ProgramError, match=reason):
            check_program(wrong)


def test_state_and_inputs_have_places_of_their_own(program: Program) -> None:
    first, second = program.state[:2]
    moved = replace(second, operand=at(second.operand, first.operand.offset_bytes))
    with pytest.raises(ProgramError, match=rf"{second.name}: overlaps {first.name} when a run begins"):
        check_program(replace(program, state=(first, moved, *program.state[2:])))
    with pytest.raises(ProgramError, match="state outside the 16 bytes at the bottom"):
        check_program(replace(program, state_bytes=16))
    with pytest.raises(ProgramError, match="outside the arena of 64 bytes"):
        check_program(replace(program, arena_bytes=64))
    with pytest.raises(ProgramError, match="more than 4 GiB of arena or constants"):
        check_program(replace(program, arena_bytes=1 << 32))


def test_outputs_and_workspace_are_apart(program: Program) -> None:
    def to_constants(c: Call) -> Call:
        return replace(c, outputs=(replace(c.outputs[0], space=Space.FLASH, offset_bytes=0),))

    def twice(c: Call) -> Call:
        return replace(c, outputs=(c.outputs[0], replace(c.outputs[0], tensor="again")))

    def over_itself(c: Call) -> Call:
        return replace(c, workspace=replace(c.outputs[0], tensor="workspace"))

    flash = replace(program, flash_bytes=1 << 20)
    for wrong, reason in (
        (call(flash, to_constants, "MatMul"), "writes .* to constants"),
        (call(program, twice, "MatMul"), "two outputs overlap"),
        (call(program, over_itself, "MatMul"), "the workspace overlaps an operand"),
    ):
        with pytest.raises(ProgramError, match=reason):
            check_program(wrong)


def test_moves_keep_to_ram_and_to_their_tensor(program: Program) -> None:
    operand = program.inputs[0].operand
    flash = replace(program, flash_bytes=1 << 20)
    out = replace(operand, space=Space.FLASH, offset_bytes=0)
    for wrong, reason in (
        (Move(out, operand), f"instruction 0: moves {operand.tensor} out of RAM"),
        (Move(replace(operand, tensor="other"), operand), "would be moved to where other is"),
    ):
        with pytest.raises(ProgramError, match=reason):
            check_program(replace(flash, instructions=(wrong, *program.instructions)))


def test_a_probe_and_an_output_that_are_gone_are_found() -> None:
    case = training_case()
    program = case.program(recomputed_decisions(case, "a"))
    check_program(program)
    (name, (_, operand)) = next(iter(program.probes.items()))
    with pytest.raises(ProgramError, match="instruction 0: probe: reads"):
        check_program(replace(program, probes={name: (0, operand)}))
    gone = replace(program.outputs[0], operand=replace(program.outputs[0].operand, tensor="gone"))
    with pytest.raises(ProgramError, match=f"output {gone.name}: reads gone"):
        check_program(replace(program, outputs=(gone,)))
