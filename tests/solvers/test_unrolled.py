"""A sequence as a problem of its own, and back."""

from __future__ import annotations

from random import Random

from poetc.scheduling import Completer
from poetc.solvers._model import Model
from poetc.solvers._search import Race
from poetc.solvers._unrolled import Unrolled
from tests.support.problems import training_problem, with_budget


def test_following_the_sequence_is_the_sequence() -> None:
    """Keep-all of the unrolled problem costs and needs what the sequence does."""
    repeated = 0
    for seed in range(60):
        random = Random(seed)
        problem = with_budget(training_problem(random, random.randint(2, 5), paging=seed % 2 == 0), 0.4)
        race = Race(problem, seed, float("inf"))
        race.run(6, 0)
        if race.incumbent is None:
            continue
        model, codes = race.model, race.incumbent.codes
        unrolled = Unrolled(model, codes)
        followed = unrolled.restored(Model(unrolled.problem).keep_all())
        assert followed == codes, seed
        made = Completer(unrolled.problem).run(Model(unrolled.problem).actions(Model(unrolled.problem).keep_all()))
        assert made.peak_bytes <= Completer(problem).run(model.actions(codes)).peak_bytes, seed
        repeated += len(codes) > model.n_ops
    assert repeated > 20


def test_evictions_from_a_sequence_are_schedules_of_the_problem() -> None:
    fits = dearer = 0
    for seed in range(60):
        random = Random(seed)
        whole = training_problem(random, random.randint(2, 5), paging=seed % 2 == 0)
        race = Race(with_budget(whole, 0.6), seed, float("inf"))
        race.run(6, 0)
        if race.incumbent is None:
            continue
        tighter = with_budget(whole, 0.45)
        model, codes = Model(tighter), race.incumbent.codes
        unrolled = Unrolled(model, codes)
        sub = Race(unrolled.problem, seed, float("inf"))
        sub.run(6, 0)
        if sub.incumbent is None:
            continue
        found = unrolled.restored(sub.incumbent.codes)
        assert Completer(tighter).run(model.actions(found)).peak_bytes <= tighter.budget_bytes, seed
        fits += 1
        dearer += model.cost(found) > model.cost(codes)
    assert fits > 20
    assert dearer > 10
