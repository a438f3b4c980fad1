"""The stand-alone checker of the problem library and poetc's own agree on valid schedules and on broken ones."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from poetc import solvers
from poetc.errors import PoetcError
from poetc.scheduling import (
    PageIn,
    PageOut,
    Problem,
    Schedule,
    ScheduleError,
    SolveOptions,
    keep_all_peak_bytes,
    problem_to_json,
    schedule_to_json,
    verify,
)
from tests.problems import HERE, check, problems
from tests.support.problems import random_dag

CHECKER = HERE / "check.py"


def documents(problem: Problem, schedule: Schedule) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads(problem_to_json(problem)), json.loads(schedule_to_json(schedule))


def broken(random: Random, schedule: Schedule) -> Schedule:
    """With an action less, an action twice, or two actions in the other order."""
    actions = list(schedule.actions)
    at = random.randrange(len(actions) - 1)
    how = random.randrange(3)
    actions[at : at + 2] = ([actions[at + 1]], [actions[at], *actions[at : at + 2]], [actions[at + 1], actions[at]])[
        how
    ]
    return replace(schedule, actions=tuple(actions))


def test_both_checkers_agree() -> None:
    verdicts: Counter[bool] = Counter()
    paged = 0
    for seed in range(10):
        random = Random(seed)
        problem = random_dag(random, 7, paging=True)
        problem = replace(problem, budget_bytes=int(random.uniform(0.8, 1.1) * keep_all_peak_bytes(problem)))
        try:
            found = solvers.solve(problem, "poetc", SolveOptions(time_limit_s=1.0, work_limit_s=0.02))
        except PoetcError:
            continue
        paged += any(isinstance(s, PageIn | PageOut) for s in found.actions)
        for schedule in (found, *(broken(random, found) for _ in range(8))):
            ours = theirs = None
            try:
                trace = verify(problem, replace(schedule, proof=found.proof))
                ours = trace.energy_pj, trace.time_ns, trace.peak_bytes
            except ScheduleError as error:
                if "claims" in str(error):  # of cost: the stand-alone checker looks at actions
                    continue
            try:
                replay = check.check(*documents(problem, schedule))
                theirs = replay.energy_pj, replay.time_ns, replay.peak
            except check.Invalid:
                pass
            assert ours == theirs, (seed, schedule.actions)
            verdicts[ours is not None] += 1
    assert min(verdicts[True], verdicts[False]) > 15 and paged > 2


def test_the_command(tmp_path: Path) -> None:
    """Without poetc: -I leaves the folder and all packages of the user out, -S those of the site."""
    problem = next(problems("random"))
    schedule = solvers.solve(problem, "poetc", SolveOptions(time_limit_s=2.0, work_limit_s=0.1))
    path, table = tmp_path / "schedule.json", tmp_path / "buffers.csv"
    path.write_bytes(schedule_to_json(schedule))

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(CHECKER), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    ended = run(problem.name, path, "--csv", table)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"valid: {verify(problem, schedule).energy_pj} pJ, ")
    assert "best known: +" in ended.stdout
    with table.open() as file:
        rows = list(csv.DictReader(file))
    actions = range(len(schedule.actions))
    live = [sum(int(r["size"]) for r in rows if int(r["lower"]) <= at < int(r["upper"])) for at in actions]
    assert max(live) + problem.base_bytes == verify(problem, schedule).peak_bytes
    path.write_bytes(schedule_to_json(replace(schedule, actions=schedule.actions[1:])))
    assert run(problem.name, path).returncode == 1
    refused = run("absent", path)
    assert (refused.returncode, refused.stderr) == (
        2,
        "absent: cannot be read: no file, and no problem of the library\n",
    )


@pytest.mark.parametrize("member", ["processors", "banks"])
def test_problems_that_it_does_not_know(member: str) -> None:
    with pytest.raises(check.Invalid, match="one processor, one RAM"):
        check.check({member: [{}], "paging": "none"}, {"steps": []})
