"""Every failure is one line on stderr and an exit code that says what kind it was."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from poetc.cli import cli, exit_code_of, main
from poetc.cli._errors import BROKEN_PIPE, INTERNAL, INTERRUPTED, describe, one_line
from poetc.errors import CheckFailed, InfeasibleError, LimitError, PoetcError, UnsupportedModelError, UsageError


def run(arguments: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailed("worse"), 1),
        (UsageError("what"), 2),
        (UnsupportedModelError("Loop"), 3),
        (InfeasibleError("too small"), 4),
        (LimitError("too slow"), 5),
        (PoetcError("odd"), 70),
        (click.UsageError("no such option"), 2),
        (OSError(errno.ENOSPC, "No space left on device", "/x/plan.json"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), 2),
        (MemoryError(), 70),
        (ZeroDivisionError("oops"), 70),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_exit_codes_and_one_line(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(error, ["solve"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("poetc: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("compare", "m.onnx", "--processors"),
            "Option '--processors' requires an argument (see poetc compare --help)",
        ),
        (("solve", "m.onnx", "-d", "--json"), "Option '--device' requires an argument (see poetc solve --help)"),
        (("emit", "d", "-o", "s", "-t", "stm32f746"), "stm32f746 is a device, and a target is one of c99, "),
    ],
)
def test_an_option_without_its_value(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == UsageError.exit_code
    assert message in capsys.readouterr().err


def subclasses(kind: type[PoetcError]) -> set[type[PoetcError]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_every_exit_code_is_documented() -> None:
    """In the table of the command line and in `poetc --help`: what an error can carry, and how a process can end."""
    ends = {0, INTERNAL, INTERRUPTED, BROKEN_PIPE, 128 + signal.SIGTERM}
    codes = {kind.exit_code for kind in subclasses(PoetcError)} | ends
    page = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text()
    rows = page.partition("| exit code |")[2].partition("\n\n")[0]
    numbers = re.findall(r"^\| ([\d, ]+) \|", rows, re.MULTILINE)
    assert {int(n) for cell in numbers for n in cell.split(",")} == codes
    shown = str(cli.epilog).partition("Exit codes:")[2]
    assert {int(n) for n in re.findall(r"\b\d+\b", shown)} == codes


def test_a_full_disk_is_named_with_the_path() -> None:
    _, message = describe(OSError(errno.ENOSPC, "No space left on device", "/mnt/out/plan.json"))
    assert message.startswith("/mnt/out/plan.json: no space left")


def test_a_limit_of_file_sizes_is_named() -> None:
    code, message = describe(OSError(errno.EFBIG, "File too large"))
    assert (code, message.count("\n")) == (2, 0)
    assert "ulimit -f" in message


def test_a_file_that_cannot_be_made_in_proc_is_said_to_be_so() -> None:
    """There the kernel says that a file is missing, not that making it is forbidden."""
    with pytest.raises(FileNotFoundError) as raised:
        Path("/proc/z.onnx.train").mkdir()
    code, message = describe(raised.value)
    assert code == 2
    assert message.startswith("/proc/z.onnx.train: ") and "none can be made in /proc" in message


def test_several_lines_become_a_list() -> None:
    assert one_line("not supported:\n  Loop (node a)\n  If (node b)\n") == "not supported: Loop (node a); If (node b)"


def test_an_internal_error_shows_its_traceback_on_request_only(capsys: pytest.CaptureFixture[str]) -> None:
    error = ZeroDivisionError("oops")
    exit_code_of(error, [])
    assert "--debug" in capsys.readouterr().err
    exit_code_of(error, ["--debug"])
    assert "ZeroDivisionError: oops\npoetc: error:" in capsys.readouterr().err


def test_json_answers_with_one_object_on_errors_too(capsys: pytest.CaptureFixture[str]) -> None:
    error = InfeasibleError("too small", details={"min_budget_bytes": 7})
    assert exit_code_of(error, ["solve", "--json"]) == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "status": "infeasible",
        "min_budget_bytes": 7,
        "error": "too small",
        "exit_code": 4,
    }
    assert captured.err == "poetc: error: too small\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["solve"], "Missing argument"),
        (["solve", "m.onnx", "--gap", "3"], "--gap"),
        (["solve", "m.onnx", "--optimizer", "lbfgs"], "--optimizer"),
        (["solve", "m.onnx", "--lr", "-1"], "--lr"),
        (["solve", "m.onnx", "--batch", "0"], "--batch"),
        (["analyze", "m.onnx", "--frob"], "--frob"),
        (["emit", "nowhere", "--target", "vax", "-o", "x"], "--target"),
        (["profile", "show", "vax"], "vax"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_ctrl_c_and_terminate_clean_up(tmp_path: Path) -> None:
    script = (
        "import sys, time, click, tempfile\n"
        "from poetc.cli import cli, main\n"
        "@cli.command()\n"
        "def wait():\n"
        f"    with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}):\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "main(['wait'])\n"
    )
    for number, code, says in ((signal.SIGINT, 130, "poetc: interrupted\n"), (signal.SIGTERM, 143, "")):
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert list(tmp_path.iterdir())
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
        assert (process.returncode, stderr) == (code, says)
        assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_not_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "poetc", "profile", "list"]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
