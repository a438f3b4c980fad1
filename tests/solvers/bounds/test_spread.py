"""Cuts spread over the step: their choice, and what they prove near the smallest budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from poetc.scheduling import SolveOptions
from poetc.solvers import bound_of_any_placement, solve
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.ram import working_set_bytes
from poetc.solvers.poetc.bounds.spread import best_spread, small_tensors, spread_cuts
from poetc.solvers.poetc.settings import ENGINE, LARGE, SPREAD
from tests.support.problems import training_problem, with_budget


def chain(seed: int) -> Model:
    return Model(with_budget(training_problem(Random(seed), 12, paging=True), 0.2))


@pytest.mark.parametrize("count", [1, 3, 8, 1000])
def test_each_stretch_has_its_largest_working_set(count: int) -> None:
    for seed in range(5):
        model = chain(seed)
        cuts = spread_cuts(model, count)
        assert list(cuts) == sorted(set(cuts)) and 0 < len(cuts) <= min(count, model.n_ops)
        sets = [working_set_bytes(model, v) for v in range(model.n_ops)]
        assert max(sets) == max(sets[v] for v in cuts)
        between = [sum(sets[a:b]) for a, b in zip((0, *cuts), (*cuts, model.n_ops), strict=True)]
        assert max(between) <= 2 * sum(sets) / count + 2 * max(sets)


def test_small_tensors_are_below_their_share() -> None:
    model = chain(0)
    small = small_tensors(model)
    least_bytes = SPREAD.least_share * model.paging_capacity
    assert small == {t for t in range(model.n_tensors) if model.size[t] < least_bytes}
    state = tuple(range(0, model.n_tensors, 2))
    assert small_tensors(model, [state]) == small - {*state}


@pytest.mark.parametrize(
    ("lp", "mips", "asked", "best"),
    [
        (1, {4: 2, 8: 3, 12: 2, 16: 3, 24: 9}, 4, 3),  # two in turn prove no more: the end
        (1, {4: 2, 8: 3, 12: 2, 16: 4, 24: 1, 32: 1}, 6, 4),
        (1, {4: 3, 8: None}, 2, 3),  # it is too large, or no work is left
        (1, {4: None}, 1, 1),
        (None, {}, 0, None),
    ],
)
def test_more_and_more_cuts_until_they_prove_no_more(
    lp: int | None, mips: dict[int, int | None], asked: int, best: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr("poetc.solvers.poetc.bounds.spread.spread_cuts", lambda model, count: tuple(range(count)))

    def relax(cuts: tuple[int, ...], as_lp: bool) -> Relaxation | None:
        seen.append(len(cuts))
        bound = lp if as_lp else mips[len(cuts)]
        return None if bound is None else Relaxation(cuts, bound, False, True, (), frozenset())

    result = best_spread(chain(0), relax)
    assert (None if result is None else result.bound) == best
    assert seen == [4, *list(mips)[:asked]]


@pytest.mark.parametrize(("budget", "asked"), [(0.05, True), (0.95, False)])
def test_a_solve_takes_the_bound_where_a_wide_gap_is_left(
    budget: float, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []

    def spy(model: Model, relax: Callable[[tuple[int, ...], bool], Relaxation | None]) -> Relaxation | None:
        best = best_spread(model, relax)
        taken.append(0.0 if best is None else best.bound)
        return best

    monkeypatch.setattr("poetc.solvers.poetc.relaxing.best_spread", spy)
    least = 1e-9 if asked else ENGINE.wide_gap
    monkeypatch.setattr("poetc.solvers.poetc.bounds.ladder.ENGINE", replace(ENGINE, wide_gap=least))
    problem = with_budget(training_problem(Random(0), 12, paging=True), budget)
    proof = solve(problem, options=SolveOptions(time_limit_s=30, work_limit_s=0.5, fixed_order=True)).proof
    assert bool(taken) == asked
    assert max(taken, default=0.0) <= proof.bound <= proof.objective


def test_an_lp_alone_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []

    def lp_alone(model: Model, relax: Callable[[tuple[int, ...], bool], Relaxation | None]) -> Relaxation | None:
        lp = relax(spread_cuts(model, 8), True)
        assert lp is not None
        taken.append(lp.bound)
        return replace(lp, bound=lp.bound + 0.25)  # which shows that the answer is another one than the LP

    monkeypatch.setattr("poetc.solvers.poetc.relaxing.best_spread", lp_alone)
    monkeypatch.setattr("poetc.solvers.poetc.bounds.ladder.ENGINE", replace(ENGINE, wide_gap=1e-9))
    problem = with_budget(training_problem(Random(0), 12, paging=True), 0.05)
    proof = solve(problem, options=SolveOptions(time_limit_s=30, work_limit_s=0.5, fixed_order=True)).proof
    assert taken and taken[0] <= proof.bound <= proof.objective


def test_a_bound_for_any_placement_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poetc.solvers.poetc.bounds.large.LARGE", replace(LARGE, most_operators=0))
    more = 0
    for seed in range(4):
        problem = with_budget(training_problem(Random(seed), 8, paging=True), 0.05)
        cutoff = 100 * Model(problem).base_cost
        least = [0, 0]
        for k, counts in enumerate(((), SPREAD.counts)):
            monkeypatch.setattr("poetc.solvers.poetc.bounds.spread.SPREAD", replace(SPREAD, counts=counts))
            least[k] = bound_of_any_placement(problem, cutoff, work_s=0.3, stop_at=math.inf)
        assert least[0] <= least[1] <= cutoff
        more += least[1] > least[0]
    assert more > 1
