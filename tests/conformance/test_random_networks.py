"""Two hundred random PyTorch networks, from both exporters: four steps of training beside PyTorch's.

`python -m tests.random_networks --archive` made the networks and what PyTorch computed (docs/lab/random-networks.md).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.random_networks import archive, training
from tests.random_networks.archive import Kept
from tests.random_networks.judging import differences

pytestmark = pytest.mark.conformance

# Nothing is read where nothing is run.
KEPT = {kept.recipe.seed: kept for kept in archive.read(archive.PATH)} if "POETC_MODELS" in os.environ else {}
AS_C = [seed for seed, kept in KEPT.items() if not kept.warned][::20]


def write(kept: Kept, folder: Path) -> Path:
    path = folder / f"{kept.recipe.seed}.onnx"
    path.write_bytes(kept.model)
    return path


@pytest.mark.parametrize("seed", KEPT)
def test_training_is_pytorchs(seed: int, tmp_path: Path) -> None:
    kept = KEPT[seed]
    _, step = training.training_graph(kept.recipe, write(kept, tmp_path))
    if kept.warned:
        assert any(kept.warned in note for note in step.notes)
        return
    found = training.in_double(kept.recipe, step)
    assert not differences(found, kept.expected, kept.noise, kept.start, exact=True)
    assert kept.expected.state.keys() <= found.state.keys() | set(step.zero_gradients)


@pytest.mark.parametrize("seed", AS_C)
def test_scheduled_programs_train_as_pytorch_does(seed: int, tmp_path: Path) -> None:
    """A random device, budget and optimizer; in numpy on the program's arena, and as C."""
    kept = KEPT[seed]
    solved = training.solve(kept.recipe, write(kept, tmp_path), 2.0)
    for found in (
        training.interpreted(kept.recipe, solved),
        training.compiled(kept.recipe, solved, tmp_path / "c"),
    ):
        assert not differences(found, kept.expected, kept.noise, kept.start, exact=False)
