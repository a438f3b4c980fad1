"""Progress, notes and answers go where they belong."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pty
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import click
import pytest
import yaml
from click.testing import CliRunner

from poetc.cli import _console, _text, _training, _wrapping, cli, main
from poetc.loop import EpochRow
from poetc.planning.progress import progress_line
from poetc.scheduling import Objective, problem_to_json
from poetc.solvers import Event
from tests.cli.conftest import MODEL, Ended
from tests.support.problems import training_problem
from tests.support.small import small_model


def test_answer_is_text_or_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    _console.Console(as_json=False, quiet=False, verbose=False).answer({"a": 1}, "text\n")
    assert capsys.readouterr().out == "text\n"
    _console.Console(as_json=True, quiet=False, verbose=False).answer({"a": math.inf, "b": (1, 2.5)}, "text")
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1, 2.5]}


def test_finite_leaves_everything_else_alone() -> None:
    assert _console.finite({"x": [math.nan, {"y": -math.inf}], "s": "text", "n": None}) == {
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
        console = _console.Console(as_json=False, quiet=quiet, verbose=verbose)
        with console.progress("first") as progress:
            progress("second")
        console.note("careful")
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", expected)


def test_a_log_has_a_line_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console, "LINE_EVERY_S", 0.01)
    with _console.Console(as_json=True, quiet=False, verbose=False).progress("first", 60.0) as progress:
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
    with _console.Console(as_json=False, quiet=True, verbose=False).progress("first", 60.0):
        pass
    assert capsys.readouterr().err == ""


def test_a_log_says_the_same_thing_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console, "LINE_EVERY_S", 0.001)
    said = ""
    with _console.Console(as_json=True, quiet=False, verbose=False).progress("compiling") as progress:
        for text in ("training", "writing"):
            time.sleep(0.05)
            progress(text)
            while text not in said:
                time.sleep(0.01)
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
    assert progress_line(problem, event) == "best 172.4 mJ, bound 171.9 mJ, gap 0.294 % (improving the schedule)"
    timed = replace(problem, objective=Objective.TIME)
    assert progress_line(timed, event) == "best 172.4 s, bound 171.9 s, gap 0.294 % (improving the schedule)"
    nothing = replace(event, objective=None)
    assert progress_line(problem, nothing) == "no schedule yet, bound 171.9 mJ (improving the schedule)"
    nearly = replace(event, bound=event.bound + 506_483_000)
    assert "gap 0.001 %" in progress_line(problem, nearly)


def on_a_terminal(seconds: float, then: str = "pass") -> str:
    """The text on a terminal on stderr from a command that takes that long, then runs a statement."""
    script = (
        "import sys, time\n"
        "from poetc.cli import _console\n"
        "_console.SHOW_AFTER_S = 0.2\n"
        "console = _console.Console(as_json=False, quiet=False, verbose=False)\n"
        "with console.progress('first', 60.9) as progress:\n"
        "    progress('solving the schedule ' + 80 * 'x')\n"
        f"    time.sleep({seconds})\n"
        f"    {then}\n"
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


def test_a_note_stands_above_the_line_of_progress_and_stderr_stays_a_terminal() -> None:
    shown = on_a_terminal(0.6, "console.note('of 2 files'); console.note(str(sys.stderr.isatty()))")
    assert re.findall(r"[\rK\n](poetc: note: .*)\r\n", shown) == ["poetc: note: of 2 files", "poetc: note: True"], shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_in_80_columns(*arguments: str | Path) -> list[str]:
    """The answer and the notes on a terminal of 80 columns."""
    out = Terminal()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        pytest.raises(SystemExit) as ended,
    ):
        patch.setenv("COLUMNS", "80")
        patch.setattr(_console, "SHOW_AFTER_S", 3600.0)  # no live line, which is rewritten again and again
        main([str(argument) for argument in arguments])
    assert ended.value.code == 0, out.getvalue()
    return [line for line in out.getvalue().splitlines() if "\x1b" not in line]  # but for bars, which are rewritten


def readable(*arguments: str | Path) -> None:
    """No line is longer than 80 columns but for a path or a hash that stands alone, and no word is cut short."""
    lines = shown_in_80_columns(*arguments)
    assert lines
    too_long = [line for line in lines if len(line) > 80 and len(line.split()[-1]) < 40]
    assert not too_long, (arguments, too_long)
    words = {word for line in lines for word in line.split()}
    assert not any(word.endswith("…") and len(word) < 8 for word in words), arguments


def test_answers_are_readable_in_80_columns(solved: tuple[Path, Ended], model: Path, tmp_path: Path) -> None:
    out, _ = solved
    (problem := tmp_path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 4)))
    name = "a_problem_with_a_name_that_is_much_longer_than_anybody_would_ever_think_of_giving_to_one.json"
    problem.rename(problem.with_name(name))
    named = "poetc,kusumoto_approx,superneurons,dtr"  # quick ones, with the longest names
    for arguments in (
        ("solvers",),
        ("profile", "list"),
        ("profile", "show", "mkr1000"),
        ("profile", "check", "stm32f746"),
        ("report", out),
        ("diff", out, out),
        ("analyze", model, "--batch", "4", "--parameters"),
        ("solve", tmp_path / name, "-b", "100%", "-o", tmp_path / "out"),
        ("compare", tmp_path / name, "--budgets", "100%", "--solvers", named, "-o", tmp_path / "compared"),
        ("emit", out, "--target", "cortex-m7", "-o", tmp_path / "firmware"),
        ("emit", out, "--layout", "cmake", "-o", tmp_path / "package"),
        ("export", out, "-o", tmp_path / "new.onnx"),
        ("import-state", out, "--from", model, "-o", tmp_path / "again.poetc"),
    ):
        readable(*arguments)


@pytest.mark.long
def test_answers_of_commands_that_solve_or_compile_are_readable_in_80_columns(
    solved: tuple[Path, Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = small_model()
    data = f"{MODEL.parent / 'digits_new_writer.npz'}:train_x,train_y"
    solving = ("--batch", "4", "-d", "stm32f746", "--gap", "0.1", "--time-limit", "10")
    for arguments in (
        ("validate", solved[0]),
        ("run", solved[0], "--on", "qemu:mps2-an386"),
        ("lock", model, *solving, "-b", "70%"),
        ("check",),
        ("sweep", model, *solving, "-b", "70%", "-b", "80%"),
        ("bundle", model, *solving, "-b", "80%,65%", "-o", "digits.bundle"),
        ("validate", "digits.bundle", "--switch", "3"),
        ("report", "digits.bundle"),
        ("compare", model, "--switch", "80%:65%@50%", "-d", "stm32f746", "--batch", "4", "--time-limit", "2"),
        ("importance", model, "--batch", "4", "--data", data, "--normalize", "0..255", "--samples", "8"),
        ("train", model, "--data", data, "--normalize", "0..255", "--batch", "64", "--epochs", "1", "-o", "mine.onnx"),
    ):
        readable(*arguments)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("ok    an entry that was not solved again", ["ok    an entry that was not", "      solved again"]),
        ("  a sentence that is too long for this", ["  a sentence that is too long", "    for this"]),
        ("/a/path/that/is/longer/than/that/terminal", ["/a/path/that/is/longer/than/that/terminal"]),
        ("short", ["short"]),
    ],
)
def test_lines_go_on_under_where_their_text_began(line: str, shown: list[str]) -> None:
    assert _wrapping.fitted(line, 30).splitlines() == shown
    assert _wrapping.fitted(line, None) == line


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
        _, heading, examples = result.output.partition("\nExample")
        assert not heading or re.match(r"s?:\n+ .*poetc ", examples), name


def test_help_fits_80_columns_and_the_usual_one_a_screen() -> None:
    def lines(*words: str) -> list[str]:
        return CliRunner(env={"COLUMNS": "80"}).invoke(cli, words).output.splitlines()

    for name in cli.commands:
        usual = lines(name, "--help")
        assert not [line for line in (*usual, *lines(name, "--help", "all")) if len(line) > 80], name
        assert "Usual options:" not in usual or len(usual) <= 50, name


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


def test_long_numbers_leave_a_gap_between_columns() -> None:
    row = EpochRow(
        epoch=100, loss=123456.7891, validation_loss=98765.4321, validation_accuracy=1.0, validation={}, rate=0.000123,
        steps=3, seconds=1.0,
    )  # fmt: skip
    assert _training._cells(row, 1000, best=False).split() == [
        "100/1000", "123456.7891", "98765.4321", "100.00%", "0.000123", "1.0", "s",
    ]  # fmt: skip
