"""Cuts spread over the step: their choice, and what they prove near the smallest budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from poetc.scheduling import InPlace, OperatorSpec, Paging, Problem, SolveOptions, Status, TensorSpec
from poetc.solvers import bound_of_any_placement, solve
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.bounds.gaps import GapModel
from poetc.solvers.poetc.bounds.ram import working_set_bytes
from poetc.solvers.poetc.bounds.spread import best_spread, small_tensors, spread_cuts
from poetc.solvers.poetc.relaxing import Relaxing
from poetc.solvers.poetc.search.exhaustive import search
from poetc.solvers.poetc.settings import ENGINE, SPREAD
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


@pytest.mark.parametrize(
    ("mips", "asked", "best"),
    [
        ({4: 2, 8: 3, 12: 2, 16: 3, 24: 9}, 4, 3),  # two in turn prove no more: the end
        ({4: 2, 8: 3, 12: 2, 16: 4, 24: 1, 32: 1}, 6, 4),
        ({4: 3, 8: None}, 2, 3),  # it is too large, or no work is left
        ({4: None}, 1, None),
    ],
)
def test_more_and_more_cuts_until_they_prove_no_more(
    mips: dict[int, int | None], asked: int, best: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr("poetc.solvers.poetc.bounds.spread.spread_cuts", lambda model, count: tuple(range(count)))

    def relax(cuts: tuple[int, ...]) -> Relaxation | None:
        seen.append(len(cuts))
        bound = mips[len(cuts)]
        return None if bound is None else Relaxation(cuts, bound, False, True, (), frozenset())

    result = best_spread(chain(0), relax)
    assert (None if result is None else result.bound) == best
    assert seen == list(mips)[:asked]


@pytest.mark.parametrize(("budget", "asked"), [(0.05, True), (0.95, False)])
def test_a_solve_takes_the_bound_where_a_wide_gap_is_left(
    budget: float, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []

    def spy(model: Model, relax: Callable[[tuple[int, ...]], Relaxation | None]) -> Relaxation | None:
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


@pytest.mark.parametrize(("widest_gap", "first"), [(1e-9, "spread"), (1.0, "climb")])
def test_spread_cuts_come_first_where_the_gap_is_widest(
    widest_gap: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a short limit no time was left for them behind relaxations that prove little."""
    seen, climb, spreading = list[str](), Relaxing.climb, Relaxing.spreading

    def climb_seen(self: Relaxing, *args: Any) -> Any:
        seen.append("climb")
        return climb(self, *args)

    def spreading_seen(self: Relaxing) -> Any:
        seen.append("spread")
        return spreading(self)

    monkeypatch.setattr(Relaxing, "climb", climb_seen)
    monkeypatch.setattr(Relaxing, "spreading", spreading_seen)
    monkeypatch.setattr("poetc.solvers.poetc.bounds.ladder.ENGINE", replace(ENGINE, wide_gap=1e-9))
    monkeypatch.setattr("poetc.solvers.poetc.engine.SPREAD", replace(SPREAD, widest_gap=widest_gap))
    problem = with_budget(training_problem(Random(0), 12, paging=True), 0.05)
    solve(problem, options=SolveOptions(time_limit_s=30, work_limit_s=0.5, fixed_order=True))
    assert seen[:1] == [first]


def layers(count: int) -> Problem:
    """Layers with activations of one size; beside a layer's input and output there is no room for a third."""
    size, tensors, operators = 1000, [TensorSpec(name="x", size_bytes=40, initial="ram")], list[OperatorSpec]()

    def add(phase: str, inputs: tuple[int, ...], size_bytes: int, energy_pj: int, *, over: int | None = None) -> int:
        made = len(tensors)
        tensors.append(TensorSpec(name=f"t{made}", size_bytes=size_bytes, page_in_pj=100, page_out_pj=100))
        pairs = () if over is None else (InPlace(input=over, output=made),)
        spec = OperatorSpec(name=f"makes t{made}", phase=phase, inputs=inputs, outputs=(made,), time_ns=1, energy_pj=1)
        operators.append(replace(spec, energy_pj=energy_pj, in_place=pairs))
        return made

    kept = [0]
    for _ in range(count):
        product = add("forward", (kept[-1],), size, 20)
        kept.append(add("forward", (product,), size, 2, over=product))
    gradient = add("backward", (kept[-1],), size, 5)
    for k in reversed(range(count)):
        add("backward", (kept[k], gradient), 40, 20)  # of weights
        if k:
            following = add("backward", (gradient,), size, 20)
            gradient = add("backward", (following,), size, 2, over=following)
    budget_bytes = 2 * size + 200 + 40 * count
    return Problem(
        name="layers",
        tensors=tuple(tensors),
        operators=tuple(operators),
        budget_bytes=budget_bytes,
        paging=Paging.SYNC,
    )


def test_they_prove_an_optimum_where_few_tensors_fit() -> None:
    """Tensors kept for the backward pass are paged: to make one again, the gradient would have to be paged."""
    problem = layers(4)
    model = Model(problem)
    optimum = search(model, max_states=10**6, stop_at=math.inf)
    assert optimum.complete and optimum.codes is not None
    relaxation = GapModel(model, spread_cuts(model, 4)).solve(time_limit_s=60)
    assert relaxation.bound == model.cost(optimum.codes) > 1.2 * model.base_cost
    proof = solve(layers(5), options=SolveOptions(time_limit_s=30, work_limit_s=2, fixed_order=True)).proof
    assert proof.status is Status.OPTIMAL and proof.method.endswith("4 cuts")


def test_a_bound_for_any_placement_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
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
