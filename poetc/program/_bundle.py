"""The programs of a bundle, and its switches as instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poetc.graph import TrainingGraph
from poetc.program._absences import absences_of
from poetc.program._check import ProgramError, check_program
from poetc.program._ir import Absence, Call, Instruction, Move, Program
from poetc.program._lower import Lowering, high_water
from poetc.runtime.layout import align
from poetc.scheduling import Allocation, Compute, Free, MemoryPlan, Problem, Schedule, Switch, buffer_offset
from poetc.training import share_of

Plan = tuple[Problem, Schedule, MemoryPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSwitch:
    """`Switch` in instructions: before instruction `at` of plan `source`, then `instructions`, then `join` of `target`.

    `absences` count from the first of `instructions`. `time_ns`: the time of the transition.
    """

    source: int
    target: int
    at: int
    join: int
    instructions: tuple[Instruction, ...]
    absences: tuple[Absence, ...]
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBundle:
    """`programs`: a plan each, the largest arena first. `switches` are sorted by source, target and place.

    `kept`: for each switch its number among those that it was lowered from. `parts`: for each plan the first one that
    runs the batch in the same micro-batches.
    """

    programs: tuple[Program, ...]
    switches: tuple[ProgramSwitch, ...]
    kept: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()

    def share(self, plan: int, join: int) -> str:
        """The share of the batch over which the rest of a plan reads sums; "" if it reads none."""
        written = set[str]()
        for i in self.programs[plan].instructions[join:]:
            operands = i.inputs if isinstance(i, Call) else (i.source,) if isinstance(i, Move) else (i.operand,)
            for operand in operands:
                if share_of(operand.tensor) and operand.tensor not in written:
                    return share_of(operand.tensor)
            written |= {o.tensor for o in (i.outputs if isinstance(i, Call) else (i.operand,))}
        return ""

    def switched(self, switch: ProgramSwitch) -> Program:
        """The program that a device executes in a run that takes `switch`."""
        return _spliced(self.programs[switch.source], self.programs[switch.target], switch)


def lower_bundle(graphs: Sequence[TrainingGraph], plans: Sequence[Plan], switches: Sequence[Switch]) -> ProgramBundle:
    """Programs that share state, inputs, constants and pages, and the switches between them, each one checked.

    `plans`: the largest budget first, over the layout of the last. `graphs`: the training step of each, which are the
    same but for the number of micro-batches. The first program is named "train", the others
    "train_1" and so on. A switch that the independent check of programs refuses is left out. Raises ProgramError where
    the plans do not fit together.
    """
    lowerings: list[Lowering] = []
    by_plan: dict[int, tuple[Lowering, Program]] = {}
    for index in reversed(range(len(plans))):
        previous = lowerings[-1] if lowerings else None
        lowering = Lowering(graphs[index], *plans[index], None, True, previous)
        by_plan[index] = lowering, lowering.program("train" if index == 0 else f"train_{index}")
        lowerings.append(lowering)
    transitions = [_lowered(graphs[s.target], plans[s.target], s, lowerings[-1]) for s in switches]
    last = lowerings[-1]
    flash, offset = tuple(last.flash.values()), buffer_offset(plans[-1][2])
    programs: list[Program] = []
    for index in range(len(plans)):
        program = by_plan[index][1]
        program = replace(program, constants=flash, flash_bytes=last.flash_bytes)
        if offset is not None:
            top = align(max(program.arena_bytes, offset + program.block_bytes))
            program = replace(program, pages=tuple(last.page_table), page_buffer_offset=offset, arena_bytes=top)
            program = replace(program, high_water_bytes=high_water(program))
        check_program(program)
        programs.append(program)
    kept: dict[tuple[int, int, int], tuple[int, ProgramSwitch]] = {}
    for number, (switch, instructions) in enumerate(zip(switches, transitions, strict=True)):
        a, b = by_plan[switch.source][0], by_plan[switch.target][0]
        lowered = ProgramSwitch(
            source=switch.source,
            target=switch.target,
            at=a.starts[switch.at],
            join=b.starts[switch.join],
            instructions=instructions,
            absences=(),
            time_ns=switch.time_ns,
        )
        checked = _checked(programs, lowered) if lowered.at else None  # before the first action a plan is chosen anyway
        if checked is not None:
            kept[lowered.source, lowered.target, lowered.at] = number, checked
    numbers, found_switches = zip(*(kept[key] for key in sorted(kept)), strict=True) if kept else ((), ())
    # By their operators: each plan that was read from files has a graph of its own.
    parts = tuple(next(k for k, other in enumerate(graphs) if other.operators == graph.operators) for graph in graphs)
    return ProgramBundle(programs=tuple(programs), switches=tuple(found_switches), kept=tuple(numbers), parts=parts)


def _lowered(graph: TrainingGraph, target: Plan, switch: Switch, source: Lowering) -> tuple[Instruction, ...]:
    """The instructions of a transition, whose action -1 becomes action 0 of a schedule of its own."""
    problem, of_target, _ = target
    actions = (Free(-1), *switch.transition.actions)
    allocations: list[Allocation] = []
    for stay in switch.transition.stays:
        first, end = stay.first + 1, stay.end + 1
        if stay.tensor >= 0:
            at = Allocation(
                offset_bytes=stay.offset_bytes,
                size_bytes=stay.size_bytes,
                start=first,
                end=end,
                tensors=((stay.tensor, first),),
            )
        else:
            action = actions[first]
            assert isinstance(action, Compute)
            at = Allocation(
                offset_bytes=stay.offset_bytes,
                size_bytes=stay.size_bytes,
                start=first,
                end=end,
                operator=action.operator,
            )
        allocations.append(at)
    plan = MemoryPlan(allocations=tuple(allocations), arena_bytes=0, max_live_bytes=0, state_bytes=0)
    schedule = replace(of_target, actions=actions)
    lowering = Lowering(graph, problem, schedule, plan, None, True, source)
    return lowering.instructions(_written(problem, switch, lowering))


def _written(problem: Problem, switch: Switch, lowering: Lowering) -> set[int]:
    """The pages that the run has written before the switch."""
    tensors = (problem.tensors[t] for t in switch.stored)
    return {lowering.pages[t.name] for t in tensors if t.initial != "store" and t.name in lowering.pages}


def _spliced(a: Program, b: Program, switch: ProgramSwitch) -> Program:
    instructions = (*a.instructions[: switch.at], *switch.instructions, *b.instructions[switch.join :])
    program = replace(
        a,
        name="switched",
        instructions=instructions,
        arena_bytes=max(a.arena_bytes, b.arena_bytes),
        outputs=b.outputs,
        probes={},
        absences=absences_of(a, instructions),
    )
    return replace(program, high_water_bytes=high_water(program))


def _checked(programs: Sequence[Program], switch: ProgramSwitch) -> ProgramSwitch | None:
    """With the absences of the transition; None where a run with this switch would not be right."""
    a, b = programs[switch.source], programs[switch.target]
    try:
        program = _spliced(a, b, switch)
        check_program(program)
    except ProgramError:
        return None
    first, end = switch.at, switch.at + len(switch.instructions)
    expected = {
        *_away(a.absences, 0, switch.at, 0),
        *_away(b.absences, switch.join, len(b.instructions), end - switch.join),
    }
    outside = {away for away in _away(program.absences, 0, len(program.instructions), 0) if not first <= away[0] < end}
    if outside != expected:  # a failed run would bring back something else
        return None
    inside = [
        replace(a, begin=max(a.begin, first) - first, end=min(a.end, end) - first)
        for a in program.absences
        if a.begin < end and first < a.end
    ]
    return replace(switch, absences=tuple(inside))


def _away(absences: Sequence[Absence], first: int, end: int, shift: int) -> set[tuple[int, int, int]]:
    """(instruction, page, place) of all absences in [first, end), the instructions moved by `shift`."""
    return {
        (i + shift, a.page, a.operand.offset_bytes)
        for a in absences
        for i in range(max(a.begin, first), min(a.end, end))
    }
