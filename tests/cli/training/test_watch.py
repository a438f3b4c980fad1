"""`poetc train --watch`: a table on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poetc.cli._watch import LiveView
from poetc.loop import EpochRow
from tests.cli.conftest import MODEL, Ended

Run = Callable[..., Ended]
DATA = MODEL.parent / "digits_new_writer.npz"


def _words(model: Path, out: Path, *more: object) -> list[object]:
    data = ("--data", f"{DATA}:train_x,train_y", "--validation", f"{DATA}:test_x,test_y", "--normalize", "0..255")
    return ["train", model, *data, "--batch", 16, "--lr", 0.03, "-o", out, "--watch", *more]


def _on_a_terminal(words: list[object], term: str = "xterm") -> str:
    """All that the command writes to a terminal of 100 columns."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    command = [sys.executable, "-m", "poetc", *map(str, words)]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": term}) as process:
        os.close(terminal)
        shown = bytearray()
        while True:
            try:
                data = os.read(screen, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            shown += data
    os.close(screen)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


def test_a_terminal_shows_a_table_that_changes(model: Path, tmp_path: Path) -> None:
    shown = _on_a_terminal(_words(model, tmp_path / "out.onnx", "--epochs", 12))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    table = text[text.rindex("loss  ", 0, text.index("written to")) :]
    for name, value in {
        "loss": r"\d\.\d{4} in this step, \d\.\d{4} in this epoch",
        "accuracy": r"\d+\.\d% in this epoch",
        "rate": r"0\.03",
        "validation": r"loss \d\.\d{4}, accuracy \d+\.\d\d% after epoch 12",
        "best": r"loss \d\.\d{4}, accuracy \d+\.\d\d% after epoch \d+",
        "speed": r"\d.* steps/s",
        "RAM": r"[\d.]+ MB of this process with Python, [\d.]+ MB at most",
    }.items():
        assert re.search(rf"^{name} +{value} *\r?$", table, re.MULTILINE), (name, table)
    assert re.search(r"epoch 12/12 .*408/408 steps 0:00:\d\d left 0:00:00", table), table
    assert "\x1b[1A\x1b[2K" in shown, "the table is written anew in its place"
    assert len(re.findall(r"\b\d+/12 +\d\.\d{4} ", text)) == 12, "rows of epochs stay above it"
    assert "Traceback" not in text


@pytest.mark.long
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(model: Path, tmp_path: Path) -> None:
    shown = _on_a_terminal(_words(model, tmp_path / "out.onnx", "--epochs", 2), term="dumb")
    assert re.search(r"^2/2 +\d\.\d{4} ", shown, re.MULTILINE)
    assert "of this process" not in shown


def test_elsewhere_there_is_a_line_every_few_seconds(
    poetc: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poetc.cli._watch.LINE_EVERY_S", 0.0)
    ended = poetc(*_words(model, tmp_path / "out.onnx", "--epochs", 2))
    assert ended.code == 0, ended.err
    lines = re.findall(
        r"^poetc: epoch 2/2, step (\d+)/34: loss \d\.\d{4}, rate 0\.03, .* steps/s, 0:00:\d\d left, RAM \d.* MB$",
        ended.err,
        re.MULTILINE,
    )
    assert lines == [str(n) for n in range(1, 35)], ended.err


def test_a_source_of_unknown_length_has_its_end_after_an_epoch(
    poetc: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of a function are counted in the first epoch; a resumption counts on from those before."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        f"with np.load({str(DATA)!r}) as d:\n    x, y = d['train_x'][:64], d['train_y'][:64]\n"
        "def batches():\n"
        "    for i in range(0, 64, 16):\n"
        "        yield x[i : i + 16].reshape(-1, 1, 8, 8).astype(np.float32) / 255, y[i : i + 16]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("poetc.cli._watch.LINE_EVERY_S", 0.0)
    out = tmp_path / "out.onnx"
    ended = poetc("train", model, "--data", "mine:batches", "--batch", 16, "--epochs", 2, "-o", out, "--watch")
    assert ended.code == 0, ended.err
    assert "epoch 1/2, step 4: loss" in ended.err and "epoch 2/2, step 4/4: loss" in ended.err, ended.err
    again = poetc("train", "--resume", "-o", out, "--epochs", 3, "--watch")
    assert again.code == 0, again.err
    assert "epoch 3/3, step 4: loss" in again.err


def test_steps_of_unknown_length_before_a_resumption_are_not_ahead() -> None:
    """After the fifth of ten epochs as many steps are done as are left."""
    view = LiveView(10, None)
    for batch in range(1, 5):
        view.on_step(5, batch, 1.0, 1.0, None, 0.1)
    values: dict[str, Any] = dict.fromkeys(("validation_loss", "validation_accuracy"))
    view.on_epoch(EpochRow(epoch=5, loss=1.0, validation={}, rate=0.1, steps=4, seconds=1.0, **values), best=False)
    assert view.progress == (20, 40)
    view.on_step(6, 1, 1.0, 1.0, None, 0.1)
    assert view.progress == (21, 40)


def test_a_view_that_nobody_sees_is_refused(poetc: Run, model: Path, tmp_path: Path) -> None:
    ended = poetc(*_words(model, tmp_path / "out.onnx", "--epochs", 1, "--quiet"))
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert "--watch does nothing with --quiet" in ended.err
