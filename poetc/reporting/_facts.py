"""The facts of a schedule for a report: RAM by category, how tensors came to RAM, repeated and moved tensors."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poetc.reporting._solved import Solved
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import Compute, Free, Move, PageIn, PageOut, Schedule


class Category(enum.StrEnum):
    """The category of a byte of RAM, in the order in which the memory chart stacks them, lowest first."""

    BASE = "runtime and stack"
    PAGE_BUFFER = "page buffer"
    STATE = "weights and state"
    INPUT = "inputs"
    ACTIVATION = "activations"
    GRADIENT = "gradients"
    WORKSPACE = "workspace"


class Origin(enum.StrEnum):
    """How a tensor came to RAM."""

    GIVEN = "there from the start"
    COMPUTED = "computed"
    RECOMPUTED = "recomputed"
    PAGED = "paged in"


@dataclass(frozen=True, slots=True)
class Stay:
    """One stay of a tensor in RAM, over the half-open interval of actions [start, end)."""

    tensor: int
    start: int
    end: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Extra:
    """An operator that runs again, or a tensor that moves, and the costs of that beside computing everything once."""

    index: int
    name: str
    size_bytes: int | None  # of a tensor
    times: tuple[int, ...]  # runs beyond the first; out of RAM and in; within RAM
    energy_pj: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Facts:
    categories: tuple[Category, ...]  # of each tensor
    memory: tuple[tuple[int, ...], ...]  # of each action: bytes by category, in the order of Category
    stays: tuple[Stay, ...]
    store_spans: tuple[tuple[int, int, int], ...]  # (tensor, page-out action, last page-in action + 1)
    redone: tuple[Extra, ...]  # the most energy first, as of the other two
    moved: tuple[Extra, ...]  # to the store and back
    relocated: tuple[Extra, ...]  # within RAM
    backward_action: int | None  # the first action of the backward pass


def categorize(problem: Problem) -> tuple[Category, ...]:
    """By the tensor's part in the problem alone, so that problems without a graph have categories too."""
    categories = [Category.ACTIVATION if t.initial == "" else Category.INPUT for t in problem.tensors]
    for i, t in enumerate(problem.tensors):
        if t.initial != "" and t.final != "":
            categories[i] = Category.STATE
    for op in problem.operators:
        for o in op.outputs:
            if op.phase in ("backward", "update"):
                categories[o] = Category.GRADIENT
        for pair in op.in_place:
            if pair.required:  # versions of state
                categories[pair.input] = categories[pair.output] = Category.STATE
    return tuple(categories)


def gather(solved: Solved) -> Facts:
    problem, schedule = solved.problem, solved.schedule
    categories = categorize(problem)
    stays, spans = _stays(problem, schedule)
    executions = Counter(s.operator for s in schedule.actions if isinstance(s, Compute))
    again = ((i, problem.operators[i], n - 1) for i, n in executions.items() if n > 1)
    redone = [Extra(i, op.name, None, (n,), n * op.energy_pj, n * op.time_ns) for i, op, n in again]
    outs = Counter(s.tensor for s in schedule.actions if isinstance(s, PageOut))
    ins = Counter(s.tensor for s in schedule.actions if isinstance(s, PageIn))
    moved = []
    for i in outs | ins:
        t = problem.tensors[i]
        energy_pj = outs[i] * t.page_out_pj + ins[i] * t.page_in_pj
        time_ns = outs[i] * t.page_out_ns + ins[i] * t.page_in_ns
        moved.append(Extra(i, t.name, t.size_bytes, (outs[i], ins[i]), energy_pj, time_ns))
    moves = Counter(s.tensor for s in schedule.actions if isinstance(s, Move))
    within = ((i, problem.tensors[i], n) for i, n in moves.items())
    relocated = [Extra(i, t.name, t.size_bytes, (n,), n * t.move_pj, n * (t.move_ns or 0)) for i, t, n in within]
    backward = (
        action
        for action, s in enumerate(schedule.actions)
        if isinstance(s, Compute) and problem.operators[s.operator].phase == "backward"
    )
    return Facts(
        categories=categories,
        memory=tuple(memory_by_category(problem, schedule, categories)),
        stays=tuple(stays),
        store_spans=tuple(spans),
        redone=_dearest_first(redone),
        moved=_dearest_first(moved),
        relocated=_dearest_first(relocated),
        backward_action=next(backward, None),
    )


def _dearest_first(extras: Iterable[Extra]) -> tuple[Extra, ...]:
    return tuple(sorted(extras, key=lambda e: (-e.energy_pj, e.index)))


def at_peak(solved: Solved, facts: Facts) -> list[tuple[str, str, int]]:
    """The content of RAM in the fullest action, the largest first: name, category, bytes.

    Operands on the store alone have no bytes there, and are left out.
    """
    problem, at = solved.problem, solved.trace.peak_action
    held = [(problem.tensors[t], facts.categories[t].value) for t in solved.trace.resident_at(at)]
    rows = [(tensor.name, category, tensor.size_bytes) for tensor, category in held if tensor.size_bytes]
    match solved.schedule.actions[at]:
        case Compute(index) if problem.operators[index].workspace_bytes:
            op = problem.operators[index]
            rows.append((f"workspace of {op.name}", Category.WORKSPACE.value, op.workspace_bytes))
        case _:
            pass
    return sorted(rows, key=lambda row: -row[2])


def memory_by_category(problem: Problem, schedule: Schedule, categories: Sequence[Category]) -> list[tuple[int, ...]]:
    """Bytes in use during each action, as the checker counts them, by category."""
    order = {category: i for i, category in enumerate(Category)}
    slots = [order[c] for c in categories]
    pages = any(isinstance(s, PageIn | PageOut) for s in schedule.actions)
    now = [0] * len(order)
    now[order[Category.BASE]] = problem.base_bytes
    now[order[Category.PAGE_BUFFER]] = problem.page_buffer_bytes if pages else 0
    size = {i: t.size_bytes for i, t in enumerate(problem.tensors) if t.initial == "ram"}
    for i, n in size.items():
        now[slots[i]] += n
    memory = []
    for action in schedule.actions:
        match action:
            case Compute(index, in_place):
                op = problem.operators[index]
                took = {o: i for i, o in in_place}
                for o in op.outputs:
                    if o in took:  # the bytes change hands
                        size[o] = size.pop(took[o])
                        now[slots[took[o]]] -= size[o]
                    else:
                        size[o] = problem.tensors[o].size_bytes
                    now[slots[o]] += size[o]
                now[order[Category.WORKSPACE]] = op.workspace_bytes
            case PageIn(t):
                size[t] = problem.tensors[t].size_bytes
                now[slots[t]] += size[t]
            case Free() | PageOut() | Move():
                pass
        memory.append(tuple(now))
        now[order[Category.WORKSPACE]] = 0
        if isinstance(action, Free):
            now[slots[action.tensor]] -= size.pop(action.tensor)
    return memory


def _stays(problem: Problem, schedule: Schedule) -> tuple[list[Stay], list[tuple[int, int, int]]]:
    start = {i: (0, Origin.GIVEN) for i, t in enumerate(problem.tensors) if t.initial == "ram"}
    stored = {i: 0 for i, t in enumerate(problem.tensors) if t.initial == "store"}
    fetched: dict[int, int] = {}
    executed: set[int] = set()
    stays: list[Stay] = []

    def leave(t: int, end: int) -> None:
        first, origin = start.pop(t)
        stays.append(Stay(t, first, end, origin))

    for at, action in enumerate(schedule.actions):
        match action:
            case Compute(index, in_place):
                origin = Origin.RECOMPUTED if index in executed else Origin.COMPUTED
                executed.add(index)
                for i, _ in in_place:
                    leave(i, at)
                for o in problem.operators[index].outputs:
                    start[o] = (at, origin)
            case Free(t):
                leave(t, at)
            case PageOut(t):
                stored.setdefault(t, at)
            case PageIn(t):
                start[t] = (at, Origin.PAGED)
                fetched[t] = at + 1
    for t in sorted(start):
        leave(t, len(schedule.actions))
    ends = {t: len(schedule.actions) for t in stored if problem.tensors[t].final == "store"}
    spans = [(t, since, ends.get(t, fetched.get(t, since + 1))) for t, since in sorted(stored.items())]
    return sorted(stays, key=lambda s: (s.start, s.tensor)), spans
