"""A problem under another order of first executions, and its schedules in terms of the problem itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poetc.scheduling import ANY, Action, Compute, Problem, Schedule

Order = tuple[int, ...]


def reordered(problem: Problem, order: Order) -> Problem:
    """The problem with operator order[k] as its k-th."""
    return replace(problem, operators=tuple(problem.operators[v] for v in order))


def restored(schedule: Schedule, order: Order) -> Schedule:
    """A schedule of the reordered problem as one of the problem itself; its bound is for this order."""
    scope = schedule.proof.scope
    if scope.order is not ANY:
        scope = replace(scope, order=tuple(order[v] for v in scope.order))
    return replace(
        schedule, actions=restored_actions(schedule.actions, order), proof=replace(schedule.proof, scope=scope)
    )


def restored_actions(actions: Sequence[Action], order: Order) -> tuple[Action, ...]:
    """Actions of the reordered problem as those of the problem itself."""
    return tuple(replace(s, operator=order[s.operator]) if isinstance(s, Compute) else s for s in actions)
