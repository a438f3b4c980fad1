"""A sequence as a problem of its own, and back."""

from __future__ import annotations

from random import Random

import pytest

from poetc.scheduling import Completer, InPlace, OperatorSpec, Paging, Place, Problem, TensorSpec
from poetc.solvers.model import Model
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.search.unrolled import Unrolled
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
        made = Completer(unrolled.problem).run(Model(unrolled.problem).decisions(Model(unrolled.problem).keep_all()))
        assert made.peak_bytes <= Completer(problem).run(model.decisions(codes)).peak_bytes, seed
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
        assert found is not None, seed
        assert Completer(tighter).run(model.decisions(found)).peak_bytes <= tighter.budget_bytes, seed
        fits += 1
        dearer += model.cost(found) > model.cost(codes)
    assert fits > 20
    assert dearer > 10


@pytest.mark.parametrize("home", ["store", "ram"])
def test_a_weight_that_an_update_took_over_is_read_again(home: Place) -> None:
    """Its versions are apart in the unrolled problem: `apply` can run again after the update, on an older one."""
    names = ("x", "w", "h", "l", "w@1", "y")
    places = {"x": ("ram", ""), "w": (home, ""), "w@1": ("", home), "y": ("", "ram")}
    tensors = []
    for name in names:
        initial, final = places.get(name, ("", ""))
        tensors.append(TensorSpec(name=name, size_bytes=16, initial=initial, final=final))  # type: ignore[arg-type]

    def operator(name: str, inputs: tuple[int, ...], output: int, *pairs: InPlace) -> OperatorSpec:
        return OperatorSpec(
            name=name, inputs=inputs, outputs=(output,), time_ns=1, energy_pj=1, in_place=pairs, recomputable=not pairs
        )

    update = operator("update", (1, 3), 4, InPlace(input=1, output=4, required=True))
    operators = (operator("apply", (0, 1), 2), operator("loss", (2,), 3), update, operator("end", (2,), 5))
    problem = Problem(
        name="again", operators=operators, tensors=tuple(tensors), budget_bytes=1 << 20, paging=Paging.SYNC
    )
    model = Model(problem)
    page_in, page_out = model.n_ops + 1, model.n_ops + model.n_tensors + 4
    if home == "store":
        unrolled = Unrolled(model, [page_in, 0, 1, page_in, 2, page_out, 3])
        assert unrolled.restored([0, 1, 2, 3, 4, 1, 5]) == [page_in, 0, 1, page_in, 2, page_out, page_in, 0, 3]
    else:
        assert Unrolled(model, [0, 1, 2, 3]).restored([0, 1, 2, 0, 3]) is None
