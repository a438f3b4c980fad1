"""Kernels with less workspace, as a user sees them: chosen where RAM is short, written down, checked, compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poetc import artifact
from poetc.commands import programs, report
from poetc.devices import build_problem, format_bytes, format_pj, load_profile
from poetc.planning import Point, solve_curve
from poetc.planning.kernels import fastest, kernels_of
from poetc.reporting import budget_curve
from poetc.scheduling import (
    DEFAULT_GAP,
    Problem,
    SolveOptions,
    all_in_ram,
    keep_all_peak_bytes,
    problem_from_json,
    problem_to_json,
)
from tests.cli.conftest import MODEL, Ended, run
from tests.support.planning import planner

BOARD = ("--batch", "1", "--device", "stm32f746", "--time-limit", "4")


@pytest.fixture(scope="module")
def least(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    out = tmp_path_factory.mktemp("least") / "digits.poetc"
    ended = run("solve", MODEL, *BOARD, "--budget", "52kB", "-o", out, "--json")
    assert ended.code == 0, ended.err
    return out, ended


def asked(out: Path) -> Problem:
    graph = artifact.read(out).graph
    assert graph is not None
    return build_problem(graph, load_profile("stm32f746"), budget_bytes=0)


def test_less_ram_than_the_fastest_kernels_need(least: tuple[Path, Ended], tmp_path: Path) -> None:
    out, ended = least
    solved = artifact.read(out).problem
    problem = asked(out)
    assert solved.budget_bytes < planner().lower_bound_bytes(fastest(problem))
    chosen = kernels_of(problem, solved)
    assert ended.json["low_workspace_kernels"] == sum(n > 0 for n in chosen) > 0
    assert "in kernels with less workspace than the fastest, as RAM is short (the same results): " in ended.err
    assert ended.json["min_budget_bytes"] <= solved.budget_bytes
    checked = run("validate", out, "--json").json
    assert checked["peak_measured_bytes"] == checked["peak_predicted_bytes"]
    assert run("emit", out, "-o", tmp_path / "c").code == 0
    tight = run("solve", MODEL, *BOARD, "--no-paging", "--budget", "6kB", "-o", tmp_path / "tight")
    known = re.search(r"known to work is (\d+) bytes", tight.err)
    assert tight.code == 4 and known is not None and int(known[1]) >= solved.budget_bytes


def test_a_kernel_that_does_not_fit_is_refused(least: tuple[Path, Ended], tmp_path: Path) -> None:
    out, _ = least
    solved = artifact.read(out)
    k = next(k for k, n in enumerate(kernels_of(asked(out), solved.problem)) if n)
    op = solved.problem.operators[k]
    size_bytes = op.workspace_bytes
    for changed, said in (
        (
            replace(op, workspace_bytes=size_bytes - 16),
            f"the kernel {op.kernel} has a workspace of {size_bytes} bytes, not of {size_bytes - 16}; solve again",
        ),
        (replace(op, kernel="conv_packed#9"), f"{op.name}: there is no kernel conv_packed#9 for it, but "),
    ):
        operators = list(solved.problem.operators)
        operators[k] = changed
        artifact.write(replace(solved, problem=replace(solved.problem, operators=tuple(operators))), tmp_path / "w", {})
        ended = run("emit", tmp_path / "w", "-o", tmp_path / "c")
        assert ended.code != 0 and ended.err.count("\n") == 1 and said in ended.err


def test_a_directory_of_before_kernels_had_names(least: tuple[Path, Ended], tmp_path: Path) -> None:
    """The same program comes of it: kernels are told by their workspaces."""
    out, _ = least
    solved = artifact.read(out)
    assert any("#" in op.kernel for op in solved.problem.operators)
    operators = tuple(replace(op, kernel="") for op in solved.problem.operators)
    before = replace(solved, problem=replace(solved.problem, operators=operators))
    artifact.write(before, tmp_path / "before", {})
    assert b'"kernel"' not in (tmp_path / "before" / "problem.json").read_bytes()
    again = artifact.read(tmp_path / "before")
    assert again.problem == solved.problem
    assert programs.training_program(again) == programs.training_program(solved)


@pytest.mark.long
def test_a_curve_is_of_the_fastest_kernels_where_they_fit(
    least: tuple[Path, Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of those that the report's own budget asked for. Its own schedule is one of its points, unless a better one
    is found. Points are as near the optimum as those of `compare`.
    """
    out, _ = least
    given: list[SolveOptions] = []
    points: list[Point] = []

    def solved(*arguments: Any) -> list[Point]:
        given.append(arguments[2].options)
        points.extend(solve_curve(*arguments))
        return points

    monkeypatch.setattr(report, "solve_curve", solved)
    monkeypatch.setattr(budget_curve, "SHARES", (100,))
    assert run("report", out, "--curve", "--time-limit", "20", "--html", tmp_path / "page.html").code == 0
    rows = re.findall(r"<tr>(<td>.*?)</tr>", (tmp_path / "page.html").read_text().split('id="curve"')[1])
    cells = [re.findall("<td>(.*?)</td>", row) for row in rows]
    assert given[0].gap == DEFAULT_GAP
    own, most = cells[0], cells[1]
    known, mine = artifact.read(out), points[0].solution
    assert mine is not None and mine.problem.budget_bytes == known.problem.budget_bytes
    assert mine.cost <= known.schedule.proof.objective
    assert own[0].endswith("(this one)") and own[2] == format_pj(mine.cost)
    problem = asked(out)
    assert most[0] == format_bytes(keep_all_peak_bytes(problem)) and most[2] == format_pj(problem.compute_once_pj)
    assert keep_all_peak_bytes(all_in_ram(artifact.read(out).problem)) < keep_all_peak_bytes(problem)


@pytest.mark.long
def test_lock_check_and_diff(least: tuple[Path, Ended], tmp_path: Path) -> None:
    out, _ = least
    path = tmp_path / "poetc.lock"
    assert run("lock", MODEL, *BOARD, "--budget", "52kB", "-o", path).code == 0
    (entry,) = json.loads(path.read_text())["entries"]
    assert entry["result"]["low_workspace_kernels"] > 0
    ended = run("check", path)
    assert ended.code == 0, ended.out
    assert run("solve", MODEL, *BOARD, "--budget", "100%", "-o", tmp_path / "roomy").code == 0
    said = run("diff", out, tmp_path / "roomy")
    assert f"{entry['result']['low_workspace_kernels']} operators changed in workspace: " in said.out


def test_a_problem_with_variants_is_solved_as_a_plain_one(tmp_path: Path, least: tuple[Path, Ended]) -> None:
    out, _ = least
    problem = replace(asked(out), budget_bytes=110_000)
    path = tmp_path / "p.json"
    path.write_bytes(problem_to_json(problem))
    assert b"low_workspace" in path.read_bytes()
    ended = run("solve", path, "--time-limit", "4", "-o", tmp_path / "solved")
    assert ended.code == 0, ended.err
    written = problem_from_json((tmp_path / "solved" / "problem.json").read_bytes())
    assert not any(op.low_workspace for op in written.operators)
    kernels_of(problem, written)
