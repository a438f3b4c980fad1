"""The order of first executions: another order is another problem.

Solvers search for an order by themselves unless `fixed_order` keeps theirs. Reductions fix one beforehand, so that
several solves, and the bounds between them, are about the same order.
"""

from __future__ import annotations

from dataclasses import replace

from poetc import solvers
from poetc.planning.solution import Solution
from poetc.scheduling import Problem

Order = tuple[int, ...] | None  # operator order[k] comes k-th; None: the problem's own order


def in_order(problem: Problem, order: Order) -> Problem:
    """The problem with its operators in an order that keeps their dependences."""
    return problem if order is None else solvers.reordered(problem, order)


def with_own_order(order: Order, solution: Solution) -> Solution:
    """`solution` of `in_order(problem, order)` as one of `problem`.

    The problem's operators keep their numbers; those of `solution` may have other kernels or state.
    """
    if order is None:
        return solution
    allocations = tuple(
        replace(a, operator=None if a.operator is None else order[a.operator]) for a in solution.plan.allocations
    )
    own = dict(zip(order, solution.problem.operators, strict=True))
    return replace(
        solution,
        problem=replace(solution.problem, operators=tuple(own[k] for k in range(len(own)))),
        schedule=solvers.restored(solution.schedule, order),
        plan=replace(solution.plan, allocations=allocations),
    )
