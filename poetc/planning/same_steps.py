"""The choices that schedules in several ways share: encodings and streamed operands; and the scopes of their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poetc import solvers
from poetc.planning.planner import Planner
from poetc.planning.saved import Saved
from poetc.planning.settings import WAYS
from poetc.planning.solution import Solution
from poetc.planning.streaming import Streaming, without_streams
from poetc.scheduling import Problem
from poetc.scheduling.scope import Scope

OPERATORS = (Saved, Streaming)  # choices that change the operators of a step, the outer one first


def widest(bounds: Mapping[Scope, int], best: Solution, planner: Planner) -> Scope:
    """The scope with the highest bound, or one that covers it, if the narrower claim closes little of the gap."""
    scope = max(bounds, key=lambda scope: bounds[scope])
    enough = (1 - planner.options.gap) * best.cost
    for other in sorted(bounds, key=lambda other: -bounds[other]):
        is_little = bounds[scope] - bounds[other] <= WAYS.narrower * (best.cost - bounds[other])
        if other.covers(scope) and is_little and not bounds[other] < enough <= bounds[scope]:
            scope = other
    return scope


def operators_of(known: Solution) -> dict[str, Any]:
    """The options of `known` that change the operators of a step, by the name of the choice: () for none."""
    return {kind.name: kind.option(known) or () for kind in OPERATORS}


def with_operators(problem: Problem, options: Mapping[str, Any], planner: Planner) -> Problem:
    """The problem of a way with the encodings and streamed operands of these options."""
    for reduction in planner.inner.reductions:
        if isinstance(reduction, OPERATORS) and reduction.is_open(problem):
            problem = reduction.fix(problem, options[reduction.name])
    return problem


def has_steps_of(scope: Scope, known: Solution) -> bool:
    """Whether a scope has the order, the streamed operands and the encodings of `known` alone."""
    same = all((scope.choice(name) or ()) == option for name, option in operators_of(known).items())
    return same and scope.order == known.proof.scope.order


def may_stream(problem: Problem, planner: Planner) -> bool:
    """Whether operands may be streamed."""
    return any(isinstance(r, Streaming) and r.is_open(problem) for r in planner.inner.reductions)


def can_fit(problem: Problem, planner: Planner) -> bool:
    """Whether a schedule without streams may be within the budget and the deadline."""
    late = problem.deadline_ns is not None and solvers.shortest_ns(problem) > problem.deadline_ns
    return not late and without_streams(planner.inner).lower_bound_bytes(problem) <= problem.budget_bytes
