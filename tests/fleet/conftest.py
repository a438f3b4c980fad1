"""Flower, imported once without its dependencies' warnings; and the demonstration's model, solved for a fleet."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from poetc import artifact
from poetc.artifact import Artifact
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.training import TrainingOptions
from tests.commands.trained import DIGITS, QUICK, solved_of
from tests.support.fleet_board import BOARD, built
from tests.support.small import small_model

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of typer, which still uses names that click gives up
    import flwr.clientapp
    import flwr.serverapp.strategy  # noqa: F401


@pytest.fixture(scope="session")
def digits() -> Artifact:
    return solved_of(DIGITS, batch=16, optimizer="momentum")


@dataclass(frozen=True, slots=True)
class Firmware:
    """A small model solved for an emulated board, and the firmware of a fleet that was built from it."""

    solved: Artifact
    directory: Path
    emitted: Path


@pytest.fixture(scope="session")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Firmware:
    training = TrainingOptions(learning_rate=0.01, optimizer="momentum")
    request = ModelRequest(source=small_model(), batch=16, device=f"qemu-{BOARD}", training=training)
    solved = solve(SolveRequest(model=request, budget="80%", state="ram", options=QUICK))
    folder = tmp_path_factory.mktemp("board")
    artifact.write(solved, folder / "board.poetc", {})
    return Firmware(solved, folder / "board.poetc", built(folder / "board.poetc", folder / "src", BOARD))


@pytest.fixture(scope="session")
def digits_directory(digits: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fleet") / "digits.poetc"
    artifact.write(digits, directory, {})
    return directory
