"""`poetc analyze`: what a training takes, beside the commands that compute the same numbers in other ways."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetc.cli._estimate_text import estimate_text
from poetc.commands import estimate, saving
from poetc.commands.analyze import analyze
from poetc.commands.estimate import board_row, last_within
from poetc.commands.largest_batch import LargestBatchRequest, largest_batch
from poetc.commands.requests import ModelRequest, SolveRequest, training_graph
from poetc.commands.solve import solve
from poetc.devices import build_problem, load_profile
from poetc.devices.units import parse_battery
from poetc.errors import InfeasibleError, UsageError
from poetc.processes import Worker, has_room_beside
from poetc.scheduling import SolveOptions
from poetc.training import TrainingOptions
from tests.cli.conftest import Ended

Run = Callable[..., Ended]
BOARD = "stm32f746"
CASES = Path(__file__).resolve().parents[2] / "cases"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine samples: three steps of four."""
    path = tmp_path_factory.mktemp("data") / "d.npz"
    np.savez(path, x=np.zeros((9, 1, 8, 8), np.float32), y=np.arange(9))
    return path


@pytest.fixture(scope="module")
def answer(poetc: Run, model: Path, data: Path) -> dict[str, Any]:
    options = ("--data", f"{data}:x,y", "--epochs", 5, "--battery", "2000mAh@3.7V")
    with pytest.MonkeyPatch.context() as patch:  # the largest batch and no range
        patch.setattr(estimate, "BATCHES_OPERATORS", 10**6)
        ended = poetc("analyze", model, "--batch", 4, "-d", BOARD, *options, "--json")
    assert ended.code == 0, ended.err
    return ended.json


def test_three_budgets(answer: dict[str, Any], model: Path) -> None:
    found = answer["estimate"]
    least, good, keep = found["budgets"]
    assert least["ram_bytes"] <= answer["min_budget_bytes"] <= good["ram_bytes"] <= keep["ram_bytes"]
    assert keep["ram_bytes"] == answer["keep_all_peak_bytes"]
    assert good["time_ns"] <= 1.05 * keep["time_ns"] and least["time_ns"] > keep["time_ns"]
    for budget in found["budgets"]:
        for what, unit in (("time", "ns"), ("energy", "pj")):
            low, high = budget[f"{what}_band_{unit}"]
            assert low < budget[f"{what}_{unit}"] < high
        assert budget["run_ns"] == 5 * budget["epoch_ns"] == 5 * 3 * budget["time_ns"]
        assert budget["steps_per_battery"] == 26_640 * 10**12 // budget["energy_pj"]
        assert budget["run_of_battery"] == pytest.approx(15 * budget["energy_pj"] / 26_640e12)
        assert 30_000 < budget["flash_bytes"] < 2**20
    assert least["run_written_bytes"] == 15 * least["written_bytes"] > 0 == keep["written_bytes"]
    assert least["run_wear"] == pytest.approx(15 / least["store_life_steps"])
    assert 0 < least["guesses"]["energy"] < 1 and keep["guesses"]["energy"] == 0
    request = SolveRequest(model=ModelRequest(source=model, batch=4, device=BOARD), budget="100%")
    solved = solve(SolveRequest(model=request.model, budget="100%", options=SolveOptions(time_limit_s=5))).summary
    assert (keep["energy_pj"], keep["time_ns"]) == (solved["energy_pj"], solved["time_ns"])
    assert keep["flash_bytes"] == pytest.approx(solved["flash_bytes"], rel=0.02)


def test_budgets_that_predictions_may_not_fit_in_are_named(answer: dict[str, Any]) -> None:
    """Those with less than a prediction takes with all its tensors kept."""
    found = answer["estimate"]
    least, good, _ = found["budgets"]
    peak = found["inference_peak_bytes"]
    assert peak < good["ram_bytes"]
    every = "'least' and 'good' and 'keep-all'"
    for taken, names in ((least["ram_bytes"], None), (least["ram_bytes"] + 1, "'least'"), (2**40, every)):
        text = estimate_text({**found, "inference_peak_bytes": taken})
        said = [line.split("  ")[-1].strip() for line in text.splitlines() if line.startswith("predictions")]
        whole = f"take more than {names} with all kept: poetc solve says whether a schedule of them fits"
        assert said == ([] if names is None else [whole])


@pytest.mark.long
def test_a_busy_machine_has_the_same_answer(poetc: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search is ended by what it counts, not by the clock, which runs several times as fast here."""
    asked = ("analyze", model, "--batch", 4, "-d", BOARD, "--json")
    answer, clock = poetc(*asked).json, time.monotonic  # not that of quick tests, whose searches count less
    monkeypatch.setattr(time, "monotonic", lambda: 5 * clock())
    again = poetc(*asked).json
    assert again["min_budget_bytes"] == answer["min_budget_bytes"]
    assert again["streamed_min_budget_bytes"] == answer["streamed_min_budget_bytes"]
    for budget, other in zip(again["estimate"]["budgets"], answer["estimate"]["budgets"], strict=True):
        assert all(budget[key] == other[key] for key in ("ram_bytes", "energy_pj", "time_ns", "page_ins", "recomputes"))
    assert again["estimate"]["ways"] == answer["estimate"]["ways"]


def test_ways_have_the_numbers_of_their_option(answer: dict[str, Any], model: Path) -> None:
    ways = {way["options"]: way for way in answer["estimate"]["ways"]}
    assert {"--lora 8", "--train last:1", "--precision niti", "--micro-batches 4"} <= set(ways)
    last = ways["--train last:1"]
    alone = analyze(ModelRequest(source=model, batch=4, device=BOARD, training=TrainingOptions(train="last:1")), 0.5)
    assert last["keep_all_peak_bytes"] == alone["keep_all_peak_bytes"]
    assert answer["estimate"]["least_without_streams_bytes"] == answer["min_budget_bytes"]
    assert last["least_whole_bytes"] == pytest.approx(alone["min_budget_bytes"], rel=0.01)
    assert last["least_bytes"] == pytest.approx(alone["streamed_min_budget_bytes"], rel=0.01)
    # Frozen norms stream less: with streams the last layer alone may need more than the whole step.
    assert max(last["least_bytes"], answer["streamed_min_budget_bytes"]) < last["least_whole_bytes"]
    assert last["least_whole_bytes"] < answer["min_budget_bytes"]


@pytest.mark.long
def test_least_ram_as_shown_is_solved_at_its_cost(answer: dict[str, Any], model: Path) -> None:
    """A schedule of the least RAM that nobody looked for a cheaper one for needs more than twice the energy."""
    least = answer["estimate"]["budgets"][0]
    asked = ModelRequest(source=model, batch=4, device=BOARD)
    budget = f"{answer['streamed_min_budget_bytes']}B"
    solved = solve(SolveRequest(model=asked, budget=budget, options=SolveOptions(time_limit_s=10, gap=0.02))).summary
    assert least["energy_pj"] == pytest.approx(solved["energy_pj"], rel=0.05)
    row = next(w for w in answer["estimate"]["ways"] if w["options"] == "--micro-batches 4")
    in_parts = replace(asked, training=TrainingOptions(micro_batches=4))
    options = SolveOptions(time_limit_s=10, gap=0.5)
    found = solve(SolveRequest(model=in_parts, budget=f"{row['least_bytes']}B", options=options)).summary
    assert found["streamed_operators"] and found["ram_bytes"] <= row["least_bytes"] < row["least_whole_bytes"]


def test_the_largest_batch_is_that_of_the_search(answer: dict[str, Any], model: Path) -> None:
    request = LargestBatchRequest(model=ModelRequest(source=model, device=BOARD), budget=None)
    searched = largest_batch(request, search_s=0.2)
    found = answer["estimate"]["largest_batch"]
    assert found["keep_all"] == searched["keep_all_batch"]
    assert found["bound"] == searched["largest_batch_bound"]


@pytest.mark.parametrize("limit", [99, 100, 119, 120, 121, 5_000, 10**9])
def test_the_last_batch_within_a_limit(limit: int) -> None:
    def need(batch: int) -> int:
        return max(100 + batch, 20 * batch)

    right = max((n for n in range(1, 300) if need(n) <= limit), default=0)
    right = 65_536 if limit > 10**8 else right
    assert last_within(limit, need) == (right, right)
    least, most = last_within(limit, need, lambda: False)
    assert (least <= right <= most and least < most) or right == 0


def test_every_board(poetc: Run, model: Path) -> None:
    ended = poetc("analyze", model, "--batch", 8, "-d", "all", "--battery", "7.4Wh", "--json")
    rows = ended.json["boards"]
    fitting = [row["energy_pj"] for row in rows if row["fits"]]
    assert fitting == sorted(fitting)
    assert [row["fits"] for row in rows] == sorted((row["fits"] for row in rows), reverse=True)
    by_name = {row["device"]: row for row in rows}
    assert "host" not in by_name and not any(name.startswith("qemu") for name in by_name)
    _, step = training_graph(ModelRequest(source=model, batch=8, device=BOARD))
    mine, keep = by_name[BOARD], build_problem(step, load_profile(BOARD), budget_bytes=0)
    assert (mine["schedule"], mine["energy_pj"]) == ("all tensors kept", keep.compute_once_pj)
    small = by_name["mkr1000"]
    assert (small["fits"], small["schedule"]) == (True, "operands streamed") and small["least_bytes"] <= 32_768
    assert mine["steps_per_battery"] == 26_640 * 10**12 // mine["energy_pj"]


def test_a_board_with_too_little_ram(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, as `solve` does."""
    monkeypatch.setattr(saving, "ways_to_save", lambda *_, **__: ())  # which its message lists
    asked = ModelRequest(source=model, batch=64, device="mkr1000")
    graph, step = training_graph(asked)
    row = board_row(asked, load_profile("mkr1000"), graph, step, {})
    assert not row["fits"] and row["schedule"] == "RAM is too small" and row["least_bytes"] > row["ram_bytes"]
    with pytest.raises(InfeasibleError):
        solve(SolveRequest(model=asked, budget=f"{row['ram_bytes']}B", options=SolveOptions(time_limit_s=5)))


def test_batteries() -> None:
    assert parse_battery("2000mAh@3.7V") == parse_battery("2Ah@3.7V") == parse_battery("7.4Wh") == 26_640 * 10**12
    assert parse_battery("20kJ") == 20_000 * 10**12
    for text in ("2000mAh", "2000mAh@3.7", "2Wh@3V", "much", "0Wh", "5W"):
        with pytest.raises(UsageError, match="--battery"):
            parse_battery(text)


def test_bad_input_is_one_line(poetc: Run, model: Path, tmp_path: Path) -> None:
    for options, said in (
        (("--battery", "2000mAh"), "a charge needs its voltage"),
        (("--epochs", 3), "--epochs does nothing without --data"),
        (("--data", tmp_path / "none.npz"), "none.npz"),
        (("-d", "all", "--facts"), "--device all shows boards alone"),
        (("-d", "nowhere"), "nowhere"),
    ):
        ended = poetc("analyze", model, "--batch", 2, *options)
        assert ended.code == 2 and said in ended.err and ended.err.count("\n") == 1, ended.err


def test_the_costs_are_shown_before_the_estimates(poetc: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def estimating(*_: object, **__: object) -> dict[str, Any]:
        shown.append(sys.stdout.getvalue())  # type: ignore[attr-defined]
        raise UsageError("enough")

    monkeypatch.setattr(estimate, "estimate", estimating)
    for device, has_cores in (("rpi4", True), (BOARD, False)):
        ended = poetc("analyze", model, "--batch", 4, "--device", device)
        assert ended.code == 2 and "keep-all peak" in shown.pop()
        assert ("times and energies are of one core; `poetc solve` uses all 4 by default" in ended.err) is has_cores


def test_the_longest_way_takes_no_time_from_the_others(model: Path) -> None:
    tried: list[str] = []
    request = SolveRequest(model=ModelRequest(source=model, batch=4, device="rpi4"))
    _, step = training_graph(request.model)
    profile = load_profile("rpi4")
    operators = len(build_problem(step, profile, budget_bytes=0).operators)
    rows = list(saving.ways_to_save(request, profile, operators, tried.append, search_s=0.01))
    assert rows[0]["options"] == "--micro-batches 4" and tried[-1] == "estimating --micro-batches 4"
    assert len(tried) == len(rows)


@pytest.mark.searches  # as the second process, which knows nothing of tests
def test_a_second_process_makes_the_same_rows(poetc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times all estimates: a network of dense layers has as many ways to save, and few operators."""
    arguments = ("analyze", CASES / "imputer_mlp.onnx", "--batch", 4, "--device", "rpi4", "--json")
    alone = poetc(*arguments).json["estimate"]["ways"]
    assert len(alone) > 5
    here: list[object] = []

    def ways_to_save(*arguments: Any, **options: Any) -> Iterator[dict[str, Any]]:
        here.append(options["of_numbers"])
        return saving.ways_to_save(*arguments, **options)

    monkeypatch.setattr(estimate, "BESIDE_OPERATORS", 1)
    monkeypatch.setattr(estimate, "has_room_beside", lambda: True)
    monkeypatch.setattr(estimate, "ways_to_save", ways_to_save)
    assert poetc(*arguments).json["estimate"]["ways"] == alone and here == [True]
    for fails in (killed, without_memory):
        here.clear()
        monkeypatch.setattr(estimate, "rows_to_save", fails)
        assert poetc(*arguments).json["estimate"]["ways"] == alone and here == [True, False]
    here.clear()
    monkeypatch.setattr(estimate, "Worker", not_begun)
    assert poetc(*arguments).json["estimate"]["ways"] == alone and here == [None]


def without_memory(_: object) -> list[dict[str, Any]]:
    raise MemoryError


def not_begun(*_: object) -> None:
    """As where a user has as many processes as are allowed."""
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def killed(_: object) -> list[dict[str, Any]]:
    """As by the kernel where RAM is short."""
    os._exit(9)


def test_a_process_is_never_interrupted_by_the_keyboard() -> None:
    """Ctrl-C goes to every process of a terminal; while one loads its modules, it would print where it was."""
    assert Worker(has_blocked, signal.SIGINT).answer() is True
    assert not has_blocked(signal.SIGINT)


def has_blocked(number: signal.Signals) -> bool:
    return number in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_machine_of_little_memory_has_no_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 17}.__getitem__)
    assert not has_room_beside()
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 20}.__getitem__)
    assert has_room_beside()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not has_room_beside()
