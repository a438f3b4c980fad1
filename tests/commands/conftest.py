"""The demonstration's model, solved at less memory than keep-all takes, and trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from poetc import artifact
from poetc.artifact import Artifact
from poetc.graph import Array, TrainingGraph
from tests.commands.trained import DIGITS, solved_of, trained


@dataclass(frozen=True, slots=True)
class Trained:
    """`folder` holds digits.poetc and trained.bin; `state` and `expected` are what `trained` gives."""

    folder: Path
    solved: Artifact
    state: dict[str, Array]
    expected: dict[str, Array]

    @property
    def directory(self) -> Path:
        return self.folder / "digits.poetc"

    @property
    def trained_bin(self) -> Path:
        return self.folder / "trained.bin"

    @property
    def step(self) -> TrainingGraph:
        assert self.solved.graph is not None
        return self.solved.graph


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("digits")
    solved = solved_of(DIGITS, batch=4, budget="70%", optimizer="momentum")
    artifact.write(solved, folder / "digits.poetc", {})
    return Trained(folder, solved, *trained(solved, folder))
