"""Cost over budget: many budgets of one problem for little more than one; what is found at one serves the others.

A schedule for a budget fits every larger one; a bound proven for a budget holds for every smaller one. So the ends come
first, then what lies between, and a budget whose neighbours already close its gap is not solved at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poetc import homes, planning, variants
from poetc.errors import InfeasibleError, LimitError, PoetcError
from poetc.scheduling import Problem, ScheduleError, verify
from poetc.scheduling.schedule import MemoryPlan, Schedule, SolveOptions, Status

Progress = Callable[[str], None]
CURVE_COST = 3.0  # time limit of a whole curve, in those of one solve
AT_ONCE = 2.0  # a budget may take as long as so many of those that are left, since others need less


@dataclass(frozen=True, slots=True)
class Point:
    """The best that is known for a budget: a schedule with its proof, or why there is none. `solved`: by itself."""

    budget_bytes: int
    placed: homes.Placed | None
    error: PoetcError | None
    seconds: float
    solved: bool

    @property
    def schedule(self) -> Schedule | None:
        return None if self.placed is None else self.placed.schedule

    @property
    def plan(self) -> MemoryPlan | None:
        return None if self.placed is None else self.placed.plan


@dataclass(frozen=True, slots=True)
class _Found:
    budget_bytes: int
    placed: homes.Placed

    @property
    def schedule(self) -> Schedule:
        return self.placed.schedule


def solve_curve(
    problem: Problem,
    budgets: Sequence[int],
    solver: str,
    options: SolveOptions,
    progress: Progress,
    state: str = "ram",
    known: homes.Placed | None = None,
) -> list[Point]:
    """A Point for each of `budgets`, in the order given. `options.time_limit_s` is that of one solve; `state` as in
    `poetc.homes`; `known`: a schedule that was found before.
    """
    order = visiting_order(sorted(set(budgets)))
    work_share = min(1.0, AT_ONCE * CURVE_COST / max(1, len(order)))
    curve = _Curve(problem, solver, options, progress, state, work_share * options.work_limit_s)
    if known is not None:
        curve.found.append(_Found(known.problem.budget_bytes, known))
    stop_at = time.monotonic() + options.time_limit_s * min(CURVE_COST, len(order))
    for left, budget in zip(range(len(order), 0, -1), order, strict=True):
        progress(f"{len(order) - left + 1} of {len(order)} budgets")
        share = (stop_at - time.monotonic()) / left * min(AT_ONCE, left)
        curve.visit(budget, min(options.time_limit_s, max(share, options.time_limit_s / 50)))
    return [curve.point(budget) for budget in budgets]


def visiting_order(budgets: Sequence[int]) -> list[int]:
    """The largest, the smallest, then the middle of what lies between, again and again."""
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
    def __init__(
        self,
        problem: Problem,
        solver: str,
        options: SolveOptions,
        progress: Progress,
        state: str,
        work_limit_s: float,
    ) -> None:
        self.state, self.work_limit_s = state, work_limit_s
        self.problem, self.solver, self.options, self.progress = problem, solver, options, progress
        self.found: list[_Found] = []
        self.errors: dict[int, PoetcError] = {}
        self.seconds: dict[int, float] = {}

    def visit(self, budget: int, time_limit_s: float) -> None:
        """Solve for `budget` unless what is known settles it."""
        best = self.best(budget)
        if best is not None and best.proof.gap() <= self.options.gap:
            return
        if any(isinstance(error, InfeasibleError) and at >= budget for at, error in self.errors.items()):
            return
        started = time.monotonic()
        problem = replace(self.problem, budget_bytes=budget)
        try:
            options = replace(self.options, time_limit_s=time_limit_s, work_limit_s=self.work_limit_s)
            placed = variants.solve_and_pack(problem, self.state, self.solver, options, self.progress)
            self.found.append(_Found(budget, placed))
        except (InfeasibleError, LimitError) as error:
            self.errors[budget] = error
        self.seconds[budget] = time.monotonic() - started

    def fitting(self, budget: int) -> _Found | None:
        """The cheapest schedule that fits, wherever it was found."""
        fits = [
            f
            for f in self.found
            if planning.ram_bytes(self.problem, f.placed.plan) <= budget
            and (f.budget_bytes <= budget or self._holds(f.placed, budget))
        ]
        return min(fits, key=lambda f: (f.schedule.proof.objective, f.budget_bytes), default=None)

    def _holds(self, placed: homes.Placed, budget: int) -> bool:
        try:
            verify(replace(placed.problem, budget_bytes=budget), placed.schedule)
        except ScheduleError:
            return False
        return True

    def best(self, budget: int) -> Schedule | None:
        """The cheapest schedule with the best bound for its class; None if none is known."""
        cheapest = self.fitting(budget)
        if cheapest is None:
            return None
        schedule = cheapest.schedule
        cost = schedule.proof.objective
        once = self.problem.compute_once_pj if self.problem.objective == "energy" else self.problem.compute_once_ns
        bound, of_class, method = min(once, cost), "all schedules", "every operator once"
        for other in self.found:
            proof = other.schedule.proof
            if (
                other.budget_bytes >= budget
                and bound < proof.bound
                and variants.bound_holds(other.placed, cheapest.placed)
            ):
                bound, of_class = min(proof.bound, cost), proof.schedule_class
                method = proof.method if other is cheapest else f"{proof.method} (for {other.budget_bytes} bytes)"
        if cheapest.budget_bytes != budget:
            method = f"found for {cheapest.budget_bytes} bytes: {schedule.proof.method}; bound: {method}"
        proof = replace(schedule.proof, bound=bound, schedule_class=of_class, method=method)
        closed = Status.OPTIMAL if bound == cost else Status.FEASIBLE
        status = closed if proof.gap() <= self.options.gap or bound == cost else Status.LIMIT
        if status is not Status.OPTIMAL and schedule.proof.status is Status.OPTIMAL and cheapest.budget_bytes == budget:
            status = Status.OPTIMAL  # up to rounding, as its solver says
        return replace(schedule, proof=replace(proof, status=status))

    def point(self, budget: int) -> Point:
        schedule, cheapest = self.best(budget), self.fitting(budget)
        seconds = self.seconds.get(budget, 0.0)
        if schedule is not None and cheapest is not None:
            placed = replace(
                cheapest.placed, problem=replace(cheapest.placed.problem, budget_bytes=budget), schedule=schedule
            )
            verify(placed.problem, schedule)
            return Point(budget, placed, None, seconds, budget in self.seconds)
        larger = [at for at, e in self.errors.items() if at >= budget and isinstance(e, InfeasibleError)]
        error = self.errors.get(budget) or self.errors[min(larger)]
        return Point(budget, None, error, seconds, budget in self.seconds)
