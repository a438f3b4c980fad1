"""POET's formulation against ours and against the exhaustive optimum, on problems whose paging takes no time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from poetc.errors import InfeasibleError, LimitError, UsageError
from poetc.scheduling import Paging, SolveOptions, verify
from poetc.solvers import solve
from tests.solvers.cases import poet_like
from tests.support.oracle import optimum
from tests.support.poet_instances import load_poet_instance

OPTIONS = SolveOptions(time_limit_s=120, fixed_order=True)  # as POET


def test_formulations_agree_with_each_other_and_with_exhaustive_search() -> None:
    agreed = feasible = 0
    for seed in range(10):
        problem = poet_like(seed, layers=3)
        best = optimum(problem)
        try:
            theirs = solve(problem, "poet", OPTIONS).proof
        except InfeasibleError:
            # Then ours is either infeasible as well, or uses what POET's stages cannot say.
            continue
        ours = solve(problem, "poetc", OPTIONS).proof
        assert best is not None
        assert ours.objective == ours.bound == best.cost, seed
        assert theirs.objective >= ours.objective, seed
        feasible += 1
        agreed += theirs.objective == ours.objective
    assert feasible >= 6
    assert agreed >= feasible - 2


@pytest.mark.parametrize("seed", [1, 4])
def test_larger_networks_with_skips(seed: int) -> None:
    problem = poet_like(seed, layers=6)
    theirs, ours = (solve(problem, name, OPTIONS).proof for name in ("poet", "poetc"))
    assert ours.objective <= theirs.objective
    assert ours.bound <= theirs.objective


def test_paging_that_takes_time_counts() -> None:
    problem = dataclasses.replace(poet_like(4, layers=3), paging=Paging.SYNC)
    tensors = tuple(dataclasses.replace(t, page_in_ns=1, page_out_ns=1) for t in problem.tensors)
    problem = dataclasses.replace(problem, tensors=tensors)
    once = problem.compute_once_ns
    problem = dataclasses.replace(problem, deadline_ns=2 * once)
    schedule = solve(problem, "poet", OPTIONS)
    trace = verify(problem, schedule)
    assert trace.time_ns >= once


def test_refusals() -> None:
    problem = poet_like(1, layers=3)
    with pytest.raises(InfeasibleError):
        solve(dataclasses.replace(problem, budget_bytes=1), "poet", OPTIONS)
    with pytest.raises(LimitError, match="takes at most 140 operators"):
        solve(poet_like(1, layers=80), "poet", dataclasses.replace(OPTIONS, group="none"))


def instance(path: Path) -> Path:
    def node(k: int, backward: bool) -> dict[str, object]:
        return {
            "id": k, "name": f"n{k}", "kind": "Dense", "backward": backward, "runtime_s": 1e-6 * (k + 1),
            "energy_j": 1e-9 * (k + 1), "mem_bytes": 100, "page_in_j": 1e-9, "page_out_j": 2e-9,
            "page_in_s": 1e-6, "page_out_s": 1e-6,
        }  # fmt: skip

    data = {
        "format": "poet-instance/1",
        "model": "toy",
        "platform": "a72",
        "totals": {"resident_peak_bytes": 400},
        "nodes": [node(k, k > 2) for k in range(5)],
        "edges": [[0, 1], [1, 2], [2, 3], [1, 3], [1, 3], [3, 4], [0, 4]],
    }
    file = path / "toy.json"
    file.write_text(json.dumps(data))
    return file


def test_reading_poets_instances(tmp_path: Path) -> None:
    problem = load_poet_instance(instance(tmp_path), budget=0.75)
    assert problem.budget_bytes == 300
    assert not any(t.page_in_ns or t.page_out_ns for t in problem.tensors)
    assert problem.operators[3].inputs == (1, 2)
    assert problem.operators[1].energy_pj == 2000
    assert problem.operators[1].time_ns == 2000
    assert problem.deadline_ns == 22_500
    assert problem.tensors[0].page_out_pj == 2000
    # At 300 bytes something has to give: t0 is computed again (1000 pJ), cheaper than paging it (3000).
    assert solve(problem, options=OPTIONS).proof.objective == problem.compute_once_pj + 1000
    assert load_poet_instance(instance(tmp_path), budget=400, deadline=None).deadline_ns is None


@pytest.mark.parametrize("text", ["{}", "[]", "no json"])
def test_not_an_instance(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(UsageError):
        load_poet_instance(file, budget=0.5)
