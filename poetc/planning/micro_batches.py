"""The number of parts of a batch: each number is another problem, and the cheapest schedule wins."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from poetc.devices.units import format_cost
from poetc.errors import format_count
from poetc.planning.alternatives import DOES_NOT_FIT, Alternatives, with_lowest_bound
from poetc.planning.planner import Planner
from poetc.planning.solution import OptionResult, Solution, cost_of_computing_once
from poetc.scheduling import ANY, Problem, Proof, Scope, keep_all_peak_bytes


class MicroBatches(Alternatives[int]):
    """`problems`: by number of parts, the problem of the whole batch made of so many."""

    name = "micro_batches"
    first_round: ClassVar[float] = 0.2
    second_round: ClassVar[float] = 0.25

    def __init__(self, problems: Mapping[int, Problem]) -> None:
        self.problems = dict(problems)
        self.results: dict[int, OptionResult] = {}
        self.proofs: dict[int, list[Proof]] = {}  # of all solutions, by number

    def is_open(self, problem: Problem) -> bool:
        return len(self.problems) > 1

    def frugal(self, problem: Problem) -> Problem:
        """The problem that needs the least RAM to keep everything."""
        return min(self.problems.values(), key=keep_all_peak_bytes)

    def usual(self, problem: Problem) -> Problem:
        """The batch in as few parts as there are."""
        return self.problems[min(self.problems)]

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[int]:
        """Where keep-all fits first, since that costs nothing to find out; then by the cost of computing once."""

        def promise(count: int) -> tuple[bool, int, int]:
            p = self.problems[count]
            return keep_all_peak_bytes(p) > p.budget_bytes, cost_of_computing_once(p), count

        yield from sorted(self.problems, key=promise)

    def fix(self, problem: Problem, choice: int) -> Problem:
        return self.problems[choice]

    @classmethod
    def note(cls, asked: Problem, solution: Solution) -> str:
        results = solution.results
        if not results:
            return ""
        if len(results) == 1 and results[0].count == 1:
            why = "batch-norm needs it whole, it fits as it is, or it has no divisor"
            return f"micro-batches: the batch is not split ({why})"
        show = functools.partial(format_cost, asked.objective)
        parts = (
            f"{t.count}: {t.outcome}"
            if t.cost is None
            else f"{t.count}: {show(t.cost)} ({t.outcome}, bound {show(t.least)})"
            for t in results
        )
        return f"micro-batches tried: {'; '.join(parts)}; the bound of the answer is the lowest of these"

    def option_words(self, choice: int) -> str:
        return format_count(choice, "micro-batch", "micro-batches")

    def record(self, choice: int, cost: int | None, least: int, outcome: str) -> None:
        self.results[choice] = OptionResult(choice, cost, least, outcome)

    def restore(self, problem: Problem, choice: int, solution: Solution) -> Solution:
        self.proofs.setdefault(choice, []).append(solution.proof)
        return super().restore(problem, choice, solution)

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        self.results.clear()
        self.proofs.clear()
        best = self.cheapest(problem, planner)
        possible = [t.least for t in self.results.values() if t.outcome != DOES_NOT_FIT]
        best = self._claimed(with_lowest_bound(best, possible, planner.options.gap), planner)
        return replace(best, results=tuple(self.results[count] for count in sorted(self.results)))

    def _claimed(self, best: Solution, planner: Planner) -> Solution:
        """`best` with a scope in which the bound holds for every number: a choice is open where all left it open."""
        proof = best.proof
        for count, proofs in self.proofs.items():
            if planner.inner.least_cost(self.problems[count]) >= proof.bound:
                continue  # whatever is chosen
            enough = [known.scope for known in proofs if known.bound >= proof.bound]
            taken = min(enough or [known.scope for known in proofs], key=_narrowed)
            for name, option in best.scope.choices:
                if taken.choice(name) not in (None, ANY):
                    proof = replace(proof, scope=proof.scope.with_choice(name, option))
            if taken.order is not ANY and proof.scope.order is ANY:
                proof = replace(proof, scope=replace(proof.scope, order=best.scope.order))
        return best.with_proof(proof)


def _narrowed(scope: Scope) -> int:
    """How many choices, the order among them, it does not leave open."""
    return sum(option is not ANY for option in (scope.order, *dict(scope.choices).values()))
