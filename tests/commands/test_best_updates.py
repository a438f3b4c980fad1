"""`--train best` in the commands that solve several times, in integers, and from Python."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import poetc
from poetc.commands.best_updates import choice_of, settled
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.reporting import sweep
from poetc.scheduling import keep_all_peak_bytes
from poetc.training import TrainingOptions
from tests.cli.conftest import run
from tests.commands.trained import DIGITS

FEW = """\
format: poetc-importance-1
candidates:
- {parameter: 13.weight, update: whole, importance: 8}
- {parameter: 13.weight, update: '1/4', importance: 3}
- {parameter: 14.bias, update: whole, importance: 2}
- {parameter: 18.weight, update: whole, importance: 3}
- {parameter: 18.bias, update: whole, importance: 1}
"""
FISHER = (
    ("0.weight", 29.02),
    ("1.weight", 0.46),
    ("1.bias", 0.74),
    ("3.weight", 14.91),
    ("4.weight", 0.55),
    ("4.bias", 0.92),
    ("6.weight", 17.36),
    ("7.weight", 0.75),
    ("7.bias", 0.91),
    ("10.weight", 22.72),
    ("11.weight", 0.19),
    ("11.bias", 0.3),
    ("13.weight", 7.74),
    ("14.weight", 0.12),
    ("14.bias", 0.1),
    ("18.bias", 0.03),
    ("18.weight", 3.17),
)
BOARD = ("--batch", 1, "-d", "stm32f746", "--time-limit", 2)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "importance.yaml"
    path.write_text(FEW)
    return path


@pytest.mark.long
def test_a_bundle_has_the_updates_for_its_smallest_budget_and_shares_are_of_training_everything(
    few: Path, tmp_path: Path
) -> None:
    best = ("--train", "best", "--importance", few, "--no-paging")
    ended = run("bundle", DIGITS, *BOARD, "--budgets", "90%,70%", *best, "-o", tmp_path / "b.poetc", "--json")
    assert ended.code == 0, ended.err
    training = TrainingOptions(train="best")
    model = ModelRequest(source=DIGITS, batch=1, device="stm32f746", training=training)
    everything = choice_of(SolveRequest(model=model, importance=few)).everything
    plans = ended.json["bundle"]["plans"]
    assert plans[-1]["budget_bytes"] == int(0.7 * keep_all_peak_bytes(everything))
    assert any(note.startswith("--train best: ") for note in ended.json["notes"])


def test_limits_of_a_settled_request_are_numbers(few: Path) -> None:
    model = ModelRequest(source=DIGITS, batch=1, device="stm32f746", training=TrainingOptions(train="best"))
    asked = SolveRequest(model=model, importance=few, deadline="0.9x", paging=False)
    everything = choice_of(asked).everything
    found, budgets, notes = settled(asked, ("90%", "60%"))
    assert found.deadline == f"{everything.deadline_ns}ns" and not found.is_best
    assert budgets == tuple(f"{int(s * keep_all_peak_bytes(everything))}B" for s in (0.9, 0.6))
    assert len(notes) == 1 and settled(found, budgets) == (found, budgets, ())


def test_a_lock_holds_the_choice_of_the_updates(few: Path, tmp_path: Path) -> None:
    lock = tmp_path / "poetc.lock"
    best = ("--train", "best", "--importance", few, "--no-paging")
    ended = run("lock", DIGITS, *BOARD, "-b", "64kB", *best, "--max-energy", "0.5x", "-o", lock)
    assert ended.code == 0, ended.err
    options = json.loads(lock.read_text())["entries"][0]["options"]
    assert (options["importance"], options["max_energy"]) == ("importance.yaml", "0.5x")
    assert run("check", lock).code == 0
    few.write_text(FEW.replace("importance: 8", "importance: 0.1"))
    checked = run("check", lock, "--json")
    assert checked.code == 1 and checked.json["entries"][0]["findings"]


def test_all_solvers_of_a_comparison_have_the_same_updates(few: Path, tmp_path: Path) -> None:
    best = ("--train", "best", "--importance", few, "--no-paging", "--max-energy", "0.5x")
    ended = run(
        "compare", DIGITS, *BOARD, "--budgets", "70%", "--solvers", "poetc", *best, "-o", tmp_path / "c", "--json"
    )
    assert ended.code == 0, ended.err
    assert "--train best: " in ended.err and ended.json["rows"][0]["energy_pj"] <= 0.5 * 10.9e9
    ended = run("compare", DIGITS, *BOARD, "--switch", "90%:60%@50%", *best)
    assert ended.code == 2 and "--switch and --train best exclude each other" in ended.err


@pytest.mark.long
def test_the_page_of_a_sweep_draws_importance_over_budget(few: Path, tmp_path: Path) -> None:
    best = ("--train", "best", "--importance", few, "--no-paging")
    page = tmp_path / "page.html"
    budgets = ("--budgets", "48kB,64kB")
    ended = run("sweep", DIGITS, *BOARD, *budgets, *best, "-o", tmp_path / "s.jsonl", "--html", page, "-j", 1)
    assert ended.code == 0, ended.err
    text = page.read_text()
    assert "<title>Importance of the updates over the RAM budget</title>" in text
    assert text.count('r="3.5" fill="#4e79a7"') == 2 and "no set above" in text


def test_a_page_with_chosen_updates_has_no_plot_of_energy_and_its_labels_keep_apart() -> None:
    """Each budget has another training step, so that energies over budgets are those of different steps."""
    head = {"model": "m", "device": "d", "status": "optimal", "energy_pj": 1, "gap": 0.0, "peak_bytes": 1}
    rows = [
        head | {"budget": f"{n}B", "budget_bytes": n, "importance": 1.0, "importance_bound": 2.0, "importance_total": 4}
        for n in (1000, 99_000, 100_000)
    ]
    text = sweep.html(rows)
    assert "<h1>Importance over RAM budget</h1>" in text and text.count("<svg") == 1
    found = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" text-anchor="middle">([0-9.,]+ k?B)', text)
    assert [label for _, label in found] == ["100.0 kB", "1,000 B"]
    assert all(35 <= float(x) <= 700 - 35 for x, _ in found)


def test_a_set_that_needs_no_recomputing_may_take_all_of_the_energy(tmp_path: Path) -> None:
    """The search once left a third of the energy: 28.3 % of the importance on the new writer's digits."""
    path = tmp_path / "fisher.yaml"
    rows = [f"- {{parameter: {name}, update: whole, importance: {value}}}\n" for name, value in FISHER]
    path.write_text("format: poetc-importance-1\ncandidates:\n" + "".join(rows))
    best = ("--train", "best", "--importance", path, "--no-paging", "-b", "64kB", "--max-energy", "0.6x", "--json")
    ended = run("solve", DIGITS, *BOARD, *best, "-o", tmp_path / "out")
    assert ended.code == 0 and 40 <= ended.json["importance"] <= ended.json["importance_bound"] <= 46


def test_in_integers_the_best_whole_weights_and_biases_are_trained(few: Path, tmp_path: Path) -> None:
    best = ("--train", "best", "--importance", few, "--no-paging", "--precision", "niti", "--max-energy", "0.6x")
    ended = run("solve", DIGITS, *BOARD, "-b", "40kB", *best, "-o", tmp_path / "n.poetc", "--json")
    assert ended.code == 0, ended.err
    answer = ended.json
    assert any("1 of 5 updates have no integer form" in note for note in answer["notes"])
    assert answer["updates"]["names"] and all(name.endswith(" whole") for name in answer["updates"]["names"])
    assert answer["importance"] <= answer["importance_bound"] <= answer["importance_total"] == 14
    few.write_text("format: poetc-importance-1\ncandidates: [{parameter: 13.weight, update: 1/4, importance: 3}]\n")
    ended = run("solve", DIGITS, *BOARD, *best, "-o", tmp_path / "n.poetc", "--force")
    assert ended.code == 2 and "--precision niti trains whole weights and biases, and no update" in ended.err


def test_a_budget_for_integers_alone_says_so(few: Path, tmp_path: Path) -> None:
    best = ("--train", "best", "--importance", few)
    ended = run("solve", DIGITS, *BOARD, "-b", "12kB", *best, "-o", tmp_path / "out")
    assert ended.code == 4 and ended.err.count("\n") == 1
    assert "the cheapest is '18.bias whole': it needs " in ended.err
    needed = int(ended.err.split("--precision niti needs ")[1].split(" bytes")[0].replace(",", ""))
    way = ("--precision", "niti", "-b", f"{needed}B", "-o", tmp_path / "out")
    assert run("solve", DIGITS, *BOARD, *best, *way).code == 0
    few.write_text(FEW.replace("18.bias, update: whole, importance: 1", "18.bias, update: whole, importance: 0"))
    ended = run("solve", DIGITS, *BOARD, "-b", "64kB", "--max-energy", "1mJ", *best, "-o", tmp_path / "other")
    assert ended.code == 4 and "for 1.000 mJ; the cheapest is '18.weight whole'" in ended.err
    assert "--precision" not in ended.err


def test_python_chooses_the_updates_too(few: Path) -> None:
    model = poetc.load(DIGITS, batch=1, training=TrainingOptions(train="best"))
    options = {"device": "stm32f746", "budget": "64kB", "paging": False, "time_limit_s": 2.0}
    solved = model.solve(importance=few, max_energy="0.5x", **options)
    assert solved.summary["updates"]["names"] and np.isclose(solved.summary["importance_total"], 14)
