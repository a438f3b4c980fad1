"""The number of parts of a batch: each number is another problem, and the cheapest schedule wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from poetc.planning.alternatives import Alternatives
from poetc.planning.planner import Planner
from poetc.planning.solution import Solution, Tried, cost_of_computing_once
from poetc.scheduling import Problem, keep_all_peak_bytes
from poetc.scheduling.scope import Scope


class MicroBatches(Alternatives[int]):
    """`problems`: by number of parts, the problem of the whole batch made of so many."""

    name = "micro_batches"
    first_round: ClassVar[float] = 0.5

    def __init__(self, problems: Mapping[int, Problem]) -> None:
        self.problems = dict(problems)
        self.tried: dict[int, Tried] = {}

    def is_open(self, problem: Problem) -> bool:
        return len(self.problems) > 1

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

    def option_words(self, choice: int) -> str:
        return f"{choice} micro-batches"

    def option_of(self, solution: Solution) -> int:
        assert solution.choices.micro_batches is not None
        return solution.choices.micro_batches

    def record(self, choice: int, cost: int | None, least: int, outcome: str) -> None:
        self.tried[choice] = Tried(choice, cost, least, outcome)

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        self.tried.clear()
        best = self.cheapest(problem, planner)
        return replace(best, tried=tuple(self.tried[count] for count in sorted(self.tried)))
