"""Progress: the best schedule of all searches stays, and stages are named in plain words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import poetc.solvers
from poetc.errors import InfeasibleError, LimitError
from poetc.planning import Kernels, MicroBatches, Planner, Solution, StatePlacement
from poetc.planning.alternatives import Alternatives
from poetc.planning.progress import BestSoFar
from poetc.planning.search_log import SearchLog
from poetc.scheduling import Problem, SolveOptions
from poetc.scheduling.scope import Repetition
from poetc.solvers import Event
from tests.support.problems import training_problem, with_budget

PICOJOULES = {"pJ": 1, "nJ": 1e3, "uJ": 1e6, "µJ": 1e6, "mJ": 1e9, "J": 1e12}


def best_of_lines(lines: list[str]) -> list[float]:
    found = [re.match(r"best ([\d.,]+) (\w+)", line) for line in lines]
    return [float(m[1].replace(",", "")) * PICOJOULES[m[2]] for m in found if m]


def test_the_best_schedule_of_all_searches_stays_in_the_line() -> None:
    """Two micro-batches, which cannot win, are searched after one."""
    whole = with_budget(training_problem(Random(2), 1), 0.6)
    dearer = tuple(replace(op, energy_pj=op.energy_pj * 21 // 20) for op in whole.operators)
    lines: list[str] = []
    chain = (MicroBatches({1: whole, 2: replace(whole, operators=dearer)}), Kernels(), StatePlacement("ram"))
    planner = Planner(options=SolveOptions(time_limit_s=20), reductions=chain, progress=lines.append)
    solution = planner.solve(whole)
    assert "2 micro-batches" in lines
    best = best_of_lines(lines)
    assert best and all(later <= earlier for earlier, later in pairwise(best))
    assert abs(best[-1] - solution.cost) <= 0.001 * solution.cost  # the answer, in four digits
    assert any("every schedule tried next costs at least" in line for line in lines)


def test_the_bound_in_the_line_never_falls() -> None:
    """A bound for one placement of state is none for the next one, and does not stand in the line as if it were."""
    shown = 0
    for seed in range(2):
        problem = with_budget(training_problem(Random(seed), 2, paging=True), 0.45)
        lines: list[str] = []
        chain = (Kernels(), StatePlacement("auto"))
        options = SolveOptions(time_limit_s=10, work_limit_s=0.3)
        planner = Planner(options=options, reductions=chain, progress=lines.append)
        try:
            solution = planner.solve(problem)
        except (InfeasibleError, LimitError):
            continue
        found = [re.search(r"bound ([\d.,]+) (\w+)", line) for line in lines]
        bounds = [float(m[1].replace(",", "")) * PICOJOULES[m[2]] for m in found if m]
        shown += len(bounds)
        assert all(later >= 0.9999 * earlier for earlier, later in pairwise(bounds)), lines
        assert not bounds or bounds[-1] <= 1.0001 * solution.cost
    assert shown > 5


def test_a_bound_on_a_part_of_the_choices_is_not_kept() -> None:
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    best = BestSoFar()
    best.begin(problem, [Kernels(), StatePlacement("auto")], lambda _: 10)
    best.choices[problem.objective, problem.budget_bytes] = frozenset({"state", "kernels"})

    def bound(own: int, *covers: str, is_real: bool = True) -> int:
        event = Event(stage="", objective=100, bound=own)
        return best.observe(problem, event, covers=frozenset(covers), is_real=is_real).bound

    assert bound(100) == 10, "that of one placement and of some kernels: the gap is not closed"
    assert bound(50, "kernels", is_real=False) == bound(60, "state") == 10, "that of one placement, or of some kernels"
    assert [bound(20, "state", "kernels"), bound(34), bound(24), bound(15, "state", "kernels")] == [20] * 4
    assert [bound(30, "state", "kernels", is_real=False), bound(25)] == [30, 30]
    assert bound(120) == 120, "every schedule tried next costs at least that"


def test_a_bound_for_some_options_stands_beside_a_schedule_with_them() -> None:
    """As of encodings of saved tensors: those of the answer are named beside its bound."""
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    best = BestSoFar(log=SearchLog())
    best.begin(problem, [Kernels(), StatePlacement("auto")], lambda _: 10)
    best.choices[problem.objective, problem.budget_bytes] = frozenset({"saved", "kernels", "state"})

    def bound(objective: int, own: int, made: dict[str, int], *covers: str) -> int:
        event = Event(stage="", objective=objective, bound=own)
        return best.observe(problem, event, covers=frozenset({"state", *covers}), chosen=made).bound

    assert bound(100, 30, {"saved": 1}) == 10, "kernels are open"
    assert bound(100, 40, {"saved": 1, "kernels": 0}) == 40
    assert bound(110, 90, {"saved": 2, "kernels": 0}) == 40, "for other encodings, of which nothing is cheaper"
    assert bound(120, 50, {"saved": 1, "kernels": 3}, "kernels") == 50, "whatever kernels run"
    assert bound(100, 45, {"saved": 1, "kernels": 0}) == 50
    assert bound(80, 60, {"saved": 2, "kernels": 1}) == 60
    best.keep(problem, 70, {"saved": 2, "kernels": 0})
    assert bound(95, 20, {"saved": 1, "kernels": 0}) == 70, "that of a schedule found packed, no more than its cost"
    assert best.log is not None and [row.bound for row in best.log.rows] == [10, 40, 40, 50, 50, 60, 70]


def test_no_bound_is_shown_that_a_search_to_come_may_cross() -> None:
    """As of streamed operands: the schedules of each set of them are searched on their own."""
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    best = BestSoFar()
    best.begin(problem, [], lambda _: 10)
    best.choices[problem.objective, problem.budget_bytes] = frozenset({"streaming"})
    best.expect(problem, {}, "streaming", {(): 20, (1,): 30, (2,): 95})

    def bound(objective: int, own: int, streams: tuple[int, ...]) -> int:
        event = Event(stage="", objective=objective, bound=own)
        return best.observe(problem, event, chosen={"streaming": streams}).bound

    assert bound(100, 99, (2,)) == 20
    assert [bound(90, 25, ()), bound(90, 40, ())] == [25, 30]
    assert [bound(96, 35, (1,)), bound(96, 50, (1,))] == [35, 40], "that of the best schedule's streams"
    assert bound(99, 80, (2,)) == 40


def test_costs_of_announced_options_in_one_way_are_none_of_all_ways() -> None:
    """Streamed operands are announced while one way of using the cores is searched. In another one they cost less."""
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    best = BestSoFar()
    best.begin(problem, [], lambda _: 10)
    best.choices[problem.objective, problem.budget_bytes] = frozenset({"threads", "streaming", "state"})
    best.expect(problem, {}, "streaming", {(1,): 95}, covers=frozenset({"streaming", "state"}))
    assert best.proven(problem, {"streaming": (1,)}, ())[0] == 10
    best.expect(problem, {}, "streaming", {(1,): 20}, covers=frozenset({"threads", "streaming", "state"}))
    assert best.proven(problem, {"streaming": (1,)}, ())[0] == 20


def test_a_bound_of_a_class_is_none_of_all_schedules() -> None:
    """As of schedules with every operator once, which an exact search may prove before a second search."""
    problem = with_budget(training_problem(Random(1), 4), 0.6)
    planner = Planner(options=SolveOptions(time_limit_s=5.0, work_limit_s=0.2))
    solution = planner.solve(problem)
    assert solution.cost > planner.least_cost(problem)
    proof = replace(solution.proof, bound=solution.cost)
    for repetition, is_for_all in ((Repetition.ONCE, False), (Repetition.ANY, True)):
        planner = replace(planner, best=BestSoFar())
        scope = replace(solution.scope, repetition=repetition)
        planner.settle(problem, solution.with_proof(replace(proof, scope=scope)), "all of it")
        bound, proven = planner.proven(problem, solution)
        assert (bound == solution.cost) == is_for_all and proven.repetition is Repetition.ANY
    planner.report(problem, Event(stage="", objective=None, bound=solution.cost + 9, repetition=Repetition.POET))
    assert planner.proven(problem, solution)[0] == solution.cost


def test_a_cheaper_schedule_in_another_order_brings_the_bound_of_that_order() -> None:
    """Proven for one order, 100 is no bound for the other one. The log says that the bound is about another scope."""
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    best = BestSoFar()
    best.begin(problem, [], lambda _: 10)

    def bound(objective: int | None, own: int, order: tuple[str, ...]) -> int:
        return best.observe(problem, Event(stage="", objective=objective, bound=own, order=order)).bound

    first, second = ("a", "b"), ("b", "a")
    assert [bound(100, 90, first), bound(100, 100, first)] == [90, 100]
    best.keep(problem, 100, {}, first)
    assert best.observe(problem, Event(stage="", objective=90, bound=80, order=second)).is_about_others
    best.keep(problem, 90, {}, second)
    assert [bound(90, 85, second), bound(None, 88, first), bound(95, 70, second)] == [85, 85, 85]
    assert [(row.scope, row.bound) for row in best.log.rows] == [(1, 90), (1, 100), (2, 80), (2, 85), (2, 85), (2, 85)]


def test_the_best_schedule_is_one_that_packs() -> None:
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    best = BestSoFar(log=SearchLog())
    best.begin(problem, [], lambda _: 10)

    def row(objective: int | None) -> tuple[int | None, int | None]:
        best.observe(problem, Event(stage=str(objective), objective=objective, bound=20))
        assert best.log is not None
        last = best.log.rows[-1]
        assert last.gap == (None if last.best is None else 1 - last.bound / last.best)
        return last.best, last.unpacked

    assert [row(None), row(100)] == [(None, None), (None, 100)]
    best.keep(problem, 110, {})
    assert [row(105), row(90)] == [(110, 100), (110, 90)]
    best.keep(problem, 95, {})
    best.drop(problem)
    assert [row(None), row(96), row(94)] == [(95, None), (95, None), (95, 94)]


def test_the_log_of_a_solve_begins_with_a_schedule_that_packs() -> None:
    """And goes on to the answer: no row has less, and none has more than the one before."""
    seen = 0
    for seed in range(6):
        problem = with_budget(training_problem(Random(seed), 2, paging=True), 0.4)
        planner = Planner(options=SolveOptions(time_limit_s=10, work_limit_s=0.3), reductions=(StatePlacement("auto"),))
        planner.best.log = SearchLog()
        try:
            solution = planner.solve(problem)
        except (InfeasibleError, LimitError):
            continue
        rows = planner.best.log.rows
        bests = [row.best for row in rows if row.best is not None]
        assert all(later <= earlier for earlier, later in pairwise(bests)) and min(bests) >= solution.cost
        assert all(row.unpacked is None or row.best is None or row.unpacked < row.best for row in rows)
        seen += rows[0].best is not None and len(rows) > 2
    assert seen > 1


def test_a_choice_that_an_option_does_not_leave_is_made() -> None:
    """One problem has kernels to choose from, the other one, with encodings, has not."""
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    planner = Planner(options=SolveOptions(), reductions=(Kernels(), StatePlacement("ram")))
    planner.best.begin(problem, planner.reductions, lambda _: 10)
    planner.best.choices[problem.objective, problem.budget_bytes] = frozenset({"kernels"})
    planner.solve(problem)
    (bounds,) = planner.best.bounds.values()
    assert max(bounds.values()) > 10, "no bound was taken, as if kernels were open"


def test_every_stage_of_the_engine_has_plain_words() -> None:
    from poetc.planning.progress import STAGES, stage_words

    said = set()
    for path in (Path(poetc.solvers.__file__).parent / "poetc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "say":
                said |= {a.value for a in node.args if isinstance(a, ast.Constant)}
            if isinstance(node, ast.keyword) and node.arg == "stage" and isinstance(node.value, ast.Constant):
                said.add(node.value.value)
    assert len(said) > 8 and said <= set(STAGES)
    assert stage_words("5 cuts") == stage_words("race") == "improving the schedule"
    assert stage_words("POET's MILP") == "POET's MILP"


class Dearer(Alternatives[tuple[int, ...]]):
    """Option n makes every operator cost n times as much. A bound may name the option."""

    name, scoped, noun, first_round = "saved", True, "prices", 0.5

    def is_open(self, problem: Problem) -> bool:
        return True

    def propose(self, problem: Problem, found: Solution | None) -> Iterator[tuple[int, ...]]:
        yield from ((3,), (1,))

    def fix(self, problem: Problem, choice: tuple[int, ...]) -> Problem:
        operators = tuple(replace(op, energy_pj=choice[0] * op.energy_pj) for op in problem.operators)
        return replace(problem, operators=operators)

    def option_words(self, choice: tuple[int, ...]) -> str:
        return f"{choice[0]} times"

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        return self.cheapest(problem, planner)


def test_the_bound_of_the_first_alternative_is_not_shown_for_all() -> None:
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    planner = Planner(options=SolveOptions(time_limit_s=10, work_limit_s=0.3), reductions=(Dearer(),))
    planner.best.log = SearchLog()
    solution = planner.solve(problem)
    bounds = [row.bound for row in planner.best.log.rows]
    assert len(bounds) > 2 and max(bounds) <= solution.cost
    assert all(later >= earlier for earlier, later in pairwise(bounds))


class Suggested(Dearer):
    """The cheaper option is known only when the dearer one is solved, as encodings without those that nothing needs."""

    def propose(self, problem: Problem, found: Solution | None) -> Iterator[tuple[int, ...]]:
        yield (3,)

    def after(self, problem: Problem, best: Solution) -> Iterator[tuple[int, ...]]:
        yield (2,)

    def fix(self, problem: Problem, choice: tuple[int, ...]) -> Problem:
        """Option 3 costs one more for each operator but the first."""
        return super().fix(problem, (2,)) if choice == (2,) else dearer_by_one(super().fix(problem, (2,)))


def dearer_by_one(problem: Problem) -> Problem:
    first, *others = problem.operators
    return replace(problem, operators=(first, *(replace(op, energy_pj=op.energy_pj + 1) for op in others)))


def test_no_bound_is_shown_that_an_option_may_cross_which_the_best_one_suggests() -> None:
    problem = with_budget(training_problem(Random(1), 2), 0.6)
    planner = Planner(options=SolveOptions(time_limit_s=10, work_limit_s=0.3), reductions=(Suggested(),))
    planner.best.log = SearchLog()
    solution = planner.solve(problem)
    assert solution.scope.choices
    bounds = [row.bound for row in planner.best.log.rows]
    assert len(bounds) > 2 and max(bounds) <= solution.cost
