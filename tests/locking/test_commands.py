"""lock, check and diff as a user runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import onnx
import pytest

from poetc import artifact
from poetc.commands.locking import Entry, diff_artifacts, is_unchanged, model_hash, read
from poetc.scheduling import problem_to_json
from tests.cli.conftest import Ended, run
from tests.support.problems import training_problem
from tests.support.small import small_model

MODEL = small_model()
OPTIONS = ("--batch", "4", "--device", "stm32f746", "--state", "ram", "--gap", "0.25", "--time-limit", "60")


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


def test_what_is_unchanged_is_not_solved_again(locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[str] = []

    def solve(name: str, *_: object, **__: object) -> tuple[Entry, None]:
        solved.append(name)
        return next(entry for entry in read(locked).entries if entry.name == name), None

    monkeypatch.setattr("poetc.commands.locking._check.solve_entry", solve)
    ended = run("check", locked)
    assert (ended.code, solved) == (0, []), ended.err
    assert ended.out.count("(unchanged, so not solved again; --solve insists)") == 2
    assert [entry["solved"] for entry in run("check", locked, "--json").json["entries"]] == [False, False]
    assert run("check", locked, "--solve").code == 0
    assert len(solved) == 2
    for change in (
        lambda entry: entry["result"].update(objective=entry["result"]["objective"] - 1),  # edited by hand
        lambda entry: entry["options"].update(budget="61%"),
        lambda entry: entry["hashes"].update(entry=""),  # of an earlier version
        lambda entry: entry["versions"].update(code="another"),
    ):
        document = json.loads(locked.read_text())
        change(document["entries"][0])
        (copy := locked.parent / "copy.lock").write_text(json.dumps(document))
        solved.clear()
        run("check", copy)
        assert solved == [document["entries"][0]["name"]]


def test_a_model_of_other_bytes_is_solved_again(tmp_path: Path) -> None:
    """External data included."""
    (problem := tmp_path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 4)))
    assert run("lock", problem, "-b", "100%", "-o", tmp_path / "poetc.lock").code == 0
    (entry,) = read(tmp_path / "poetc.lock").entries
    assert is_unchanged(entry, tmp_path)
    problem.write_bytes(problem.read_bytes() + b"\n")
    assert not is_unchanged(entry, tmp_path)
    problem.unlink()
    assert not is_unchanged(entry, tmp_path)
    model = onnx.load(MODEL)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    before = model_hash(tmp_path / "m.onnx")
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "m.data").write_bytes(data)
    assert model_hash(tmp_path / "m.onnx") != before


def test_entries_are_solved_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "poetc.lock"
    for seed in (1, 2):
        (problem := tmp_path / f"p{seed}.json").write_bytes(problem_to_json(training_problem(Random(seed), 4)))
        assert run("lock", problem, "-b", "100%", "-o", path).code == 0
    document = json.loads(path.read_text())
    document["entries"][1]["options"]["model"] = "gone.json"
    path.write_text(json.dumps(document))
    ended = run("check", path, "--solve", "--jobs", "2", "--json")
    entries = ended.json["entries"]
    assert ended.code == 2
    assert [(e["solved"], e["passed"]) for e in entries] == [(True, True), (True, False)]


def test_diff_of_lock_files(locked: Path, tmp_path: Path) -> None:
    assert run("diff", locked, locked).out == "The schedules do the same.\n"
    document = json.loads(locked.read_text())
    first, second = document["entries"]
    second["result"].update(energy_pj=second["result"]["energy_pj"] * 2, recomputes=99)
    second["options"]["budget"] = "50%"
    second["versions"]["code"] = "another"
    (path := tmp_path / "poetc.lock").write_text(json.dumps({**document, "entries": [second]}))
    said = run("diff", locked, path)
    assert said.code == 0
    assert f"{first['name']}: was removed.\n" in said.out
    assert "tight: energy rose from " in said.out and "(+100.0%)" in said.out
    assert "tight: the options changed: budget from '60%' to '50%'.\n" in said.out
    assert "tight: recomputations: 99 instead of " in said.out
    assert "tight: recorded with another version: poetc's code.\n" in said.out
    entries = run("diff", locked, path, "--json").json["entries"]
    assert entries["tight"]["after"]["recomputes"] == 99 and entries[first["name"]]["after"] is None
    mixed = run("diff", locked, tmp_path)
    assert mixed.code == 2 and "two lock files" in mixed.err
    absent = run("diff", locked, tmp_path / "none.lock")
    assert absent.code == 2 and "none.lock: does not exist" in absent.err


@pytest.mark.long
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
    assert re.match(r"poetc: error: tight: energy is 3\.\d\d% more", ended.err)
    as_json = check(path, "--json")
    assert (as_json.code, as_json.json["passed"]) == (1, False)
    assert check(path, "--tolerance", "5%").code == 0


def test_a_budget_that_no_longer_fits_fails(locked: Path, tmp_path: Path) -> None:
    path = edited(locked, tmp_path, lambda entry: entry["options"].update(budget="5kB"))
    ended = check(path)
    assert ended.code == 1
    assert "the budget no longer fits" in ended.out


def test_what_cannot_be_solved_any_more_fails(locked: Path, tmp_path: Path) -> None:
    path = edited(locked, tmp_path, lambda entry: entry["options"].update(model="gone.onnx"))
    ended = check(path)
    assert (ended.code, ended.out) == (2, "")  # one line says it
    assert "gone.onnx: no such file" in ended.err and ended.err.count("\n") == 1
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
