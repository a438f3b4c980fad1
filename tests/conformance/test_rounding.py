"""Steps in fewer bits, of random PyTorch networks: each difference from float64 is a rounding that the format asks for.

The error of a whole step does not tell a rounding from a fault. So each operator of the compiled step is simulated from
the operands that it had (`tests.support.rounding`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poetc.passes import _encoding, encoded, offered
from tests.conformance.test_random_networks import KEPT, write
from tests.random_networks import training
from tests.support.rounding import Count, check_step

pytestmark = pytest.mark.conformance

SEEDS = [seed for seed, kept in KEPT.items() if not kept.warned][::14][:13]
SAVED = ("f16", "bf16", "int8")


def checked(seed: int, option: str, form: str, folder: Path) -> Count:
    kept = KEPT[seed]
    recipe, folder = kept.recipe, folder / f"{option}-{form}"
    folder.mkdir()
    if option == "precision":
        recipe = replace(recipe, options={**recipe.options, "precision": form})
    _, step = training.training_graph(recipe, write(kept, folder))
    if option == "saved":
        step = encoded(step, offered(step, form))
    return check_step(step, training.inputs_of(recipe, step, 0, np.float32), folder / "c")


@pytest.mark.parametrize("seed", SEEDS)
def test_each_number_is_the_nearest_of_its_format(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of tensors that are too small for an encoding to pay: these networks have few others."""
    monkeypatch.setattr(_encoding, "LEAST_FLOATS", 4)
    counts = [checked(seed, "saved", form, tmp_path) for form in SAVED]
    counts += [checked(seed, "precision", form, tmp_path) for form in SAVED[:2]]
    for count in counts:
        assert count.checked and count.neighbours <= 1 + count.checked / 500
