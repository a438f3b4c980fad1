"""Solvers are found without registration, and what they return is checked."""

from __future__ import annotations

import dataclasses
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from poetc.errors import UsageError
from poetc.scheduling import ScheduleError, keep_all, keep_all_peak_bytes
from poetc.solvers import SolverInfo, available, solve
from poetc.solvers import _registry as registry
from tests.support.problems import training_problem


def test_discovery() -> None:
    found = available()
    assert {"poetc", "poet"} <= set(found)
    assert list(found) == sorted(found)
    for name, info in found.items():
        assert info.name == name
        assert info.title


def test_unknown_solver_names_the_known() -> None:
    with pytest.raises(UsageError, match="poetc"):
        solve(training_problem(Random(0), 1), "gurobi")


def test_what_a_solver_claims_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = training_problem(Random(0), 2)

    def cheat(problem: Any, options: Any, progress: Any) -> Any:
        schedule = keep_all(problem)
        proof = dataclasses.replace(schedule.proof, objective=schedule.proof.objective - 1, bound=0)
        return dataclasses.replace(schedule, proof=proof)

    module = SimpleNamespace(INFO=SolverInfo(name="cheat", title="Cheat"), solve=cheat)
    monkeypatch.setattr(registry, "_modules", lambda: {"cheat": module})
    with pytest.raises(ScheduleError, match="claims"):
        solve(problem, "cheat")


def test_one_solver_is_imported_for_a_solve_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> dict[str, Any]:
        raise AssertionError("imports all solvers")

    monkeypatch.setattr(registry, "_modules", refuse)
    problem = training_problem(Random(0), 2)
    problem = dataclasses.replace(problem, budget_bytes=keep_all_peak_bytes(problem))
    assert solve(problem, "keep_all").solver == "keep_all"
    with pytest.raises(AssertionError):
        solve(problem, "_orders")
