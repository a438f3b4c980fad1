"""The staged MILP spells out schedules that fit, and agrees with the oracle where stages lose nothing."""

from __future__ import annotations

from random import Random

from poetc.scheduling import Completer
from poetc.solvers._cuts import CutModel
from poetc.solvers._minimum import lower_bound_bytes
from poetc.solvers._model import Model
from poetc.solvers._plans import codes_of
from poetc.solvers._search import Race
from poetc.solvers._staged import StagedModel
from tests.solvers.cases import case
from tests.support.problems import training_problem, with_budget


def test_solutions_fit_and_are_never_below_the_optimum() -> None:
    equal = spelled = 0
    for seed in range(120):
        problem, optimum = case(seed)
        model = Model(problem)
        result = StagedModel(model, 0).solve(time_limit_s=20)
        if not result.held or lower_bound_bytes(problem) > problem.budget_bytes:
            continue
        assert optimum is not None, seed
        codes = codes_of(model, result)
        if codes is None:
            continue  # reads what an in-place operator has consumed: the driver lets it go
        completion = Completer(problem).run(model.actions(codes))
        spelled += 1
        assert completion.peak_bytes <= problem.budget_bytes, seed
        assert result.bound >= optimum.cost, seed
        assert model.cost(codes) >= optimum.cost, seed
        equal += model.cost(codes) == optimum.cost
    assert spelled > 40
    assert equal > spelled * 0.8


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


def test_a_known_schedule_starts_the_milp() -> None:
    problem = with_budget(training_problem(Random(2), 3), 0.7)
    race = Race(problem, 0, float("inf"))
    race.run(20, 0)
    assert race.incumbent is not None
    staged = StagedModel(race.model, race.model.cut)
    result = staged.solve(time_limit_s=20, max_nodes=1, start=staged.start_of(race.incumbent.codes))
    codes = codes_of(race.model, result)
    assert codes is not None
    assert race.model.cost(codes) <= race.incumbent.cost
