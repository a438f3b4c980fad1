"""Switches in mid-step: a run leaves its plan A at a safe point, and goes on in plan B of the same bundle.

A switch is a schedule: a prefix of A, a transition, a suffix of B. The transition drops, moves, pages and recomputes
until RAM holds the tensors that B has there. B may be joined behind A, where its repeated operators cost less than the
transition saves. An update never runs twice. Melon joins at the same operator (MobiSys 2022, `computeAdaptively`):
that is one of the joins compared here. The independent checker replays each switch.

A plan of other micro-batches is joined where the same rows are done. The rest of the step needs the sums
over them, and no other tensor. Sage accumulates so in parts (MobiSys 2022).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from poetc.planning.bundle import Bundle, same_tensors
from poetc.planning.settings import BUNDLE
from poetc.planning.solution import Solution
from poetc.planning.transition import BUFFER, NEVER, Relocation, actions_for
from poetc.scheduling import (
    Action,
    Compute,
    Free,
    Move,
    PageIn,
    PageOut,
    Paging,
    Problem,
    ScheduleError,
    Switch,
    Transition,
    buffer_offset,
    joined,
    state_chains,
    verify_parts,
)
from poetc.scheduling.schedule import first_executions
from poetc.training import is_partial_sum

ROUNDING = 1e-9  # of sums of fractions


@dataclass(frozen=True, slots=True)
class _Point:
    """A plan before one of its actions."""

    action: int
    resident: Mapping[int, tuple[int, int]]  # tensor -> offset, size of its place
    stored: frozenset[int]
    begun: int  # operators executed so far, each counted once: the first of the order that the plans share
    updates: int  # executions of operators that run once only


class _Line:
    """A plan as the sequence of its points, and the cost of the actions after each."""

    def __init__(self, solution: Solution) -> None:
        self.solution, self.problem = solution, solution.problem
        self.actions = solution.schedule.actions
        self.points = tuple(self._points())
        costs = [action_cost(self.problem, s) for s in self.actions]
        self.rest = [0] * (len(costs) + 1)
        for i in range(len(costs) - 1, -1, -1):
            self.rest[i] = self.rest[i + 1] + costs[i]
        self.needs_stored = self._needs_stored()
        self.order = first_executions(self.actions)
        self.producer = {t: k for k, op in enumerate(self.problem.operators) for t in op.outputs}
        at_start = self.points[0].resident
        self.homes = {t: at_start[chain[0]][0] for chain in state_chains(self.problem) for t in chain}
        self.needed = self._needed()
        self._returns: dict[frozenset[int], list[int]] = {}

    def _points(self) -> Iterator[_Point]:
        problem, places = self.problem, {e: a for a in self.solution.plan.allocations for e in a.tensors}
        resident: dict[int, tuple[int, int]] = {}

        def enter(t: int, action: int) -> None:
            a = places[t, action]
            resident[t] = a.offset_bytes, a.size_bytes

        for t, tensor in enumerate(problem.tensors):
            if tensor.initial == "ram":
                enter(t, 0)
        stored = {t for t, tensor in enumerate(problem.tensors) if tensor.initial == "store"}
        done: set[int] = set()
        updates = 0
        for index in range(len(self.actions) + 1):
            yield _Point(index, dict(resident), frozenset(stored), len(done), updates)
            if index == len(self.actions):
                break
            match self.actions[index]:
                case Free(t):
                    resident.pop(t)
                case PageOut(t):
                    stored.add(t)
                case PageIn(t):
                    enter(t, index)
                case Move(t):
                    enter(t, index)
                case Compute(k, in_place):
                    op = problem.operators[k]
                    updates += not op.recomputable
                    done.add(k)
                    for i, _ in in_place:
                        resident.pop(i)
                    for t in op.outputs:
                        enter(t, index)

    def _needs_stored(self) -> list[frozenset[int]]:
        """At each point, the tensors that the store must hold for the rest of the plan."""
        tensors = self.problem.tensors
        needed = {t for t, tensor in enumerate(tensors) if tensor.final == "store"}
        stored = [frozenset(needed)]
        for action in reversed(self.actions):
            match action:
                case PageOut(t):
                    needed.discard(t)
                case PageIn(t):
                    needed.add(t)
            stored.append(frozenset(needed))
        return stored[::-1]

    @cached_property
    def starts_of_parts(self) -> list[_Point]:
        """The points with sums over parts of the batch, or nothing yet, and nothing else that an operator has made."""
        initial = {t for t, tensor in enumerate(self.problem.tensors) if tensor.initial}
        sums = {t for t, tensor in enumerate(self.problem.tensors) if is_partial_sum(tensor.name)}
        starts = []
        for point in self.points[:-1]:
            computed = point.resident.keys() - initial
            if (computed or not point.action) and computed <= sums and not self.has_updated(point):
                starts.append(point)
        return starts

    @cached_property
    def _later(self) -> frozenset[int]:
        """All versions of state but the first."""
        return frozenset(t for chain in state_chains(self.problem) for t in chain[1:])

    def has_updated(self, point: _Point) -> bool:
        """Whether a tensor of state is a later version than that at the beginning of the step."""
        return not self._later.isdisjoint(point.resident) or not self._later.isdisjoint(point.stored)

    def rest_once(self, action: int) -> int:
        """The cost of computing each operator once that has not run before an action."""
        return sum(action_cost(self.problem, Compute(k)) for k in self.order[self.points[action].begun :])

    def first_behind(self, begun: int) -> int:
        """The first point at which `begun` operators have been executed."""
        return bisect.bisect_left([p.begun for p in self.points], begun)

    def returns(self, stored: frozenset[int]) -> list[int]:
        """By position in the order: the least cost of bringing back tensors for which RAM has no room meanwhile.

        `stored`: the tensors that need not be paged out any more. A relaxation: fractions of tensors leave.
        """
        if stored not in self._returns:
            self._returns[stored] = self._least_returns(stored)
        return self._returns[stored]

    def _least_returns(self, stored: frozenset[int]) -> list[int]:
        problem, order = self.problem, self.order
        capacity = problem.budget_bytes - problem.base_bytes
        density = {t: self._density(t, stored) for t in set().union(*self.needed)}
        costs: list[int] = []
        for position, k in enumerate(order):
            op = problem.operators[k]
            used = {*op.inputs, *op.outputs}
            replaced = {p.output for p in op.in_place}  # may take over the bytes of an input
            own = sum(problem.tensors[t].size_bytes for t in used - replaced) + op.workspace_bytes
            others = (self.needed[position] & self.needed[position + 1]) - used
            excess = own + sum(problem.tensors[t].size_bytes for t in others) - capacity
            cost = 0.0
            for t in sorted(others, key=lambda t: density[t]):
                if excess <= 0 or density[t] == NEVER:
                    break
                leaving = min(excess, problem.tensors[t].size_bytes)
                cost += leaving * density[t]
                excess -= leaving
            costs.append(_floor(cost))
        return costs

    def _needed(self) -> list[frozenset[int]]:
        """Before each position of the order: tensors that are made before it and needed from there on."""
        problem, order = self.problem, self.order
        needed = {t for t, tensor in enumerate(problem.tensors) if tensor.final == "ram"}
        live = [frozenset(needed)]
        for k in reversed(order):
            op = problem.operators[k]
            needed = (needed - set(op.outputs)) | set(op.inputs)
            live.append(frozenset(needed))
        return live[::-1]

    def _density(self, t: int, stored: frozenset[int]) -> float:
        """The least cost of a byte that leaves RAM and comes back."""
        problem, tensor = self.problem, self.problem.tensors[t]
        cost = self.return_cost(t, stored)
        if problem.paging is not Paging.NONE and tensor.pageable and t not in stored:
            cost = min(cost, action_cost(problem, PageOut(t)) + action_cost(problem, PageIn(t)))
        return cost / max(1, tensor.size_bytes)

    def return_cost(self, t: int, stored: frozenset[int]) -> float:
        """The least cost of a tensor that is not in RAM; an operator with several outputs makes them all at once."""
        problem = self.problem
        ways = [float(action_cost(problem, PageIn(t)))] if t in stored else []
        producer = self.producer.get(t)
        if producer is not None and problem.operators[producer].recomputable:
            together = sum(problem.tensors[o].size_bytes for o in problem.operators[producer].outputs)
            share = problem.tensors[t].size_bytes / max(1, together)
            ways.append(action_cost(problem, Compute(producer)) * share)
        return min(ways, default=NEVER)


def action_cost(problem: Problem, action: Action) -> int:
    """In the unit of the objective: pJ, or ns."""
    return problem.objective.cost(*_energy_and_time(problem, action))


def action_time_ns(problem: Problem, action: Action) -> int:
    """Without overlap of transfers and computation."""
    return _energy_and_time(problem, action)[1]


def _energy_and_time(problem: Problem, action: Action) -> tuple[int, int]:
    match action:
        case Compute(k, _):
            op = problem.operators[k]
            return op.energy_pj, op.time_ns
        case PageIn(t):
            return problem.tensors[t].page_in_pj, problem.tensors[t].page_in_ns
        case PageOut(t):
            return problem.tensors[t].page_out_pj, problem.tensors[t].page_out_ns
        case Move(t):
            return problem.tensors[t].move_pj, problem.tensors[t].move_ns or 0
        case Free():
            return 0, 0


@dataclass(slots=True)
class Switching:
    """All switches of a bundle. `behind`: the joins behind the same operator that are looked at, at most."""

    bundle: Bundle
    behind: int = BUNDLE.behind
    lines: list[_Line] = field(init=False)
    parts: list[int] = field(init=False)  # of each line the first line that runs the batch in the same parts

    def __post_init__(self) -> None:
        self.lines = [_Line(s) for s in self.bundle.solutions]
        tensors = [line.problem.tensors for line in self.lines]
        self.parts = [tensors.index(own) for own in tensors]

    def other_parts(self, source: int, target: int) -> bool:
        """Whether two plans run the batch in other micro-batches."""
        return self.parts[source] != self.parts[target]

    def points(self, source: int) -> list[int]:
        """The actions before which a run of a plan may be stopped: after the frees that follow an action."""
        actions = self.lines[source].actions
        return [i for i in range(1, len(actions)) if not isinstance(actions[i], Free)]

    def switches(self, source: int, target: int) -> Iterator[Switch]:
        """Of every point of `source` that has one, in order."""
        for at in self.points(source):
            switch = self.switch(source, target, at)
            if switch is not None:
                yield switch

    def switch(self, source: int, target: int, at: int) -> Switch | None:
        """The cheapest switch found; None where there is none, or where going over to a larger plan does not pay."""
        a, b = self.lines[source], self.lines[target]
        here = a.points[at]
        if self.other_parts(source, target):
            return self._other_parts(source, target, at)
        best: Switch | None = None
        joins = sorted(self._joins(here, b), key=lambda join: (join[0], -join[1]))
        for least, join in joins[: BUNDLE.most_transitions]:
            if best is not None and least >= best.rest:
                break
            transition = self._transition(a, b, here, b.points[join])
            if transition is None:
                continue
            actions = transition.actions
            rest = sum(action_cost(b.problem, s) for s in actions) + b.rest[join]
            if best is not None and rest >= best.rest:
                continue
            try:
                verify_parts(self._parts(a, b, at, actions, join))
            except ScheduleError:
                continue
            best = Switch(
                source=source,
                target=target,
                at=at,
                join=join,
                transition=transition,
                stored=here.stored,
                rest=rest,
                bound=min(rest, self.bound(source, target, at)),
                time_ns=sum(action_time_ns(b.problem, s) for s in actions),
            )
        if best is not None and target < source and best.rest >= a.rest[at]:
            return None  # the rest of the step costs less in the smaller plan, and nobody waits for memory
        return best

    def _parts(
        self, a: _Line, b: _Line, at: int, actions: tuple[Action, ...], join: int
    ) -> tuple[tuple[Problem, Sequence[Action]], ...]:
        larger = max((a.problem, b.problem), key=lambda p: p.budget_bytes)
        meanwhile = replace(larger, operators=b.problem.operators)
        return (a.problem, a.actions[:at]), (meanwhile, actions), (b.problem, b.actions[join:])

    def _joins(self, here: _Point, b: _Line) -> Iterator[tuple[float, int]]:
        """Points of `b` at or behind the operators that `here` has executed: the least that going on there can cost."""
        begun = [p.begun for p in b.points]
        last = bisect.bisect_right(begun, here.begun) - 1
        for join in range(last, max(-1, last - self.behind), -1):
            point = b.points[join]
            if point.updates != here.updates or join == len(b.actions):
                continue
            if join and isinstance(b.actions[join], Free):
                continue  # after the frees the same point asks for less
            missing = [t for t in point.resident if t not in here.resident]
            outs = sum(action_cost(b.problem, PageOut(t)) for t in _unstored(here, b, join))
            least = b.rest[join] + outs + sum(b.return_cost(t, here.stored) for t in missing)
            if least < NEVER:
                yield least, join

    def _transition(self, a: _Line, b: _Line, here: _Point, there: _Point) -> Transition | None:
        actions = actions_for(
            b.problem,
            b.order[: here.begun],
            here.resident.keys(),
            here.stored,
            there.resident.keys(),
            _unstored(here, b, there.action),
            lambda action: action_cost(b.problem, action),
        )
        if actions is None:
            return None
        memory = dict(here.resident)
        buffer = buffer_offset(self.bundle.smallest.plan)
        if buffer is not None:
            memory[BUFFER] = buffer, b.problem.page_buffer_bytes
        capacity = max(a.solution.plan.arena_bytes, b.solution.plan.arena_bytes)
        in_place = {t for t, (offset, _) in here.resident.items() if b.homes.get(t) == offset}
        return Relocation(b.problem, capacity, memory, there.resident, frozenset(in_place)).run(actions)

    def _other_parts(self, source: int, target: int, at: int) -> Switch | None:
        """The cheapest switch to a plan of other micro-batches. Parts that are done are not run again."""
        a, b = self.lines[source], self.lines[target]
        here = _renumbered(a, b, a.points[at])
        if a.has_updated(a.points[at]):
            return None
        initial = {t for t, tensor in enumerate(b.problem.tensors) if tensor.initial}
        least = b.rest_once(0)
        for there in sorted(b.starts_of_parts, key=lambda point: b.rest[point.action]):
            if there.resident.keys() - initial <= here.resident.keys() | here.stored:
                least = min(least, b.rest_once(there.action))  # a bound for this start too, if no transition is found
            transition = self._transition(a, b, here, there)
            if transition is None:
                continue
            actions, join = transition.actions, there.action
            try:
                verify_parts(
                    joined(a.problem, a.actions[:at], a.points[at].resident, b.problem, actions, b.actions[join:])
                )
            except ScheduleError:
                continue
            rest = sum(action_cost(b.problem, s) for s in actions) + b.rest[join]
            if target < source and rest >= a.rest[at]:
                return None
            return Switch(
                source=source,
                target=target,
                at=at,
                join=join,
                transition=transition,
                stored=here.stored,
                rest=rest,
                bound=min(rest, least),
                time_ns=sum(action_time_ns(b.problem, s) for s in actions),
            )
        return None

    def bound(self, source: int, target: int, at: int) -> int:
        """Nothing that goes on from a point of `source` within the budget of `target` costs less.

        Every operator that has not run yet runs once more. At the first run of each of these, RAM holds
        the tensors from before it that are needed after it, or they come back later. The bound takes the cheapest
        set of tensors that leaves room for the operator.
        """
        here, b = self.lines[source].points[at], self.lines[target]
        if self.other_parts(source, target):
            return 0
        once = sum(action_cost(b.problem, Compute(k)) for k in b.order[here.begun :])
        missing = (t for t in b.needed[here.begun] if t not in here.resident)
        now = _floor(sum(b.return_cost(t, here.stored) for t in missing))
        return once + max(now, *b.returns(here.stored)[here.begun :], 0)


def _floor(cost: float) -> int:
    """0 for an impossible return: it is left to the search to find that out."""
    return 0 if cost == NEVER else math.floor(cost * (1 - ROUNDING))


def _renumbered(a: _Line, b: _Line, point: _Point) -> _Point:
    """A point of `a` in the numbers of `b`: the tensors that both have, and none of the operators."""
    numbers = same_tensors(a.problem, b.problem, {*point.resident, *point.stored})
    resident = {numbers[t]: place for t, place in point.resident.items() if t in numbers}
    stored = frozenset(numbers[t] for t in point.stored if t in numbers)
    return replace(point, resident=resident, stored=stored, begun=0)


def _unstored(here: _Point, b: _Line, join: int) -> frozenset[int]:
    return b.needs_stored[join] - here.stored
