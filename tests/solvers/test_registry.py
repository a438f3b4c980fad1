"""Solvers are found without registration, and what they return is checked."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import re
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from poetc.errors import UsageError
from poetc.scheduling import ScheduleError, keep_all, keep_all_peak_bytes
from poetc.solvers import SolverInfo, available, registry, solve
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
        solve(problem, "_baseline")


@pytest.mark.parametrize("folder", registry.FOLDERS)
def test_a_file_dropped_into_a_folder_of_solvers_is_found(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dropped_in.py").write_text(
        "from poetc.scheduling import keep_all\n"
        "from poetc.solvers import SolverInfo\n"
        'INFO = SolverInfo(name="dropped_in", title="Everything once")\n'
        "def solve(problem, options, progress=None):\n"
        "    return keep_all(problem)\n"
    )
    package = importlib.import_module(folder)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{folder}.dropped_in", raising=False)
    importlib.invalidate_caches()
    registry._modules.cache_clear()
    try:
        assert available()["dropped_in"].title == "Everything once"
        problem = training_problem(Random(0), 2)
        problem = dataclasses.replace(problem, budget_bytes=keep_all_peak_bytes(problem))
        assert solve(problem, "dropped_in").actions == keep_all(problem).actions
    finally:
        monkeypatch.undo()
        registry._modules.cache_clear()
        sys.modules.pop(f"{folder}.dropped_in", None)


def entry_point(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package with this entry point were installed."""
    point = importlib.metadata.EntryPoint(name, value, registry.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    registry._modules.cache_clear()


def test_the_solver_of_the_guide_in_a_package_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip would lay it out: a module, and the entry point in the package's metadata."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "add-a-solver.md").read_text()
    python, toml = (re.search(rf"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("python", "toml"))
    assert python is not None and toml is not None
    (package := tmp_path / "my_package").mkdir()
    (package / "__init__.py").write_text("")
    (package / "my_module.py").write_text(python[1])
    (information := tmp_path / "my_package-1.0.dist-info").mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    points = toml[1].replace('"', "").replace("[project.entry-points.poetc.solvers]", "[poetc.solvers]")
    (information / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._modules.cache_clear()
    try:
        assert available()["in_order"].title == "Everything once, in order"
        problem = training_problem(Random(0), 2)
        problem = dataclasses.replace(problem, budget_bytes=keep_all_peak_bytes(problem))
        assert solve(problem, "in_order").actions == keep_all(problem).actions
    finally:
        monkeypatch.undo()
        registry._modules.cache_clear()
        sys.modules.pop("my_package.my_module", None)


def test_a_solver_of_another_package_has_the_name_of_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two names the one that --solver takes is listed; a module that cannot be imported is named in one line."""
    try:
        entry_point("mine", "poetc.solvers.published.keep_all", monkeypatch)
        assert available()["mine"].name == "mine"
        problem = training_problem(Random(0), 2)
        problem = dataclasses.replace(problem, budget_bytes=keep_all_peak_bytes(problem))
        assert solve(problem, "mine").actions == keep_all(problem).actions
        entry_point("broken", "no_such_package", monkeypatch)
        with pytest.raises(UsageError, match="solver 'broken' of a package: no_such_package cannot be imported"):
            available()
    finally:
        monkeypatch.undo()
        registry._modules.cache_clear()
