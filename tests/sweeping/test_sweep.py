"""Sweeps: the product of what is given, results as they come in, resumed, on processes and on Dask."""

from __future__ import annotations

import json
from pathlib import Path

import distributed
import pytest

from poetc import sweeping
from poetc.errors import UsageError
from poetc.pipeline import ModelRequest, SolveRequest
from poetc.scheduling import SolveOptions
from tests.cli.conftest import MODEL, run

TEMPLATE = SolveRequest(model=ModelRequest(source=MODEL, batch=4), options=SolveOptions(gap=0.05, time_limit_s=20))
SOLVED = ("optimal", "feasible")
OPTIONS = ("--batch", "4", "--gap", "0.05", "--time-limit", "20")


def points(*budgets: str | None, devices: tuple[str, ...] = ("stm32f746",)) -> list[sweeping.Point]:
    return sweeping.make_points(TEMPLATE, [MODEL], devices, budgets)


def test_the_product_in_order_each_once() -> None:
    made = points("60%", "80%", "60%", devices=("host", "stm32f746"))
    assert [(p.options.device, p.options.budget) for p in made] == [
        ("host", "60%"),
        ("host", "80%"),
        ("stm32f746", "60%"),
        ("stm32f746", "80%"),
    ]
    assert len({p.key for p in made}) == 4
    with pytest.raises(UsageError, match="no such file"):
        sweeping.make_points(TEMPLATE, [Path("none.onnx")], ["host"], [None])


def test_processes_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sweep.jsonl"
    seen: list[str] = []
    first = sweeping.sweep(points("70%", "20kB"), out, jobs=2, on_result=lambda n, of, r: seen.append(r["status"]))
    assert [r["status"] in SOLVED for r in first] == [True, False]
    assert first[1]["min_budget_bytes"] > 20_000
    assert sorted(seen) == sorted(r["status"] for r in first)
    assert first[1]["status"] == "infeasible"
    cut = out.read_bytes()
    out.write_bytes(cut + b'{"key": "0123')  # as an interruption leaves it
    solved: list[sweeping.Point] = []
    real = sweeping._in_processes

    def spy(waiting, jobs):  # type: ignore[no-untyped-def]
        solved.extend(waiting)
        return real(waiting, jobs)

    monkeypatch.setattr(sweeping, "_in_processes", spy)
    again = sweeping.sweep(points("70%", "20kB", "80%"), out, jobs=1)
    assert [p.options.budget for p in solved] == ["80%"]
    assert again[:2] == first
    lines = out.read_text().splitlines()
    assert [line.startswith('{"key": ') for line in lines] == [True] * 4
    assert json.loads(lines[-1])["budget"] == "80%"
    solved.clear()
    assert sweeping.sweep(points("70%", "20kB", "80%"), out) == again
    assert solved == []


def test_results_of_something_else_are_not_appended_to(tmp_path: Path) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("hello\nworld\n")
    with pytest.raises(UsageError, match=r"notes\.txt:1: not a result"):
        sweeping.sweep(points("70%"), out)
    assert out.read_text() == "hello\nworld\n"


def test_dask(tmp_path: Path) -> None:
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="inproc"
    ) as cluster:
        address = cluster.scheduler_address
        results = sweeping.sweep(points("70%", "80%"), tmp_path / "sweep.jsonl", scheduler=address)
    assert all(r["status"] in SOLVED for r in results)
    assert results == sweeping.sweep(points("70%", "80%"), tmp_path / "sweep.jsonl")


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "sweep.jsonl"
    page = tmp_path / "curve.html"
    ended = run("sweep", MODEL, *OPTIONS, "-d", "stm32f746", "-b", "80%", "-j", "1", "-o", out, "--html", page)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[1].split()[:3] == ["digits.onnx", "stm32f746", "80%"]
    assert "<svg" in page.read_text() and "lower bound" in page.read_text()
    document = run("sweep", MODEL, *OPTIONS, "-d", "stm32f746", "-b", "80%", "-o", out, "--json").json
    assert document["results"][0]["energy_pj"] > 0
    assert len(out.read_text().splitlines()) == 1
