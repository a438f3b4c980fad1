"""The transition of a switch: from the tensors and places of one plan to those that another plan has.

A missing tensor is paged in or computed again, whichever costs less with the tensors in RAM. Each tensor goes to its
place in the new plan as soon as that is free. Where tensors stand in each other's way, one steps aside. Where no hole
is large enough, the rest slides together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from poetc.scheduling import Action, Compute, Free, Move, PageIn, PageOut, Problem, Stay, Transition

NEVER = math.inf
BUFFER = -2  # who occupies the page buffer's place
WORKSPACE = -1

Place = tuple[int, int]  # offset, size
Cost = Callable[[Action], int]


def actions_for(
    problem: Problem,
    order: Sequence[int],
    resident: Collection[int],
    stored: Collection[int],
    wanted: Collection[int],
    outs: Collection[int],
    cost: Cost,
) -> list[Action] | None:
    """Page-ins, computations and page-outs that bring `wanted` to RAM and `outs` to the store; None if nothing does.

    `order`: the operators that may run again, each after those that it needs.
    """
    least: dict[int, float] = dict.fromkeys(resident, 0.0)
    way: dict[int, Action] = {}
    for t in stored:
        if t not in least:
            least[t], way[t] = cost(PageIn(t)), PageIn(t)
    for k in order:
        op = problem.operators[k]
        if op.recomputable:
            total = cost(Compute(k)) + sum(least.get(t, NEVER) for t in op.inputs)
            for t in op.outputs:
                if total < least.get(t, NEVER):
                    least[t], way[t] = total, Compute(k)
    needed, stack = set[int](), [t for t in (*wanted, *outs) if t not in resident]
    computed: set[int] = set()
    while stack:
        t = stack.pop()
        if t in needed or t in resident:
            continue
        if t not in way:
            return None
        needed.add(t)
        action = way[t]
        if isinstance(action, Compute):
            computed.add(action.operator)
            stack += problem.operators[action.operator].inputs
    actions: list[Action] = [PageOut(t) for t in sorted(outs) if t in resident]
    here = set(resident)

    def fetch(tensors: Iterable[int]) -> None:
        for t in tensors:
            if t not in here and isinstance(way.get(t), PageIn):
                actions.append(PageIn(t))
                here.add(t)

    for k in order:
        if k in computed:
            op = problem.operators[k]
            fetch(op.inputs)
            actions.append(Compute(k))
            here |= set(op.outputs)
            actions += [PageOut(t) for t in sorted(outs) if t in op.outputs and t in needed]
    fetch(sorted(t for t in (*wanted, *outs) if t in needed))
    done = {a.tensor for a in actions if isinstance(a, PageOut)}
    actions += [PageOut(t) for t in sorted(outs) if t not in done]
    return actions


@dataclass(slots=True)
class Relocation:
    """Addresses for a sequence of actions that begins with the tensors at `memory`, and ends with those at `goal`.

    The arena has `capacity` bytes. Tensors may be moved on the way.
    """

    problem: Problem
    capacity: int
    memory: dict[int, Place]
    goal: Mapping[int, Place]
    fixed: frozenset[int]  # tensors, and BUFFER, that may not be moved
    actions: list[Action] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    since: dict[int, int] = field(default_factory=dict)

    def run(self, actions: Sequence[Action]) -> Transition | None:
        """None where no places were found."""
        self.since = {t: -1 for t in self.memory if t >= 0}
        last_use = self._last_uses(actions)
        for t in sorted(t for t in self.memory if t >= 0 and t not in self.goal and t not in last_use):
            self._free(t)
        self._settle()
        for index, action in enumerate(actions):
            if not self._execute(action):
                return None
            for t in sorted(t for t in self.memory if t >= 0 and t not in self.goal):
                if last_use.get(t, -1) <= index:
                    self._free(t)
            self._settle()
        if not self._go_home():
            return None
        for t, (offset, size) in self.memory.items():
            if t >= 0:
                self.stays.append(Stay(t, offset, size, self.since[t], len(self.actions)))
        return Transition(actions=tuple(self.actions), stays=tuple(self.stays))

    @staticmethod
    def _last_uses_of(problem: Problem, action: Action) -> tuple[int, ...]:
        match action:
            case Compute(k, _):
                return problem.operators[k].inputs
            case PageOut(t):
                return (t,)
            case _:
                return ()

    def _last_uses(self, actions: Sequence[Action]) -> dict[int, int]:
        return {t: i for i, action in enumerate(actions) for t in self._last_uses_of(self.problem, action)}

    # --- actions ------------------------------------------------------------------------------------------------------

    def _execute(self, action: Action) -> bool:
        match action:
            case Compute(k, _):
                return self._compute(k)
            case PageIn(t):
                place = self._room(t, frozenset())
                if place is None:
                    return False
                self._enter(t, place, len(self.actions))
        self.actions.append(action)
        return True

    def _compute(self, k: int) -> bool:
        op = self.problem.operators[k]
        for t in op.outputs:
            if t in self.memory:  # it is made again with the others, to the same bits
                self._free(t)
        entering: list[int] = []
        for t in op.outputs:
            place = self._room(t, frozenset(entering))
            if place is None:
                return False
            self._enter(t, place, len(self.actions))
            entering.append(t)
        if op.workspace_bytes:
            offset = self._hole(op.workspace_bytes)
            if offset is None:
                self._slide(frozenset(entering))
                offset = self._hole(op.workspace_bytes)
            if offset is None:
                return False
            now = len(self.actions)
            self.stays.append(Stay(WORKSPACE, offset, op.workspace_bytes, now, now + 1))
        for t in entering:  # moves that made room came before
            self.since[t] = len(self.actions)
        self.actions.append(Compute(k))
        return True

    def _enter(self, t: int, place: Place, action: int) -> None:
        self.memory[t] = place
        self.since[t] = action

    def _leave(self, t: int, end: int) -> None:
        offset, size = self.memory.pop(t)
        self.stays.append(Stay(t, offset, size, self.since.pop(t), end))

    def _free(self, t: int) -> None:
        self._leave(t, len(self.actions) + 1)
        self.actions.append(Free(t))

    def _move(self, t: int, offset: int) -> None:
        size = self.problem.tensors[t].size_bytes
        self._leave(t, len(self.actions))
        self._enter(t, (offset, size), len(self.actions))
        self.actions.append(Move(t))

    # --- places -------------------------------------------------------------------------------------------------------

    def _size(self, t: int) -> int:
        unit = self.problem.alignment_bytes
        return -(-self.problem.tensors[t].size_bytes // unit) * unit

    def _room(self, t: int, entering: frozenset[int]) -> Place | None:
        """Its place in the new plan, or else a hole. `entering`: outputs of the same action, which stay."""
        size = self.problem.tensors[t].size_bytes
        if t in self.goal and self._is_free(self.goal[t][0], size):
            return self.goal[t][0], size
        offset = self._hole(size)
        if offset is None:
            self._slide(entering)
            offset = self._hole(size)
        return None if offset is None else (offset, size)

    def _is_free(self, offset: int, size: int, but: int | None = None) -> bool:
        return offset + size <= self.capacity and all(
            t == but or low + width <= offset or offset + size <= low for t, (low, width) in self.memory.items()
        )

    def _pending(self) -> list[int]:
        """Tensors that are not in their places yet."""
        return sorted(t for t, (offset, _) in self.memory.items() if t in self.goal and self.goal[t][0] != offset)

    def _hole(self, size: int, *, without: Place | None = None) -> int | None:
        """Where tensors yet to come home are disturbed least; `without` is not touched."""
        unit = self.problem.alignment_bytes
        size = -(-size // unit) * unit
        taken = sorted(place for place in self.memory.values() if place[1])
        if without is not None:
            taken = sorted([*taken, without])
        goals = [self.goal[t] for t in self.goal if self.memory.get(t, (-1, 0))[0] != self.goal[t][0]]
        best: tuple[int, int, int] | None = None
        low = 0
        for offset, width in [*taken, (self.capacity, 0)]:
            if offset - low >= size:
                for at in (low, (offset - size) // unit * unit):
                    disturbed = sum(max(0, min(at + size, goal + extent) - max(at, goal)) for goal, extent in goals)
                    candidate = disturbed, offset - low, at
                    best = candidate if best is None else min(best, candidate)
            low = max(low, -(-(offset + width) // unit) * unit)
        return None if best is None else best[2]

    def _settle(self) -> None:
        """Move each tensor to its place that can go there."""
        moved = True
        while moved:
            moved = False
            for t in self._pending():
                offset, _ = self.goal[t]
                if self._may_move(t) and self._is_free(offset, self.problem.tensors[t].size_bytes, but=t):
                    self._move(t, offset)
                    moved = True

    def _may_move(self, t: int) -> bool:
        return t >= 0 and t not in self.fixed and self.problem.tensors[t].move_ns is not None

    def _slide(self, but: frozenset[int]) -> None:
        """Everything that may be moved goes down as far as possible, so that the holes become one."""
        unit, low = self.problem.alignment_bytes, 0
        for t in sorted(self.memory, key=lambda t: (self.memory[t][0], self.memory[t][1])):
            offset, size = self.memory[t]
            if size and self._may_move(t) and t not in but and low < offset:
                self._move(t, low)
                offset, size = self.memory[t]
            low = max(low, -(-(offset + size) // unit) * unit)

    def _go_home(self) -> bool:
        for _ in range(4 * len(self.goal) + 1):
            self._settle()
            pending = self._pending()
            if not pending:
                return all(t in self.memory for t in self.goal)
            if not self._step_aside(pending):
                return False
        return False

    def _step_aside(self, pending: Sequence[int]) -> bool:
        """Clear the place of one tensor of all others; False where nothing can step aside."""
        for t in pending:
            place = self.goal[t][0], self._size(t)
            blocking = [
                o
                for o, (low, width) in self.memory.items()
                if o != t and low < place[0] + place[1] and place[0] < low + width
            ]
            if not all(self._may_move(o) for o in blocking):
                continue
            cleared = True
            for o in blocking:
                hole = self._hole(self._size(o), without=place)
                if hole is None:
                    cleared = False
                    break
                self._move(o, hole)
            if cleared and blocking:
                return True
        return False
