"""Transfers that overlap compute (Paging.DMA): how long a schedule takes, and schedules that make use of it.

A transfer is issued where its action stands and runs by itself, one after another on the bus (or one a direction). The
processor waits only where it has to. An operator waits for the page-ins that it reads, and for the page-out of any
tensor that it changes in place. A Free waits for the page-out of its tensor, and a Move for both. So RAM counts as it
stands in the list of actions, as for synchronous transfers. A buffer counts from the action that issues its page-in, a
copy until its page-out is through.
"""

from __future__ import annotations

from collections.abc import Sequence

from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import Action, Compute, Free, Move, PageIn, PageOut


class Clock:
    """The time of the processor and of the bus while actions are executed."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.now_ns = 0
        self._bus_ns = [0, 0]  # when each channel is free: out, in; the same number if they share the bus
        self.out_ns: dict[int, int] = {}  # when the last page-out of a tensor is through
        self._in_ns: dict[int, int] = {}  # when the last page-in of a tensor is through

    def _transfer(self, channel: int, after_ns: int, duration_ns: int) -> int:
        end = max(self.now_ns, after_ns, self._bus_ns[channel]) + duration_ns
        self._bus_ns = [end, end] if not self._problem.dma_full_duplex else self._bus_ns
        self._bus_ns[channel] = end
        return end

    def execute(self, action: Action) -> None:
        tensors = self._problem.tensors
        match action:
            case Compute(index, in_place):
                operator = self._problem.operators[index]
                waits = [self._in_ns.get(t, 0) for t in operator.inputs]
                waits += [self.out_ns.get(t, 0) for t, _ in in_place]
                waits += self._bus_ns if operator.is_streamed else []
                self.now_ns = max(self.now_ns, *waits, 0) + operator.time_ns
                self._bus_ns = [self.now_ns] * 2 if operator.is_streamed else self._bus_ns
            case Free(t):
                self.now_ns = max(self.now_ns, self._in_ns.get(t, 0), self.out_ns.get(t, 0))
            case PageOut(t):
                self.out_ns[t] = self._transfer(0, self._in_ns.get(t, 0), tensors[t].page_out_ns)
            case PageIn(t):
                self._in_ns[t] = self._transfer(1, self.out_ns.get(t, 0), tensors[t].page_in_ns)
            case Move(t):
                self.now_ns = max(self.now_ns, self._in_ns.get(t, 0), self.out_ns.get(t, 0)) + (tensors[t].move_ns or 0)

    @property
    def end_ns(self) -> int:
        return max(self.now_ns, *self._bus_ns)


def overlapped_ns(problem: Problem, actions: Sequence[Action]) -> int:
    """Time of the actions as they stand."""
    clock = Clock(problem)
    for action in actions:
        clock.execute(action)
    return clock.end_ns


def hide_transfers(problem: Problem, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The same schedule with page-ins issued ahead, and with frees put off while a tensor is on its way out.

    Both go as far as RAM and the hiding of the transfers ask for. Where that is not faster, the actions stay as before.
    """
    ram = ram_of_actions_bytes(problem, actions)
    room = problem.budget_bytes - problem.base_bytes - problem.page_buffer_bytes
    if max(ram, default=0) > room:
        return actions
    ahead = _issue_ahead(problem, actions, ram, room)
    candidates = [actions, _put_off(problem, actions, room), _put_off(problem, ahead, room)]
    return min(candidates, key=lambda s: overlapped_ns(problem, s))


def settled(problem: Problem, actions: Sequence[Action]) -> list[Compute | PageIn | PageOut]:
    """The actions of a schedule with every page-in back where something reads it first (or at the end)."""
    decisions: list[Compute | PageIn | PageOut] = []
    waiting: dict[int, PageIn] = {}
    for action in actions:
        match action:
            case PageIn(t):
                waiting[t] = action
            case Compute(index):
                decisions += [waiting.pop(t) for t in problem.operators[index].inputs if t in waiting]
                decisions.append(action)
            case PageOut(t):
                decisions += [waiting.pop(t)] if t in waiting else []
                decisions.append(action)
            case Free(t):
                waiting.pop(t, None)
    return [*decisions, *waiting.values()]


def ram_of_actions_bytes(problem: Problem, actions: Sequence[Action]) -> list[int]:
    """RAM during each action, without the fixed parts (base, page buffer)."""
    resident = {i: t.size_bytes for i, t in enumerate(problem.tensors) if t.initial == "ram"}
    live = sum(resident.values())
    during = []
    for action in actions:
        match action:
            case Compute(index, in_place):
                operator = problem.operators[index]
                took = {o: i for i, o in in_place}
                written_bytes = sum(problem.tensors[o].size_bytes for o in operator.outputs if o not in took)
                live += written_bytes
                during.append(live + operator.workspace_bytes)
                for o in operator.outputs:
                    resident[o] = resident.pop(took[o]) if o in took else problem.tensors[o].size_bytes
            case Free(t):
                during.append(live)
                live -= resident.pop(t)
            case PageIn(t):
                resident[t] = problem.tensors[t].size_bytes
                live += resident[t]
                during.append(live)
            case PageOut() | Move():
                during.append(live)
    return during


def _issue_ahead(problem: Problem, actions: Sequence[Action], ram: list[int], room: int) -> tuple[Action, ...]:
    """Each page-in as late as hides it, and those behind it, behind compute; sooner than that helps nothing."""
    begins, compute_ns = [], 0
    for action in actions:
        begins.append(compute_ns)
        compute_ns += problem.operators[action.operator].time_ns if isinstance(action, Compute) else 0
    wanted: dict[int, int] = {}  # by position of the page-in, when its transfer should start at the latest
    following = compute_ns
    for at in range(len(actions) - 1, -1, -1):
        action = actions[at]
        if isinstance(action, PageIn):
            following = min(begins[at], following) - problem.tensors[action.tensor].page_in_ns
            wanted[at] = following
    ram = list(ram)
    moved: dict[int, list[Action]] = {}  # actions issued right before the action at a position
    barrier = 0
    for at, action in enumerate(actions):
        if isinstance(action, PageOut):
            barrier = at + 1
        if not isinstance(action, PageIn):
            continue
        size, to = problem.tensors[action.tensor].size_bytes, at
        while to > barrier and begins[to] > wanted[at] and ram[to - 1] + size <= room:
            if _concerns(problem, actions[to - 1], action.tensor):
                break
            to -= 1
            ram[to] += size
        moved.setdefault(to, []).append(action)
        barrier = to
    result: list[Action] = []
    for at, action in enumerate(actions):
        result += moved.get(at, [])
        if not isinstance(action, PageIn):
            result.append(action)
    return tuple(result)


def _concerns(problem: Problem, action: Action, t: int) -> bool:
    """Whether a page-in of `t` must stay behind this action: before it `t` is in RAM, or not yet on the store."""
    if isinstance(action, Compute):
        operator = problem.operators[action.operator]
        return t in operator.inputs or t in operator.outputs
    return action.tensor == t


def _put_off(problem: Problem, actions: Sequence[Action], room: int) -> tuple[Action, ...]:
    """Frees of a tensor that is still on its way out wait until it is through, or until RAM is needed."""
    clock, result = Clock(problem), list[Action]()
    waiting: dict[int, int] = {}  # tensor -> bytes
    ram = ram_of_actions_bytes(problem, actions)
    sizes = _freed_bytes(problem, actions)

    def emit(action: Action) -> None:
        clock.execute(action)
        result.append(action)

    def release(t: int) -> None:
        del waiting[t]
        emit(Free(t))

    for at, action in enumerate(actions):
        for t in [t for t in waiting if clock.out_ns[t] <= clock.now_ns]:
            release(t)
        comes = (
            problem.operators[action.operator].outputs
            if isinstance(action, Compute)
            else (action.tensor,)
            if isinstance(action, PageIn)
            else ()
        )
        for t in comes:
            if t in waiting:
                release(t)
        while waiting and ram[at] + sum(waiting.values()) > room:
            release(min(waiting, key=lambda t: (clock.out_ns[t], t)))
        if isinstance(action, Free) and clock.out_ns.get(action.tensor, 0) > clock.now_ns:
            waiting[action.tensor] = sizes[at]
        else:
            emit(action)
    for t in sorted(waiting, key=lambda t: (clock.out_ns[t], t)):
        release(t)
    return tuple(result)


def _freed_bytes(problem: Problem, actions: Sequence[Action]) -> dict[int, int]:
    """By position of a Free, the bytes that it frees: a tensor made in place occupies those of its input."""
    resident = {i: t.size_bytes for i, t in enumerate(problem.tensors) if t.initial == "ram"}
    freed = {}
    for at, action in enumerate(actions):
        if isinstance(action, Compute):
            took = {o: i for i, o in action.in_place}
            for o in problem.operators[action.operator].outputs:
                resident[o] = resident.pop(took[o]) if o in took else problem.tensors[o].size_bytes
        elif isinstance(action, PageIn):
            resident[action.tensor] = problem.tensors[action.tensor].size_bytes
        elif isinstance(action, Free):
            freed[at] = resident.pop(action.tensor)
    return freed
