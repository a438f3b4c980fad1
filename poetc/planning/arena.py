"""A schedule and its memory plan together: the packed arena has to fit the budget, not only live bytes."""

from __future__ import annotations

from dataclasses import replace

from poetc.planning.settings import ARENA
from poetc.scheduling import Completer, Schedule, pack, pack_with_moves, settled, trace_of
from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import MemoryPlan


def ram_bytes(problem: Problem, plan: MemoryPlan) -> int:
    """All RAM that a plan needs: the arena, and the RAM that the problem counts outside it."""
    return problem.base_bytes + plan.arena_bytes


def packed(
    problem: Problem, schedule: Schedule, stop_at: float, moves_until: float, effort: float = 1.0
) -> tuple[Schedule, MemoryPlan]:
    """The schedule, changed where it does not fit the budget, and a plan, which need not fit.

    It gets moves, or less is issued ahead. `effort`: as of `pack`.
    """
    plan = _placed(problem, schedule, stop_at, effort)
    if ram_bytes(problem, plan) <= problem.budget_bytes:
        return schedule, plan
    relocated = pack_with_moves_in_time(problem, schedule, problem.budget_bytes - problem.base_bytes, moves_until)
    return relocated or _less_ahead(problem, schedule, plan, stop_at)


def _placed(problem: Problem, schedule: Schedule, stop_at: float, effort: float = 1.0) -> MemoryPlan:
    """A plan that need not be lower than the budget."""
    enough_bytes = problem.budget_bytes - problem.base_bytes
    return pack(problem, schedule, enough_bytes=enough_bytes, stop_at=stop_at, effort=effort)


def pack_with_moves_in_time(
    problem: Problem, schedule: Schedule, capacity_bytes: int, stop_at: float
) -> tuple[Schedule, MemoryPlan] | None:
    """With moves within RAM; None if that does not fit either, or the deadline leaves no time for them."""
    packed = pack_with_moves(problem, schedule, capacity_bytes, stop_at=stop_at)
    if packed is None or problem.deadline_ns is None:
        return packed
    roomy = replace(problem, deadline_ns=None, budget_bytes=problem.base_bytes + capacity_bytes)
    return packed if trace_of(roomy, packed[0]).time_ns <= problem.deadline_ns else None


def _less_ahead(problem: Problem, schedule: Schedule, plan: MemoryPlan, stop_at: float) -> tuple[Schedule, MemoryPlan]:
    """Where transfers overlap compute, the same actions with less issued ahead, if that packs into the budget."""
    fits = ram_bytes(problem, plan) <= problem.budget_bytes
    if fits or problem.paging is not Paging.DMA:
        return schedule, plan
    decisions, budget, packed = settled(problem, schedule.actions), problem.budget_bytes, plan
    for _ in range(ARENA.attempts):
        budget -= ram_bytes(problem, packed) - problem.budget_bytes
        completion = Completer(replace(problem, budget_bytes=max(0, budget))).run(decisions)
        late = problem.deadline_ns is not None and completion.time_ns > problem.deadline_ns
        if late or completion.peak_bytes > problem.budget_bytes:
            break
        fewer = replace(schedule, actions=completion.actions)
        packed = _placed(problem, fewer, stop_at)
        if ram_bytes(problem, packed) <= problem.budget_bytes:
            return fewer, packed
    return schedule, plan
