"""Masks of -infinity among the data: taken where the model adds them to the scores of a softmax, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from poetc import TrainingOptions, train
from poetc.api import load
from poetc.commands.requests import ModelRequest, training_graph
from poetc.datasets import slots_of
from poetc.errors import UsageError
from tests.frontend.support import make, normal, save

ROWS, STEPS, WIDTH = 4, 5, 3


def model(folder: Path, *, factor: bool = False) -> Path:
    """Attention of one head; `mask` is added to its scores, or is a factor of them."""
    nodes = [
        make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        make_node("MatMul", ["x", "k"], ["raw"]),
        make_node("Unsqueeze", ["mask", "axis"], ["row"]),
        make_node("Mul" if factor else "Add", ["raw", "row"], ["scores"]),
        make_node("Softmax", ["scores"], ["p"], axis=-1),
        make_node("MatMul", ["p", "x"], ["a"]),
        make_node("ReduceMean", ["a"], ["pooled"], axes=[1], keepdims=0),
        make_node("MatMul", ["pooled", "w"], ["y"]),
    ]
    weights = {"w": normal(WIDTH, 2), "axis": np.array([1])}
    return save(make(nodes, {"x": (ROWS, STEPS, WIDTH), "mask": (ROWS, STEPS)}, ["y"], weights), folder)


def data(folder: Path, low: float) -> tuple[Path, dict[str, np.ndarray]]:
    x = normal(2 * ROWS, STEPS, WIDTH)
    mask = np.where(np.arange(STEPS) < 2 + np.arange(2 * ROWS)[:, None] % 4, 0, low).astype(np.float32)
    arrays = {"x": x, "mask": mask, "target": np.arange(2 * ROWS) % 2}
    np.savez(folder / "d.npz", **arrays)
    return folder / "d.npz", arrays


@pytest.mark.parametrize("precision", ["f32", "f16", "bf16"])
def test_a_mask_of_infinities_hides_as_it_does_in_float64(tmp_path: Path, precision: str) -> None:
    path, arrays = data(tmp_path, -np.inf)
    asked = load(model(tmp_path), training=TrainingOptions(precision=precision, learning_rate=0.1))
    document = train(asked, data=path, validation=path, epochs=2, out=tmp_path / "out.onnx")
    x, weight = arrays["x"].astype(np.float64), normal(WIDTH, 2).astype(np.float64)
    scores = x @ x.transpose(0, 2, 1) + arrays["mask"][:, None]
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    y = (p / p.sum(axis=-1, keepdims=True) @ x).mean(axis=1) @ weight
    loss = (np.log(np.exp(y).sum(axis=1)) - y[np.arange(len(y)), arrays["target"]]).mean()
    assert document["before"]["loss"] == pytest.approx(loss, rel=1e-6 if precision == "f32" else 2e-2)
    assert document["epochs"][-1]["validation_loss"] < loss


def test_infinities_elsewhere_are_refused(tmp_path: Path) -> None:
    path, _ = data(tmp_path, -np.inf)
    file = model(tmp_path, factor=True)
    assert not any(slot.hides for slot in slots_of(training_graph(ModelRequest(source=file))[1]))
    with pytest.raises(UsageError, match=r"mask\[0, 2\] is -inf, not a finite number"):
        train(file, data=path, epochs=1, out=tmp_path / "out.onnx")


def test_a_mask_is_neither_scaled_nor_taken_for_unscaled(tmp_path: Path) -> None:
    path, _ = data(tmp_path, -1e9)
    slots = slots_of(training_graph(ModelRequest(source=model(tmp_path)))[1])
    assert [(s.name, s.hides, s.takes_any_range) for s in slots[:2]] == [("x", 0.0, False), ("mask", -1e9, True)]
    document = train(model(tmp_path), data=path, normalize="auto", epochs=1, out=tmp_path / "out.onnx")
    assert set(document["normalization"]) == {"x"}
