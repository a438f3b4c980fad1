"""The commands as a user runs them, in this process."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from poetc.cli import main
from poetc.commands import estimate
from tests.support.small import small_model

PROGRESS = re.compile(r"poetc: \d+ s[:,]")  # lines that only what takes long has
MODEL = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"


@dataclass(frozen=True, slots=True)
class Ended:
    code: object
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


def run(*arguments: object) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    said = [line for line in err.getvalue().splitlines(keepends=True) if not PROGRESS.match(line)]
    return Ended(ended.value.code, out.getvalue(), "".join(said))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without -o writes into the working directory, where another test may have solved another model."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def poetc() -> Callable[..., Ended]:
    return run


@pytest.fixture(scope="session")
def model() -> Path:
    """A small one, whose inputs and outputs are those of the demonstration's."""
    return small_model()


@pytest.fixture(scope="session")
def digits() -> Path:
    """The demonstration's model."""
    return MODEL


@pytest.fixture(scope="session")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The small model, solved for a board with a store, and what `solve --json` said."""
    out = tmp_path_factory.mktemp("solved") / "digits.poetc"
    limits = ("--device", "stm32f746", "--budget", "65%", "--gap", "0.1", "--time-limit", "60")
    ended = run("solve", small_model(), "--batch", "4", *limits, "-o", out, "--json")
    assert ended.code == 0, ended.err
    return out, ended


@pytest.fixture
def no_ways_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """`poetc analyze` leaves out other options and the largest batch."""
    monkeypatch.setattr(estimate, "BATCHES_OPERATORS", 0)
    monkeypatch.setattr(estimate, "has_room_beside", lambda: False)
    monkeypatch.setattr(estimate, "ways_to_save", lambda *_, **__: ())


@pytest.fixture
def brief_analyses(no_ways_to_save: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It searches for moments alone too, for tests of its other answers."""
    for name in ("SEARCH_S", "GOOD_SEARCH_S"):
        monkeypatch.setattr(estimate, name, 0.1)
