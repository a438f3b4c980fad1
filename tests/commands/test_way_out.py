"""The way out of a training is tried before its first step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import make_node as node

from tests.cli.conftest import run
from tests.frontend.support import make, normal, save

CLASSES, WIDTH = 12, 6


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Path, Path]:
    """A model whose head is the table of its embedding, and data for it."""
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        node("MatMul", ["x", "middle"], ["h"]),
        node("Transpose", ["table"], ["across"], perm=[1, 0]),
        node("MatMul", ["h", "across"], ["y"]),
    ]
    values = {"table": normal(CLASSES, WIDTH), "middle": normal(WIDTH, WIDTH)}
    model = save(make(nodes, {"ids": (onnx.TensorProto.INT64, (4,))}, ["y"], values), tmp_path)
    ids = np.arange(32, dtype=np.int64) % CLASSES
    np.savez(tmp_path / "data.npz", ids=ids, target=(ids + 1) % CLASSES)
    return model, tmp_path / "data.npz"


def test_bare_lora_leaves_a_tied_table_alone(tied: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = tied
    out = tmp_path / "better.onnx"
    ended = run("train", model, "--data", data, "--lora", "2", "--epochs", "1", "--batch", "4", "-o", out)
    assert ended.code == 0, ended.err
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(out).graph.initializer}
    before = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(model).graph.initializer}
    assert np.array_equal(weights["table"], before["table"])
    assert not np.array_equal(weights["middle"], before["middle"])


def test_what_cannot_be_merged_is_said_before_the_first_step(tied: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = tied
    out = tmp_path / "better.onnx"
    ended = run("train", model, "--data", data, "--lora", "2:table", "--epochs", "1", "--batch", "4", "-o", out)
    assert ended.code == 3 and ended.err.strip().splitlines()[-1].count("with merged adapters it would be another") == 1
    assert "epoch" not in ended.out and not out.exists() and not out.with_name("better.onnx.train").exists()
