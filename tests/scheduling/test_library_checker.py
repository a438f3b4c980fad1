"""The stand-alone checker of the problem library and poetc's own agree on valid schedules and on broken ones."""

from __future__ import annotations

import csv
import json
import re
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


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Without poetc: -I leaves the folder and all packages of the user out, -S those of the site."""
    command = [sys.executable, "-I", "-S", str(CHECKER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    problem = next(problems("random"))
    schedule = solvers.solve(problem, "poetc", SolveOptions(time_limit_s=2.0, work_limit_s=0.1))
    path, table = tmp_path / "schedule.json", tmp_path / "buffers.csv"
    path.write_bytes(schedule_to_json(schedule))

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
        "absent: no file, and no problem of the library\n",
    )


CHAIN: dict[str, Any] = {
    "name": "chain",
    "budget_bytes": 96,
    "tensors": [
        {"name": "x", "size_bytes": 32, "initial": "ram", "final": "ram"},
        {"name": "a", "size_bytes": 48},
        {"name": "loss", "size_bytes": 16, "final": "ram"},
    ],
    "operators": [
        {"name": "layer", "inputs": [0], "outputs": [1], "time_ns": 20, "energy_pj": 20},
        {"name": "loss", "inputs": [1], "outputs": [2], "time_ns": 5, "energy_pj": 5},
    ],
}
STEPS: list[dict[str, Any]] = [{"compute": 0}, {"compute": 1}, {"free": 1}]


@pytest.mark.parametrize("member", ["processors", "banks"])
def test_problems_that_it_does_not_know(member: str) -> None:
    with pytest.raises(check.Invalid, match="one processor, one RAM"):
        check.check(CHAIN | {member: [{}]}, {"steps": STEPS})


def test_a_problem_by_hand_has_the_defaults_of_the_format() -> None:
    assert check.check(CHAIN, {"steps": STEPS}).energy_pj == 25


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "$ must be an object"),
        ("null", "$ must be an object"),
        ("[" * 200_000, "it is nested too deeply"),
        ("{", "it is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "$.steps is missing"),
        ('{"format": "poetc-plan-1"}', "$.format must be 'poetc-schedule-1'"),
        ('{"steps": 3}', "$.steps must be an array"),
        ('{"steps": [3]}', "$.steps[0] must be an object"),
        ('{"steps": [{"compute": true}]}', "$.steps[0].compute must be an integer"),
        (
            '{"steps": [{"compute": 0, "free": 3}]}',
            "$.steps[0] must be one action, with the fields of this action alone",
        ),
        (
            '{"steps": [{"free": 0, "in_place": []}]}',
            "$.steps[0] must be one action, with the fields of this action alone",
        ),
        ('{"steps": [{"compute": 0, "in_place": [[1]]}]}', "$.steps[0].in_place[0] must be two integers"),
    ],
)
def test_schedules_that_cannot_be_read(text: str, reason: str, tmp_path: Path) -> None:
    problem, schedule = tmp_path / "problem.json", tmp_path / "schedule.json"
    problem.write_text(json.dumps(CHAIN))
    schedule.write_text(text)
    refused = run(problem, schedule)
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", f"{schedule}: {reason}\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tensors": 3}, "$.tensors must be an array"),
        ({"budget_bytes": -1}, "$.budget_bytes must be an integer of at least 0"),
        ({"objective": []}, "$.objective must be 'energy' or 'time'"),
        ({"operators": [{}]}, "$.operators[0].name is missing"),
        (
            {"operators": [CHAIN["operators"][0] | {"outputs": [3]}]},
            "$.operators[0] names tensor 3, which is not there",
        ),
        (
            {"operators": [CHAIN["operators"][0] | {"in_place": [{"input": 2, "output": 1}]}]},
            "$.operators[0].in_place must have its inputs and outputs",
        ),
    ],
)
def test_problems_that_cannot_be_read(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"problem: {reason}") + "$"):
        check.check(CHAIN | change, {"steps": STEPS})


@pytest.mark.parametrize(
    ("table", "reason"), [("/nonexist/x", "No such file or directory"), ("/dev/full", "No space left on device")]
)
def test_tables_that_cannot_be_written(table: str, reason: str, tmp_path: Path) -> None:
    problem, schedule = tmp_path / "problem.json", tmp_path / "schedule.json"
    problem.write_text(json.dumps(CHAIN))
    schedule.write_text(json.dumps({"steps": STEPS}))
    refused = run(problem, schedule, "--csv", table)
    assert (refused.returncode, refused.stderr) == (2, f"{table}: {reason}\n")


def test_help() -> None:
    shown = run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("    check.py PROBLEM.json SCHEDULE.json\n")
