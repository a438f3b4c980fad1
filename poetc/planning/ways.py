"""The ways of using several processors: the main one alone, operators side by side, or threads inside kernels.

The main processor alone comes first. Its steps are then taken in threads and side by side, in next to no time. So
no way is chosen that costs more than the schedule for one processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import ClassVar

from poetc import solvers
from poetc.planning.alternatives import Alternatives
from poetc.planning.planner import Planner
from poetc.planning.processors import on_several
from poetc.planning.solution import Solution, Tried, least_cost
from poetc.scheduling import PlanError, Problem, ScheduleError, verify_parts, verify_plan
from poetc.scheduling.schedule import Proof, Status
from poetc.scheduling.scope import ANY, Repetition, Scope

ALONE, SIDE_BY_SIDE = 0, 1  # greater numbers are those of threads
AT_HAND = "the steps of one processor in another way; bound: every operator once"
Problems = Mapping[int, Problem]  # by way, the same step


def way_words(way: int) -> str:
    """The way in the words of reports."""
    return {ALONE: "the main processor alone", SIDE_BY_SIDE: "operators side by side"}.get(
        way, f"kernels in {way} threads"
    )


class Ways(Alternatives[int]):
    """`sets`: an entry for each problem with several processors that has the choice."""

    name = "threads"
    first_round: ClassVar[float] = 0.7
    patience: ClassVar[float] = 2.0  # the first way leaves some time to the others on a slow machine, too

    def __init__(self, sets: Sequence[Problems]) -> None:
        self.sets = tuple(sets)
        self.tried: dict[int, Tried] = {}
        self.proofs: dict[int, Proof] = {}
        self.in_turn: Solution | None = None  # the latest one whose operators run in turn

    def is_open(self, problem: Problem) -> bool:
        return bool(self._set(problem))

    def frugal(self, problem: Problem) -> Problem:
        """On the main processor: it has one stack in the budget."""
        return self.fix(problem, ALONE)

    def usual(self, problem: Problem) -> Problem:
        return problem

    def propose(self, problem: Problem, found: Solution | None) -> Iterator[int]:
        """Operators in turn first, since their steps serve every way. Alone comes last where time alone counts."""
        energy_counts = problem.objective.cost(1, 0) > 0
        yield from sorted(
            self._set(problem), key=lambda way: (way == ALONE and not energy_counts, way == SIDE_BY_SIDE, way)
        )

    def fix(self, problem: Problem, choice: int) -> Problem:
        """In the limits of `problem`."""
        made = self._set(problem).get(choice)
        if made is None:
            return problem
        return replace(
            problem,
            operators=made.operators,
            tensors=made.tensors,
            processors=made.processors,
            base_bytes=made.base_bytes,
        )

    def chosen(self, problem: Problem, solved: Problem) -> None:
        """A problem does not show how many threads its kernels have."""

    def restore(self, problem: Problem, choice: int, solution: Solution) -> Solution:
        self.proofs[choice] = solution.proof
        restored = solution.with_choice(solution.proof.scope, threads=choice)
        if choice != SIDE_BY_SIDE:
            self.in_turn = restored
        return restored

    def scope(self, solution: Solution) -> Scope:
        return solution.proof.scope

    def at_hand(self, problem: Problem, choice: int, planner: Planner) -> Solution | None:
        """The steps of operators in turn, in another way."""
        known = self.in_turn
        if known is None or choice == known.choices.threads:
            return None
        asked = self.fix(problem, choice)
        inner = self.inner(problem, choice, planner)
        if choice == SIDE_BY_SIDE:
            found = on_several(asked, known, inner)
        else:
            found = _at_prices_of(inner.fixed(asked, known.choices), known)
        if found is None:
            return None
        bound = min(found.cost, least_cost(asked))
        status = Status.OPTIMAL if found.cost <= bound * (1 + solvers.ROUNDING) else Status.LIMIT
        any_option = {f.name: ANY for f in fields(Scope) if getattr(found.proof.scope, f.name) is not None}
        scope = Scope(**{**any_option, "repetition": Repetition.ANY})  # type: ignore[arg-type]
        proof = replace(found.proof, bound=bound, status=status, scope=scope, method=AT_HAND)
        return self.restore(problem, choice, found.with_proof(proof))

    def option_words(self, choice: int) -> str:
        return way_words(choice)

    def option_of(self, solution: Solution) -> int:
        assert solution.choices.threads is not None
        return solution.choices.threads

    def record(self, choice: int, cost: int | None, least: int, outcome: str) -> None:
        self.tried[choice] = Tried(choice, cost, least, outcome)

    def _bounded(self, problem: Problem, best: Solution, gap: float) -> Solution:
        """With a bound for all ways: the lowest one."""
        proof = best.proof
        others = [self._least(problem, way, proof.scope) for way in self._set(problem) if way != best.choices.threads]
        bound = min(proof.bound, *others)
        if bound == proof.bound:
            return best
        status = Status.FEASIBLE if proof.objective - bound <= gap * proof.objective else Status.LIMIT
        return best.with_proof(replace(proof, bound=bound, status=status))

    def _least(self, problem: Problem, way: int, scope: Scope) -> int:
        """A bound for that way that holds in `scope`, as far as the way has its choices."""
        proof, least = self.proofs.get(way), least_cost(self.fix(problem, way))
        if proof is not None:
            absent = {f.name: None for f in fields(Scope) if getattr(proof.scope, f.name) is None}
            if proof.scope.covers(replace(scope, **absent)):  # type: ignore[arg-type]
                return max(proof.bound, least)
        return least

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        if not self.is_open(problem):
            return planner.inner.solve(problem)
        self.tried.clear()
        self.proofs.clear()
        self.in_turn = None
        best = self._bounded(problem, self.cheapest(problem, planner), planner.options.gap)
        return replace(best, ways=tuple(self.tried[way] for way in sorted(self.tried)))

    def _set(self, problem: Problem) -> Problems:
        """The problems of all ways; none where `problem` has no such choice."""
        found = (s for s in self.sets if s[SIDE_BY_SIDE].operators == problem.operators)
        return next(found, {}) if problem.processors else {}


def _at_prices_of(problem: Problem, known: Solution) -> Solution | None:
    """The same steps and the same places in RAM at the prices of `problem`; None where they take too long."""
    try:
        trace = verify_parts([(problem, known.schedule.steps)])
        verify_plan(problem, known.schedule, known.plan)
    except (PlanError, ScheduleError):
        return None
    if problem.deadline_ns is not None and trace.time_ns > problem.deadline_ns:
        return None
    cost = problem.objective.cost(trace.energy_pj, trace.time_ns)
    return replace(known, problem=problem).with_proof(replace(known.proof, objective=cost))
