"""`poetc solve --log`: a line an event; the bound rises, and the last line is the answer."""

from __future__ import annotations

import itertools
import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from poetc.commands import solve as solve_command
from poetc.commands.requests import ModelRequest, SolveRequest, read_problem
from poetc.commands.solve import solve
from poetc.errors import UsageError
from poetc.planning import Planner, plain
from poetc.planning.search_log import SearchLog
from poetc.reporting._search_chart import chart
from poetc.scheduling import MemoryPlan, Problem, Schedule, Status
from poetc.scheduling.objective import Objective
from poetc.scheduling.schedule import SolveOptions
from tests.support.streamed import dense

DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"


def request(**given: object) -> SolveRequest:
    model = ModelRequest(source=DIGITS, batch=4, device="stm32f746")
    return SolveRequest(model=model, budget="60%", options=SolveOptions(time_limit_s=4.0), **given)  # type: ignore[arg-type]


def test_the_log_of_a_search(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    # Counted work ends the search: the clock of a busy machine would, before all sets of encodings are known.
    counted = replace(request(), options=SolveOptions(time_limit_s=300.0, work_limit_s=0.4))
    solved = solve(replace(counted, log=path, out=tmp_path / "out"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) > 2 and rows == solved.summary["search"]
    assert all(a["bound"] <= b["bound"] and a["seconds"] <= b["seconds"] for a, b in itertools.pairwise(rows))
    for scope in {row["scope"] for row in rows}:
        bounds = [row["bound"] for row in rows if row["scope"] == scope]
        assert bounds == sorted(bounds), f"scope {scope}"
    proof, last = solved.schedule.proof, rows[-1]
    assert (last["stage"], last["best"], last["bound"]) == ("end", proof.objective, proof.bound)
    assert last["gap"] == pytest.approx(proof.gap())
    once = solved.summary["compute_once_pj"]
    assert any(row["bound"] > once for row in rows[:-1]), "before the end, once all sets of encodings are known"
    assert all(r["best"] is None or r["bound"] <= r["best"] for r in rows)
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'class="search-bound" d="M' in page and "Best schedule and bound over time" in page


@pytest.mark.parametrize("budget", ["60%", "25%"])
def test_best_and_bound_of_all_ways_of_using_cores(tmp_path: Path, budget: str) -> None:
    """Threads, side by side, one core: lists have orders of their own, and other bounds."""
    model = ModelRequest(source=DIGITS, batch=32, device="rpi4")
    options = SolveOptions(time_limit_s=300.0, work_limit_s=0.2, gap=0.0)
    solved = solve(SolveRequest(model=model, budget=budget, options=options, events=SearchLog(), smallest=False))
    rows = solved.summary["search"]
    assert all(a["bound"] <= b["bound"] for a, b in itertools.pairwise(rows))
    bests = [row["best"] for row in rows if row["best"] is not None]
    assert bests == sorted(bests, reverse=True) and rows[-1]["best"] == bests[-1] == solved.schedule.proof.objective
    assert all(row["gap"] == pytest.approx(1 - row["bound"] / row["best"]) for row in rows if row["best"])
    proof = solved.schedule.proof
    assert (rows[-2]["stage"], rows[-2]["bound"]) == ("the bound for all ways", proof.bound), "before the last row"


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--log .*/absent/a\.jsonl: no such file or directory"):
        solve(request(log=tmp_path / "absent" / "a.jsonl"))


def test_an_event_that_says_nothing_new_is_no_row() -> None:
    log = SearchLog(clock=iter(range(9)).__next__)
    for bound, here in ((5, 7), (5, 7), (6, 6)):
        log.take("cuts", 10, bound, here, scope="any order")
    assert [(r.seconds, r.bound, r.gap) for r in log.rows] == [(1, 5, 0.5), (3, 6, 0.4)]


def test_the_answer_says_what_ended_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted work, long before the time is up; the clock; or nothing but the gap that was asked for, or a proof."""
    model = ModelRequest(source=dense(tmp_path / "dense.onnx"), batch=4, device="nrf52840")
    solve_and_pack = plain.solve_and_pack

    def ended(time_limit_s: float, gap: float, bound: float = 0.5, lasts_s: float = 0.0) -> str | None:
        def bounded(problem: Problem, planner: Planner) -> tuple[Schedule, MemoryPlan]:
            time.sleep(lasts_s)
            schedule, plan = solve_and_pack(problem, planner)
            proof = replace(schedule.proof, status=Status.OPTIMAL if bound == 1 else Status.FEASIBLE)
            return replace(schedule, proof=replace(proof, bound=int(bound * proof.objective))), plan

        monkeypatch.setattr(plain, "solve_and_pack", bounded)
        options = SolveOptions(time_limit_s=time_limit_s, work_limit_s=0.01, gap=gap)
        stopped_by: str | None = solve(
            SolveRequest(model=model, budget="200kB", options=options, smallest=False)
        ).summary["stopped_by"]
        return stopped_by

    assert ended(300, 0.1) == "work limit"
    assert ended(0.5, 0.1, lasts_s=0.6) == "time limit"
    assert ended(20, 0.6) is None
    assert ended(20, 0.0, bound=1) is None


def test_time_that_is_gone_before_the_search_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts it, and half of the limit is left to the search whatever happens before."""
    gone = [0.0]

    def read(asked: SolveRequest, *rest: Any) -> tuple[Any, ...]:
        gone[0] = 3.5
        return read_problem(asked, *rest)

    assert not any("into reading the model" in note for note in solve(request()).summary["notes"])
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + gone[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(solve_command, "time", clock)
    monkeypatch.setattr(solve_command, "read_problem", read)
    (note,) = (note for note in solve(request()).summary["notes"] if "into reading the model" in note)
    assert note.startswith("4 s of --time-limit went into reading")


def test_the_bounds_of_each_scope_are_a_curve_of_their_own() -> None:
    log = SearchLog(clock=iter(range(9)).__next__)
    took = [
        log.take("race", 10, bound, bound, scope=order) for bound, order in ((4, "a"), (6, "a"), (3, "b"), (5, "b"))
    ]
    assert took == [False, False, True, False] and [row.scope for row in log.rows] == [1, 1, 2, 2]
    drawn = chart([asdict(row) for row in log.rows], Objective.ENERGY)
    curve = drawn.split('class="search-bound" d="')[1].partition('"')[0]
    assert curve.count("M") == 2 and curve.count("V") == 2, "the fall from 6 to 3 is no line"


def test_the_chart_of_a_search_says_costs_beside_its_axis() -> None:
    rows = [{"seconds": s, "bound": b, "best": 9_000_000_000} for s, b in ((1, 6_000_000_000), (2, 8_000_000_000))]
    shown = re.findall(r'y-tick" style="bottom:([0-9.]+)%"><span>([^<]+)<', chart(rows, Objective.ENERGY))
    assert [label for _, label in shown] == ["6.000 mJ", "7.000 mJ", "8.000 mJ", "9.000 mJ"]
    heights = [float(height) for height, _ in shown]
    assert heights == sorted(heights) and heights[0] > 0 and heights[-1] < 100
    alike = chart([{"seconds": 1, "bound": 9_000_000_000, "best": 9_000_000_000}], Objective.ENERGY)
    assert alike.count("y-tick") == 1, "no label stands twice"
