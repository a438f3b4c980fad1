"""Files that were made to hurt: one line at once, and hardly any memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from poetc.errors import UsageError
from poetc.files import open_file, read_file, write_text
from poetc.scheduling import SolveOptions, problem_to_json
from tests.cli.conftest import Ended
from tests.support.problems import training_problem

Run = Callable[..., Ended]


def one_line(ended: Ended, code: int, *says: str) -> None:
    assert ended.code == code, ended.err
    assert ended.err.startswith("poetc: error: ") and ended.err.count("\n") == 1
    for word in says:
        assert word in ended.err


@pytest.fixture
def locked(poetc: Run, tmp_path: Path) -> dict[str, Any]:
    """A lock file as JSON; what it was made of lies in `tmp_path`."""
    (tmp_path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 4)))
    assert poetc("lock", tmp_path / "p.json", "-b", "100%", "-o", tmp_path / "good.lock").code == 0
    document: dict[str, Any] = json.loads((tmp_path / "good.lock").read_text())
    return document


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.onnx")
    return tmp_path / "pipe.onnx"


@pytest.mark.parametrize("command", ["analyze", "solve", "compare", "sweep", "lock", "check"])
def test_devices_and_pipes_are_no_files(poetc: Run, pipe: Path, command: str) -> None:
    """Neither read without an end nor waited for."""
    for path in (Path("/dev/zero"), pipe):
        more = () if command in ("analyze", "check") else ("-o", pipe.parent / "out")
        one_line(poetc(command, path, *more), 2, f"{path}: is a device or a pipe, not a file")
    assert not (pipe.parent / "out").exists()


def test_a_locked_model_that_is_no_file_and_such_a_profile(
    poetc: Run, tmp_path: Path, pipe: Path, locked: dict[str, Any]
) -> None:
    (fifo := tmp_path / "fifo.yaml").symlink_to(pipe)
    options = locked["entries"][0]["options"]
    for path in ("/dev/zero", str(pipe)):
        options["model"] = path
        (tmp_path / "bad.lock").write_text(json.dumps(locked))
        ended = poetc("check", tmp_path / "bad.lock")
        one_line(ended, 2, f"{path}: is a device or a pipe, not a file")
        assert ended.out == ""
    one_line(poetc("profile", "show", fifo), 2, f"{fifo}: is a device or a pipe, not a device profile")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"model": "a\0b.onnx"}, "must name files"),
        ({"device": "./a\0b.yaml"}, "must name files"),
        ({"seed": -1}, "seed is -1; it must be between 0 and"),
        ({"seed": 2**31}, "seed is 2147483648; it must be between 0 and"),
        ({"time_limit_s": 0}, "time_limit_s is 0; it must be above 0"),
        ({"time_limit_s": -3}, "time_limit_s is -3; it must be above 0"),
        ({"gap": 2}, "gap is 2; it must be between 0 and 1"),
        ({"objective": "moon"}, "objective is 'moon'; it must be energy or time"),
        ({"batch": 0}, "batch is 0; it must be between 1 and"),
        ({"batch": 10**30}, "batch is 100000000000... (31 characters); it must be between 1 and 2147483647"),
        ({"seed": 2**1100}, "(332 characters); it must be between 0 and"),
    ],
)
def test_locked_options_that_the_command_line_would_refuse(
    poetc: Run, tmp_path: Path, locked: dict[str, Any], options: dict[str, Any], complaint: str
) -> None:
    locked["entries"][0]["options"].update(options)
    (tmp_path / "bad.lock").write_text(json.dumps(locked))
    one_line(poetc("check", tmp_path / "bad.lock"), 2, "bad.lock: entry 'p.json", complaint)


@pytest.mark.parametrize("budget", ["9" * 5000, str(2**1100), "9" * 39, "9" * 39 + "%"])
def test_budgets_beyond_all_memory(poetc: Run, tmp_path: Path, budget: str, locked: dict[str, Any]) -> None:
    del locked
    one_line(poetc("solve", tmp_path / "p.json", "-b", budget, "-o", tmp_path / "out"), 2, "--budget")
    one_line(poetc("solve", tmp_path / "p.json", "--deadline", f"{budget}s", "-o", tmp_path / "out"), 2, "--deadline")
    one_line(poetc("solve", tmp_path / "p.json", "--time-limit", f"-{budget}", "-o", tmp_path / "out"), 2, "--time")


def test_json_that_is_no_lock_file(poetc: Run, tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"version": ' + "9" * 5000 + "}", "\0" * 1000):
        (tmp_path / "bad.lock").write_text(text)
        one_line(poetc("check", tmp_path / "bad.lock"), 2, "bad.lock: not ")


def test_costs_beyond_64_bits(poetc: Run, tmp_path: Path, locked: dict[str, Any]) -> None:
    del locked
    problem = json.loads((tmp_path / "p.json").read_text())
    problem["operators"][0]["time_ns"] = 2**1100
    (tmp_path / "bad.json").write_text(json.dumps(problem))
    one_line(poetc("solve", tmp_path / "bad.json", "-o", tmp_path / "out"), 2, "$.operators[0].time_ns", "is beyond")


def test_a_seed_that_no_solver_takes() -> None:
    with pytest.raises(UsageError, match="seed -1"):
        SolveOptions(seed=-1)


def test_reading_is_guarded_at_one_place(tmp_path: Path, pipe: Path) -> None:
    (path := tmp_path / "file").write_bytes(b"12345")
    (link := tmp_path / "link").symlink_to(path)
    assert read_file(link) == read_file(path, 5) == b"12345"
    with pytest.raises(UsageError, match="file: larger than the 4 bytes"):
        read_file(path, 4)
    with path.open("r+b") as file:
        file.truncate(2**30)  # takes no room on the disk
    with pytest.raises(UsageError, match="larger than"):
        read_file(path)
    with pytest.raises(UsageError, match="no file can have this name"):
        open_file(Path("a\0b"))
    with pytest.raises(UsageError, match="is a device or a pipe"):
        open_file(pipe)
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none")


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    write_text(null, "gone")
    assert null.is_symlink() and Path("/dev/null").is_char_device()
