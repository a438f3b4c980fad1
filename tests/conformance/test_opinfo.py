"""Samples of PyTorch's own test suite, one for each set of ONNX operators: a training step beside float64 gradients.

`make opinfo BENCH_ARGS=--archive` chose them among those that were right, and wrote what PyTorch computed.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from bench import opinfo

pytestmark = pytest.mark.conformance


def names() -> list[str]:
    if "POETC_MODELS" not in os.environ:  # nothing is read where nothing is run
        return []
    with tarfile.open(opinfo.ARCHIVE) as archive:
        return sorted(name.removesuffix(".onnx") for name in archive.getnames() if name.endswith(".onnx"))


CASES = names()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("opinfo")
    with tarfile.open(opinfo.ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    return place


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_pytorchs_in_double_precision(folder: Path, case: str) -> None:
    path = folder / f"{case}.onnx"
    with np.load(path.with_suffix(".npz")) as held:
        assert opinfo.is_right_in_double(path, held, "train" if "-train-" in case else "frozen")


@pytest.mark.parametrize("case", CASES[::20])
def test_so_are_those_of_the_c(folder: Path, case: str) -> None:
    assert opinfo.judged(folder / f"{case}.onnx") == {"end": "right", "why": ""}
