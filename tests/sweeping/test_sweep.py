"""Sweeps: the product of what is given, results as they come in, resumed, on processes and on Dask."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import distributed
import pytest

from poetc.commands import sweep as sweeping
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.errors import UsageError
from poetc.scheduling import SolveOptions
from tests.cli.conftest import run
from tests.support.small import small_model
from tests.support.streamed import dense

MODEL = small_model()

TEMPLATE = SolveRequest(
    model=ModelRequest(source=MODEL, batch=4), options=SolveOptions(gap=0.25, time_limit_s=60), state="ram"
)
STATUSES = ("infeasible", "limit", "error")
SOLVED = ("optimal", "feasible")
OPTIONS = ("--batch", "4", "--gap", "0.25", "--time-limit", "60", "--state", "ram")


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


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--solver", "checkmat"), "unknown solver 'checkmat': did you mean 'checkmate'?"),
        (("--processors", "mian"), "device 'stm32f746' has no processor 'mian'"),
    ],
)
def test_a_name_that_nothing_has_is_refused_before_anything_is_solved(
    option: tuple[str, str], says: str, tmp_path: Path
) -> None:
    ended = run("sweep", MODEL, *OPTIONS, "-d", "stm32f746", "-b", "60%", *option, "-o", tmp_path / "a.jsonl")
    assert (ended.code, ended.err.count("\n")) == (2, 1) and says in ended.err
    assert not (tmp_path / "a.jsonl").exists()


def test_one_device_of_several_may_lack_a_processor() -> None:
    template = replace(TEMPLATE, processors="all")
    assert len(sweeping.make_points(template, [MODEL], ["stm32f746", "stm32h745"], [None])) == 2


@pytest.mark.parametrize("budget", ["many", "12xB", "-5kB", "0%"])
def test_a_budget_that_is_none_is_refused_before_anything_is_solved(budget: str, tmp_path: Path) -> None:
    ended = run("sweep", MODEL, *OPTIONS, "-b", "60%", "-b", budget, "-o", tmp_path / "a.jsonl")
    assert (ended.code, ended.err.count("\n")) == (2, 1) and f"--budget '{budget}'" in ended.err
    assert not (tmp_path / "a.jsonl").exists()


def test_the_exit_code_tells_whether_anything_was_solved(tmp_path: Path) -> None:
    """And each row names its own budget."""
    done = run("sweep", MODEL, *OPTIONS, "-d", "rpi4", "-b", "1kB", "-b", "2kB", "-o", tmp_path / "a.jsonl", "--json")
    rows = done.json["results"]
    assert done.code == 4
    assert [(r["status"], r["budget"]) for r in rows] == [("infeasible", "1kB"), ("infeasible", "2kB")]
    assert ["no schedule fits in 1000 " in rows[0]["error"], "no schedule fits in 2000 " in rows[1]["error"]] == [
        True
    ] * 2
    solved, never, limit, failed = {"status": "limit", "energy_pj": 1}, *({"status": s} for s in STATUSES)
    assert sweeping.exit_code_of([never, solved, failed]) == 0
    assert sweeping.exit_code_of([never, never]) == 4
    assert sweeping.exit_code_of([never, limit]) == 5
    assert sweeping.exit_code_of([never, limit, failed]) == 1


def test_budgets_that_need_streamed_operands_have_what_solve_finds(tmp_path: Path) -> None:
    """Before, they were infeasible where another budget was asked for too, and the least one was larger."""
    model = dense(tmp_path / "dense.onnx")
    asked = SolveRequest(model=ModelRequest(source=model, batch=4), options=SolveOptions(time_limit_s=3, gap=0.5))
    made = sweeping.make_points(asked, [model], ["nrf52840"], ["24kB", "1MB", "least"])
    tight, roomy, least = sweeping.sweep(made, tmp_path / "sweep.jsonl", jobs=1)
    assert tight["peak_bytes"] <= 24_000 and roomy["energy_pj"] < tight["energy_pj"]
    alone = replace(asked.model, device="nrf52840")
    assert least["budget_bytes"] == solve(replace(asked, model=alone, budget="least")).summary["budget_bytes"] < 24_000


@pytest.mark.long
def test_processes_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sweep.jsonl"
    seen: list[str] = []
    first = sweeping.sweep(points("70%", "1kB"), out, jobs=2, on_result=lambda n, of, r: seen.append(r["status"]))
    assert [r["status"] in SOLVED for r in first] == [True, False]
    assert first[1]["min_budget_bytes"] > 1_000
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
    again = sweeping.sweep(points("70%", "1kB", "80%"), out, jobs=1)
    assert [p.options.budget for p in solved] == ["80%"]
    assert again[:2] == first
    lines = out.read_text().splitlines()
    assert [line.startswith('{"key": ') for line in lines] == [True] * 4
    assert json.loads(lines[-1])["budget"] == "80%"
    solved.clear()
    assert sweeping.sweep(points("70%", "1kB", "80%"), out) == again
    assert solved == []


def test_a_process_that_is_killed_costs_its_own_points_only(tmp_path: Path) -> None:
    out = tmp_path / "sweep.jsonl"
    asked = points("80%", devices=("stm32f746", "nrf52840"))

    def kill_one() -> None:
        while not (children := multiprocessing.active_children()):
            time.sleep(0.01)
        children[0].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    first = sweeping.sweep(asked, out, jobs=1)
    killer.join()
    assert [r["status"] in SOLVED for r in first] == [False, True]
    assert (first[0]["status"], first[0]["error"]) == ("error", "its process was killed (exit code -9); out of memory?")
    again = sweeping.sweep(asked, out, jobs=1)
    assert again[0]["status"] in SOLVED
    assert again[1] == first[1]


def children_of(pid: int) -> set[int]:
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_processes_end_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    words = ["sweep", str(MODEL), "--batch", "16", "-d", "stm32f746", "-b", "30%", "-j", "1", "--time-limit", "600"]
    command = subprocess.Popen(
        [sys.executable, "-m", "poetc", *words, "-o", str(tmp_path / "sweep.jsonl")], stderr=subprocess.DEVNULL
    )
    while not (children := children_of(command.pid)):
        assert command.poll() is None
        time.sleep(0.05)
    command.send_signal(number)
    assert command.wait() == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -9)
    # They would solve for ten minutes; a zombie whose new parent does not wait for it has ended too.
    stop_at = time.monotonic() + 60
    while any(running(child) for child in children):
        assert time.monotonic() < stop_at, "processes were left behind"
        time.sleep(0.05)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_results_of_something_else_are_not_appended_to(tmp_path: Path) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("hello\nworld\n")
    with pytest.raises(UsageError, match=r"notes\.txt:1: not a result"):
        sweeping.sweep(points("70%"), out)
    assert out.read_text() == "hello\nworld\n"


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(sweeping, "_in_processes", lambda waiting, jobs: iter([[{"key": waiting[0].key}]]))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"no space left.*sweep\.jsonl"):
        sweeping.sweep(points("70%"), tmp_path / "sweep.jsonl")


def test_dask(tmp_path: Path) -> None:
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="inproc"
    ) as cluster:
        address = cluster.scheduler_address
        results = sweeping.sweep(points("70%", "80%"), tmp_path / "sweep.jsonl", scheduler=address)
    assert all(r["status"] in SOLVED for r in results)
    assert results == sweeping.sweep(points("70%", "80%"), tmp_path / "sweep.jsonl")


def test_dask_gone(tmp_path: Path) -> None:
    out = tmp_path / "sweep.jsonl"
    asked = points("80%", devices=("stm32f746", "nrf52840", "rp2350"))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="inproc"
    ) as cluster:
        with pytest.raises(UsageError, match="lost the Dask scheduler"):
            sweeping.sweep(asked, out, scheduler=cluster.scheduler_address, on_result=lambda *_: cluster.close())
        assert len(out.read_text().splitlines()) == 1


def test_a_point_that_kills_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(curve: object) -> None:
        raise distributed.KilledWorker("poetc", SimpleNamespace(address="inproc://w"), 3)

    monkeypatch.setattr(sweeping, "run_curve", kill)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="inproc"
    ) as cluster:
        address = cluster.scheduler_address
        (result,) = sweeping.sweep(points("70%"), tmp_path / "sweep.jsonl", scheduler=address)
    assert (result["status"], "killed" in result["error"]) == ("error", True)


@pytest.mark.parametrize("address", ["nonsense", "", "tcp://10.0.0.5", "tcp://10.0.0.5:port", "foo://10.0.0.5:8786"])
def test_addresses_that_are_none(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match="give an address"):
        sweeping.sweep(points("70%"), tmp_path / "sweep.jsonl", scheduler=address)


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
