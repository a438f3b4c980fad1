"""Relaxations that count each gap between two uses of a tensor: no bound above an optimum, and what they prove."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from poetc.scheduling import SolveOptions, movable_state
from poetc.solvers import PlacementSearch
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation
from poetc.solvers.poetc.bounds.gaps import GapModel
from poetc.solvers.poetc.bounds.ladder import has_wide_gap
from poetc.solvers.poetc.bounds.spread import best_spread, residents, spread_cuts
from poetc.solvers.poetc.placement.relaxation import open_model
from poetc.solvers.poetc.search.plans import lazy_codes
from poetc.solvers.poetc.settings import SPREAD
from tests.solvers.cases import case, paired, with_state, worn
from tests.support.problems import training_problem, with_budget


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_no_bound_exceeds_an_optimum(first: int) -> None:
    """With deadlines and limits of the store, whatever the cuts."""
    for seed in range(first, first + 20):
        random = Random(seed)
        for asked in (case(seed), worn(seed)):
            if asked is None or asked[1] is None:
                continue
            problem, best = asked
            n = len(problem.operators)
            for cuts in ((), tuple(sorted(random.sample(range(n), 2))), tuple(range(n))):
                for lp in (False, True):
                    relaxation = GapModel(Model(problem), cuts).solve(time_limit_s=60, relax=lp)
                    assert not relaxation.infeasible and relaxation.bound <= best.cost, (seed, cuts, lp)


def test_operands_that_cannot_be_made_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for them raise bounds, and none above an optimum."""
    checked = raised = 0
    for seed in range(40):
        asked = paired(seed)
        if asked is None:
            continue
        problem, best = asked
        for cuts in ((), tuple(range(len(problem.operators)))):
            bounds = []
            for rows in (True, False):
                with monkeypatch.context() as patch:
                    if not rows:
                        patch.setattr(GapModel, "_meet", lambda *_: None)
                    relaxation = GapModel(Model(problem), cuts).solve(time_limit_s=60)
                assert not relaxation.infeasible and relaxation.bound <= best.cost, (seed, cuts, rows)
                bounds.append(relaxation.bound)
            checked += 1
            raised += bounds[0] > bounds[1]
    assert checked >= 60 and raised >= 5


def test_no_bound_for_any_placement_exceeds_an_optimum() -> None:
    checked = 0
    for seed in range(30):
        asked = with_state(seed)
        if asked is None:
            continue
        problem, optima = asked
        cost = min((o.cost for o in optima.values() if o is not None), default=math.inf)
        for cuts in ((), (1,), tuple(range(len(problem.operators)))):
            relaxed = GapModel(open_model(problem), cuts, chains=movable_state(problem))
            relaxation = relaxed.solve(time_limit_s=60)
            assert (relaxation.bound <= cost and not relaxation.infeasible) or cost == math.inf, (seed, cuts)
            checked += 1
    assert checked > 30


def test_small_state_takes_room_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound is above that without, and below that where each of it is a decision."""
    checked = raised = 0
    for seed in range(30):
        asked = with_state(seed)
        if asked is None or all(optimum is None for optimum in asked[1].values()):
            continue
        problem, model = asked[0], open_model(asked[0])
        chains, cuts = movable_state(problem), tuple(range(len(problem.operators)))
        free = frozenset(t for chain in chains for t in chain)
        each, together = (GapModel(model, cuts, chains=chains, free=f) for f in (frozenset[int](), free))
        with monkeypatch.context() as patch:
            patch.setattr(GapModel, "_small_state", lambda self: ([], [], [0] * self.model.n_ops))
            without = GapModel(model, cuts, chains=chains, free=free)
        least, bound, most = (m.solve(time_limit_s=60).bound for m in (without, together, each))
        assert least <= bound <= most, seed
        checked += 1
        raised += least < bound
    assert checked >= 10 and raised >= 5


def test_small_state_that_lives_in_ram_takes_room_there() -> None:
    checked = raised = 0
    for seed in range(60):
        asked = with_state(seed)
        optimum = None if asked is None else asked[1][frozenset()]
        if asked is None or optimum is None:
            continue
        model, cuts = Model(asked[0]), tuple(range(len(asked[0].operators)))
        free = frozenset(t for chain in movable_state(asked[0]) for t in chain)
        without = GapModel(model, cuts, free=free).solve(time_limit_s=60).bound
        bound = GapModel(model, cuts, resident=residents(model, free), free=free).solve(time_limit_s=60).bound
        assert without <= bound <= optimum.cost, seed
        checked += 1
        raised += without < bound
    assert checked >= 10 and raised >= 3


def test_they_prove_more_than_stages_near_the_smallest_budget() -> None:
    more = 0
    for seed in range(3):
        model = Model(with_budget(training_problem(Random(seed), 12, paging=True), 0.05))
        cuts = spread_cuts(model, 8)
        gaps, stages = (kind(model, cuts).solve(time_limit_s=60).bound for kind in (GapModel, CutModel))
        more += gaps > stages
    assert more >= 1


def test_a_plan_can_be_followed() -> None:
    followed = 0
    for seed in range(3):
        model = Model(with_budget(training_problem(Random(seed), 8, paging=True), 0.2))
        relaxation = GapModel(model, spread_cuts(model, 8)).solve(time_limit_s=60)
        followed += lazy_codes(model, relaxation) is not None
    assert followed >= 1


def test_rows_for_ram_that_are_left_out_relax(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(with_budget(training_problem(Random(0), 12, paging=True), 0.05))
    cuts = spread_cuts(model, 8)
    with_rows = GapModel(model, cuts)
    monkeypatch.setattr("poetc.solvers.poetc.bounds.gaps.SPREAD", replace(SPREAD, most_again_entries=0))
    without = GapModel(model, cuts)
    assert without.mip.entries < with_rows.mip.entries
    assert without.solve(time_limit_s=60).bound <= with_rows.solve(time_limit_s=60).bound


def test_a_mip_has_the_rows_for_ram_that_its_lp_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows are left out, so that its bound is between that of the LP and that with all rows."""
    fewer = 0
    for seed in range(20):
        model = Model(with_budget(training_problem(Random(seed), 12, paging=True), 0.05))
        lp, full, few = (GapModel(model, spread_cuts(model, 8)) for _ in range(3))
        least, most = lp.solve(time_limit_s=60, relax=True).bound, full.solve(time_limit_s=60).bound
        with monkeypatch.context() as patch:
            patch.setattr("poetc.solvers.highs.MANY_ENTRIES", 0)
            assert least <= few.solve(time_limit_s=60).bound <= most
        assert few.mip.root_iterations > 0
        fewer += few.mip.solved_entries < full.mip.solved_entries
    assert fewer == 20


def test_a_problem_with_too_many_pairs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def relax(cuts: tuple[int, ...]) -> Relaxation | None:
        asked.append(len(cuts))
        return None

    model = Model(with_budget(training_problem(Random(0), 12, paging=True), 0.05))
    monkeypatch.setattr("poetc.solvers.poetc.bounds.spread.SPREAD", replace(SPREAD, most_pairs=10))
    assert best_spread(model, relax) is None and not asked


def test_the_search_for_a_placement_takes_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = []
    for share in (0.0, SPREAD.placement_share):
        monkeypatch.setattr("poetc.solvers.poetc.placement.search.SPREAD", replace(SPREAD, placement_share=share))
        problem = with_budget(training_problem(Random(1), 12, paging=True), 0.05)
        search = PlacementSearch(problem, SolveOptions(time_limit_s=60, work_limit_s=20), math.inf, None)
        search.run(0.2)
        search.spread(math.inf)
        assert has_wide_gap(search.bound, search.least) == (share == 0.0)
        bounds.append(search.bound)
        search.spread(math.inf)
        assert search.bound == bounds[-1] <= search.least  # once, or not at all
    assert bounds[0] < bounds[1]
