"""The queues of a program on several processors, their fences, and an independent check of these."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from poetc.program._check import ProgramError
from poetc.program._ir import (
    Call,
    Instruction,
    Move,
    Operand,
    PageIn,
    PageOut,
    Program,
    QueueEntry,
    Space,
    reads_ahead,
    streams_of,
)
from poetc.scheduling import Action, Compute

Ints = npt.NDArray[np.int64]
Places = tuple[tuple[int, int], ...]  # queue, and the number of an entry in it
STORE = (-1, 0)  # stands for the store with its page buffer, which one instruction at a time uses


def workers_of(program: Program, actions: Sequence[Action], starts: Sequence[int], *, overlaps: bool) -> list[int]:
    """For each instruction the number of its processor, or where transfers overlap compute one more for them.

    `starts`: the first instruction of each action of the schedule. Transfers that bring state back to its place in RAM
    are the first processor's. So are those that save it: a failed run tells by the place of that processor alone which
    state is away. State that is away and several processors: all is the first one's.
    """
    workers = [0] * len(program.instructions)
    for at, action in enumerate(actions):
        if isinstance(action, Compute):
            workers[starts[at]] = action.processor
    if program.absences and any(workers):
        return [0] * len(workers)
    away = {absence.page for absence in program.absences}
    of_store = max(workers, default=0) + 1
    for n, instruction in enumerate(program.instructions):
        if overlaps and isinstance(instruction, PageIn | PageOut) and instruction.page not in away:
            workers[n] = of_store
    return workers


def queues_of(program: Program, processors: Sequence[int], count: int) -> tuple[tuple[QueueEntry, ...], ...]:
    """For each processor its queue; each entry lists the entries of other queues that it waits for.

    An entry waits for every earlier one that touches the same bytes, unless both only read them. An entry that writes
    over the bytes of state that is on the store waits for all earlier entries of the first processor. Implied waits are
    left out. A call that reads ahead is in two queues: that of its processor has its kernels, the last one its
    transfers.
    """
    begins = {absence.begin for absence in program.absences}
    queues: list[list[QueueEntry]] = [[] for _ in range(count)]
    ends: list[list[Ints]] = [[] for _ in range(count)]  # by processor and entry, all that is over then
    over = [np.zeros(count, np.int64) for _ in range(count)]  # by processor, after its last entry
    touched = _Touched()
    for index, (instruction, own) in enumerate(zip(program.instructions, processors, strict=True)):
        needed = np.zeros(count, np.int64)
        for queue, place in touched.conflicts(instruction):
            needed[queue] = max(needed[queue], place + 1)
        if index in begins:
            needed[0] = len(queues[0])
        places = list[tuple[int, int]]()
        for queue in _queues_with(instruction, own, count):
            now, waits = over[queue].copy(), [0] * count
            for other in np.argsort(-needed, kind="stable"):
                if other != queue and needed[other] > now[other]:
                    waits[int(other)] = int(needed[other])
                    now = np.maximum(now, ends[int(other)][int(needed[other]) - 1])
            places.append((queue, len(queues[queue])))
            queues[queue].append(QueueEntry(index, tuple(waits)))
            now[queue] = len(queues[queue])
            over[queue] = now
            ends[queue].append(now)
        touched.add(instruction, tuple(places))
    result = tuple(tuple(queue) for queue in queues)
    check_queues(program, result)
    return result


def _queues_with(instruction: Instruction, own: int, count: int) -> tuple[int, ...]:
    """Those of `count` queues that an instruction of processor `own` is in."""
    return (own, count - 1) if reads_ahead(instruction) else (own,)


def check_queues(program: Program, queues: Sequence[Sequence[QueueEntry]]) -> None:
    """ProgramError unless every entry is in one queue, in order, and behind all those that it must not overtake."""
    where: dict[int, list[tuple[int, int]]] = {}
    for q, queue in enumerate(queues):
        for n, entry in enumerate(queue):
            where.setdefault(entry.instruction, []).append((q, n))
    of = [[q for q, _ in where.get(index, ())] for index in range(len(program.instructions))]
    if len(where) > len(of) or any(
        not qs or tuple(qs) != _queues_with(i, qs[0], len(queues))
        for i, qs in zip(program.instructions, of, strict=True)
    ):
        raise ProgramError("the queues of the processors do not have every instruction once, or both of its halves")
    over: dict[tuple[int, int], Ints] = {}
    touched = _Touched()
    begins = {absence.begin for absence in program.absences}
    if any(of[absence.end - 1][0] for absence in program.absences):
        raise ProgramError("state comes back to its place in a queue that is not the first one")
    for index, instruction in enumerate(program.instructions):
        conflicts = touched.conflicts(instruction)
        for q, n in where[index]:
            before = over[q, n - 1] if n else np.zeros(len(queues), np.int64)
            for other, count in enumerate(queues[q][n].waits):
                if count:
                    if (other, count - 1) not in over:
                        last = queues[other][count - 1].instruction
                        raise ProgramError(f"instruction {index} waits for {last}, which comes later")
                    before = np.maximum(before, over[other, count - 1])
            if n and queues[q][n - 1].instruction > index:
                raise ProgramError(f"instruction {index} is behind a later one in its queue")
            for other, place in conflicts:
                if place >= before[other] and other != q:
                    overtaken = queues[other][place].instruction
                    raise ProgramError(f"instruction {index} may overtake {overtaken}, which touches the same bytes")
            if q and index in begins and before[0] < sum(entry.instruction < index for entry in queues[0]):
                raise ProgramError(f"instruction {index} may write where state is before that is said to be away")
            before = before.copy()
            before[q] = n + 1
            over[q, n] = before
        touched.add(instruction, tuple(where[index]))


class _Touched:
    """The entries that touched each byte of the arena last: who wrote it, and who has read it since.

    Earlier ones need no wait of their own, since the entry that wrote the byte has waited for them.
    """

    def __init__(self) -> None:
        self._begins = [STORE[0]]  # of stretches of bytes, each up to the next one
        self._wrote: list[Places] = [()]
        self._read: list[dict[int, int]] = [{}]  # by queue, the place of the latest

    def conflicts(self, instruction: Instruction) -> list[tuple[int, int]]:
        """(queue, place) of the latest entry of each queue that touches bytes which `instruction` must not share."""
        latest = dict[int, int]()
        for begin, end, written in _ranges(instruction):
            for n in range(bisect_right(self._begins, begin) - 1, bisect_left(self._begins, end)):
                read = self._read[n].items() if written else ()
                for queue, place in (*self._wrote[n], *read):
                    latest[queue] = max(latest.get(queue, -1), place)
        return list(latest.items())

    def add(self, instruction: Instruction, places: Places) -> None:
        """`places`: the queues that `instruction` is in, and its place in each."""
        for begin, end, written in _ranges(instruction):
            if begin == end:
                continue
            first, after = self._split(begin), self._split(end)
            if written:
                self._begins[first:after], self._wrote[first:after], self._read[first:after] = [begin], [places], [{}]
            else:
                for n in range(first, after):
                    self._read[n].update(places)

    def _split(self, at: int) -> int:
        """The number of the stretch that begins at byte `at`."""
        n = bisect_left(self._begins, at)
        if n == len(self._begins) or self._begins[n] != at:
            self._begins.insert(n, at)
            self._wrote.insert(n, self._wrote[n - 1])
            self._read.insert(n, dict(self._read[n - 1]))
        return n


def _ranges(instruction: Instruction) -> list[tuple[int, int, bool]]:
    """Bytes that an instruction touches in the arena, and STORE: begin, end, and whether it writes them."""
    read: Sequence[Operand] = ()
    wrote: Sequence[Operand] = ()
    match instruction:
        case Call(inputs=inputs, outputs=outputs, workspace=workspace):
            read, wrote = inputs, (*outputs, *([workspace] if workspace else []))
        case PageOut(operand=operand):
            read = (operand,)
        case PageIn(operand=operand):
            wrote = (operand,)
        case Move(operand=operand, source=source):
            read, wrote = (source,), (operand,)
    uses_store = isinstance(instruction, PageIn | PageOut) or streams_of(instruction)
    return ([(*STORE, True)] if uses_store else []) + [
        (o.offset_bytes, o.offset_bytes + o.type.size_bytes, written)
        for operands, written in ((read, False), (wrote, True))
        for o in operands
        if o.space is Space.ARENA
    ]
