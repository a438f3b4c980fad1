"""The published methods' common part: it completes and checks each candidate, and keeps the cheapest."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling import (
    Completer,
    Completion,
    Problem,
    Proof,
    Repetition,
    Schedule,
    ScheduleError,
    Scope,
    SolveOptions,
    Status,
    verify,
)
from poetc.solvers.interface import Event, Progress, SolverInfo, is_above
from poetc.solvers.model import Model
from poetc.solvers.published._tape import Irretrievable

__all__ = ["Baseline", "Irretrievable", "method"]

Solve = Callable[..., Schedule]


class Baseline:
    """The candidates of one method on one problem.

    A method chooses its candidates by its own estimate of memory. Whether a candidate fits, its exact replay decides.
    Where transfers overlap compute, the replay issues page-ins ahead and puts frees off (`complete`), for all alike.
    """

    def __init__(self, info: SolverInfo, problem: Problem, options: SolveOptions, progress: Progress | None) -> None:
        self.info, self.problem, self.options, self.progress = info, problem, options, progress
        self.model = Model(problem)
        self.completer = Completer(problem)
        self.stop_at = time.monotonic() + options.time_limit_s
        self.best: Completion | None = None
        self.best_cost = 0
        self.label = ""
        self.log: list[str] = []
        self.offered_cost = math.inf  # of the last candidate that fitted
        self.least_peak_bytes: int | None = None  # among the candidates that did not fit
        self.refusal = ""  # why the last candidate was refused

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit is reached."""
        return time.monotonic() >= self.stop_at

    def check_time(self) -> None:
        """LimitError if the time limit is reached and no schedule was found so far."""
        if self.best is None and self.out_of_time:
            raise LimitError(f"{self.info.name}: found no schedule in {self.options.time_limit_s:g} s; allow more time")

    def peak_bytes(self, codes: list[int]) -> int:
        """The peak of the completed sequence, RAM that the budget counts."""
        return self.completer.run(self.model.decisions(codes)).peak_bytes

    def offer(self, codes: list[int], label: str) -> bool:
        """Whether the sequence fits RAM, store and deadline. The cheapest one that does is kept."""
        problem = self.problem
        completion = self.completer.run(self.model.decisions(codes))
        if completion.peak_bytes > problem.budget_bytes:
            if self.least_peak_bytes is None or completion.peak_bytes < self.least_peak_bytes:
                self.least_peak_bytes = completion.peak_bytes
            return False
        if problem.deadline_ns is not None and completion.time_ns > problem.deadline_ns:
            taken_ms, allowed_ms = completion.time_ns / 1e6, problem.deadline_ns / 1e6
            self.refusal = f"its schedule takes {taken_ms:.6g} ms, the deadline is {allowed_ms:.6g}"
            return False
        cost = problem.objective.cost(completion.energy_pj, completion.time_ns)
        self.offered_cost = cost
        if self.best is not None and cost >= self.best_cost:
            return True
        try:
            verify(problem, self._schedule(completion, cost, label))
        except ScheduleError as error:
            self.refusal = error.reason
            return False
        self.best, self.best_cost, self.label = completion, cost, label
        self.log.append(f"{label}: {cost}")
        if self.progress is not None:
            self.progress(Event(stage=label, objective=cost, bound=int(self.model.base_cost)))
        return True

    def offer_made(self, make: Callable[[], list[int]], label: str) -> bool:
        """The same of the sequence that `make` gives; False where a tensor that it gives up cannot be had again."""
        try:
            codes = make()
        except Irretrievable as error:
            self.refusal = str(error)
            return False
        return self.offer(codes, label)

    def _schedule(
        self,
        completion: Completion,
        cost: int,
        label: str,
        bound: int | None = None,
        repetition: Repetition = Repetition.ANY,
    ) -> Schedule:
        base = int(self.model.base_cost)
        if bound is not None and is_above(bound, cost):
            # The formulation counts RAM otherwise and has no such schedule: its bound says nothing about this one.
            bound, repetition = None, Repetition.ANY
        proven = base if bound is None else max(base, min(bound, cost))
        proof = Proof(
            status=Status.OPTIMAL if proven == cost else Status.FEASIBLE,
            objective=cost,
            bound=proven,
            scope=self._scope(repetition),
            method=f"schedule: {self.info.title} ({label}); bound: {'the same' if bound else 'every operator once'}",
        )
        return Schedule(solver=self.info.name, actions=completion.actions, proof=proof, log=tuple(self.log))

    def _scope(self, repetition: Repetition) -> Scope:
        """The scope of the bound: all schedules, or those of a formulation under the problem's order."""
        if repetition is Repetition.ANY:
            return Scope()
        return Scope(order=tuple(range(len(self.problem.operators))), repetition=repetition)

    def finish(self, *, bound: int | None = None, repetition: Repetition = Repetition.ANY) -> Schedule:
        """The cheapest candidate, with the method's own `bound` on schedules of `repetition` if it proves one.

        Raises InfeasibleError with the reason if no candidate passed.
        """
        if self.best is not None:
            return self._schedule(self.best, self.best_cost, self.label, bound, repetition)
        if self.least_peak_bytes is not None and not self.refusal:
            why = f"it needs {self.least_peak_bytes} bytes at the least, the budget is {self.problem.budget_bytes}"
        else:
            why = self.refusal or "it makes no schedule of this problem"
        raise InfeasibleError(f"{self.info.name}: {why}; take a larger budget or another solver")


def method(info: SolverInfo) -> Callable[[Callable[[Baseline], None]], Solve]:
    """`solve` of a method, which is a function that offers its candidates: the cheapest one that fits is the answer."""

    def solver(offers: Callable[[Baseline], None]) -> Solve:
        @functools.wraps(offers)
        def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
            baseline = Baseline(info, problem, options, progress)
            offers(baseline)
            return baseline.finish()

        return solve

    return solver
