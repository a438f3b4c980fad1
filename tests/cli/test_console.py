"""Progress, notes and answers go where they belong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import runpy
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import click
import pytest
import yaml
from click.testing import CliRunner

from poetc.cli import _console, _text, cli
from poetc.cli._console import Console, finite
from poetc.planning.progress import progress_line
from poetc.scheduling import Objective, problem_to_json
from poetc.solvers import Event
from tests.cli.conftest import MODEL, Ended
from tests.support.problems import training_problem


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


def test_a_log_has_a_line_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console, "LINE_EVERY_S", 0.01)
    with Console(as_json=True, quiet=False, verbose=False).progress("first", 60.0) as progress:
        progress("best 1.000 mJ, bound 990.0 µJ, gap 1.00 % (improving the schedule)")
        said = ""
        for _ in range(3000):
            said += capsys.readouterr().err
            if "improving" in said:
                break
            time.sleep(0.01)
    assert said.splitlines()[-1] == (
        "poetc: 0 s, 60 s left: best 1.000 mJ, bound 990.0 µJ, gap 1.00 % (improving the schedule)"
    )
    with Console(as_json=False, quiet=True, verbose=False).progress("first", 60.0):
        pass
    assert capsys.readouterr().err == ""


def test_a_log_says_the_same_thing_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console, "LINE_EVERY_S", 0.001)
    said = ""
    with Console(as_json=True, quiet=False, verbose=False).progress("compiling") as progress:
        for text in ("training", "writing"):
            time.sleep(0.05)
            progress(text)
            while text not in said:
                said += capsys.readouterr().err
    assert [line.split(": ")[2] for line in (said + capsys.readouterr().err).splitlines()][-2:] == [
        "training",
        "writing",
    ]


def test_the_clock_counts_down_to_nothing() -> None:
    assert _console.clock(12.4, None) == "12 s"
    assert _console.clock(12.4, 60.0) == "12 s, 48 s left"
    assert _console.clock(70.0, 60.0) == "70 s, 0 s left"


def test_how_far_a_search_is_reads_in_units() -> None:
    problem = training_problem(Random(1), 4)
    event = Event(stage="race", objective=172_404_907_720, bound=171_898_424_660)
    assert progress_line(problem, event) == "best 172.4 mJ, bound 171.9 mJ, gap 0.29 % (improving the schedule)"
    timed = replace(problem, objective=Objective.TIME)
    assert progress_line(timed, event) == "best 172.4 s, bound 171.9 s, gap 0.29 % (improving the schedule)"
    nothing = replace(event, objective=None)
    assert progress_line(problem, nothing) == "no schedule yet, bound 171.9 mJ (improving the schedule)"
    nearly = replace(event, bound=event.bound + 506_483_000)
    assert "gap < 0.01 %" in progress_line(problem, nearly)


def on_a_terminal(seconds: float) -> str:
    """What a terminal on stderr shows of a command that takes that long."""
    script = (
        "import time\n"
        "from poetc.cli import _console\n"
        "_console.SHOW_AFTER_S = 0.2\n"
        "with _console.Console(as_json=False, quiet=False, verbose=False).progress('first', 60.9) as progress:\n"
        "    progress('solving the schedule ' + 80 * 'x')\n"
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
    shown = on_a_terminal(1.2)
    assert "solving the schedule" in shown and " 60 s left" in shown
    assert "…" in shown and shown.count("\x1b[1A") <= 1, "what is longer than the terminal is cut, not wrapped"
    assert on_a_terminal(0.0) == ""


def shown_in_80_columns(*arguments: str | Path) -> list[str]:
    """What a terminal of 80 columns on stdout shows."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 80))
    command = [sys.executable, "-m", "poetc", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the other side has closed
            while piece := os.read(ours, 4096):
                shown += piece
    os.close(ours)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n").splitlines()


def test_tables_are_readable_in_80_columns(solved: tuple[Path, Ended], tmp_path: Path) -> None:
    out, _ = solved
    (problem := tmp_path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 4)))
    name = "a_problem_with_a_name_that_is_much_longer_than_anybody_would_ever_think_of_giving_to_one.json"
    problem.rename(problem.with_name(name))
    for arguments in (
        ("solvers",),
        ("profile", "list"),
        ("report", out),
        ("analyze", MODEL, "--batch", "4", "--parameters"),
        ("solve", tmp_path / name, "-b", "100%", "-o", tmp_path / "out"),
        ("compare", tmp_path / name, "--budgets", "100%", "--time-limit", "1", "-o", tmp_path / "compared"),
    ):
        lines = shown_in_80_columns(*arguments)
        words = {word for line in lines for word in line.split()}
        too_long = [line for line in lines if len(line) > 80 and max(map(len, line.split())) < 40]
        assert lines and not too_long, (arguments, too_long)
        assert not any(word.endswith("…") and len(word) < 8 for word in words), arguments


def test_long_names_are_shortened_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "BatchNormActivateGradInput(/layers/block3/conv2/Conv_output_0.grad)"
    rows = [(name, "BatchNormActivateGradInput", "20", "123,456,789", "100.00%")]
    header = ("operator", "kind", "times", "instructions", "share")
    assert name in _text.table(header, rows)
    monkeypatch.setattr(_text, "terminal_columns", lambda: 80)
    shown = _text.table(header, rows).splitlines()
    assert max(map(len, shown)) == 80
    assert shown[1].startswith("BatchNormA") and "…" in shown[1] and shown[1].endswith("123,456,789   100.00%")


def every_text(command: click.Command, name: str = "poetc") -> Iterator[tuple[str, str]]:
    """Name and text of all help, of commands and of options."""
    yield from ((name, text or "") for text in (command.help, command.short_help))
    yield from ((f"{name} {o.opts[0]}", o.help or "") for o in command.params if isinstance(o, click.Option))
    for child, below in command.commands.items() if isinstance(command, click.Group) else ():
        yield from every_text(below, f"{name} {child}")


def test_help_is_in_short_sentences_and_nouns() -> None:
    """As `scripts/prose` holds the documentation to."""
    prose = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "prose"))
    for name, text in every_text(cli):
        assert not list(prose["faults"](prose["texts"](text))), name


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
