"""The search in which only large tensors take RAM: never above an optimum, and close to it near the smallest budget."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from poetc.scheduling import InPlace, OperatorSpec, Paging, Problem, SolveOptions, Status, TensorSpec, movable_state
from poetc.solvers import solve
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel
from poetc.solvers.poetc.bounds.large import Diagram, _Shares, bound_of_large
from poetc.solvers.poetc.search.exhaustive import search
from poetc.solvers.poetc.settings import LARGE, SPREAD
from tests.solvers.cases import case, with_state, worn
from tests.support import oracle
from tests.support.problems import training_problem, with_budget

SEEDS = range(48)


def set_large(monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
    monkeypatch.setattr("poetc.solvers.poetc.bounds.large.LARGE", replace(LARGE, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1, 3, 50])
@pytest.mark.parametrize("shares", [(1e-9,), (0.3,), (0.5, 0.2, 0.1)], ids=["all", "large", "ever smaller"])
def test_no_bound_exceeds_the_optimum(monkeypatch: pytest.MonkeyPatch, width: int, shares: tuple[float, ...]) -> None:
    set_large(monkeypatch, widths=(width,), shares=shares, leaders=width)
    reached = raised = 0
    for seed in SEEDS:
        limited = worn(seed)
        for problem, optimum in [case(seed), *([limited] if limited is not None else [])]:
            if optimum is None:
                continue
            bound = bound_of_large(problem, math.inf).bound
            assert bound <= optimum.cost, seed
            assert bound_of_large(problem, optimum.cost).bound <= optimum.cost, seed
            reached += bound == optimum.cost
            raised += bound > Model(problem).base_cost
    if shares[0] < 0.1:
        assert reached > 20 and raised > 15  # a bound that is always weak is a defect too


@pytest.mark.parametrize("chains", [0, 1, 4])
def test_no_bound_for_any_placement_exceeds_the_best(monkeypatch: pytest.MonkeyPatch, chains: int) -> None:
    set_large(monkeypatch, shares=(1e-9,), most_chains=chains)
    seen = 0
    for seed in range(60):
        found = with_state(seed)
        costs = [] if found is None else [o.cost for o in found[1].values() if o is not None]
        if found is None or not costs:
            continue
        seen += 1
        first = frozenset(chain[0] for chain in movable_state(found[0])[::2])
        bound = bound_of_large(found[0], math.inf, chains=movable_state(found[0]), first=first).bound
        assert bound <= min(costs), seed
    assert seen > 10


@pytest.mark.parametrize("most", [1, 5, 20, 100])
def test_an_early_end_still_bounds(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    set_large(monkeypatch, shares=(1e-9,), widths=(1, 2, 4), first_transitions=most, most_transitions=2 * most)
    for seed in SEEDS:
        problem, optimum = case(seed)
        if optimum is not None:
            assert bound_of_large(problem, math.inf).bound <= optimum.cost, seed


def test_a_run_that_takes_more_than_it_may_proves_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other placement waits for what is left, so that less than nothing left is no reason to give up."""
    overrun = 0
    for seed in SEEDS:
        problem, optimum = case(seed)
        if optimum is None:
            continue
        set_large(monkeypatch, shares=(1e-9,), widths=(3,), first_transitions=20)
        found = bound_of_large(problem, math.inf)
        assert found.bound >= Diagram(Model(problem), 1).base > 0, seed
        overrun += found.transitions > 20
    assert overrun > 5


def test_more_states_only_where_the_first_proved_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only for the share that proved the most. Until then the work is that of the first width."""
    ran, run = list[tuple[float, int]](), _Shares.run

    def spy(self: _Shares, share: float, width: int) -> bool:
        ran.append((share, width))
        return run(self, share, width)

    monkeypatch.setattr(_Shares, "run", spy)
    set_large(monkeypatch, widths=(1, 3), shares=(0.3, 1e-9), first_transitions=1000, most_transitions=10**6)
    wider = 0
    for seed in (0, 1, 3, 10, 13):
        problem = with_budget(training_problem(Random(seed), 2, paging=True), 0.2)
        ran.clear()
        first = bound_of_large(problem, math.inf)
        assert len(ran) <= 3 and ran[:2] == [(0.3, 1), (1e-9, 1)], seed
        wider += len(ran) == 3
        ran.clear()
        known = bound_of_large(problem, math.inf, known=2 * first.bound)
        assert ran == [(0.3, 1), (1e-9, 1)] and known.transitions < 1200, seed
    assert wider > 0


def test_more_states_at_once_prove_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, as long as work is left for four times what the last one took."""
    better = 0
    for seed in (0, 1, 3, 10, 13):
        problem, bounds = with_budget(training_problem(Random(seed), 2, paging=True), 0.2), list[float]()
        for widths in ((1,), (1, 3), (1, 3, 50)):
            set_large(monkeypatch, widths=widths, shares=(1e-9,))
            bounds.append(bound_of_large(problem, math.inf).bound)
        assert bounds == sorted(bounds), seed
        better += bounds[-1] > bounds[0]
    assert better > 3


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


def test_it_proves_what_cuts_do_not_where_few_tensors_fit() -> None:
    """Tensors kept for the backward pass are paged: to make one again, the gradient would have to be paged."""
    problem = layers(4)
    model = Model(problem)
    optimum = search(model, max_states=10**6, stop_at=math.inf)
    assert optimum.complete and optimum.codes is not None
    bound = bound_of_large(problem, math.inf).bound
    assert bound == optimum.bound > 2 * model.base_cost
    cuts = CutModel(model, range(model.cut, model.n_ops, 2), between=True).solve(time_limit_s=60)
    assert cuts.exact and cuts.bound < 0.8 * bound


def test_what_is_written_already_is_read_after_its_only_reader() -> None:
    """`t` is read back twice after one write, to make `o`; a page of `o` itself would have to be written."""
    size = 100
    sizes = {"x": 1, "t": size, "p": 2 * size, "p1": 1, "o": size, "q": 2 * size, "q1": 1, "end": 1}
    number = {name: k for k, name in enumerate(sizes)}
    page = TensorSpec(name="", size_bytes=0, page_in_pj=100, page_out_pj=100)
    tensors = [
        replace(page, name=name, size_bytes=n, initial="ram" if name == "x" else "", pageable=name in "to")
        for name, n in sizes.items()
    ]
    tensors[-1] = replace(tensors[-1], final="ram")
    made_of = {"t": "x", "p": "x", "p1": "p", "o": "t", "q": "x", "q1": "q", "end": "o p1 q1"}
    operators = [
        OperatorSpec(
            name=f"makes {made}",
            inputs=tuple(number[name] for name in inputs.split()),
            outputs=(number[made],),
            time_ns=1,
            energy_pj=1000 if made == "t" else 2,
        )
        for made, inputs in made_of.items()
    ]
    problem = Problem(
        name="written once",
        tensors=tuple(tensors),
        operators=tuple(sorted(operators, key=lambda op: op.outputs)),
        budget_bytes=2 * size + 50,
        paging=Paging.SYNC,
    )
    best = oracle.optimum(problem)
    assert best is not None
    assert best.cost == Model(problem).base_cost + 2 + 300
    assert bound_of_large(problem, math.inf).bound == best.cost


def test_a_solve_takes_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poetc.solvers.poetc.bounds.spread.SPREAD", replace(SPREAD, counts=()))
    proof = solve(layers(5), options=SolveOptions(time_limit_s=30, work_limit_s=2, fixed_order=True)).proof
    assert proof.status is Status.OPTIMAL and "large tensors" in proof.method
