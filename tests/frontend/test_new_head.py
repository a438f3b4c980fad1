"""Another number of classes: the last layer is replaced in the ONNX graph, wherever exporters put its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.helper import make_node as node

from poetc.errors import UnsupportedModelError, UsageError
from poetc.frontend import NewHead, load
from poetc.graph import Graph
from tests.frontend.support import make, normal, save

DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"
LINEAR = {"w": normal(8, 10), "b": normal(10)}
SOFTMAX = node("Softmax", ["h"], ["y"])


def changed(nodes: Sequence[onnx.NodeProto], weights: dict[str, np.ndarray], folder: Path, **shape: tuple) -> Graph:
    model = make(nodes, {"x": shape.get("x", (4, 8))}, ["y"], weights)
    return load(save(model, folder), new_head=NewHead(3))


def shape(graph: Graph) -> tuple[int, ...]:
    return graph.tensors[graph.outputs[0]].shape


def test_gemm_with_its_weight_either_way(tmp_path: Path) -> None:
    for flag, weight in ((0, normal(8, 10)), (1, normal(10, 8))):
        graph = changed([node("Gemm", ["x", "w", "b"], ["h"], transB=flag), SOFTMAX], {**LINEAR, "w": weight}, tmp_path)
        assert shape(graph) == (4, 3)
        for name, size in (("w", (3, 8) if flag else (8, 3)), ("b", (3,))):
            numbers = np.asarray(graph.values[name])
            assert numbers.shape == size and 0.1 < np.abs(numbers).max() <= 1 / math.sqrt(8)
        assert "'h' makes 3 outputs instead of 10 for 'y', from weights of seed 0" in graph.notes[0]


def test_product_and_sum_behind_views(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["p"]),
        node("Add", ["b", "p"], ["h"]),
        node("Reshape", ["h", "size"], ["y"]),
    ]
    weights = {**LINEAR, "w": normal(10, 8), "size": np.array([2, 2, 10])}
    assert shape(changed(nodes, weights, tmp_path)) == (2, 2, 3)


def test_convolution_before_a_mean(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["g"]),
        node("Flatten", ["g"], ["y"]),
    ]
    graph = changed(nodes, {"w": normal(10, 2, 3, 3), "b": normal(10)}, tmp_path, x=(4, 2, 5, 5))
    assert shape(graph) == (4, 3) and graph.tensors["w"].shape == (3, 2, 3, 3)


def test_weights_in_a_constant_node(tmp_path: Path) -> None:
    constant = node("Constant", [], ["w"], value=numpy_helper.from_array(normal(8, 10), "held"))
    graph = changed([constant, node("MatMul", ["x", "w"], ["y"])], {}, tmp_path)
    assert shape(graph) == (4, 3) and graph.tensors["w"].shape == (8, 3)


def test_a_tied_weight_is_left_to_its_other_readers(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["a", "w"], ["y"])]
    graph = changed(nodes, {"w": normal(8, 8)}, tmp_path)
    assert shape(graph) == (4, 3)
    assert (graph.tensors["w"].shape, graph.tensors["w.head"].shape) == ((8, 8), (8, 3))


def test_the_seed_says_the_numbers() -> None:
    def weights(seed: int) -> list[bytes]:
        graph = load(DIGITS, batch=2, new_head=NewHead(4, "logits", seed))
        return [np.asarray(v).tobytes() for v in graph.values.values()]

    first = weights(1)
    assert first == weights(1)
    assert sum(a != b for a, b in zip(first, weights(2), strict=True)) == 2  # weight and bias of the head


def test_what_cannot_be_replaced_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no output 'scores'; it has logits"):
        load(DIGITS, batch=2, new_head=NewHead(4, "scores"))
    with pytest.raises(UsageError, match="output 'logits' has 10 classes already"):
        load(DIGITS, batch=2, new_head=NewHead(10))
    for text in ("", "many", "5:", "-3"):
        with pytest.raises(UsageError, match="write the number of outputs"):
            NewHead.parse(text)
    for text, shown in {"0": "0", "999999999": "999999999", "9" * 40: r"999999999999\.\.\. \(40 characters\)"}.items():
        with pytest.raises(UsageError, match=rf"^--new-head {shown}: a head has 1 to 1,048,576 outputs$"):
            NewHead.parse(text)
    assert NewHead.parse("5:y", "x", 2) == NewHead(5, "y", 2)
    for nodes, weights in (
        ([node("Relu", ["x"], ["y"])], {}),
        ([node("MatMul", ["x", "w"], ["h"]), node("Tanh", ["h"], ["y"])], LINEAR),
        ([node("Relu", ["w"], ["v"]), node("MatMul", ["x", "v"], ["y"])], LINEAR),
    ):
        with pytest.raises(UnsupportedModelError, match="--new-head: no Gemm, MatMul or Conv makes output 'y'"):
            changed(nodes, weights, tmp_path)
