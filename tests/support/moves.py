"""Schedules whose tensors wander through the arena, and their plans: made without anything that packs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from poetc.scheduling import (
    Action,
    Allocation,
    Compute,
    Free,
    MemoryPlan,
    Move,
    OperatorSpec,
    PageIn,
    PageOut,
    Problem,
    Schedule,
    TensorSpec,
    keep_all,
    state_chains,
)


@dataclass(slots=True)
class _Stay:
    offset: int
    size: int
    start: int
    tensors: list[tuple[int, int]] = field(default_factory=list)


def wander(random: Random, problem: Problem, schedule: Schedule, share: float = 0.5) -> tuple[Schedule, MemoryPlan]:
    """`schedule` with moves before about `share` of its actions, mostly by less than a tensor's size, up or down. State
    that comes back from the store does so elsewhere, and moves home at the end; other state lies at its home all the
    time, the rest wherever there is room in four times what it needs."""
    unit = problem.alignment_bytes
    home: dict[int, int] = {}
    abroad: set[int] = set()
    state = 0
    for chain in state_chains(problem):
        home |= dict.fromkeys(chain, state)
        state += -(-problem.tensors[chain[0]].size_bytes // unit) * unit
    sizes = [t.size_bytes for t in problem.tensors]
    workspace = max(o.workspace_bytes for o in problem.operators)
    arena = state + 4 * (sum(sizes) + workspace + unit) // unit * unit
    actions: list[Action] = []
    done: list[Allocation] = []
    live: dict[int, _Stay] = {}

    def free(low: int, size: int, but: int | None = None) -> bool:
        others = (s for t, s in live.items() if t != but)
        return state <= low <= arena - size and all(low + size <= s.offset or s.offset + s.size <= low for s in others)

    def somewhere(size: int) -> int:
        while True:
            low = state + random.randrange((arena - state - size) // unit + 1) * unit
            if free(low, size):
                return low

    def enter(t: int) -> None:
        offset = home[t] if t in home and t not in abroad else somewhere(sizes[t])
        live[t] = _Stay(offset, sizes[t], len(actions), [(t, len(actions))])

    def leave(t: int, end: int) -> None:
        stay = live.pop(t)
        done.append(
            Allocation(
                offset_bytes=stay.offset,
                size_bytes=stay.size,
                start=stay.start,
                end=end,
                tensors=tuple(stay.tensors),
            )
        )

    def shift(t: int) -> None:
        stay = live[t]
        nearest = [stay.offset + sign * by for by in range(unit, stay.size + unit, unit) for sign in (1, -1)]
        targets = [low for low in nearest if free(low, stay.size, but=t)] or [somewhere(stay.size)]
        move(t, random.choice(targets))

    def move(t: int, target: int) -> None:
        stay = live[t]
        leave(t, len(actions))
        live[t] = _Stay(target, stay.size, len(actions), [(t, len(actions))])
        actions.append(Move(t))

    for t, tensor in enumerate(problem.tensors):
        if tensor.initial == "ram":
            enter(t)
    for action in schedule.actions:
        settled = home.keys() - abroad
        movable = [t for t in sorted(live) if t not in settled and problem.tensors[t].move_ns is not None]
        if actions and movable and random.random() < share:
            shift(random.choice(movable))
        match action:
            case Compute(index, in_place):
                operator, took = problem.operators[index], {o: i for i, o in in_place}
                for o in operator.outputs:
                    if o in took:
                        live[o] = live.pop(took[o])
                        live[o].tensors.append((o, len(actions)))
                        if took[o] in abroad:
                            abroad.add(o)
                    else:
                        enter(o)
                if operator.workspace_bytes:
                    size = operator.workspace_bytes
                    at = len(actions)
                    done.append(
                        Allocation(offset_bytes=somewhere(size), size_bytes=size, start=at, end=at + 1, operator=index)
                    )
            case PageIn(t):
                if t in home and problem.tensors[t].move_ns is not None:
                    abroad.add(t)
                enter(t)
            case Free(t):
                leave(t, len(actions) + 1)
            case _:
                pass
        actions.append(action)
    for t in sorted(live):
        if t in home and live[t].offset != home[t]:
            move(t, home[t])
    for t in list(live):
        leave(t, len(actions))
    if problem.page_buffer_bytes and any(isinstance(s, PageIn | PageOut) for s in actions):
        done.append(Allocation(offset_bytes=arena, size_bytes=problem.page_buffer_bytes, start=0, end=len(actions)))
    most = max(sum(a.size_bytes for a in done if a.start <= at < a.end) for at in range(len(actions)))
    plan = MemoryPlan(
        allocations=tuple(done),
        arena_bytes=max(a.offset_bytes + a.size_bytes for a in done),
        max_live_bytes=most,
        state_bytes=state,
    )
    tensors = problem.tensors
    cost = sum(
        tensors[s.tensor].move_pj if problem.objective == "energy" else tensors[s.tensor].move_ns or 0
        for s in actions
        if isinstance(s, Move)
    )
    proof = replace(schedule.proof, objective=schedule.proof.objective + cost)
    return replace(schedule, actions=tuple(actions), proof=proof), plan


def chain(*sizes: int, frees: dict[int, tuple[int, ...]]) -> tuple[Problem, Schedule]:
    """Operator k makes tensor k, of so many units; `frees`: what it is the last to read."""
    gone = {t for ts in frees.values() for t in ts}
    tensors = tuple(
        TensorSpec(name=f"t{k}", size_bytes=16 * n, final="" if k in gone else "ram", move_ns=n, move_pj=n)
        for k, n in enumerate(sizes)
    )
    operators = tuple(
        OperatorSpec(
            name=f"op{k}",
            inputs=tuple(t for t in frees.get(k, ()) if t != k),
            outputs=(k,),
            time_ns=10,
            energy_pj=10,
        )
        for k in range(len(sizes))
    )
    problem = Problem(name="chain", tensors=tensors, operators=operators, budget_bytes=1 << 20)
    return problem, keep_all(problem)


def tight() -> tuple[Problem, Schedule]:
    """At most 8 units are live, the best offsets that are known end at 9."""
    sizes = (4, 1, 1, 1, 3, 2, 1, 4, 1, 4, 1, 2, 4, 1, 2, 4, 1, 2, 2, 1)
    frees = {3: (0,), 5: (1,), 6: (5, 2, 3), 7: (7,), 8: (4,), 10: (6,), 11: (8, 9), 13: (12,), 14: (11,)}
    return chain(*sizes, frees=frees | {15: (14,), 16: (10,), 17: (16, 13), 18: (18,)})
