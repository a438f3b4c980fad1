"""The numbers of docs/explanation/worked-example.md: its problem is solved for each budget of its table."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from poetc import solvers
from poetc.scheduling import Compute, PageIn, PageOut, SolveOptions, Status, problem_from_json, verify

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "worked-example.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[1]))
def test_the_schedules_are_those_of_the_page(row: tuple[str, str, str, str, str]) -> None:
    block = re.search(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None and len(ROWS) == 3
    budget, way, *numbers = row
    problem = replace(problem_from_json(block[1]), budget_bytes=int(budget))
    schedule = solvers.solve(problem, "poetc", SolveOptions(time_limit_s=10.0))
    trace = verify(problem, schedule)
    assert schedule.proof.status is Status.OPTIMAL
    assert [trace.peak_bytes, trace.energy_pj, trace.time_ns] == [int(n) for n in numbers]
    runs = [action.operator for action in schedule.actions if isinstance(action, Compute)]
    pages = sum(isinstance(action, PageIn | PageOut) for action in schedule.actions)
    assert (runs, pages) == {"keep": ([0, 1, 2], 0), "recompute": ([0, 1, 0, 2], 0), "page": ([0, 1, 2], 2)}[way]
