"""Choices between problems of their own: each that could be cheapest is solved for a while, and the best one longer."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from poetc import solvers
from poetc.errors import InfeasibleError, LimitError, PoetcError
from poetc.planning.planner import ChoiceT, Planner, Reduction
from poetc.planning.settings import ALTERNATIVES
from poetc.planning.solution import Solution, with_bound_of
from poetc.scheduling import Problem, keep_all_peak_bytes
from poetc.scheduling.schedule import Status

DOES_NOT_FIT = "does not fit"  # proven
NOTHING_FOUND = "nothing found"


class Alternatives(Reduction[ChoiceT]):
    """A choice whose options have other operators, so that no problem is a relaxation of all.

    `first_round`: the share of the time limit for all options together. `second_round`: the same for one that is not
    the cheapest, and may become so. The rest is for the best one. `patience`: times its share, on the clock, that an
    option gets. `operators_per_s`: of the time limit; a larger problem ends its first round with the first
    option that has a schedule.
    """

    first_round: ClassVar[float]
    second_round: ClassVar[float] = 0.0
    patience: ClassVar[float] = ALTERNATIVES.patience
    operators_per_s: ClassVar[float] = math.inf

    @abstractmethod
    def option_words(self, choice: ChoiceT) -> str:
        """The option for a line of progress."""

    def ranked(self, problem: Problem, planner: Planner) -> Iterable[ChoiceT]:
        """The options in the order in which they are solved for: the first one may take most of the first round."""
        return self.propose(problem, None)

    def after(self, problem: Problem, best: Solution) -> Iterable[ChoiceT]:
        """More options, that the best solution of the first round suggests."""
        return ()

    def inner(self, problem: Problem, choice: ChoiceT, planner: Planner) -> Planner:
        """The planner for the problem of an option. `planner` has this reduction as its outermost one."""
        return planner.inner

    def record(self, choice: ChoiceT, cost: int | None, least: int, outcome: str) -> None:
        """An option was looked at. `cost`: of its schedule (None: none); `least`: no schedule of it costs less."""

    def least_bytes(self, problem: Problem, planner: Planner) -> int:
        """No schedule of an option, whose problem this is, needs less RAM. With more it is worth solving for."""
        return planner.inner.lower_bound_bytes(problem)

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        return min(inner.lower_bound_bytes(self.fix(problem, choice)) for choice in self.propose(problem, None))

    def cheapest(self, problem: Problem, planner: Planner) -> Solution:
        """The cheapest verified schedule of all options, within one time limit.

        Each option that could be cheapest gets an equal share of the first round. In a second round the most promising
        one gets more, and the cheapest one then gets the rest of the time. One that saves no more than the asked gap
        even when nothing is recomputed is not solved at all. Nor is one after the time is up. Raises the error of the
        most frugal of them if none has a schedule.
        """
        return _Comparison(self, problem, planner).solve()


class _Comparison:
    def __init__(self, reduction: Alternatives[Any], problem: Problem, planner: Planner) -> None:
        self.reduction, self.problem, self.planner = reduction, problem, planner
        self.fixed = {choice: reduction.fix(problem, choice) for choice in reduction.ranked(problem, planner)}
        self.least_bytes = {choice: reduction.least_bytes(p, planner) for choice, p in self.fixed.items()}
        self.least = {choice: planner.inner.least_cost(p) for choice, p in self.fixed.items()}
        self.best: Solution | None = None
        self.solutions: dict[Any, Solution] = {}
        self.errors: list[PoetcError] = []
        self.solved = 0

    def solve(self) -> Solution:
        reduction, options = self.reduction, self.planner.options
        first_stop = self.planner.stop_at - (1 - reduction.first_round) * options.time_limit_s
        hopeless = self._hopeless()
        alone = len(self.fixed) - len(hopeless) == 1
        fitting = {choice: p for choice, p in self.fixed.items() if choice not in hopeless}
        most_operators = reduction.operators_per_s * options.time_limit_s
        self.planner.expecting(self.problem, reduction, fitting)
        if type(reduction).after is not Alternatives.after:  # none of them costs less than the cheapest operators
            self.planner.expecting_more(self.problem, reduction, min(self.least.values()))
        for left, choice in zip(range(len(self.fixed), 0, -1), self.fixed, strict=True):
            seconds = self.planner.left_s
            if not alone:
                seconds = min(seconds, reduction.patience * (first_stop - time.monotonic()) / left)
            if choice in hopeless and (self.best is None or self.least[choice] < self.best.cost):
                proven = self.planner.inner.proves_too_small(self.fixed[choice])
                reduction.record(choice, None, self.least[choice], DOES_NOT_FIT if proven else NOTHING_FOUND)
            elif self.best is not None and len(self.fixed[choice].operators) > most_operators:
                reduction.record(choice, None, self.least[choice], "no time was left")
                self.planner.best.no_longer_expect(self.problem, self.planner.chosen, reduction.name, choice)
            else:
                self._try(choice, seconds, 1.0 if alone else reduction.first_round / len(self.fixed))
        if self.best is None:
            raise min(self.errors, key=smallest_of)
        more = [choice for choice in reduction.after(self.problem, self.best) if choice not in self.fixed]
        self.fixed |= {choice: reduction.fix(self.problem, choice) for choice in more}
        self.planner.expecting(self.problem, reduction, {choice: self.fixed[choice] for choice in more})
        self.planner.expecting_more(self.problem, reduction, None)
        for choice in more:
            self.least[choice] = self.planner.inner.least_cost(self.fixed[choice])
            share = reduction.first_round / len(self.fixed)
            self._try(choice, min(1.0, ALTERNATIVES.patience * share) * self.planner.left_s, share)
        if alone:
            return self.best
        share, rival = reduction.second_round, self._rival()
        if share and rival != reduction.option(self.best):
            seconds = min(ALTERNATIVES.rival_patience * share * options.time_limit_s, self.planner.left_s / 2)
            self._again(rival, seconds, share * options.work_limit_s)
        if not self.best.is_close(options.gap):
            self._again(reduction.option(self.best), self.planner.left_s, options.work_limit_s)
        return self.best

    def _rival(self) -> Any:
        """The option with the lowest middle between its bound and its cost so far, a guess at its cost in the end."""
        return min(self.solutions, key=lambda c: self.solutions[c].cost + self.solutions[c].proof.bound)

    def _hopeless(self) -> set[Any]:
        """Options for which nothing fits.

        The most frugal is not among them, since its error names a budget that works.
        """
        hopeless = {choice for choice, p in self.fixed.items() if self.least_bytes[choice] > p.budget_bytes}
        if len(hopeless) == len(self.fixed):
            frugal = min(self.fixed, key=lambda c: (self.least_bytes[c], keep_all_peak_bytes(self.fixed[c])))
            hopeless.remove(frugal)
        return hopeless

    def _try(self, choice: Any, seconds: float, work_share: float) -> None:
        """Solve for `choice` unless it cannot be the cheapest."""
        reduction, options, least = self.reduction, self.planner.options, self.least[choice]
        if self.best is not None and least >= (1 - options.gap) * self.best.cost:
            reduction.record(choice, None, least, "cannot be cheaper")
            return
        self.planner.progress(reduction.option_words(choice))
        # Where nothing is found yet, a schedule late is better than none, but not at any price.
        least_s = 0.0 if self.best is not None else -ALTERNATIVES.late_share * options.time_limit_s
        if (self.best is not None or self.errors) and self.planner.left_s <= least_s:
            reduction.record(choice, None, least, "no time was left")
            return
        try:
            solution = self._solved(
                choice,
                time_limit_s=max(seconds, ALTERNATIVES.least_share * options.time_limit_s),
                work_limit_s=work_share * options.work_limit_s,
            )
        except (InfeasibleError, LimitError) as error:
            proven = isinstance(error, InfeasibleError)
            reduction.record(choice, None, least, DOES_NOT_FIT if proven else NOTHING_FOUND)
            self.errors.append(error)
            return
        self._take(choice, solution)

    def _take(self, choice: Any, solution: Solution) -> None:
        self._record(choice, solution)
        self.solutions[choice] = solution
        if self.best is None or solution.cost < self.best.cost or choice == self.reduction.option(self.best):
            self.best = solution

    def _solved(self, choice: Any, **limits: Any) -> Solution:
        inner = self.reduction.inner(self.problem, choice, self.planner).having(self.reduction, choice)
        solution = inner.part(**limits).solve(self.fixed[choice])
        return self.reduction.restore(self.problem, choice, solution)

    def _record(self, choice: Any, solution: Solution) -> None:
        proof = solution.proof
        self.reduction.record(choice, proof.objective, proof.bound, proof.status.value)

    def _again(self, choice: Any, seconds: float, work_limit_s: float) -> None:
        """An option with more time: the better schedule and the better bound of both."""
        if seconds <= 0:
            return
        self.planner.progress(f"{self.reduction.option_words(choice)} again")
        with suppress(InfeasibleError, LimitError):
            again = self._solved(choice, time_limit_s=seconds, work_limit_s=work_limit_s)
            self._take(choice, better_of(self.solutions[choice], again))


def better_of(known: Solution, again: Solution) -> Solution:
    """The cheaper one of two solutions with an option, with the better bound of both where it may be stated."""
    best, other = (again, known) if again.cost < known.cost else (known, again)
    return with_bound_of(best, other) if other.problem == best.problem else best


def with_lowest_bound(best: Solution, bounds: Iterable[int], gap: float) -> Solution:
    """`best` with the lowest of these bounds, of all options in which something may fit. `gap`: the asked one."""
    proof = best.proof
    bound = solvers.bound_beside(min(bounds, default=proof.objective), proof.objective, "the lowest of all options")
    if bound == proof.bound and proof.status is not Status.LIMIT:  # a hint has this for lack of a bound
        return best
    status = Status.FEASIBLE if proof.objective - bound <= gap * proof.objective else Status.LIMIT
    if bound >= proof.objective:
        status = Status.OPTIMAL
    return best.with_proof(replace(proof, bound=bound, status=status))


def smallest_of(error: PoetcError) -> float:
    smallest = error.details.get("min_budget_bytes")
    return float(smallest) if isinstance(smallest, int) else float("inf")
