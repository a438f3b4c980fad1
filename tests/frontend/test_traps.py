"""What exporters do to models, from the file to emitted C. Further ones: test_reading.py and test_roles.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc import api
from poetc.frontend import load
from tests.frontend.support import assert_agrees, kinds, make, normal, parameters, save


def convolutions(count: int, *, bias: bool) -> onnx.ModelProto:
    nodes, weights = [], dict[str, np.ndarray]()
    for k in range(count):
        inputs = [f"h{k}", f"w{k}", *([f"b{k}"] if bias else [])]
        nodes.append(make_node("Conv", inputs, [f"h{k + 1}"], pads=[1, 1, 1, 1]))
        weights[f"w{k}"] = normal(2, 2, 3, 3, seed=k)
        if bias:
            weights[f"b{k}"] = normal(2, seed=k)
    return make(nodes, {"h0": (1, 2, 4, 4)}, [f"h{count}"], weights)


def test_a_folded_batch_norm_is_suspected(tmp_path: Path) -> None:
    suspicion = "may have folded it away"
    assert any(suspicion in note for note in load(save(convolutions(9, bias=True), tmp_path)).notes)
    assert not load(save(convolutions(9, bias=False), tmp_path)).notes


def test_merged_initializers_are_told(tmp_path: Path) -> None:
    """An exporter keeps one of several equal tensors: biases that all began as zeros become one weight."""
    nodes = [
        make_node("Gemm", ["x", "w1", "zeros"], ["h"]),
        make_node("Relu", ["h"], ["r"]),
        make_node("Gemm", ["r", "w2", "zeros"], ["y"]),
    ]
    weights = {"w1": normal(4, 4), "w2": normal(4, 4, seed=2), "zeros": np.zeros(4, np.float32)}
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"w1", "w2", "zeros"}
    (note,) = graph.notes
    assert "'zeros' is the weight of 2 operators" in note
    assert "tied" in note


def test_shapes_computed_in_the_graph_are_numbers(tmp_path: Path) -> None:
    """x.view(x.size(0), -1, 2), spelled with Shape, Gather, Unsqueeze and Concat."""
    nodes = [
        make_node("Relu", ["x"], ["r"]),
        make_node("Shape", ["r"], ["shape"]),
        make_node("Gather", ["shape", "zero"], ["rows"]),
        make_node("Unsqueeze", ["rows", "axes"], ["first"]),
        make_node("Concat", ["first", "rest"], ["to"], axis=0),
        make_node("Reshape", ["r", "to"], ["v"]),
        make_node("MatMul", ["v", "w"], ["y"]),
    ]
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1, 2]), "w": normal(2, 3)}
    model = make(nodes, {"x": (4, 6)}, ["y"], weights)
    graph = assert_agrees(model, {"x": normal(4, 6)}, tmp_path)
    assert kinds(graph) == ["Relu", "MatMul"]
    symbolic = make(nodes, {"x": ("N", 6)}, ["y"], weights)
    assert load(save(symbolic, tmp_path), batch=3).tensors["y"].shape == (3, 3, 3)


@pytest.mark.parametrize("odd", ["model/act;bn:0/" + "x" * 200, 'ümlaut */ "b\\" %s ??/'])
def test_hard_names_reach_the_compiler(tmp_path: Path, odd: str) -> None:
    nodes = [
        make_node("Gather", [f"{odd}table", "tokens"], [f"{odd}e"], name=odd),
        make_node("MatMul", [f"{odd}e", f"{odd}w"], [f"{odd}y"]),
    ]
    inputs = {"tokens": (TensorProto.INT64, (2, 3))}
    weights = {f"{odd}table": normal(5, 4), f"{odd}w": normal(4, 3)}
    path = save(make(nodes, inputs, [f"{odd}y"], weights), tmp_path)
    solved = api.load(path).solve(device="host", budget="100%", time_limit_s=1)
    source = tmp_path / "src"
    solved.emit(source)
    done = subprocess.run(["make", "-s", "-C", source, "train"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert load(path).tensors[f"{odd}table"].shape == (5, 4)
