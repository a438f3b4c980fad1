"""Cost over budget: many budgets of one problem for little more time than one takes.

A schedule for a budget fits every larger one; a bound proven for a budget holds for every smaller one. So the ends come
first, then the budgets between them. A budget whose neighbours already close its gap is not solved at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from poetc import solvers
from poetc.errors import InfeasibleError, LimitError, PoetcError
from poetc.planning.arena import ram_bytes
from poetc.planning.planner import Planner
from poetc.planning.settings import CURVE
from poetc.planning.solution import Solution, bound_holds, everything
from poetc.scheduling import Problem, ScheduleError, verify
from poetc.scheduling.schedule import Schedule, Status


@dataclass(frozen=True, slots=True)
class Point:
    """The best that is known for a budget: a solution with its proof, or the reason why there is none.

    `solved`: by itself, in `seconds`.
    """

    budget_bytes: int
    solution: Solution | None
    error: PoetcError | None
    seconds: float
    solved: bool


@dataclass(frozen=True, slots=True)
class _Found:
    budget_bytes: int
    solution: Solution


def solve_curve(
    problem: Problem, budgets: Sequence[int], planner: Planner, known: Solution | None = None
) -> list[Point]:
    """A Point for each of `budgets`, in the order given. The time limit of `planner` is that of one solve.

    `known`: a solution that was found before.
    """
    order, options = visiting_order(sorted(set(budgets))), planner.options
    work_share = min(1.0, CURVE.at_once * CURVE.cost / max(1, len(order)))
    curve = _Curve(problem, planner, work_share * options.work_limit_s)
    if known is not None:
        curve.points.append(_Found(known.problem.budget_bytes, known))
    stop_at = time.monotonic() + options.time_limit_s * min(CURVE.cost, len(order))
    for left, budget in zip(range(len(order), 0, -1), order, strict=True):
        planner.progress(f"{len(order) - left + 1} of {len(order)} budgets")
        share = (stop_at - time.monotonic()) / left * min(CURVE.at_once, left)
        curve.visit(budget, min(options.time_limit_s, max(share, options.time_limit_s / 50)))
    return [curve.point(budget) for budget in budgets]


def visiting_order(budgets: Sequence[int]) -> list[int]:
    """The largest, the smallest, then the middle of each gap between, again and again."""
    if len(budgets) < 3:
        return list(reversed(budgets))
    order = [budgets[-1], budgets[0]]
    spans = [(0, len(budgets) - 1)]
    for low, high in spans:
        if high - low > 1:
            middle = (low + high) // 2
            order.append(budgets[middle])
            spans += [(low, middle), (middle, high)]
    return order


class _Curve:
    def __init__(self, problem: Problem, planner: Planner, work_limit_s: float) -> None:
        self.problem, self.planner, self.work_limit_s = problem, planner, work_limit_s
        self.points: list[_Found] = []
        self.errors: dict[int, PoetcError] = {}
        self.seconds: dict[int, float] = {}

    def visit(self, budget: int, time_limit_s: float) -> None:
        """Solve for `budget` unless known schedules and bounds settle it."""
        best = self.best(budget)
        if best is not None and best.proof.gap() <= self.planner.options.gap:
            return
        if any(isinstance(error, InfeasibleError) and at >= budget for at, error in self.errors.items()):
            return
        started = time.monotonic()
        try:
            part = self.planner.part(time_limit_s, work_limit_s=self.work_limit_s)
            self.points.append(_Found(budget, part.solve(replace(self.problem, budget_bytes=budget))))
        except (InfeasibleError, LimitError) as error:
            self.errors[budget] = error
        self.seconds[budget] = time.monotonic() - started

    def fitting(self, budget: int) -> _Found | None:
        """The cheapest solution that fits, wherever it was found."""
        fits = [
            f
            for f in self.points
            if ram_bytes(f.solution.problem, f.solution.plan) <= budget
            and (f.budget_bytes <= budget or _fits(f.solution, budget))
        ]
        return min(fits, key=lambda f: (f.solution.cost, f.budget_bytes), default=None)

    def best(self, budget: int) -> Schedule | None:
        """The cheapest schedule with the best bound that may be stated beside it; None if none is known."""
        cheapest = self.fitting(budget)
        if cheapest is None:
            return None
        schedule = cheapest.solution.schedule
        cost = schedule.proof.objective
        bound, scope, method = self.planner.least_cost(self.problem), everything(), "every operator once"
        for other in self.points:
            proof = other.solution.proof
            if other.budget_bytes >= budget and bound < proof.bound and bound_holds(other.solution, cheapest.solution):
                bound, scope = proof.bound, proof.scope
                method = proof.method if other is cheapest else f"{proof.method} (for {other.budget_bytes} bytes)"
        bound = solvers.bound_beside(bound, cost, method)
        if cheapest.budget_bytes != budget:
            method = f"found for {cheapest.budget_bytes} bytes: {schedule.proof.method}; bound: {method}"
        proof = replace(schedule.proof, bound=bound, scope=scope, method=method)
        closed = Status.OPTIMAL if bound == cost else Status.FEASIBLE
        status = closed if proof.gap() <= self.planner.options.gap or bound == cost else Status.LIMIT
        if status is not Status.OPTIMAL and schedule.proof.status is Status.OPTIMAL and cheapest.budget_bytes == budget:
            status = Status.OPTIMAL  # up to rounding, as its solver says
        return replace(schedule, proof=replace(proof, status=status))

    def point(self, budget: int) -> Point:
        schedule, cheapest = self.best(budget), self.fitting(budget)
        seconds = self.seconds.get(budget, 0.0)
        if schedule is not None and cheapest is not None:
            solution = cheapest.solution
            solution = replace(solution, problem=replace(solution.problem, budget_bytes=budget), schedule=schedule)
            verify(solution.problem, schedule)
            return Point(budget, solution, None, seconds, budget in self.seconds)
        error = self.errors.get(budget)
        if error is None:
            larger = min(at for at, e in self.errors.items() if at >= budget and isinstance(e, InfeasibleError))
            error = refusal_for_less(self.errors[larger], larger, budget)
        return Point(budget, None, error, seconds, budget in self.seconds)


def refusal_for_less(error: PoetcError, proven_bytes: int, budget_bytes: int) -> InfeasibleError:
    """The error for `budget_bytes` that follows from a proof that nothing fits the larger budget `proven_bytes`."""
    of_larger, own = (re.compile(rf"\b{proven_bytes}\b"), str(budget_bytes))
    text, count = of_larger.subn(own, str(error), count=1)
    if not count:
        text = f"{error} (proven for {proven_bytes} bytes, so that {budget_bytes} are too few)"
    details = {**error.details, "budget_bytes": budget_bytes} if "budget_bytes" in error.details else error.details
    return InfeasibleError(text, details=details)


def _fits(solution: Solution, budget: int) -> bool:
    try:
        verify(replace(solution.problem, budget_bytes=budget), solution.schedule)
    except ScheduleError:
        return False
    return True
