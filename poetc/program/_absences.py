"""When state is not in its place in RAM while a program runs, and which page has it then."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from poetc.ops import spec
from poetc.program._check import ProgramError
from poetc.program._ir import Absence, Call, Instruction, Move, Operand, PageIn, PageOut, Program


def absences_of(program: Program, instructions: tuple[Instruction, ...]) -> tuple[Absence, ...]:
    """Of the state of `program`, where a run executes `instructions`. ProgramError where state would be lost."""
    successor = {
        c.inputs[i].tensor: c.outputs[j].tensor
        for c in instructions
        if isinstance(c, Call)
        for i, j in spec(c.kind).must_alias
    }
    places: list[tuple[Operand, set[str]]] = []
    for binding in program.state:
        versions = [binding.name]
        while versions[-1] in successor:
            versions.append(successor[versions[-1]])
        places.append((binding.operand, set(versions)))
    return tuple(absences_at(places, instructions))


def absences_at(places: Sequence[tuple[Operand, set[str]]], instructions: Sequence[Instruction]) -> Iterator[Absence]:
    """The instructions during which the bytes at a place are none of its versions, by place.

    Each absence names the page of the version that was moved to the store last.

    A tensor that was moved to the store also stays in place until something else is written there. A PageIn spoils its
    own place until it has succeeded. Copies elsewhere do not count, since their place is not kept from run to run.
    """
    written, saved_at = list[tuple[int, Operand]](), dict[str, list[int]]()
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, PageOut):
            saved_at.setdefault(instruction.operand.tensor, []).append(index)
        written += [(index, o) for o in _written(instruction)]
    lows = np.array([o.offset_bytes for _, o in written], np.int64)
    highs = lows + np.array([o.type.size_bytes for _, o in written], np.int64)
    for place, versions in places:
        begin, end = place.offset_bytes, place.offset_bytes + place.type.size_bytes
        touched: list[tuple[int, Operand | None]]
        shared = (written[n] for n in np.flatnonzero((lows < end) & (begin < highs)))
        touched = [(n, o) for n, o in shared if o.space is place.space]
        touched += [(index, None) for version in versions for index in saved_at.get(version, ())]
        touched.sort(key=operator.itemgetter(0))
        yield from _absences_of(place, versions, instructions, touched)


def _absences_of(
    place: Operand,
    versions: set[str],
    instructions: Sequence[Instruction],
    touched: Sequence[tuple[int, Operand | None]],
) -> Iterator[Absence]:
    """`touched`: the instructions that write there, with the operand, and those that save one of the versions."""
    saved: PageOut | None = None
    begin: int | None = None

    def absence(end: int) -> Absence:
        if saved is None or begin is None:
            raise ProgramError(f"instruction {end - 1}: {place.tensor} is overwritten, and no page has it")
        return Absence(begin, end, saved.page, replace(place, tensor=saved.operand.tensor))

    for index, operand in touched:
        instruction = instructions[index]
        if isinstance(instruction, PageOut):
            if begin is not None:  # until this page is whole, the one before it counts
                yield absence(index + 1)
                begin = index + 1
            saved = instruction
        elif operand is not None:
            returns = operand.tensor in versions and operand.offset_bytes == place.offset_bytes
            if begin is None and (isinstance(instruction, PageIn) or not returns):
                begin = index
            if returns and begin is not None:
                yield absence(index + 1)
                begin = None


def _written(instruction: Instruction) -> list[Operand]:
    match instruction:
        case Call(outputs=outputs, workspace=workspace):
            return [*outputs, *([workspace] if workspace else [])]
        case PageIn(operand=operand) | Move(operand=operand):
            return [operand]
        case PageOut():
            return []
