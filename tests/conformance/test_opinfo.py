"""Samples of PyTorch's own test suite, one for each set of ONNX operators: a training step beside float64 gradients.

`make opinfo BENCH_ARGS=--archive` chose them among those whose compiled C was right, and wrote what PyTorch computed.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from poetc import training
from poetc.frontend import load
from poetc.training import TrainingOptions
from tests.frontend.test_node_gradients import double, run

pytestmark = pytest.mark.conformance

ARCHIVE = Path(__file__).with_name("opinfo.tar.xz")


def names() -> list[str]:
    if "POETC_MODELS" not in os.environ:  # nothing is read where nothing is run
        return []
    with tarfile.open(ARCHIVE) as archive:
        return sorted(name.removesuffix(".onnx") for name in archive.getnames() if name.endswith(".onnx"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("opinfo")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    return place


@pytest.mark.parametrize("case", names())
def test_loss_and_gradients_are_pytorchs_in_double_precision(folder: Path, case: str) -> None:
    path, batch_norm = folder / f"{case}.onnx", "train" if "-train-" in case else "frozen"
    step = training.build(load(path), TrainingOptions(loss="mse", batch_norm=batch_norm))
    with np.load(path.with_suffix(".npz")) as archive:
        held = {name: double(archive[name]) for name in archive.files}
    found = run(step, {step.target: held["t"], **dict.fromkeys(step.inputs, held["x"])})
    assert float(found[step.loss]) == pytest.approx(float(held["loss"]), rel=1e-4)
    for name, wanted in held.items():
        largest = float(np.abs(wanted).max(initial=0.0))
        if name.startswith("g:") and largest > 1e-8:  # one that is zero need not be computed
            gradient = found[step.gradients[name.removeprefix("g:")]].reshape(wanted.shape)
            np.testing.assert_allclose(gradient, wanted, rtol=0, atol=1e-4 * max(largest, 1e-6))
