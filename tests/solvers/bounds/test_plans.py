"""Plans of relaxations as sequences, their bounds beside schedules, and new cuts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from poetc.scheduling import Completer, InPlace, OperatorSpec, Problem
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation
from poetc.solvers.poetc.bounds.ladder import new_cuts
from poetc.solvers.poetc.search.plans import chain_ends, lazy_codes, overfull
from poetc.solvers.poetc.search.race import Race
from tests.solvers.cases import case
from tests.solvers.chains import chain
from tests.support.problems import ProblemBuilder, training_problem, with_budget


def test_bounds_and_schedules_of_larger_problems_never_cross() -> None:
    """Beyond what exhaustive search reaches: every bound against the best schedule that anything found."""
    for seed in range(4):
        random = Random(seed)
        problem = with_budget(training_problem(random, 3, paging=seed % 2 == 1), 0.5)
        model = Model(problem)
        race = Race(problem, seed, float("inf"))
        race.run(40, 0)
        if race.incumbent is None:
            continue
        backward = range(model.cut, model.n_ops)
        for cuts, between in (
            (backward, True),
            (backward[::2], True),
            (backward[::3], False),
            (range(model.n_ops), True),
        ):
            cut_model = CutModel(model, cuts, between=between)
            relaxation = cut_model.solve(time_limit_s=20, max_nodes=20)
            assert relaxation.bound <= race.incumbent.cost, (seed, cuts)


def test_a_plan_that_fits_is_optimal() -> None:
    """What a relaxation plans costs its bound; where nothing is over the capacity it is a schedule, and no other is
    cheaper.
    """
    fits = over = 0
    for seed in range(160):
        problem, optimum = case(seed)
        model = Model(problem)
        relaxation = CutModel(model, range(0, model.n_ops, 2), between=True).solve(time_limit_s=20)
        codes = lazy_codes(model, relaxation) if relaxation.held else None
        if codes is None or optimum is None or problem.deadline_ns is not None:
            continue
        pages = any(code >= model.n_ops for code in codes)
        assert model.cost(codes) <= relaxation.bound + 1, seed
        peak = Completer(problem).run(model.decisions(codes)).peak_bytes
        excess = overfull(model, codes, model.paging_capacity if pages else model.capacity)
        if excess:
            over += 1
            assert peak > problem.budget_bytes, seed
            assert [e for e, _ in excess] == sorted((e for e, _ in excess), reverse=True)
        else:
            fits += 1
            assert peak <= problem.budget_bytes, seed
            assert model.cost(codes) == optimum.cost, seed
    assert fits > 30
    assert over > 5


def test_a_plan_repeats_what_reads_a_weight_before_the_weight_is_updated() -> None:
    """The product y is wanted again behind the update of its weight, in the same stage."""
    random = Random(0)
    build = ProblemBuilder(random, paging=False)
    x, w = (build.tensor(name, 1, initial="ram", final=final) for name, final in (("x", "ram"), ("w", "")))
    y, loss, g = (build.tensor(name, 4) for name in ("y", "loss", "g"))
    updated, result = (build.tensor(name, 1, final="ram") for name in ("w@1", "result"))
    reads_makes = (((x, w), (y,)), ((y,), (loss,)), ((loss,), (g,)), ((w, g), (updated,)), ((y,), (result,)))
    operators = [
        OperatorSpec(name=str(v), inputs=inputs, outputs=outputs, time_ns=1, energy_pj=1)
        for v, (inputs, outputs) in enumerate(reads_makes)
    ]
    over = (InPlace(input=w, output=updated, required=True),)
    operators[3] = replace(operators[3], recomputable=False, in_place=over)
    problem = Problem(name="update", budget_bytes=10_000, tensors=tuple(build.tensors), operators=tuple(operators))
    held, again = frozenset({x, w, loss}), frozenset({0})
    plan = Relaxation((2,), 0.0, False, True, (held,), frozenset(), (again,), (frozenset(),), (frozenset(),))
    assert lazy_codes(Model(problem), plan) == [0, 1, 2, 0, 3, 4]


def test_new_cuts_are_new_and_apart() -> None:
    assert new_cuts({3, 9}, [9, 10, 3, 20, 21, 30, 40, 50], 60) == [8, 2, 20, 30]
    assert new_cuts({8, 9}, [9], 10) == []
    assert new_cuts(set(), list(range(90)), 90) == [0, 3, 6, 9, 12, 15, 18], "one for every twelve"
    assert new_cuts(set(), [], 10) == []


def test_a_chain_that_is_made_again_has_as_many_parts_as_a_part_has_tensors() -> None:
    steps = 17
    model = Model(chain(steps))
    once = list(range(model.n_ops))
    codes = [*once[: steps + 1], *range(steps - 1), *once[steps + 1 :]]  # all but the last one again
    ends = chain_ends(model, codes, steps + 1)
    assert [model.problem.tensors[t].name for t in ends] == ["x4", "x8", "x12"]
    assert chain_ends(model, once, steps + 1) == []
