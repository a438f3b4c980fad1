"""The number of parts of a batch: each number is another problem, and the cheapest schedule wins."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from poetc.errors import InfeasibleError, LimitError, PoetcError
from poetc.planning.planner import Planner, Reduction
from poetc.planning.solution import Solution, Tried, cost_of_computing_once
from poetc.scheduling import Problem, keep_all_peak_bytes
from poetc.scheduling.schedule import Status
from poetc.scheduling.scope import Scope

FIRST_ROUND = 0.5  # of the time limit, for all together; the rest is for the best of them
LEAST_SHARE = 0.02  # of the time limit, for each of them at least


class MicroBatches(Reduction[int]):
    """`problems`: by number of parts, the problem of the whole batch made of so many."""

    name = "micro_batches"

    def __init__(self, problems: Mapping[int, Problem]) -> None:
        self.problems = dict(problems)

    def is_open(self, problem: Problem) -> bool:
        return len(self.problems) > 1

    def relax(self, problem: Problem) -> None:
        """Training steps of other numbers of parts have other operators: no problem is a relaxation of all."""

    def frugal(self, problem: Problem) -> Problem:
        """The problem that needs the least RAM to keep everything."""
        return min(self.problems.values(), key=keep_all_peak_bytes)

    def usual(self, problem: Problem) -> Problem:
        """The batch in as few parts as there are."""
        return self.problems[min(self.problems)]

    def propose(self, problem: Problem, found: Solution | None) -> Iterator[int]:
        """Where keep-all fits first, since that costs nothing to find out; then by the cost of computing once."""

        def promise(count: int) -> tuple[bool, int, int]:
            p = self.problems[count]
            return keep_all_peak_bytes(p) > p.budget_bytes, cost_of_computing_once(p), count

        yield from sorted(self.problems, key=promise)

    def fix(self, problem: Problem, choice: int) -> Problem:
        return self.problems[choice]

    def chosen(self, problem: Problem, solved: Problem) -> None:
        """A problem does not show how many parts its batch has."""

    def restore(self, problem: Problem, choice: int, solution: Solution) -> Solution:
        return solution.with_choice(solution.proof.scope, micro_batches=choice)

    def scope(self, solution: Solution) -> Scope:
        return solution.proof.scope

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        return min(inner.lower_bound_bytes(p) for p in self.problems.values())

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        """The cheapest verified schedule of all numbers, within one time limit.

        Each number that could be cheapest gets an equal share of half of the time, and the best one the rest. One that
        costs more than the best schedule even when nothing is recomputed is not solved at all. Raises the error of the
        most frugal of them if none has a schedule.
        """
        return _Split(self, problem, planner).solve()


class _Split:
    def __init__(self, reduction: MicroBatches, problem: Problem, planner: Planner) -> None:
        self.reduction, self.problem, self.planner, self.inner = reduction, problem, planner, planner.inner
        self.tried: dict[int, Tried] = {}

    def solve(self) -> Solution:
        options, problems = self.planner.options, self.reduction.problems
        first_stop = self.planner.stop_at - (1 - FIRST_ROUND) * options.time_limit_s
        hopeless = self._hopeless()
        waiting = list(self.reduction.propose(self.problem, None))
        best: Solution | None = None
        errors: list[PoetcError] = []
        for left, count in zip(range(len(waiting), 0, -1), waiting, strict=True):
            once = cost_of_computing_once(problems[count])
            if best is not None and once >= best.cost:
                self.tried[count] = Tried(count, None, once, "cannot be cheaper")
                continue
            if count in hopeless:
                self.tried[count] = Tried(count, None, once, "does not fit")
                continue
            alone = len(waiting) - len(hopeless) == 1
            seconds = self.planner.left_s if alone else (first_stop - time.monotonic()) / left
            work_share = 1.0 if alone else FIRST_ROUND / len(waiting)
            self.planner.progress(f"{count} micro-batches")
            try:
                found = self._solved(
                    count,
                    time_limit_s=max(seconds, LEAST_SHARE * options.time_limit_s),
                    work_limit_s=work_share * options.work_limit_s,
                )
            except (InfeasibleError, LimitError) as error:
                proven = isinstance(error, InfeasibleError)
                self.tried[count] = Tried(count, None, once, "does not fit" if proven else "nothing found")
                errors.append(error)
                continue
            self._record(count, found)
            if best is None or found.cost < best.cost:
                best = found
        if best is None:
            raise min(errors, key=_smallest)
        if len(self.tried) > 1 and best.proof.status is Status.LIMIT and self.planner.left_s > 0:
            best = self._again(best)
        return replace(best, tried=tuple(self.tried[count] for count in sorted(self.tried)))

    def _hopeless(self) -> set[int]:
        """Numbers of parts for which nothing fits.

        The most frugal is not among them, since its error names a budget that works.
        """
        problems, lower = self.reduction.problems, self.inner.lower_bound_bytes
        hopeless = {count for count, p in problems.items() if lower(p) > p.budget_bytes}
        if len(hopeless) == len(problems):
            hopeless.remove(min(problems, key=lambda count: lower(problems[count])))
        return hopeless

    def _solved(self, count: int, **limits: Any) -> Solution:
        fixed = self.reduction.fix(self.problem, count)
        return self.reduction.restore(self.problem, count, self.inner.part(**limits).solve(fixed))

    def _record(self, count: int, found: Solution) -> None:
        proof = found.proof
        self.tried[count] = Tried(count, proof.objective, proof.bound, proof.status.value)

    def _again(self, best: Solution) -> Solution:
        """The best number with more time: the better schedule and the better bound of both."""
        count = best.choices.micro_batches
        assert count is not None
        self.planner.progress(f"{count} micro-batches again")
        try:
            again = self._solved(count, time_limit_s=self.planner.left_s)
        except (InfeasibleError, LimitError):
            return best
        proof, known = again.proof, best.proof
        bound = min(proof.bound, known.objective)
        if proof.objective < known.objective:
            best = again
        elif bound > known.bound and again.problem == best.problem and proof.scope.choices_cover(best.scope):
            better = replace(known, bound=bound, scope=proof.scope)
            if bound == known.objective:
                better = replace(better, status=Status.OPTIMAL)
            best = best.with_proof(better)
        self._record(count, best)
        return best


def _smallest(error: PoetcError) -> float:
    smallest = error.details.get("min_budget_bytes")
    return float(smallest) if isinstance(smallest, int) else float("inf")
