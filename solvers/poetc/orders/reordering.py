"""A problem under another order of first executions, and its schedules in terms of the problem itself."""

from __future__ import annotations

from dataclasses import replace

from poetc.scheduling import Compute, Problem, Schedule
from poetc.solvers.interface import OWN_ORDER, PROBLEMS_ORDER

Order = tuple[int, ...]


def reordered(problem: Problem, order: Order) -> Problem:
    """The problem with operator order[k] as its k-th."""
    return replace(problem, operators=tuple(problem.operators[v] for v in order))


def restored(schedule: Schedule, order: Order) -> Schedule:
    """A schedule of the reordered problem as one of the problem itself; its bound is for this order."""
    steps = tuple(replace(s, operator=order[s.operator]) if isinstance(s, Compute) else s for s in schedule.steps)
    of_class = schedule.proof.schedule_class.replace(PROBLEMS_ORDER, OWN_ORDER)
    return replace(schedule, steps=steps, proof=replace(schedule.proof, schedule_class=of_class))
