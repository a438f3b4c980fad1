"""Both ways of using equal cores: operators side by side, or threads inside kernels. The cheaper schedule wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import ClassVar

from poetc.planning.alternatives import Alternatives
from poetc.planning.planner import Planner
from poetc.planning.saved import Saved
from poetc.planning.solution import Solution, Tried, least_cost
from poetc.scheduling import Problem
from poetc.scheduling.schedule import Proof, Status
from poetc.scheduling.scope import Scope


class ThreadsInKernels(Alternatives[int]):
    """`problems`: by number of threads, the same step; with one thread it has several processors."""

    name = "threads"
    first_round: ClassVar[float] = 0.7

    def __init__(self, problems: Mapping[int, Problem]) -> None:
        self.problems = dict(problems)
        self.tried: dict[int, Tried] = {}
        self.proofs: dict[int, Proof] = {}

    def is_open(self, problem: Problem) -> bool:
        return len(self.problems) > 1

    def frugal(self, problem: Problem) -> Problem:
        """In threads: one processor has one stack in the budget."""
        return self.problems[max(self.problems)]

    def usual(self, problem: Problem) -> Problem:
        return self.problems[min(self.problems)]

    def propose(self, problem: Problem, found: Solution | None) -> Iterator[int]:
        """Side by side first: the cost of computing once is no bound for that, but it is one for threads."""
        yield from sorted(self.problems)

    def fix(self, problem: Problem, choice: int) -> Problem:
        return self.problems[choice]

    def chosen(self, problem: Problem, solved: Problem) -> None:
        """A problem does not show how many threads its kernels have."""

    def restore(self, problem: Problem, choice: int, solution: Solution) -> Solution:
        self.proofs[choice] = solution.proof
        return solution.with_choice(solution.proof.scope, threads=choice)

    def scope(self, solution: Solution) -> Scope:
        return solution.proof.scope

    def inner(self, problem: Problem, choice: int, planner: Planner) -> Planner:
        """Encodings of saved tensors have no prices in threads."""
        inner = planner.inner
        if choice == 1:
            return inner
        return replace(inner, reductions=tuple(r for r in inner.reductions if not isinstance(r, Saved)))

    def option_words(self, choice: int) -> str:
        return "operators side by side" if choice == 1 else f"kernels in {choice} threads"

    def option_of(self, solution: Solution) -> int:
        assert solution.choices.threads is not None
        return solution.choices.threads

    def record(self, choice: int, cost: int | None, least: int, outcome: str) -> None:
        self.tried[choice] = Tried(choice, cost, least, outcome)

    def _bounded(self, best: Solution, gap: float) -> Solution:
        """With a bound for both ways: the lower one."""
        proof = best.proof
        others = [self._least(count, proof.scope) for count in self.problems if count != best.choices.threads]
        bound = min(proof.bound, *others)
        if bound == proof.bound:
            return best
        status = Status.FEASIBLE if proof.objective - bound <= gap * proof.objective else Status.LIMIT
        return best.with_proof(replace(proof, bound=bound, status=status))

    def _least(self, count: int, scope: Scope) -> int:
        """A bound for that way that holds in `scope`, as far as the way has its choices."""
        proof = self.proofs.get(count)
        if proof is not None:
            absent = {f.name: None for f in fields(Scope) if getattr(proof.scope, f.name) is None}
            if proof.scope.covers(replace(scope, **absent)):  # type: ignore[arg-type]
                return proof.bound
        return least_cost(self.problems[count])

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        self.tried.clear()
        self.proofs.clear()
        best = self._bounded(self.cheapest(problem, planner), planner.options.gap)
        return replace(best, ways=tuple(self.tried[count] for count in sorted(self.tried)))
