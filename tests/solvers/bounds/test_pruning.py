"""Ablation: every rule that leaves something out, off alone and all together, against the exhaustive optimum."""

from __future__ import annotations

import functools
from dataclasses import fields, replace

import pytest

from poetc.scheduling import Completer
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel, Relaxation
from poetc.solvers.poetc.pruning import ALL, Rules
from poetc.solvers.poetc.search.exhaustive import search
from tests.solvers.cases import case

SEEDS = range(80)
NAMES = [f.name for f in fields(Rules)]
NONE = Rules(**dict.fromkeys(NAMES, False))
SEARCH = {n: replace(ALL, **{n: False}) for n in NAMES if n.startswith("search_")} | {"none": NONE}
CUTS = {n: replace(ALL, **{n: False}) for n in NAMES if n.startswith("cuts_")} | {"none": NONE}


def test_every_rule_is_ablated() -> None:
    assert {n for n in (*SEARCH, *CUTS) if n != "none"} == set(NAMES)
    assert all(getattr(ALL, n) and not getattr(NONE, n) for n in NAMES)


@pytest.mark.parametrize("rules", SEARCH.values(), ids=SEARCH)
def test_exhaustive_search_finds_the_same_optimum_without_a_rule(rules: Rules) -> None:
    compared = 0
    for seed in range(120) if rules.search_useless_leaves else range(50):
        problem, optimum = case(seed)
        model = Model(problem)
        if model.n_ops > 6:
            continue  # without rules the states are too many
        cutoff = float("inf") if optimum is None else optimum.cost + 1.0
        result = search(model, max_states=20_000, stop_at=float("inf"), cutoff=cutoff, rules=rules)
        if not result.complete:
            assert optimum is None or result.bound <= optimum.cost, seed
            continue
        compared += 1
        if optimum is None:
            assert result.codes is None, seed
            continue
        assert result.codes is not None, seed
        assert model.cost(result.codes) == optimum.cost == result.bound, seed
        assert Completer(problem).run(model.decisions(result.codes)).peak_bytes <= problem.budget_bytes, seed
    assert compared > 20


def seeds_of(rules: Rules) -> range:
    """All of them without any rule; else every other one, the even ones for one rule and the odd ones for the next."""
    return SEEDS if rules == NONE else SEEDS[list(CUTS.values()).index(rules) % 2 :: 2]


@functools.cache
def relaxed_with_all(seed: int, cuts: tuple[int, ...]) -> Relaxation:
    return CutModel(Model(case(seed)[0]), cuts, between=True).solve(time_limit_s=10)


@pytest.mark.parametrize("rules", CUTS.values(), ids=CUTS)
def test_relaxations_stay_bounds_without_a_rule(rules: Rules) -> None:
    weaker = compared = 0
    for seed in seeds_of(rules):
        problem, optimum = case(seed)
        model = Model(problem)
        for cuts in ((model.cut,), tuple(range(model.n_ops)), tuple(range(1, model.n_ops, 3))):
            with_all = relaxed_with_all(seed, cuts)
            without = CutModel(model, cuts, between=True, rules=rules).solve(time_limit_s=10)
            if optimum is not None:
                assert not without.infeasible, (seed, cuts)
                assert without.bound <= optimum.cost, (seed, cuts)
            if without.exact and with_all.exact:
                compared += 1
                assert without.infeasible <= with_all.infeasible, (seed, cuts)
                assert with_all.infeasible or without.bound <= with_all.bound, (seed, cuts)
                weaker += with_all.infeasible > without.infeasible or without.bound < with_all.bound
    assert compared > len(seeds_of(rules))
    if rules == NONE:
        assert weaker > 5, "the rules do something"
