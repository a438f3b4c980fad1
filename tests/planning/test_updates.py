"""The best set of updates: the MILP over sets, its premise, and the search, beside an exhaustive one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from poetc.devices import build_problem, load_profile
from poetc.devices.capacity import flash_needed_bytes
from poetc.errors import InfeasibleError, LimitError, UsageError
from poetc.passes import run_standard
from poetc.planning import BestUpdates, Candidate, Goal, Importance, Planner, Step, reductions
from poetc.planning.update_sets import Chosen, Option, Piece, SetModel
from poetc.planning.updates import set_model
from poetc.scheduling import Paging, SolveOptions, keep_all_peak_bytes, verify
from poetc.training import Adapter, Channels, TrainingOptions, Updates, Whole, build, with_adapters
from tests.support.graphs import small_cnn

PROFILE = load_profile("stm32f746")
OPTIONS = SolveOptions(time_limit_s=20.0, gap=0.001)
CANDIDATES = (
    Candidate("stem.weight", Whole(), 5.0),
    Candidate("bn0.scale", Whole(), 1.5),
    Candidate("block.weight", Whole(), 4.0),
    Candidate("block.weight", Channels(Fraction(1, 2), True), 3.0),
    Candidate("block.weight", Adapter(2), 2.0),
    Candidate("fc.weight", Whole(), 1.0),
    Candidate("fc.weight", Channels(Fraction(1, 4)), 0.5),
    Candidate("fc.bias", Whole(), 0.25),
)


def reduction(
    budget_bytes: int,
    goal: Goal | None = None,
    *,
    deadline_ns: int | None = None,
    candidates: tuple[Candidate, ...] = CANDIDATES,
) -> BestUpdates:
    """All sets of updates of a small network, without a store."""
    graph = small_cnn(channels=8)

    def step(updates: Updates) -> Step:
        train, lora = updates.options()
        whole = build(with_adapters(graph, updates), TrainingOptions(train=train, lora=lora))
        whole = run_standard(whole)
        problem = build_problem(whole, PROFILE, budget_bytes=budget_bytes, paging=Paging.NONE)
        return Step(replace(problem, deadline_ns=deadline_ns), flash_needed_bytes(whole, PROFILE))

    return BestUpdates(Importance(candidates=candidates), step, goal)


def every_set(best: BestUpdates) -> Iterator[Chosen]:
    groups: dict[str, list[int]] = {}
    for k, candidate in enumerate(best.importance.candidates):
        groups.setdefault(candidate.parameter, []).append(k)
    for picked in itertools.product(*([None, *options] for options in groups.values())):
        chosen = frozenset(k for k in picked if k is not None)
        if chosen:
            yield chosen


def planner(best: BestUpdates) -> Planner:
    return Planner(options=OPTIONS, reductions=reductions("ram", updates=best))


def value(best: BestUpdates, chosen: Chosen) -> float:
    return sum(best.importance.candidates[k].importance for k in chosen)


def test_a_set_needs_at_least_what_the_model_says() -> None:
    """The premise of the proof, for every set of the network."""
    best = reduction(1 << 20)
    model = set_model(best)
    inner = planner(best).inner
    for chosen in every_set(best):
        problem = best.step(chosen).problem
        assert model.amount("time_ns", chosen) <= problem.compute_once_ns
        assert model.amount("energy_pj", chosen) <= problem.compute_once_pj
        below = inner.lower_bound_bytes(problem) - problem.base_bytes
        assert model.amount("ram", chosen) <= below
        singles = [inner.lower_bound_bytes(best.step(frozenset((k,))).problem) for k in chosen]
        assert max(singles) <= inner.lower_bound_bytes(problem)


@pytest.mark.long
@pytest.mark.parametrize("share, energy", [(0.75, 0.75), (1.0, 0.6)])
def test_the_best_set_is_that_of_an_exhaustive_search(share: float, energy: float | None) -> None:
    wide = reduction(1 << 20)
    sets = list(every_set(wide))
    whole = max(sets, key=lambda chosen: wide.step(chosen).problem.compute_once_pj)
    budget = int(share * keep_all_peak_bytes(wide.step(whole).problem))
    most_pj = None if energy is None else int(energy * wide.step(whole).problem.compute_once_pj)
    best = reduction(budget, Goal(energy_pj=most_pj))
    found = planner(best).solve(best.step(frozenset((0,))).problem)
    assert found.worth is not None and found.choices["updates"] is not None
    quick = replace(OPTIONS, time_limit_s=3.0, gap=0.01)
    fits = 0.0
    for chosen in sorted(sets, key=lambda chosen: -value(best, chosen)):
        problem = best.step(chosen).problem
        if value(best, chosen) <= fits or (most_pj is not None and problem.compute_once_pj > most_pj):
            continue
        try:
            solution = Planner(options=quick, reductions=reductions("ram")).solve(problem)
        except (InfeasibleError, LimitError):
            continue
        if most_pj is None or verify(solution.problem, solution.schedule).energy_pj <= most_pj:
            fits = value(best, chosen)
            break
    assert found.worth.value == pytest.approx(fits)
    assert found.worth.bound >= fits
    assert verify(found.problem, found.schedule).peak_bytes <= budget


@pytest.mark.long
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_where_ram_is_tight_the_best_set_is_that_of_all_sets_solved_alone(share: float) -> None:
    """Most sets do not fit with every tensor kept. Each is solved to the end; some have neither schedule nor proof."""
    few = tuple(CANDIDATES[k] for k in (0, 2, 3, 5, 7))
    wide = reduction(1 << 20, candidates=few)
    sets = list(every_set(wide))
    budget = int(share * max(keep_all_peak_bytes(wide.step(chosen).problem) for chosen in sets))
    best = reduction(budget, candidates=few)
    found = planner(best).solve(best.step(frozenset((0,))).problem)
    exact = replace(OPTIONS, time_limit_s=5.0, gap=0.0)
    fits, impossible = set(), set()
    for chosen in sets:
        try:
            solution = Planner(options=exact, reductions=reductions("ram")).solve(best.step(chosen).problem)
        except InfeasibleError:
            impossible.add(chosen)
        except LimitError:
            continue
        else:
            assert verify(solution.problem, solution.schedule).peak_bytes <= budget
            fits.add(chosen)
    most = max(value(best, chosen) for chosen in fits)
    assert found.worth is not None and found.choices["updates"] is not None
    assert most <= found.worth.value + 1e-9 and found.worth.value <= found.worth.bound
    names = dict(found.choices["updates"])
    assert frozenset(k for k, c in enumerate(few) if names.get(c.parameter) == c.update) not in impossible
    if fits | impossible == set(sets):
        assert found.worth.value == pytest.approx(most)


def test_where_everything_fits_everything_is_trained_and_that_is_proven() -> None:
    best = reduction(1 << 20)
    found = planner(best).solve(best.step(frozenset((0,))).problem)
    assert found.worth is not None and found.choices["updates"] is not None
    assert found.worth.value == pytest.approx(found.worth.bound) == pytest.approx(11.75)
    assert found.choices["updates"].whole == {c.parameter for c in CANDIDATES}


def test_the_cheapest_set_of_enough_importance() -> None:
    best = reduction(1 << 20, Goal(least=4.0))
    found = planner(best).solve(best.step(frozenset((0,))).problem)
    costs = [best.step(c).problem.compute_once_pj for c in every_set(best) if value(best, c) >= 4.0]
    assert found.worth is not None and found.worth.cost_bound is not None
    assert found.cost == min(costs)
    assert min(costs) * 0.97 <= found.worth.cost_bound <= min(costs)
    assert found.worth.value >= 4.0
    with pytest.raises(UsageError, match=r"--importance-at-least 99: all updates together have 11.75"):
        tall = reduction(1 << 20, Goal(least=99.0))
        planner(tall).solve(best.step(frozenset((0,))).problem)


def test_a_bound_of_one_order_bounds_no_other_schedule() -> None:
    """A schedule that recomputes has a bound of its own order: of others, computing once is all that is proven."""
    best = reduction(18_000, Goal(least=4.0))
    options = replace(OPTIONS, time_limit_s=2.0)
    found = Planner(options=options, reductions=reductions("ram", updates=best)).solve(
        best.step(frozenset((0,))).problem
    )
    assert found.worth is not None and found.worth.cost_bound is not None and found.choices["updates"] is not None
    once = best.build(found.choices["updates"]).problem.compute_once_pj
    assert found.cost > once and not found.proof.scope.is_everything
    assert found.worth.cost_bound <= once


def test_a_budget_that_is_too_small_names_the_cheapest_update() -> None:
    best = reduction(2000)
    with pytest.raises(InfeasibleError, match=r"the cheapest is 'fc\.\S+ \S+': it needs [0-9,]+ bytes, and at least"):
        planner(best).solve(best.step(frozenset((0,))).problem)
    late = reduction(1 << 20, deadline_ns=1)
    with pytest.raises(InfeasibleError, match=r"no update is within these limits, 1,048,576 bytes within 1 ns; "):
        planner(late).solve(late.step(frozenset((0,))).problem)


def test_the_milp_agrees_with_all_sets() -> None:
    """Random options, pieces and limits: the value of the best set, the least cost, and sets that are left out."""
    for seed in range(25):
        random = Random(seed)
        pieces: dict[object, Piece] = {
            k: Piece({"cost": random.uniform(0, 5)}, {"ram": random.uniform(0, 4)}) for k in range(4)
        }
        options = [
            Option(
                f"p{j // 2}",
                random.uniform(0.1, 3),
                frozenset(range(random.randrange(4), 4)) | {random.randrange(4)},
                {"cost": random.uniform(0, 3), "ram": random.uniform(0, 2)},
            )
            for j in range(8)
        ]
        model = SetModel(options, pieces)
        limits = {"cost": random.uniform(4, 18), "ram": random.uniform(3, 9)}
        without = [frozenset(random.sample(range(8), 2))]
        fit = [
            frozenset(k for k in picked if k is not None)
            for picked in itertools.product((None, 0, 1), (None, 2, 3), (None, 4, 5), (None, 6, 7))
        ]
        fit = [c for c in fit if c and all(model.amount(r, c) <= limit for r, limit in limits.items())]
        fit = [c for c in fit if not any(out <= c for out in without)]
        found = model.solve(limits, without=without)
        best = max((model.value(c) for c in fit), default=None)
        assert (found.chosen is None) == (best is None), seed
        if best is None or found.chosen is None:
            continue
        assert model.value(found.chosen) == pytest.approx(best), seed
        assert best <= found.bound <= best * (1 + 1e-4) + 1e-4
        enough = 0.6 * best
        cheap = model.solve(limits, cheapest="cost", least_value=enough, without=without)
        least = min(model.amount("cost", c) for c in fit if model.value(c) >= enough)
        assert cheap.chosen is not None and model.amount("cost", cheap.chosen) == pytest.approx(least), seed
        assert least * (1 - 1e-4) <= cheap.bound <= least
