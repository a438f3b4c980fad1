"""Two processors with long hand-overs and one copy of each tensor: the bound beside exact search.

`python -m tests.solvers.test_copies COUNT [FIRST]` compares so many random problems.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import poetc
from demo.boards import networks
from poetc.scheduling import Paging, Problem, validate_problem
from poetc.solvers.processors import can_search, critical_path_ns, relaxed, search
from poetc.solvers.processors.copies import one_copy_each
from poetc.solvers.processors.hand_overs import least_with_hand_overs
from poetc.training import TrainingOptions
from tests.solvers.test_processors import with_processors
from tests.support.problems import random_dag

NODES = 60_000
HAND_OVERS_NS = (20, 60, 150, 400)


def random_problem(random: Random) -> Problem:
    """State that is read besides its update, little or much RAM, and hand-overs of a part of the step or all of it."""
    problem = with_processors(random, random_dag(random, random.randint(3, 6)))
    operators = list(problem.operators)
    updates = [(n, p.input) for n, o in enumerate(operators) for p in o.in_place if p.required]
    for n, operator in enumerate(operators):
        before = [t for k, t in updates if k > n and not operator.in_place]
        if before and random.random() < 0.4:
            operators[n] = replace(operator, inputs=(*operator.inputs, random.choice(before)))
    hand_over_ns = random.choice(HAND_OVERS_NS)
    processors = tuple(replace(p, hand_over_ns=hand_over_ns) for p in problem.processors)
    total = sum(t.size_bytes for t in problem.tensors)
    budget = 2**30 if random.random() < 0.6 else problem.base_bytes + int(total * random.uniform(0.5, 1.0))
    changed = replace(
        problem, operators=tuple(operators), processors=processors, budget_bytes=budget, paging=Paging.NONE
    )
    validate_problem(changed)
    return changed


def compare(seed: int) -> str | None:
    """None where nothing is compared; otherwise a word, or an error that begins with `seed`."""
    problem = random_problem(Random(seed))
    copies = one_copy_each(problem, critical_path_ns(problem))
    if copies is None or not can_search(problem):
        return None
    cheapest = search(problem, 2**60, NODES)
    if not cheapest.is_complete or cheapest.actions is None:
        return None
    least = relaxed(problem).least
    if least > cheapest.cost:
        return f"seed {seed}: the bound is {least}, and a schedule costs {cheapest.cost}"
    return "equal" if least >= cheapest.cost * (1 - 1e-4) else "below"


def test_the_bound_is_not_above_the_cheapest_schedule() -> None:
    words = [compare(seed) for seed in (*range(60), 1452, 4438)]
    assert not [word for word in words if word and word.startswith("seed")]
    assert words.count("equal") >= 10


def test_there_is_no_bound_where_an_execution_costs_less_than_idling() -> None:
    problem = next(p for p in map(random_problem, map(Random, range(60))) if one_copy_each(p, critical_path_ns(p)))
    path_ns = critical_path_ns(problem)
    assert least_with_hand_overs(problem, path_ns) > 0
    free = replace(problem.operators[0], energy_pj=0)
    idling = tuple(replace(p, idle_uw=max(1_000, p.idle_uw)) for p in problem.processors)
    cheaper = replace(problem, operators=(free, *problem.operators[1:]), processors=idling)
    assert least_with_hand_overs(cheaper, path_ns) == 0


@pytest.fixture
def mlp(tmp_path: Path) -> poetc.Model:
    path = networks.write("mlp", tmp_path / "mlp.onnx")
    return poetc.load(path, batch=8, training=TrainingOptions(precision="niti"))


def solved(model: poetc.Model, objective: str) -> dict[str, Any]:
    relaxed.cache_clear()
    solution = model.solve(device="phone-dsp", paging=False, processors="all", objective=objective, time_limit_s=10.0)
    return dict(solution.summary)


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_the_step_of_a_phone_is_proven_optimal(mlp: poetc.Model, objective: str) -> None:
    assert solved(mlp, objective)["gap"] < 0.001


def test_neither_the_bound_nor_the_plan_can_go(mlp: poetc.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    best = solved(mlp, "time")
    monkeypatch.setattr("poetc.solvers.processors.hand_overs.one_copy_each", lambda *_: None)
    assert solved(mlp, "time")["gap"] > 0.1
    monkeypatch.setattr("poetc.solvers.processors.twice.one_copy_each", lambda *_: None)
    assert solved(mlp, "time")["time_ns"] > 1.05 * best["time_ns"]


if __name__ == "__main__":
    counts: dict[str, int] = {}
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for n in range(first, first + int(sys.argv[1])):
        word = compare(n) or "nothing"
        if word.startswith("seed"):
            print(word, flush=True)
            word = "wrong"
        counts[word] = counts.get(word, 0) + 1
    print(counts)
