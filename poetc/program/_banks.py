"""An arena in several banks of RAM, addressed from the first of them.

Every part of the runtime adds an offset to the address of the arena. So the arena of a program with banks is a window
of addresses that begins in the lowest bank. Offsets into another bank have its distance from there in them. On this
machine the parts adjoin. On a board they are as far apart as its banks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from poetc.program._ir import BankRange, Operand, Program, Space
from poetc.program._state_file import regions
from poetc.runtime.layout import align
from poetc.scheduling import MemoryPlan, Problem, Schedule, arrival_banks


def in_window(
    problem: Problem, schedule: Schedule, plan: MemoryPlan, starts: Mapping[str, int] | None = None
) -> tuple[MemoryPlan, tuple[BankRange, ...]]:
    """The plan with offsets in the window, and the parts of it. Without banks, `plan` and nothing.

    `starts`: the address at which the part of each bank begins; by default they adjoin.
    """
    if not problem.banks:
        return plan, ()
    used = sorted(
        (b for b, use in enumerate(plan.banks) if use.arena_bytes),
        key=lambda b: (problem.banks[b].address if starts is None else starts[problem.banks[b].name], b),
    )
    ranges: dict[int, BankRange] = {}
    top = 0
    for b in used:
        spec, use = problem.banks[b], plan.banks[b]
        offset = top if starts is None else starts[spec.name] - starts[problem.banks[used[0]].name]
        room = spec.budget_bytes - (problem.base_bytes if b == 0 else 0)
        ranges[b] = BankRange(spec.name, offset, room if b == used[-1] else align(use.arena_bytes))
        top = offset + align(use.arena_bytes)
    arrivals = arrival_banks(problem, schedule)
    origin = {b: r.offset_bytes for b, r in ranges.items()}

    def moved(offset: int, bank: int) -> int:
        return offset + origin.get(bank, 0)

    allocations = tuple(
        replace(
            a,
            offset_bytes=moved(
                a.offset_bytes,
                schedule.workspace_banks[a.operator]
                if a.operator is not None
                else arrivals[a.tensors[0]]
                if a.tensors
                else 0,
            ),
        )
        for a in plan.allocations
    )
    last = used[-1] if used else 0
    use = plan.banks[last]
    window = replace(
        plan,
        allocations=allocations,
        arena_bytes=moved(use.arena_bytes, last),
        state_bytes=moved(use.state_bytes, last) if plan.state_bytes else 0,
        banks=(),
    )
    return window, tuple(ranges[b] for b in used)


def bank_peaks(program: Program, operands: Iterable[Operand]) -> tuple[int, ...]:
    """By part of the arena, the bytes up to the end of the highest that anything occupies there.

    Sizes are not rounded up, but the state is written whole.
    """
    ends = [o.offset_bytes + o.type.size_bytes for o in operands if o.space is Space.ARENA and o.type.size_bytes]
    ends += [r.arena_offset_bytes + r.size_bytes for r in regions(program) if r.page is None]
    if program.page_buffer_offset is not None:
        ends.append(program.page_buffer_offset + program.block_bytes)
    return tuple(
        max((e - b.offset_bytes for e in ends if b.offset_bytes < e <= b.end), default=0) for b in program.banks
    )


def gap(begin: int, taken: Collection[Operand], size_bytes: int) -> int:
    """The first place of so many bytes from `begin` on beside operands."""
    for operand in sorted(taken, key=lambda o: o.offset_bytes):
        if begin + size_bytes <= operand.offset_bytes:
            break
        begin = max(begin, align(operand.offset_bytes + operand.type.size_bytes))
    return begin


def with_room(banks: tuple[BankRange, ...], arena_bytes: int) -> tuple[BankRange, ...]:
    """The parts of another program's arena, the last one as large as one of `arena_bytes` needs it.

    Whoever builds the program looks whether the memory is there.
    """
    return tuple(
        replace(b, size_bytes=max(b.size_bytes, arena_bytes - b.offset_bytes)) if b is banks[-1] else b for b in banks
    )
