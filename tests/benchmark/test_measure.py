"""Measuring on this machine, through the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from poetc import benchmark
from poetc.benchmark import _measure, _timing
from poetc.devices import load_profile
from poetc.graph import Graph
from poetc.measure import time_program
from tests.cli.conftest import MODEL, run
from tests.support.graphs import small_cnn


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling the whole sweep takes a minute."""

    def one(**_: object) -> list[Graph]:
        return [small_cnn()]

    monkeypatch.setattr(_measure, "networks", one)


def test_every_instruction_is_timed() -> None:
    step = _measure.step_of(small_cnn(), "sgd")
    program = _measure.paging_program(step, load_profile("host"))
    times = time_program(program, step.values, repeats=3)
    assert len(times.instruction_ns) == len(program.instructions)
    assert times.step_ns > 0
    assert min(times.instruction_ns) >= 0
    classes = {
        row.cost_class for row in _measure.rows_of("n", step, program, times.instruction_ns, load_profile("host"))
    }
    assert {"Conv", "MatMul", "Sgd", "PageIn", "PageOut"} <= classes


def test_bench_fit_solve_validate(tmp_path: Path, small_networks: None) -> None:
    csv, profile, solved = tmp_path / "host.csv", tmp_path / "mine.yaml", tmp_path / "digits.poetc"
    ended = run("profile", "bench", "--model", MODEL, "--batch", "4", "--repeats", "3", "-o", csv, "--json")
    assert ended.code == 0, ended.err
    assert ended.json["measurements"] == len(csv.read_text().splitlines()) - 1
    ended = run("profile", "fit", csv, "-o", profile, "--json")
    assert ended.code == 0, ended.err
    assert "Conv" in [c["cost_class"] for c in ended.json["classes"]]
    assert run("profile", "check", profile).code == 0
    options = ("--batch", "4", "--device", profile, "--budget", "70%", "--gap", "0.05")
    assert run("solve", MODEL, *options, "-o", solved).code == 0
    ended = run("validate", solved, "--timing", "--json")
    assert ended.code == 0, ended.err
    timing = ended.json["timing"]
    assert timing["measured_ns"] > 0
    assert sum(c["executions"] for c in timing["classes"]) == len(timing["operators"])
    assert timing["predicted_ns"] == sum(o["predicted_ns"] for o in timing["operators"])


def test_unknown_targets_are_refused(tmp_path: Path) -> None:
    ended = run("profile", "bench", "--target", "toaster", "-o", tmp_path / "x.csv")
    assert ended.code == 2
    assert "mps2-an386" in ended.err


def test_the_table_adds_up(tmp_path: Path, poetc_solved: Callable[[], Path]) -> None:
    from poetc import artifact

    timing = benchmark.time_solved(artifact.read(poetc_solved()), repeats=2)
    table, _, farthest = benchmark.timing_text(timing).partition("\n\n")
    assert table.splitlines()[-1].startswith("a training step")
    assert len(table.splitlines()) == len(timing.classes) + 2
    worst = max(timing.operators, key=lambda o: abs(o.predicted_ns - o.measured_ns))
    assert worst.name[:40] in farthest.splitlines()[1]
    assert len(farthest.splitlines()) == 11


@pytest.mark.parametrize(("device", "said"), [("stm32f746", "stm32f746"), ("host", None)])
def test_times_predicted_for_a_board_and_measured_here_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, said: str | None
) -> None:
    """Without a word a table of +40000 % looks like an error of the prediction. Nothing is compiled for this."""
    from poetc import artifact

    def unmeasured(*_: object, device: str | None, **__: object) -> benchmark.Timing:
        return benchmark.Timing(device, 2_000_000, 1_000, 1, (), ())

    monkeypatch.setattr(_timing, "compare_times", unmeasured)
    out = tmp_path / "digits.poetc"
    solved = run("solve", MODEL, "--batch", "4", "-d", device, "--budget", "100%", "--gap", "0.1", "-o", out)
    assert solved.code == 0
    timing = benchmark.time_solved(artifact.read(out))
    assert timing.device == said
    first = benchmark.timing_text(timing).splitlines()[0]
    assert (
        first.startswith("operators") if said is None else f"predicted for {said}, measured on this computer" in first
    )
    assert " +199900.0%" in benchmark.timing_text(timing)


@pytest.fixture
def poetc_solved(tmp_path: Path) -> Callable[[], Path]:
    def solve() -> Path:
        out = tmp_path / "digits.poetc"
        assert run("solve", MODEL, "--batch", "4", "--budget", "70%", "--gap", "0.1", "-o", out).code == 0
        return out

    return solve
