"""Eviction while a step runs: tensors that could be made anew, tensors that stay, and how the work grows."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling import Problem, SolveOptions, keep_all_peak_bytes, verify
from poetc.solvers import solve
from poetc.solvers.model import Model
from poetc.solvers.published import _baseline, _online, sage
from poetc.solvers.published._remaking import Remaking
from poetc.solvers.published._training import split
from tests.solvers.published.test_parts import step
from tests.support.problems import training_problem, with_budget

OPTIONS = SolveOptions(time_limit_s=60)


@pytest.mark.parametrize("solver", ["sage", "melon", "dtr", "dtr_local"])
def test_what_could_be_made_anew_is_what_a_walk_through_absent_ancestors_finds(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evictable = _online.Online.evictable
    answers = set()

    def checked(run: _online.Online, t: int) -> bool:
        for u in run.resident:
            if run.model.producer[u] >= 0:
                answers.add(run.remaking.may(u))
                assert run.remaking.may(u) == (run.closure(u) is not None)
        return evictable(run, t)

    monkeypatch.setattr(_online.Online, "evictable", checked)
    problems = [with_budget(training_problem(Random(k), 3 + k % 5, paging=k % 2 == 1), 0.6) for k in range(12)]
    parts = step(2)
    problems.append(replace(parts, budget_bytes=keep_all_peak_bytes(parts) * 9 // 10))
    for problem in problems:
        try:
            solve(problem, solver, OPTIONS)
        except (InfeasibleError, LimitError):
            continue
    assert answers == {True, False}


def test_an_overwritten_tensor_cannot_be_made_anew() -> None:
    model = Model(training_problem(Random(0), 4))
    there = Remaking(model, {t for t in range(model.n_tensors) if model.in_ram[t]})
    for v in range(model.n_ops):
        for t in model.outputs[v]:
            there.comes(t)
        there.executes(v)
    above = [t for t in range(model.n_tensors) if model.producer[t] >= 0 and model.recomputable[model.producer[t]]]
    t, below = next(
        (t, o)
        for t in above
        for v in model.consumers[t]
        if model.recomputable[v] and t not in model.overwritten[v]
        for o in model.outputs[v]
    )
    there.leaves(t)
    assert there.may(below)
    there.is_gone(t)
    assert not there.may(below)
    there.comes(t)
    assert there.may(below)


def test_the_sums_of_gradients_stay_between_micro_batches() -> None:
    """By Sage's score they would go first, and each would bring back all micro-batches before."""
    problem = step(4)
    model = Model(problem)
    held = sage.sums(model, split(model, "sage", every_part=True))
    made = [problem.operators[model.producer[t]] for t in held]
    assert sum(op.phase == "loss" for op in made) == 3  # behind each micro-batch but the last
    weights = Counter(problem.tensors[t].name.partition(".grad")[0] for t in held if "grad" in problem.tensors[t].name)
    assert set(weights.values()) == {3}
    assert 3 * len(weights) == sum(op.phase == "backward" for op in made) == len(made) - 3
    assert not sage.sums(Model(step(1)), split(Model(step(1)), "sage", every_part=True))


@pytest.mark.parametrize("share", [0.9, 0.8])
def test_sage_evicts_within_each_micro_batch(share: float) -> None:
    whole = step(4)
    problem = replace(whole, budget_bytes=int(keep_all_peak_bytes(whole) * share))
    schedule = solve(problem, "sage", OPTIONS)
    trace = verify(problem, schedule)
    assert trace.peak_bytes <= problem.budget_bytes
    cut = split(Model(problem), "sage").cut
    assert any(n > 1 for n in trace.executions[:cut])
    assert any(n > 1 for n in trace.executions[cut:])


def calls(problem: Problem) -> int:
    """Of functions, in a simulation of Sage: those of built-in ones too."""
    baseline = _baseline.Baseline(sage.INFO, problem, OPTIONS, None)
    run = _online.Online(baseline, baseline.model.capacity, sage.rules_for(baseline.model))
    count = 0

    def profile(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        run.run()
    finally:
        sys.setprofile(None)
    return count


def test_the_work_of_an_eviction_does_not_grow_with_the_step() -> None:
    """It did while each tensor in RAM was looked at with all its absent ancestors."""
    found = []
    for parts in (4, 32):
        whole = step(parts, batch=parts)
        found.append(calls(replace(whole, budget_bytes=keep_all_peak_bytes(whole) * 9 // 10)) / len(whole.operators))
    assert found[1] < 1.5 * found[0]
