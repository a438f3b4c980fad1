"""The number of micro-batches with the cheapest schedule, found without solving what cannot win."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pytest

from poetc.errors import InfeasibleError, LimitError
from poetc.planning import Kernels, MicroBatches, Planner, Solution, StatePlacement, plain
from poetc.scheduling import (
    ANY,
    MemoryPlan,
    Problem,
    Schedule,
    SolveOptions,
    Status,
    keep_all,
    keep_all_peak_bytes,
    pack,
    verify,
)
from tests.support.oracle import minimum_budget, optimum
from tests.support.problems import training_problem, with_budget

OPTIONS = SolveOptions(time_limit_s=60)


def best_split(problems: list[tuple[int, Problem]]) -> Solution:
    chain = (MicroBatches(dict(problems)), Kernels(), StatePlacement("ram"))
    return Planner(options=OPTIONS, reductions=chain).solve(problems[0][1])


def dearer(problem: Problem, factor: int) -> Problem:
    operators = tuple(replace(o, energy_pj=o.energy_pj * factor) for o in problem.operators)
    return replace(problem, operators=operators)


def test_the_cheapest_wins_and_what_cannot_win_is_not_solved() -> None:
    chosen = set()
    for seed in range(12):
        whole = with_budget(training_problem(Random(seed), 1), 0.9 if seed % 2 else 0.1)
        smaller = training_problem(Random(seed + 100), 1)
        problems = [(1, whole), (2, replace(smaller, budget_bytes=whole.budget_bytes)), (4, dearer(smaller, 50))]
        costs = {n: best.cost for n, p in problems if (best := optimum(p)) is not None}
        split = best_split(problems)
        assert split.cost == min(costs.values()), seed
        assert split.proof.bound <= split.cost
        assert split.proof.bound <= min([t.least for t in split.results if t.outcome != "does not fit"]), (
            "of all numbers"
        )
        assert costs[split.choices["micro_batches"] or 0] == min(costs.values())
        assert verify(dict(problems)[split.choices["micro_batches"] or 0], split.schedule).energy_pj == min(
            costs.values()
        )
        assert [t.count for t in split.results] == [1, 2, 4]
        for t in split.results:
            if t.outcome == "cannot be cheaper":
                assert t.least >= split.cost
            elif t.outcome == "does not fit":
                assert t.count not in costs
        assert split.results[2].outcome in ("cannot be cheaper", "optimal", "does not fit")
        chosen.add(split.choices["micro_batches"])
    assert chosen >= {1, 2}


def test_keep_all_of_a_split_spares_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = training_problem(Random(1), 1)
    fits = replace(problem, budget_bytes=keep_all_peak_bytes(problem))
    tight = with_budget(dearer(training_problem(Random(2), 1), 2), 0.0)
    solved: list[Problem] = []
    real = plain.solve_and_pack
    monkeypatch.setattr(plain, "solve_and_pack", lambda p, *more: (solved.append(p), real(p, *more))[1])
    assert fits.compute_once_pj < tight.compute_once_pj
    split = best_split([(1, tight), (2, fits)])
    assert (split.choices["micro_batches"], solved) == (2, [fits])
    assert split.results[0].outcome == "cannot be cheaper"


def test_if_nothing_fits_the_most_frugal_one_says_what_would() -> None:
    problems = [(n, replace(training_problem(Random(n), 1), budget_bytes=150)) for n in (1, 2)]
    smallest = min(b for _, p in problems if (b := minimum_budget(p)) is not None)
    assert smallest > 150
    with pytest.raises(InfeasibleError) as raised:
        best_split(problems)
    found = raised.value.details["min_budget_bytes"]
    assert isinstance(found, int) and found >= smallest


def test_time_goes_to_the_promising_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest after a little work need not be the best, and a search that its work ended goes on with more."""
    whole = with_budget(training_problem(Random(1), 1), 0.5)
    problems = [(n, replace(whole, name=str(n))) for n in (1, 2, 4)]
    once = whole.compute_once_pj
    spent: dict[str, list[float]] = {"1": [], "2": [], "4": []}

    def solved(problem: Problem, planner: Planner) -> tuple[Schedule, MemoryPlan]:
        work_s, schedule = planner.options.work_limit_s, keep_all(problem)
        spent[problem.name].append(work_s)
        cost, bound = {"1": (10, 9), "2": (12 if work_s < 10 else 6, 2), "4": (40, 2)}[problem.name]
        proof = replace(schedule.proof, status=Status.FEASIBLE, objective=cost * once, bound=bound * once)
        return replace(schedule, proof=proof), pack(problem, schedule)

    monkeypatch.setattr(plain, "solve_and_pack", solved)
    split = best_split(problems)
    assert (split.choices["micro_batches"], split.cost) == (2, 6 * once)
    shares = {name: [s / OPTIONS.work_limit_s for s in own] for name, own in spent.items()}
    assert shares["1"] == shares["4"] == [pytest.approx(0.2 / 3)]
    assert shares["2"] == [pytest.approx(0.2 / 3), pytest.approx(0.25), 1.0]


def test_a_deadline_that_nothing_meets_takes_little_more_than_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of parts is tried at first; beyond the limit others are, for a quarter of it."""
    clock = [0.0]
    tried: list[tuple[str, float]] = []

    def late(problem: Problem, planner: Planner) -> tuple[Schedule, MemoryPlan]:
        tried.append((problem.name, clock[0]))
        clock[0] += planner.options.time_limit_s + 10.0  # a search that ends late, as the one for an error does
        raise LimitError("nothing was found in time")

    monkeypatch.setattr(plain, "solve_and_pack", late)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    whole = with_budget(training_problem(Random(1), 1), 0.9)
    problems = [(n, replace(whole, name=str(n))) for n in range(1, 13)]
    with pytest.raises(LimitError, match="nothing was found in time"):
        best_split(problems)
    assert 2 < len(tried) < len(problems) and tried[-1][1] <= 1.25 * OPTIONS.time_limit_s


def test_a_claim_for_all_numbers_is_no_wider_than_that_of_each() -> None:
    """The other number was proven for its placement of state alone, and the claim was for any."""
    whole = with_budget(training_problem(Random(46), 5, paging=True), 0.4)
    numbers = MicroBatches({1: whole, 2: dearer(whole, 2)})
    planner = Planner(options=OPTIONS, reductions=(numbers, StatePlacement("auto")))
    best = numbers.solve(whole, planner)
    name, bound = StatePlacement.name, numbers.problems[2].compute_once_pj + 1
    anywhere, here = (best.proof.scope.with_choice(name, option) for option in (ANY, ()))
    best = replace(best, choices={**best.choices, name: frozenset()})
    best = best.with_proof(replace(best.proof, objective=bound, bound=bound, scope=anywhere))
    for scopes, claimed in (((anywhere, here), ()), ((here, anywhere), ANY)):
        numbers.proofs = {2: [replace(best.proof, bound=bound - 1 + k, scope=s) for k, s in enumerate(scopes)]}
        assert numbers._claimed(best, planner).proof.scope.choice(name) == claimed
