"""Flower, imported once without its dependencies' warnings; and the demonstration's model, solved for a fleet."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from poetc import artifact
from poetc.artifact import Artifact
from tests.commands.trained import DIGITS, solved_of

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of typer, which still uses names that click gives up
    import flwr.clientapp
    import flwr.serverapp.strategy  # noqa: F401


@pytest.fixture(scope="session")
def digits() -> Artifact:
    return solved_of(DIGITS, batch=16, optimizer="momentum")


@pytest.fixture(scope="session")
def digits_directory(digits: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fleet") / "digits.poetc"
    artifact.write(digits, directory, {})
    return directory
