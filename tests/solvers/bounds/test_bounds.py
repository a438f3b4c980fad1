"""Every relaxation is a relaxation: never above the exhaustive optimum, never infeasible where there is a schedule."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, Literal

import highspy
import numpy as np
import numpy.typing as npt
import pytest

from poetc.errors import InfeasibleError
from poetc.scheduling import (
    Completer,
    InPlace,
    OperatorSpec,
    Paging,
    Problem,
    SolveOptions,
    TensorSpec,
    keep_all_peak_bytes,
    movable_state,
    on_store,
)
from poetc.solvers import highs, solve
from poetc.solvers.highs import COST_SCALE, Mip
from poetc.solvers.liveness import Profile
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation, has_many_alike
from poetc.solvers.poetc.bounds.ram import lower_bound_bytes, tiny_tensors
from poetc.solvers.poetc.placement.relaxation import OpenPlacement, open_model
from poetc.solvers.poetc.search.exhaustive import search
from poetc.solvers.poetc.settings import CUTS
from tests.solvers.cases import case, invalid_bounds, worn
from tests.solvers.chains import UNIT as CHAIN_UNIT
from tests.solvers.chains import chain
from tests.support.problems import training_problem
from tests.support.ram import order_free_bound_bytes

SEEDS = range(48)  # thousands: make fuzz-bounds
WRITING = range(80)  # few of them write to the store


def tensor(
    name: str, size_bytes: int, home: Literal["", "ram"] = "", *, final: Literal["", "ram"] = "", pageable: bool = False
) -> TensorSpec:
    return TensorSpec(
        name=name,
        size_bytes=size_bytes,
        initial=home,
        final=final,
        pageable=pageable,
        page_out_pj=100,
        page_in_pj=100,
    )


def operator(inputs: tuple[int, ...], output: int, *pairs: InPlace, workspace_bytes: int = 0) -> OperatorSpec:
    return OperatorSpec(
        name=f"makes {output}",
        inputs=inputs,
        outputs=(output,),
        time_ns=1,
        energy_pj=10,
        workspace_bytes=workspace_bytes,
        in_place=pairs,
        recomputable=not pairs,
    )


def cut_lists(model: Model) -> list[tuple[list[int], bool]]:
    every = list(range(model.n_ops))
    return [([model.cut], False), (every, False), (every[::2], True), (every[1::3], True)]


def solvable() -> Iterator[tuple[int, Model, int]]:
    """Seeds, their problems with a schedule, and what the cheapest costs."""
    for seed in SEEDS:
        problem, optimum = case(seed)
        if optimum is not None:
            yield seed, Model(problem), optimum.cost


def relax(model: Model, cuts: Sequence[int], *, between: bool = True, **options: Any) -> Relaxation:
    return CutModel(model, cuts, between=between, **options).solve(time_limit_s=10)


def cheapest(model: Model) -> float:
    """What exhaustive search says that a schedule costs."""
    found = search(model, max_states=10_000, stop_at=math.inf)
    assert found.complete and found.codes is not None
    return model.cost(found.codes)


@pytest.mark.parametrize("lp", [False, True], ids=["mip", "lp"])
def test_cut_bounds_never_exceed_the_optimum(lp: bool) -> None:
    tight = 0
    for seed, model, optimum in solvable():
        for cuts, between in cut_lists(model):
            relaxation = CutModel(model, cuts, between=between).solve(time_limit_s=10, relax=lp)
            assert not relaxation.infeasible, (seed, cuts)
            assert model.base_cost <= relaxation.bound <= optimum, (seed, cuts)
            tight += len(cuts) == model.n_ops and relaxation.bound == optimum
    # With a cut at every operator the MIP is often the optimum: a bound that was always weak would be a defect too.
    assert tight > (10 if not lp else 2)


def values_of(relaxed: CutModel, codes: Sequence[int]) -> dict[int, float]:
    """Values of the integer columns for a sequence."""
    model, n, m = relaxed.model, relaxed.model.n_ops, relaxed.model.n_tensors
    profile = Profile(model, codes)
    values = {c: 0.0 for group in (*relaxed.hold, *relaxed.run, *relaxed.load) for c in group.values()}
    values.update(dict.fromkeys(relaxed.store.values(), 0.0))
    stage, first = -1, {v: g for g, v in enumerate(relaxed.cuts)}
    seen: set[int] = set()
    for j, code in enumerate(codes):
        if code < n:
            if code in first and code not in seen:
                stage = first[code]
                for t, column in relaxed.hold[stage].items():
                    values[column] = float(any(s.birth < j <= s.end for s in profile.stays[t]))
            elif code in seen and stage >= 0 and code in relaxed.run[stage]:
                values[relaxed.run[stage][code]] = 1.0
            seen.add(code)
        elif code < n + m:
            if stage >= 0 and code - n in relaxed.load[stage]:
                values[relaxed.load[stage][code - n]] = 1.0
        elif code - n - m in relaxed.store:
            values[relaxed.store[code - n - m]] = 1.0
    if relaxed.pages >= 0:
        values[relaxed.pages] = float(any(code >= n for code in codes))
    return values


def lp_bound(relaxation: CutModel) -> float:
    if relaxation.proven_infeasible:
        return math.inf
    answer = relaxation.mip.solve(time_limit_s=10, relax=True)
    return math.inf if answer.infeasible else answer.bound


def test_more_cuts_never_weaken_the_lp() -> None:
    """All stages from a cut on together obey the rows of that cut alone, for fractions too. Without rows for what they
    page in together, and for a first read before the first cut, one in twenty was weaker.
    """
    raised = 0
    for seed in range(24):
        random = Random(seed)
        problem = training_problem(random, random.choice((2, 3)), paging=True)
        chains = movable_state(problem)
        stored = on_store(problem, [chain[0] for chain in chains])
        least = order_free_bound_bytes(stored)
        budget = least + int((keep_all_peak_bytes(problem) - least) * random.choice((0.05, 0.1, 0.3, 0.5)))
        fixed = Model(replace(stored if seed % 2 else problem, budget_bytes=budget))
        free = open_model(replace(problem, budget_bytes=budget))
        for _ in range(3):
            cut = random.randrange(max(1, fixed.cut), fixed.n_ops)
            cuts = sorted({cut, *(random.randrange(fixed.n_ops) for _ in range(2))})
            pairs = [(CutModel(fixed, [cut]), CutModel(fixed, cuts))]
            if chains:
                pairs.append((OpenPlacement(free, [cut], chains), OpenPlacement(free, cuts, chains)))
            for one, several in pairs:
                least_of_one, bound = lp_bound(one), lp_bound(several)
                assert bound >= least_of_one or bound == pytest.approx(least_of_one, rel=1e-6), (seed, cuts)
                raised += bound > least_of_one
    assert raised > 40


def test_limits_of_the_store_bind_bounds_and_schedules() -> None:
    """Capacity and what may be written: no bound beyond the exhaustive optimum, and the solver finds that optimum."""
    dearer = impossible = 0
    for seed in WRITING:
        limited = worn(seed)
        if limited is None:
            continue
        problem, optimum = limited
        if optimum is None:
            impossible += 1
            with pytest.raises(InfeasibleError):
                solve(problem, options=SolveOptions(time_limit_s=60, fixed_order=True))
            continue
        model = Model(problem)
        for cuts, between in cut_lists(model):
            relaxation = relax(model, cuts, between=between)
            assert not relaxation.infeasible and relaxation.bound <= optimum.cost, (seed, cuts)
        assert (
            solve(problem, options=SolveOptions(time_limit_s=60, fixed_order=True)).proof.objective == optimum.cost
        ), seed
        free = case(seed)[1]
        dearer += free is not None and optimum.cost > free.cost
    assert dearer > 1
    assert impossible


def test_the_row_for_the_store_raises_bounds() -> None:
    """Without it the relaxation would page for what the limit forbids."""
    raised = 0
    for seed in WRITING:
        limited = worn(seed)
        if limited is not None and limited[1] is not None:
            bounds = [relax(model, range(model.n_ops)).bound for model in (Model(case(seed)[0]), Model(limited[0]))]
            raised += bounds[1] > bounds[0]
    assert raised


def test_budget_bounds_never_exceed_a_feasible_budget() -> None:
    reached = 0
    for seed, model, _ in solvable():
        budget_bytes = model.problem.budget_bytes
        assert order_free_bound_bytes(model.problem) <= budget_bytes, seed
        assert lower_bound_bytes(model.problem) <= budget_bytes, seed
        reached += lower_bound_bytes(model.problem) == budget_bytes
    assert reached


def test_exhaustive_search_is_the_oracle() -> None:
    for seed in SEEDS:
        problem, optimum = case(seed)
        model = Model(problem)
        result = search(model, max_states=500_000, stop_at=float("inf"))
        assert result.complete
        if optimum is None:
            assert result.codes is None, seed
        else:
            assert result.codes is not None, seed
            assert model.cost(result.codes) == optimum.cost == result.bound, seed


def test_interrupted_exhaustive_search_still_bounds() -> None:
    for seed, model, optimum in solvable():
        assert search(model, max_states=5, stop_at=math.inf).bound <= optimum, seed


@pytest.mark.parametrize(("max_states", "limit_s"), [(1, math.inf), (10**9, 0.01)], ids=["counted", "timed"])
def test_states_with_too_many_successors_end_exhaustive_search(max_states: int, limit_s: float) -> None:
    """Which of 40 weights leave RAM for an activation as large as half of them: some 10^11 sets."""
    weight = TensorSpec(
        name="", size_bytes=16, initial="ram", final="ram", page_out_ns=1, page_out_pj=1, page_in_ns=1, page_in_pj=1
    )
    problem = Problem(
        name="too many",
        tensors=(
            *(replace(weight, name=f"w{i}") for i in range(40)),
            TensorSpec(name="x", size_bytes=16, initial="ram"),
            TensorSpec(name="a", size_bytes=20 * 16),
            TensorSpec(name="y", size_bytes=16, final="ram"),
        ),
        operators=(
            OperatorSpec(name="f", inputs=(40,), outputs=(41,), time_ns=1, energy_pj=1),
            OperatorSpec(name="g", inputs=(41,), outputs=(42,), time_ns=1, energy_pj=1),
        ),
        budget_bytes=42 * 16,
        paging=Paging.SYNC,
    )
    model = Model(problem)
    result = search(model, max_states=max_states, stop_at=time.monotonic() + limit_s)
    assert not result.complete and result.codes is None
    assert model.base_cost <= result.bound < math.inf


def test_a_cutoff_is_the_most_that_is_claimed() -> None:
    """HiGHS calls a solution dearer than the cutoff optimal now and then, when nothing is below the cutoff."""
    reached = 0
    for seed, model, optimum in solvable():
        for share in (0.3, 0.9, 1.0, 1.5):
            cutoff = model.base_cost + share * (optimum - model.base_cost)
            relaxation = CutModel(model, range(0, model.n_ops, 2), between=True).solve(time_limit_s=10, cutoff=cutoff)
            assert relaxation.bound <= min(math.ceil(cutoff), optimum), (seed, share)
            reached += relaxation.bound >= cutoff
    assert reached > 20


def test_leaving_tiny_tensors_out_is_a_relaxation() -> None:
    weaker = 0
    for seed, model, optimum in solvable():
        free = tiny_tensors(model, 0.25)
        assert sum(model.size[t] for t in free) <= 0.25 * model.capacity
        for cuts in ([model.cut], range(0, model.n_ops, 2)):
            every, relaxation = relax(model, cuts), relax(model, cuts, free=free)
            assert not relaxation.infeasible, seed
            assert relaxation.bound <= every.bound <= optimum, seed
            weaker += relaxation.bound < every.bound
    assert weaker > 5


def test_making_early_operators_a_little_cheaper_is_a_relaxation() -> None:
    weaker = 0
    for seed, model, optimum in solvable():
        for cuts in ([model.cut], range(0, model.n_ops, 2)):
            relaxations = [CutModel(model, cuts, between=True, ties=ties) for ties in (False, True)]
            assert relaxations[1].solve(time_limit_s=10).bound <= optimum, seed
            plain, tied = (relaxed.mip.solve(time_limit_s=10).bound for relaxed in relaxations)  # not rounded
            least = COST_SCALE + (1 - CUTS.tie) * (plain - COST_SCALE)
            assert least - 1e-5 <= tied <= plain + 1e-5, seed
            weaker += tied < plain - 1e-5
    assert weaker > 5


def test_of_what_is_alike_the_first_is_executed_again() -> None:
    """A chain of 40 equal steps with room for 30: which ones leave RAM makes no difference to what it costs."""
    model = Model(chain(40, budget_units=32))
    assert has_many_alike(model) and not has_many_alike(Model(chain(20)))
    relaxation = relax(model, (model.cut,), between=False, ties=True)
    again = sorted(relaxation.run[0])
    assert again and again == list(range(again[0], again[0] + len(again))) and again[0] <= 1
    assert model.base_cost + len(again) == relaxation.bound


def test_state_counts_after_the_last_cut() -> None:
    """After its update `w` leaves no room for the last operator: it is paged out and in, or lives on the store, which
    costs as much. All that says so is RAM beside an operator after the last cut.
    """
    w, a, gradient, updated, end = range(5)
    problem = Problem(
        name="last stage",
        tensors=(
            tensor("w", 64, "ram", pageable=True),
            tensor("a", 16),
            tensor("gradient", 16),
            tensor("w@1", 64, pageable=True, final="ram"),
            tensor("end", 16, final="ram"),
        ),
        operators=(
            operator((w,), a),
            operator((a,), gradient),
            operator((w, gradient), updated, InPlace(input=w, output=updated, required=True)),
            operator((a,), end, workspace_bytes=64),
        ),
        budget_bytes=64 + 3 * 16,
        paging=Paging.SYNC,
    )
    model, chains = Model(problem), movable_state(problem)
    optimum = cheapest(model)
    assert optimum == model.base_cost + 100 + 100
    for cut in (0, 1, 2):
        assert relax(model, [cut]).bound == optimum
        homes = OpenPlacement(open_model(problem), [cut], chains, between=True)
        assert homes.solve(time_limit_s=10).bound == optimum


def test_bounds_hold_with_state_of_every_kind() -> None:
    """Thousands of such problems: `make fuzz-bounds`."""
    found = [invalid_bounds(seed) for seed in (*range(10), 891, 1103)]  # the last two claimed too much once
    assert sum(wrong is not None for wrong in found) > 6
    assert not [text for wrong in found for text in wrong or ()]


def test_a_bound_in_banks_above_an_optimum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.solvers.cases.placement_bound", lambda *_, **__: SimpleNamespace(least=2**40))
    assert sum(text.count("banks, waiting tensors") for seed in range(10) for text in invalid_bounds(seed) or ()) >= 4


def test_what_the_last_operator_makes_counts_once() -> None:
    """The update ends the step, nothing can be paged: beside what is made again there is one weight in RAM, not two."""
    w, x, a, updated = range(4)
    problem = Problem(
        name="last update",
        tensors=(
            tensor("w", 64, "ram"),
            tensor("x", 16, "ram"),
            tensor("a", 16),
            tensor("w@1", 64, final="ram"),
        ),
        operators=(operator((x,), a), operator((w, a), updated, InPlace(input=w, output=updated, required=True))),
        budget_bytes=64 + 2 * 16,
    )
    model = Model(problem)
    for cuts in ((0,), (1,), (0, 1)):
        relaxation = relax(model, cuts)
        assert not relaxation.infeasible and relaxation.bound == model.base_cost, cuts


def test_state_that_is_read_again_comes_back_once() -> None:
    """`y` is made again of the last version of `w`, which leaves RAM for two operators: one page-in serves that and the
    end of the step, though no first execution reads it any more.
    """
    w, x, updated, y, a, b, end = range(7)
    problem = Problem(
        name="read again",
        tensors=(
            tensor("w", 64, "ram", pageable=True),
            tensor("x", 16, "ram"),
            tensor("w@1", 64, pageable=True, final="ram"),
            tensor("y", 32),
            tensor("a", 16),
            tensor("b", 16),
            tensor("end", 16, final="ram"),
        ),
        operators=(
            operator((w, x), updated, InPlace(input=w, output=updated, required=True)),
            operator((updated,), y),
            operator((x,), a, workspace_bytes=96),
            operator((a,), b, workspace_bytes=96),
            operator((y, b), end),
        ),
        budget_bytes=96 + 3 * 16,
        paging=Paging.SYNC,
    )
    model, chains = Model(problem), movable_state(problem)
    optimum = cheapest(model)
    assert optimum == model.base_cost + 10 + 100 + 100
    bounds = []
    for cuts in ((0,), (1,), (2,), (3,), (1, 3), (2, 3)):
        homes = OpenPlacement(open_model(problem), cuts, chains, between=True).solve(time_limit_s=10)
        assert homes.bound <= optimum, cuts
        bounds.append(homes.bound)
    assert max(bounds) == optimum


def test_what_an_update_took_over_is_not_held_beyond_it() -> None:
    """Making `a` again after the update of `w` takes a `w` that was paged out before: the cuts on both sides say so."""
    w, a, gradient, updated, large, end = range(6)
    problem = Problem(
        name="taken over",
        tensors=(
            tensor("w", 16, "ram", pageable=True),
            tensor("a", 64),
            tensor("gradient", 16),
            tensor("w@1", 16, final="ram"),
            tensor("large", 64),
            tensor("end", 16, final="ram"),
        ),
        operators=(
            operator((w,), a),
            operator((a,), gradient),
            operator((w, gradient), updated, InPlace(input=w, output=updated, required=True)),
            operator((updated,), large, workspace_bytes=64),
            operator((a, large), end),
        ),
        budget_bytes=64 + 64 + 3 * 16,
        paging=Paging.SYNC,
    )
    model = Model(problem)
    optimum = cheapest(model)
    assert optimum == model.base_cost + 10 + 100 + 100
    assert relax(model, [1, 3]).bound == optimum


@pytest.mark.parametrize("paging", [False, True], ids=["recomputed", "paged"])
def test_schedules_are_solutions_of_relaxations(paging: bool) -> None:
    """What a schedule says about the integer columns obeys every row, at no more than its cost, even if RAM is just
    what it needs: with operators made again several times in a stage, in chains, for use and for nothing, and what is
    paged likewise.
    """
    compared = chains = read = 0
    for seed in range(14):
        random = Random(seed)
        problem = training_problem(random, random.choice((2, 3, 4)), paging=paging)
        model = Model(problem)
        codes: list[int] = []
        written: list[int] = []
        n, m = model.n_ops, model.n_tensors
        often = random.choice((0.2, 1.0, 3.0))
        for v in range(model.n_ops):
            while random.random() < often / (1 + often):
                again = random.randrange(max(0, v - random.choice((4, 99))), v) if v else 0
                there = all(model.producer[t] < v <= model.expiry[t] for t in model.inputs[again])
                if v and model.recomputable[again] and there:
                    codes.append(again)
            for t in written:
                if random.random() < 0.1 and model.expiry[t] >= v:
                    codes.append(n + t)
                    read += 1
            codes.append(v)
            made = [t for t in range(m) if model.producer[t] <= v < model.expiry[t] and model.pageable[t]]
            made = [t for t in made if t not in written and (model.producer[t] >= 0 or model.in_ram[t])]
            if made and random.random() < 0.3:
                written.append(random.choice(made))
                codes.append(n + m + written[-1])
        completion = Completer(problem).run(model.decisions(codes))
        model = Model(replace(problem, budget_bytes=completion.peak_bytes))
        every = range(model.n_ops)
        for cuts in (every, every[::2], every[::5], every[model.cut :: 3], sorted(random.sample(every, 3))):
            relaxation = CutModel(model, cuts, between=True)
            mip, start = relaxation.mip, values_of(relaxation, codes)
            for column, value in start.items():
                assert mip.lower[column] <= value <= mip.upper[column], (seed, cuts)
                mip.lower[column] = mip.upper[column] = value
            answer = mip.solve(time_limit_s=10, relax=True)
            assert not relaxation.proven_infeasible and answer.optimal, (seed, cuts)
            assert relaxation.bound_of(answer) <= model.cost(codes), (seed, cuts)
            compared += 1
            chains += len(relaxation.twice)
    assert compared == 70 and chains > 50 and (read > 50) == paging


def test_chains_may_be_longer_than_calls_are_nested() -> None:
    """Where a problem lists the last tensor of a chain first, operands are looked at one within the other."""
    problem = replace(chain(1100), budget_bytes=30 * CHAIN_UNIT)
    last = len(problem.tensors) - 1
    mirrored = [
        replace(op, inputs=tuple(last - t for t in op.inputs), outputs=tuple(last - t for t in op.outputs))
        for op in problem.operators
    ]
    mirror = replace(problem, tensors=problem.tensors[::-1], operators=tuple(mirrored))
    cuts = [1100, 1650]
    models = [CutModel(Model(p), cuts, between=True).mip for p in (problem, mirror)]
    assert models[0].columns == models[1].columns > 30 * 1100
    assert sorted(models[0].row_upper) == sorted(models[1].row_upper)


def test_what_others_imply_is_left_out_of_mips(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimum is the same without rows that only help LPs, of which the LP at the root does not need many."""
    infeasible = compared = 0
    left_out: list[int] = []
    lp = Mip._lp

    def counted(mip: Mip, out: npt.NDArray[np.bool_] | None = None) -> highspy.HighsLp:
        left_out.append(0 if out is None else int(out.sum()))
        return lp(mip, out)

    for seed in SEEDS:
        problem, _ = case(seed)
        model = Model(problem)
        relaxation = CutModel(model, range(model.n_ops), between=True)
        if relaxation.proven_infeasible:
            continue
        whole = relaxation.mip.solve(time_limit_s=10)
        with monkeypatch.context() as patched:
            patched.setattr(highs, "MANY_ENTRIES", 0)
            patched.setattr(Mip, "_lp", counted)
            fewer = relaxation.mip.solve(time_limit_s=10)
            beaten = relaxation.mip.solve(time_limit_s=10, cutoff=whole.objective - 1e-3)
        assert fewer.infeasible == whole.infeasible, seed
        infeasible += whole.infeasible
        if whole.optimal and fewer.optimal:
            compared += 1
            assert fewer.objective == pytest.approx(whole.objective, abs=1e-5), seed
            assert fewer.bound <= whole.objective + 1e-5, seed
            assert beaten.infeasible or beaten.objective >= whole.objective - 1e-3, seed
    assert compared > 20 and infeasible and sum(left_out) > 200
