"""The order of first executions, as a choice: another order is another problem.

Solvers search for an order by themselves unless `fixed_order` keeps theirs. Other reductions fix one beforehand, so
that several solves, and the bounds between them, are about the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poetc import solvers
from poetc.planning.planner import Planner, Reduction
from poetc.planning.solution import Solution
from poetc.scheduling import Problem
from poetc.scheduling.schedule import first_executions
from poetc.scheduling.scope import ANY, Scope

OrderOf = tuple[int, ...] | None  # operator order[k] comes k-th; None: the problem's own order


class Order(Reduction[OrderOf]):
    """The operators in another order that keeps their dependences."""

    def is_open(self, problem: Problem) -> bool:
        return len(problem.operators) > 1

    def relax(self, problem: Problem) -> Problem:
        """The problem itself: solvers search among orders."""
        return problem

    def frugal(self, problem: Problem) -> Problem:
        return problem

    def usual(self, problem: Problem) -> Problem:
        return problem

    def propose(self, problem: Problem, found: Solution | None) -> Iterator[OrderOf]:
        """The order of the cheapest solution, then the problem's own."""
        if found is not None:
            yield first_executions(found.schedule.steps)
        yield None

    def fix(self, problem: Problem, choice: OrderOf) -> Problem:
        return problem if choice is None else solvers.reordered(problem, choice)

    def chosen(self, problem: Problem, solved: Problem) -> None:
        """The schedule has the order; problems have none but their own."""

    def restore(self, problem: Problem, choice: OrderOf, solution: Solution) -> Solution:
        """The problem's operators keep their numbers; those of `solution` may have other kernels or state."""
        if choice is None:
            return solution
        allocations = tuple(
            replace(a, operator=None if a.operator is None else choice[a.operator]) for a in solution.plan.allocations
        )
        own = dict(zip(choice, solution.problem.operators, strict=True))
        return replace(
            solution,
            problem=replace(solution.problem, operators=tuple(own[k] for k in range(len(own)))),
            schedule=solvers.restored(solution.schedule, choice),
            plan=replace(solution.plan, allocations=allocations),
        )

    def scope(self, solution: Solution) -> Scope:
        return replace(solution.proof.scope, order=ANY)

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        return inner.lower_bound_bytes(problem)

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        """Solved under the order that the solver finds: the relaxation is the problem."""
        return planner.inner.solve(problem)
