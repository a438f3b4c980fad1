"""The checker of memory plans: it replays the schedule on its own, and names every failure.

It knows nothing of how a plan was made.
"""

from __future__ import annotations

from poetc.errors import CheckFailed
from poetc.scheduling._banks import arrival_banks
from poetc.scheduling._queues import workspace_ends
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import Allocation, Compute, Free, MemoryPlan, Move, PageIn, PageOut, Schedule


class PlanError(CheckFailed):
    """A plan that does not serve its schedule; `failures` holds all the reasons."""

    def __init__(self, failures: list[str]) -> None:
        self.failures = tuple(failures)
        super().__init__(f"memory plan refused: {'; '.join(failures[:5])}{'; ...' if len(failures) > 5 else ''}")


def verify_plan(problem: Problem, schedule: Schedule, plan: MemoryPlan) -> None:
    """PlanError unless everything in RAM has its place at every action, apart from everything else.

    `schedule` must be one that `verify` accepts.
    """
    failures: list[str] = []
    _check_numbers(problem, plan)
    actions, sizes = schedule.actions, [t.size_bytes for t in problem.tensors]
    of_tensor = {entry: a for a in plan.allocations for entry in a.tensors}
    of_workspace = {(a.operator, a.start): a for a in plan.allocations if a.operator is not None}
    served: set[Allocation] = set()
    arrivals = arrival_banks(problem, schedule) if problem.banks else {}
    if len(plan.banks) != len(problem.banks):
        raise PlanError([f"the plan has {len(plan.banks)} banks, the problem has {len(problem.banks)}"])

    def bank(a: Allocation) -> int:
        """Its bank, 0 where there are none."""
        if not problem.banks or (not a.tensors and a.operator is None):
            return 0
        if a.operator is not None:
            return schedule.workspace_banks[a.operator]
        return arrivals.get(a.tensors[0], -1)

    ends = workspace_ends(problem, actions) if problem.processors else {}

    def name(a: Allocation) -> str:
        tensors = " -> ".join(problem.tensors[t].name for t, _ in a.tensors)
        workspace = "page buffer" if a.operator is None else f"workspace of {problem.operators[a.operator].name}"
        return f"{tensors or workspace} [{a.start}, {a.end})"

    def expect(what: str, a: Allocation | None, start: int, end: int, size_bytes: int) -> None:
        if a is None:
            failures.append(f"{what} has no place from action {start}")
        elif a.start > start or a.end < end or a.size_bytes < size_bytes:
            failures.append(f"{what} [{start}, {end}) of {size_bytes} bytes is not covered by {name(a)}")
        else:
            served.add(a)

    since = {t: 0 for t, tensor in enumerate(problem.tensors) if tensor.initial == "ram"}
    fixed = {t: of_tensor[t, 0].offset_bytes for t in since if (t, 0) in of_tensor}  # where state must stay
    for p in (p for o in problem.operators for p in o.in_place if p.required):
        fixed |= {p.output: fixed[p.input]} if p.input in fixed else {}

    def leave(t: int, end: int) -> None:
        a = of_tensor.get((t, since[t]))
        expect(problem.tensors[t].name, a, since.pop(t), end, sizes[t])
        at_end = end == len(actions) and problem.tensors[t].final == "ram"
        if a is not None and t in fixed and at_end and a.offset_bytes != fixed[t]:
            failures.append(f"state {problem.tensors[t].name} ends at {a.offset_bytes}, it began at {fixed[t]}")
        if (
            a is not None
            and t in fixed
            and problem.tensors[t].final == "ram"
            and fixed[t] + sizes[t] > (state_bytes := (plan.banks[bank(a)] if plan.banks else plan).state_bytes)
        ):
            failures.append(f"state {problem.tensors[t].name} lies beyond state_bytes ({state_bytes})")

    for index, action in enumerate(actions):
        match action:
            case Free(t):
                leave(t, index + 1)
            case PageIn(t):
                since[t] = index
            case Move(t, to):  # from the old place to the new one, which may overlap it in the same bank
                leave(t, index + (to is not None))
                since[t] = index
            case Compute(k, in_place):
                for i, o in in_place:
                    if of_tensor.get((i, since[i])) is not of_tensor.get((o, index)):
                        failures.append(f"{problem.tensors[o].name} is not in place of {problem.tensors[i].name}")
                    leave(i, index + 1)
                since |= dict.fromkeys(problem.operators[k].outputs, index)
                if problem.operators[k].workspace_bytes:
                    what, a = f"workspace of {problem.operators[k].name}", of_workspace.get((k, index))
                    expect(what, a, index, ends.get(index, index + 1), problem.operators[k].workspace_bytes)
    for t in sorted(since):
        leave(t, len(actions))
    if problem.page_buffer_bytes and any(isinstance(s, PageIn | PageOut) for s in actions):
        buffer = next((a for a in plan.allocations if not a.tensors and a.operator is None), None)
        expect("page buffer", buffer, 0, len(actions), problem.page_buffer_bytes)

    if len(of_tensor) < sum(len(a.tensors) for a in plan.allocations):
        failures.append("a tensor has two places from one action on")
    for a in plan.allocations:
        if a not in served:
            failures.append(f"{name(a)} serves nothing")
        if a.offset_bytes < 0 or a.offset_bytes % problem.alignment_bytes:
            failures.append(f"{name(a)} at {a.offset_bytes} is not aligned to {problem.alignment_bytes}")
    active: list[Allocation] = []
    most = 0
    for a in sorted((a for a in plan.allocations if a.size_bytes), key=lambda a: a.start):
        active = [b for b in active if b.end > a.start]
        for b in active:
            if (
                bank(a) == bank(b)
                and a.offset_bytes < b.offset_bytes + b.size_bytes
                and b.offset_bytes < a.offset_bytes + a.size_bytes
            ):
                failures.append(f"{name(a)} and {name(b)} overlap")
        active.append(a)
        most = max(most, sum(b.size_bytes for b in active))
    if most != plan.max_live_bytes:
        failures.append(f"at most {most} bytes are live at once, max_live_bytes is {plan.max_live_bytes}")
    tops = [0] * max(1, len(problem.banks))
    for a in plan.allocations:
        tops[bank(a)] = max(tops[bank(a)], a.offset_bytes + a.size_bytes)
    for index, (spec, use) in enumerate(zip(problem.banks, plan.banks, strict=True)):
        if tops[index] != use.arena_bytes:
            failures.append(f"bank {spec.name}: ends at {tops[index]}, arena_bytes is {use.arena_bytes}")
        needed = use.arena_bytes + (problem.base_bytes if index == 0 else 0)
        if needed > spec.budget_bytes:
            failures.append(f"bank {spec.name}: needs {needed} bytes, more than its budget")
    top = sum(tops)
    if top != plan.arena_bytes:
        failures.append(f"the highest allocation ends at {top}, arena_bytes is {plan.arena_bytes}")
    if failures:
        raise PlanError(failures)


def _check_numbers(problem: Problem, plan: MemoryPlan) -> None:
    """PlanError where an allocation names a tensor or an operator that the problem does not have."""
    for k, a in enumerate(plan.allocations):
        if not all(0 <= t < len(problem.tensors) for t, _ in a.tensors):
            raise PlanError([f"allocation {k} is of a tensor that the problem does not have"])
        if a.operator is not None and not 0 <= a.operator < len(problem.operators):
            raise PlanError([f"allocation {k} is of an operator that the problem does not have"])
