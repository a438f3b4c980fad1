"""Progress, notes and answers go where they belong."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from poetc.cli import cli
from poetc.cli._console import Console, finite


def test_answer_is_text_or_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    Console(as_json=False, quiet=False, verbose=False).answer({"a": 1}, "text\n")
    assert capsys.readouterr().out == "text\n"
    Console(as_json=True, quiet=False, verbose=False).answer({"a": math.inf, "b": (1, 2.5)}, "text")
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1, 2.5]}


def test_finite_leaves_everything_else_alone() -> None:
    assert finite({"x": [math.nan, {"y": -math.inf}], "s": "text", "n": None}) == {
        "x": [None, {"y": None}],
        "s": "text",
        "n": None,
    }


def test_verbose_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, verbose, expected in (
        (False, False, "poetc: note: careful\n"),
        (False, True, "poetc: first\npoetc: second\npoetc: note: careful\n"),
        (True, True, ""),
    ):
        console = Console(as_json=False, quiet=quiet, verbose=verbose)
        with console.progress("first") as progress:
            progress("second")
        console.note("careful")
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", expected)


def on_a_terminal(seconds: float) -> str:
    """What a terminal on stderr shows of a command that takes that long."""
    script = (
        "import time\n"
        "from poetc.cli import _console\n"
        "_console.SHOW_AFTER_S = 0.2\n"
        "with _console.Console(as_json=False, quiet=False, verbose=False).progress('first') as progress:\n"
        "    progress('solving the schedule')\n"
        f"    time.sleep({seconds})\n"
    )
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", script], stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # how Linux says that the other side has closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait() == 0
    finally:
        os.close(ours)
    return shown.decode()


def test_progress_is_shown_on_a_terminal_after_a_while() -> None:
    assert "solving the schedule" in on_a_terminal(1.2)
    assert on_a_terminal(0.0) == ""


def test_help_of_every_command_has_an_explanation_for_every_option() -> None:
    for name, command in cli.commands.items():
        assert command.help, name
        assert command.get_short_help_str(), name
        result = CliRunner().invoke(cli, [name, "--help"])
        assert result.exit_code == 0
        assert "Usage:" in result.output


def test_profile_show_prints_yaml_with_sources() -> None:
    result = CliRunner().invoke(cli, ["profile", "show", "stm32f746"])
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["cpu"]["core"] == "cortex-m7"
    assert "source" in result.stdout


def test_solvers_are_listed() -> None:
    result = CliRunner().invoke(cli, ["solvers", "--json"])
    names = [solver["name"] for solver in json.loads(result.stdout)["solvers"]]
    assert {"poetc", "poet"} <= set(names)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    script = CliRunner().invoke(cli, ["completion", shell]).stdout
    assert "_POETC_COMPLETE" in script


def test_completion_knows_devices() -> None:
    environment = {
        **os.environ,
        "_POETC_COMPLETE": "bash_complete",
        "COMP_WORDS": "poetc solve --device rp",
        "COMP_CWORD": "3",
    }
    command = [sys.executable, "-m", "poetc"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "rpi4" in done.stdout
