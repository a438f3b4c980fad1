"""lock, check and diff as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poetc import artifact
from poetc.locking._diff import diff_artifacts
from tests.cli.conftest import MODEL, Ended, run

OPTIONS = ("--batch", "4", "--device", "stm32f746", "--gap", "0.05", "--time-limit", "30")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("locked") / "poetc.lock"
    assert run("lock", MODEL, *OPTIONS, "--budget", "70%", "-o", path).code == 0
    ended = run("lock", MODEL, *OPTIONS, "--budget", "60%", "--name", "tight", "-o", path, "--json")
    assert ended.code == 0, ended.err
    assert ended.json["result"]["ram_bytes"] <= ended.json["result"]["budget_bytes"]
    return path


def edited(locked: Path, folder: Path, change: Callable[[dict[str, Any]], None], name: str = "tight") -> Path:
    """A copy of the lock file with one entry changed; the model's path stays valid."""
    document = json.loads(locked.read_text())
    for entry in document["entries"]:
        entry["options"]["model"] = str(MODEL)
        if entry["name"] == name:
            change(entry)
    path = folder / "poetc.lock"
    path.write_text(json.dumps(document))
    return path


def check(path: Path, *more: object) -> Ended:
    return run("check", path, "--entry", "tight", *more)


def test_a_lock_passes_its_own_check_and_is_the_same_again(locked: Path) -> None:
    before = locked.read_bytes()
    ended = run("check", locked, "--json")
    assert ended.code == 0, ended.err
    assert [(e["passed"], e["findings"]) for e in ended.json["entries"]] == [(True, []), (True, [])]
    assert locked.read_bytes() == before
    assert run("lock", MODEL, *OPTIONS, "--budget", "60%", "--name", "tight", "-o", locked).code == 0
    assert locked.read_bytes() == before


def test_a_worse_schedule_fails(locked: Path, tmp_path: Path) -> None:
    def cheaper(entry: dict[str, Any]) -> None:
        entry["result"]["objective"] = int(entry["result"]["objective"] * 0.97)
        entry["result"]["bound"] = int(entry["result"]["bound"] * 0.97)

    path = edited(locked, tmp_path, cheaper)
    ended = check(path, "--junit", tmp_path / "out.xml", "--github")
    assert ended.code == 1
    assert "worse" in ended.out
    assert "::error" in ended.out
    assert "<failure" in (tmp_path / "out.xml").read_text()
    assert ended.err.startswith("poetc: error: tight: energy is 3.09% more")
    as_json = check(path, "--json")
    assert (as_json.code, as_json.json["passed"]) == (1, False)
    assert check(path, "--tolerance", "5%").code == 0


def test_a_budget_that_no_longer_fits_fails(locked: Path, tmp_path: Path) -> None:
    path = edited(locked, tmp_path, lambda entry: entry["options"].update(budget="20kB"))
    ended = check(path)
    assert ended.code == 1
    assert "the budget no longer fits" in ended.out


def test_what_cannot_be_solved_any_more_fails(locked: Path, tmp_path: Path) -> None:
    path = edited(locked, tmp_path, lambda entry: entry["options"].update(model="gone.onnx"))
    ended = check(path)
    assert ended.code == 1
    assert "gone.onnx" in ended.out
    assert run("check", path, "--entry", "other").code == 2
    assert run("check", tmp_path / "none.lock").code == 2


def test_diff_says_what_changed(tmp_path: Path) -> None:
    a, b = tmp_path / "a.poetc", tmp_path / "b.poetc"
    for out, budget in ((a, "80%"), (b, "60%")):
        assert run("solve", MODEL, *OPTIONS, "--budget", budget, "-o", out).code == 0
    said = run("diff", a, b)
    assert said.code == 0
    assert "The budget fell from" in said.out
    assert "Energy rose from" in said.out
    assert "Now recomputed: " in said.out or "Now paged out: " in said.out
    document = run("diff", b, a, "--json").json
    assert document["totals"]["energy_pj"]["after"] < document["totals"]["energy_pj"]["before"]
    assert run("diff", a, a).out == "The schedules do the same.\n"
    solved = artifact.read(a)
    another = replace(solved, problem=replace(solved.problem, name="another.onnx"))
    assert diff_artifacts(solved, another).sentences == ("The model changed from digits.onnx to another.onnx.",)
    assert run("diff", a, tmp_path).code == 2
