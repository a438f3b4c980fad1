"""Imported graphs compute what onnx's reference evaluator computes of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc.frontend import load
from tests.frontend.support import assert_agrees, kinds, make, normal, parameters, save


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "GRU-linear", "RNN"])
@pytest.mark.parametrize("states", [False, True])
def test_recurrent_layers_unrolled(tmp_path: Path, kind: str, direction: str, states: bool) -> None:
    op, _, linear = kind.partition("-")
    directions = 2 if direction == "bidirectional" else 1
    gates, hidden, steps = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 3, 7  # the inputs' product: 5 steps at once, then 2
    weights = {
        "w": normal(directions, gates * hidden, 5),
        "r": normal(directions, gates * hidden, hidden, seed=1),
        "b": normal(directions, 2 * gates * hidden, seed=2),
    }
    inputs = ["x", "w", "r", "b"]
    if states:
        weights["h"] = normal(directions, 2, hidden, seed=3)
        inputs += ["", "h"]
        if op == "LSTM":
            weights |= {"c": normal(directions, 2, hidden, seed=4), "p": normal(directions, 3 * hidden, seed=5)}
            inputs += ["c", "p"]
    attributes = {"hidden_size": hidden, "direction": direction} | ({"linear_before_reset": 1} if linear else {})
    outputs = ["y", "yh", "yc"][: 3 if op == "LSTM" else 2]
    model = make([make_node(op, inputs, outputs, **attributes)], {"x": (steps, 2, 5)}, outputs, weights, opset=14)
    if direction != "forward" and (directions == 1 or states):
        # onnx's evaluator runs neither reversed nor stateful two-way layers: see the test below for those.
        graph = load(save(model, tmp_path))
        assert kinds(graph).count("MatMul") >= directions * steps
        return
    graph = assert_agrees(model, {"x": normal(steps, 2, 5)}, tmp_path)
    assert {"w", "r", "b"} <= parameters(graph)


def test_rows_of_a_long_sequence_are_not_all_made_at_once(tmp_path: Path) -> None:
    weights = {"w": normal(1, 12, 5), "r": normal(1, 12, 3)}
    node = make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)
    graph = load(save(make([node], {"x": (100, 2, 5)}, ["y"], weights, opset=14), tmp_path))
    assert kinds(graph).count("MatMul") == 99 + 20
    rows = [graph.tensors[op.outputs[0]].shape for op in graph.operators if op.kind == "MatMul"]
    assert max(rows) == (10, 12)


def test_states_of_a_layer_are_joined_for_as_many_steps_as_the_next_one_takes_at_once(tmp_path: Path) -> None:
    weights = {f"w{k}": normal(1, 12, n) for k, n in ((0, 5), (1, 3))} | {f"r{k}": normal(1, 12, 3) for k in (0, 1)}
    nodes = [
        make_node("LSTM", ["x", "w0", "r0"], ["y0"], hidden_size=3),
        make_node("Squeeze", ["y0", "axis"], ["s"]),
        make_node("LSTM", ["s", "w1", "r1"], ["y1"], hidden_size=3),
        make_node("Slice", ["y1", "last", "end"], ["final"]),
        make_node("Neg", ["final"], ["y"]),
    ]
    weights |= {"axis": np.int64([1]), "last": np.int64([10]), "end": np.int64([11])}
    graph = assert_agrees(make(nodes, {"x": (11, 2, 5)}, ["y"], weights, opset=14), {"x": normal(11, 2, 5)}, tmp_path)
    joined = [len(op.inputs) for op in graph.operators if op.kind == "Concat"]
    assert joined == [3, 3, 3, 2]


def test_inputs_of_a_layer_that_are_joined_by_other_shapes(tmp_path: Path) -> None:
    """As many parts as steps, but none is the input of a step as it is: [1, batch * features]."""
    nodes = [
        make_node("Concat", ["a", "b", "a", "b"], ["joined"], axis=0),
        make_node("Reshape", ["joined", "shape"], ["x"]),
        make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3),
    ]
    weights = {"w": normal(1, 12, 1), "r": normal(1, 12, 3), "shape": np.int64([4, 2, 1])}
    inputs = {"a": normal(1, 2), "b": normal(1, 2, seed=1)}
    assert_agrees(make(nodes, {"a": (1, 2), "b": (1, 2)}, ["y"], weights, opset=14), inputs, tmp_path)


def test_reversed_layer_is_the_forward_layer_on_the_reversed_sequence(tmp_path: Path) -> None:
    from tests.frontend.support import evaluate

    weights = {"w": normal(1, 12, 5), "r": normal(1, 12, 3), "b": normal(1, 24)}
    x = normal(7, 2, 5)
    results = {}
    for direction in ("forward", "reverse"):
        node = make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=3, direction=direction)
        graph = load(save(make([node], {"x": (7, 2, 5)}, ["y"], weights, opset=14), tmp_path))
        results[direction] = evaluate(graph, {"x": x[::-1] if direction == "reverse" else x})["y"]
    np.testing.assert_allclose(results["reverse"][::-1], results["forward"], rtol=1e-6)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("...ij,jk->...ik", [(2, 3, 4), (4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ijk->j", [(2, 3, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ab,ab", [(3, 4), (3, 4)]),
    ],
)
def test_einsum(tmp_path: Path, equation: str, shapes: list[tuple[int, ...]]) -> None:
    names = [f"x{k}" for k in range(len(shapes))]
    model = make([make_node("Einsum", names, ["y"], equation=equation)], dict(zip(names, shapes, strict=True)), ["y"])
    assert_agrees(model, {n: normal(*s, seed=k) for k, (n, s) in enumerate(zip(names, shapes, strict=True))}, tmp_path)


CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("Conv", (2, 4, 9), (6, 2, 3), {"group": 2, "pads": [2, 1], "strides": [2]}),
    ("Conv", (1, 3, 8, 7), (5, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Conv", (1, 3, 8, 7), (5, 3, 3, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ("Conv", (1, 3, 8, 7), (5, 3, 3, 2), {"dilations": [2, 1]}),
    ("ConvTranspose", (1, 4, 5, 4), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ("ConvTranspose", (1, 4, 5), (4, 3, 3), {"strides": [2]}),
]


@pytest.mark.parametrize(("op", "x", "w", "attributes"), CONVOLUTIONS)
def test_convolutions(tmp_path: Path, op: str, x: Any, w: Any, attributes: dict[str, Any]) -> None:
    outputs = w[0] if op == "Conv" else w[1]
    weights = {"w": normal(*w), "b": normal(outputs)}
    graph = assert_agrees(
        make([make_node(op, ["x", "w", "b"], ["y"], **attributes)], {"x": x}, ["y"], weights),
        {"x": normal(*x)},
        tmp_path,
    )
    assert parameters(graph) == {"w", "b"}
    assert graph.tensors["w"].shape == w


def test_constant_folding_leaves_nothing_of_shape_arithmetic(tmp_path: Path) -> None:
    nodes = [
        make_node("Shape", ["x"], ["s"]),
        make_node("Gather", ["s", "zero"], ["n"]),
        make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        make_node("Reshape", ["x", "to"], ["y"]),
    ]
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    graph = assert_agrees(make(nodes, {"x": (2, 3, 4)}, ["y"], weights), {"x": normal(2, 3, 4)}, tmp_path)
    assert kinds(graph) == []
    assert not graph.values


def test_sequences_leave_a_split(tmp_path: Path) -> None:
    nodes = [
        make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1),
        make_node("SequenceAt", ["parts", "one"], ["b"]),
        make_node("SequenceAt", ["parts", "zero"], ["a"]),
        make_node("Mul", ["a", "b"], ["y"]),
    ]
    weights = {"sizes": np.array([2, 2]), "zero": np.array(0), "one": np.array(1)}
    graph = assert_agrees(make(nodes, {"x": (3, 4)}, ["y"], weights), {"x": normal(3, 4)}, tmp_path)
    assert kinds(graph) == ["Split", "Mul"]


def test_quantized_weights_become_float_parameters(tmp_path: Path) -> None:
    nodes = [
        make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], axis=0),
        make_node("Conv", ["x", "w"], ["y"]),
    ]
    weights = {
        "q": np.arange(-9, 9, dtype=np.int8).reshape(2, 1, 3, 3),
        "scale": np.array([0.5, 0.25], np.float32),
        "zero": np.array([1, 0], np.int8),
    }
    graph = assert_agrees(
        make(nodes, {"x": (1, 1, 5, 5)}, ["y"], weights, opset=19), {"x": normal(1, 1, 5, 5)}, tmp_path
    )
    assert parameters(graph) == {"q"}


def test_softmax_before_operator_set_13_joins_the_trailing_axes(tmp_path: Path) -> None:
    from tests.frontend.support import evaluate

    x = normal(2, 3, 4)
    graph = load(save(make([make_node("Softmax", ["x"], ["y"], axis=1)], {"x": x.shape}, ["y"], opset=9), tmp_path))
    e = np.exp(x.reshape(2, 12))
    np.testing.assert_allclose(
        evaluate(graph, {"x": x})["y"], (e / e.sum(1, keepdims=True)).reshape(x.shape), rtol=1e-5
    )


def test_token_inputs_become_i32(tmp_path: Path) -> None:
    model = make(
        [make_node("Gather", ["table", "x"], ["y"])], {"x": (TensorProto.INT64, (2, 3))}, ["y"], {"table": normal(7, 4)}
    )
    graph = assert_agrees(model, {"x": np.array([[0, 6, 2], [1, 1, 5]])}, tmp_path)
    assert graph.tensors["x"].dtype == "i32"
    assert parameters(graph) == {"table"}


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    function = onnx.helper.make_function(
        "mine", "Twice", ["a"], ["b"], [make_node("Add", ["a", "a"], ["b"])], [onnx.helper.make_opsetid("", 17)]
    )
    model = make([make_node("Twice", ["x"], ["y"], domain="mine")], {"x": (2, 3)}, ["y"])
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    model.functions.append(function)
    assert kinds(assert_agrees(model, {"x": normal(2, 3)}, tmp_path)) == ["Add"]
