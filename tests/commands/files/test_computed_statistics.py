"""Batch norms whose statistics the file computes: they are no state, and gradients flow back through them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node as node

from poetc import training
from poetc.artifact import Artifact
from poetc.commands.export import export_onnx
from poetc.errors import UnsupportedModelError
from poetc.frontend import load
from poetc.training import TrainingOptions
from tests.commands.trained import assert_as_inferred, solved_of, trained
from tests.frontend.support import assert_agrees, make, normal, save
from tests.frontend.test_node_gradients import double, run

CHANNELS = 3
COMPUTED = [
    node("ReduceMean", ["a"], ["mean"], axes=[0, 2, 3], keepdims=0),
    node("ReduceMean", ["a"], ["wide"], axes=[0, 2, 3], keepdims=1),
    node("Sub", ["a", "wide"], ["centred"]),
    node("Mul", ["centred", "centred"], ["square"]),
    node("ReduceMean", ["square"], ["var"], axes=[0, 2, 3], keepdims=0),
]
NORM = ["a", "n.weight", "n.bias"]
HELD = ["n.running_mean", "n.running_var"]
# Name → the nodes from the convolution's output `a` to `b`.
NORMS: dict[str, list[onnx.NodeProto]] = {
    "of the batch": [*COMPUTED, node("BatchNormalization", [*NORM, "mean", "var"], ["b"])],
    "in training mode": [
        *COMPUTED,
        node("BatchNormalization", [*NORM, "mean", "var"], ["b", "m", "v"], training_mode=1),
    ],
    "of another tensor": [
        node("ReduceMean", ["a"], ["each"], axes=[0, 2], keepdims=0),
        node("ReduceMean", ["each"], ["mean"], axes=[1], keepdims=0),
        node("ReduceL2", ["each"], ["var"], axes=[1], keepdims=0),
        node("BatchNormalization", [*NORM, "mean", "var"], ["b"]),
    ],
    "made of the file's": [
        node("Abs", [HELD[1]], ["var"]),
        node("BatchNormalization", [*NORM, HELD[0], "var"], ["b"]),
    ],
}


def model_of(norm: str) -> onnx.ModelProto:
    """A convolution, its norm and a dense layer."""
    nodes = [
        node("Conv", ["x", "c.weight", "c.bias"], ["a"], pads=[1, 1, 1, 1]),
        *NORMS[norm],
        node("Relu", ["b"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "d.weight", "d.bias"], ["y"], transB=1),
    ]
    weights: dict[str, Any] = {
        "c.weight": normal(CHANNELS, 1, 3, 3),
        "c.bias": normal(CHANNELS, seed=1),
        "n.weight": 1 + normal(CHANNELS, seed=2) / 4,
        "n.bias": normal(CHANNELS, seed=3) / 4,
        HELD[0]: normal(CHANNELS, seed=4) / 4,
        HELD[1]: 1 + np.abs(normal(CHANNELS, seed=5)),
        "d.weight": normal(CHANNELS, CHANNELS, seed=6),
        "d.bias": normal(CHANNELS, seed=7),
    }
    read = {i for n in nodes for i in n.input}
    return make(nodes, {"x": (4, 1, 4, 4)}, ["y"], {n: w for n, w in weights.items() if n in read})


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mode", ["train", "frozen"])
def test_outputs_and_gradients_are_those_of_the_file(norm: str, mode: str, tmp_path: Path) -> None:
    model, x = model_of(norm), normal(4, 1, 4, 4, seed=9)
    graph = assert_agrees(model, {"x": x}, tmp_path)
    step = training.build(graph, TrainingOptions(loss="mse", batch_norm=mode))
    assert not {n for n in step.updates if n in graph.tensors} & {"mean", "var", *HELD}
    names = ("c.weight", "n.weight", "n.bias", "d.weight")
    at = {n: double(step.values[n]) for n in names} | {"x": double(x), step.target: double(normal(4, CHANNELS))}
    held = run(step, at)
    for name in names:
        direction = np.random.default_rng(7).standard_normal(at[name].shape)
        above, below = (float(run(step, {**at, name: at[name] + e * direction})[step.loss]) for e in (1e-5, -1e-5))
        exact = float(np.sum(held[step.gradients[name]] * direction))
        assert exact == pytest.approx((above - below) / 2e-5, rel=2e-4, abs=1e-6), name
        assert exact != 0


def test_statistics_that_are_computed_are_not_folded_into_integers(tmp_path: Path) -> None:
    for norm in ("in training mode", "made of the file's"):
        with pytest.raises(UnsupportedModelError, match="--precision niti: BatchNormApply node"):
            solved_of(save(model_of(norm), tmp_path), precision="niti")


@pytest.mark.parametrize("norm", ["in training mode", "made of the file's"])
def test_a_trained_file_is_written(norm: str, tmp_path: Path) -> None:
    solved: Artifact = solved_of(save(model_of(norm), tmp_path), loss="mse")
    state, expected = trained(solved, tmp_path)
    export_onnx(solved, state, tmp_path / "out.onnx")
    if norm != "in training mode":  # onnxruntime has no such node for inference
        assert_as_inferred(tmp_path / "out.onnx", solved, expected)
    assert load(tmp_path / "out.onnx").values["c.weight"].tobytes() == state["c.weight"].tobytes()  # type: ignore[union-attr]
