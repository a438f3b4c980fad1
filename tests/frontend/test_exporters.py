"""What exporters write every day: guards around softmax, three spatial axes, initial states of a fixed batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc.errors import UnsupportedModelError, UsageError
from poetc.frontend import load
from tests.frontend.support import assert_agrees, evaluate, kinds, make, normal, save
from tests.frontend.test_node_gradients import disagreements

# --- rows of a softmax in which nothing may be looked at ---


def attention(mask: np.ndarray | None) -> onnx.ModelProto:
    """As PyTorch 2.13's exporter writes scaled_dot_product_attention; a mask of None is an input."""
    nodes = [
        make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        make_node("MatMul", ["x", "k"], ["products"]),
        make_node("Where", ["mask", "zero", "least"], ["added"]),
        make_node("Add", ["products", "added"], ["scores"]),
        make_node("Softmax", ["scores"], ["shares"], axis=-1),
        make_node("IsNaN", ["shares"], ["guard"]),
        make_node("Where", ["guard", "zero", "shares"], ["safe"]),
        make_node("MatMul", ["safe", "x"], ["y"]),
    ]
    weights = {"zero": np.array(0, np.float32), "least": np.array(-np.inf, np.float32)}
    inputs: dict[str, Any] = {"x": (1, 3, 4)}
    if mask is None:
        inputs["mask"] = (TensorProto.BOOL, (1, 3, 3))
    else:
        weights["mask"] = mask
    return make(nodes, inputs, ["y"], weights)


def test_a_guard_against_rows_that_are_hidden(tmp_path: Path) -> None:
    mask = np.array([[[True, False, True], [False, False, False], [True, True, True]]])
    feeds = {"x": normal(1, 3, 4), "mask": mask}
    with np.errstate(invalid="ignore"):  # onnx's own softmax of such a row
        graph = assert_agrees(attention(None), feeds, tmp_path)
        hidden = assert_agrees(attention(mask), {"x": feeds["x"]}, tmp_path)
    assert not evaluate(graph, feeds)["y"][0, 1].any()
    assert disagreements(graph, feeds) == (1, [])
    assert disagreements(hidden, {"x": feeds["x"]}) == (1, [])


def test_a_guard_that_guards_against_nothing_is_left_out(tmp_path: Path) -> None:
    causal = np.tri(3, dtype=np.bool_)[None]
    graph = assert_agrees(attention(causal), {"x": normal(1, 3, 4)}, tmp_path)
    assert kinds(graph) == ["MatMul", "Add", "Softmax", "MatMul"]


def test_is_nan_and_is_inf(tmp_path: Path) -> None:
    x = np.array([[1, np.nan, np.inf, -np.inf, 0]], np.float32)
    for node in (
        make_node("IsNaN", ["x"], ["is"]),
        make_node("IsInf", ["x"], ["is"]),
        make_node("IsInf", ["x"], ["is"], detect_negative=0),
        make_node("IsInf", ["x"], ["is"], detect_positive=0),
        make_node("IsInf", ["x"], ["is"], detect_positive=0, detect_negative=0),
    ):
        nodes = [node, make_node("Cast", ["is"], ["y"], to=TensorProto.FLOAT)]
        assert_agrees(make(nodes, {"x": (1, 5)}, ["y"], opset=20), {"x": x}, tmp_path)


# --- pooling of volumes ---

VOLUMES: list[tuple[str, dict[str, Any]]] = [
    ("AveragePool", {"kernel_shape": [2, 2, 2]}),
    ("AveragePool", {"kernel_shape": [2, 3, 1], "strides": [2, 1, 2], "pads": [1, 1, 0, 0, 1, 0]}),
    ("AveragePool", {"kernel_shape": [2, 2, 2], "pads": [1] * 6, "count_include_pad": 1}),
    ("AveragePool", {"kernel_shape": [3, 2, 2], "strides": [2, 2, 2], "ceil_mode": 1}),
    ("MaxPool", {"kernel_shape": [2, 2, 3], "dilations": [2, 1, 1]}),
    ("MaxPool", {"kernel_shape": [2, 2, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}),
    ("GlobalAveragePool", {}),
]


@pytest.mark.parametrize(("op", "attributes"), VOLUMES)
def test_pooling_of_volumes(tmp_path: Path, op: str, attributes: dict[str, Any]) -> None:
    x = normal(1, 2, 4, 5, 4)
    model = make([make_node(op, ["x"], ["y"], **attributes)], {"x": x.shape}, ["y"], opset=19)
    graph = assert_agrees(model, {"x": x}, tmp_path)
    assert disagreements(graph, {"x": x}) == (1, [])


CONVOLUTIONS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({}, (3, 2, 2, 3, 2)),
    ({"pads": [1, 0, 1, 2, 1, 0], "strides": [2, 1, 2]}, (3, 2, 3, 2, 2)),
    ({"dilations": [2, 1, 2], "group": 2}, (4, 1, 2, 2, 2)),
    ({"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}, (3, 2, 3, 3, 3)),
    ({"kernel_shape": [1, 3, 3]}, (3, 2, 1, 3, 3)),
]


@pytest.mark.parametrize(("attributes", "filters"), CONVOLUTIONS)
def test_convolution_of_volumes(tmp_path: Path, attributes: dict[str, Any], filters: tuple[int, ...]) -> None:
    feeds = {"x": normal(2, 2, 4, 5, 4), "w": normal(*filters), "b": normal(filters[0])}
    model = make([make_node("Conv", list(feeds), ["y"], **attributes)], {k: v.shape for k, v in feeds.items()}, ["y"])
    model.ir_version = 10
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    graph = load(save(model, tmp_path))
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], session.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
    assert disagreements(graph, feeds) == (3, [])


@pytest.mark.parametrize("filters", [(3, 2, 5, 1, 1), (3, 1, 2, 2, 2), (3, 2, 2, 2)])
def test_a_convolution_that_does_not_fit_its_volume(tmp_path: Path, filters: tuple[int, ...]) -> None:
    model = make([make_node("Conv", ["x", "w"], ["y"])], {"x": (1, 2, 4, 4, 4)}, ["y"], {"w": normal(*filters)})
    with pytest.raises(UsageError, match=r"Conv 'y': .*(do not fit|the weight has shape)"):
        load(save(model, tmp_path))


def test_the_maximum_of_a_volume(tmp_path: Path) -> None:
    """onnx's reference makes an axis too many of it."""
    x = normal(1, 2, 4, 5, 4)
    graph = load(save(make([make_node("GlobalMaxPool", ["x"], ["y"])], {"x": x.shape}, ["y"]), tmp_path))
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], x.max(axis=(2, 3, 4), keepdims=True))


def test_places_of_maxima_in_volumes_are_refused(tmp_path: Path) -> None:
    model = make([make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[2, 2, 2])], {"x": (1, 1, 3, 3, 3)}, ["at"])
    with pytest.raises(UnsupportedModelError, match="the places of maxima in three spatial axes"):
        load(save(model, tmp_path))


# --- narrow floats and places of tokens ---


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_constants_of_narrow_floats_are_computed_with(tmp_path: Path, kind: int) -> None:
    """A converter to float16 leaves such constants between ones that were f32 already."""
    root = onnx.helper.make_tensor("root", kind, [1], [2.0])
    nodes = [
        make_node("Shape", ["x"], ["lengths"]),
        make_node("Slice", ["lengths", "first", "second"], ["length"]),
        make_node("Cast", ["length"], ["wide"], to=kind),
        make_node("Div", ["wide", "root"], ["scale"]),
        make_node("Cast", ["x"], ["narrow"], to=kind),
        make_node("Mul", ["narrow", "scale"], ["z"]),
        make_node("MatMul", ["z", "w"], ["y"]),
    ]
    weights = {"first": np.int64([0]), "second": np.int64([1])}
    model = make(nodes, {"x": (3, 4)}, ["y"], weights)
    model.graph.initializer.extend([root, onnx.helper.make_tensor("w", kind, [4, 2], [0.5] * 8)])
    graph, x = load(save(model, tmp_path)), normal(3, 4)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], x @ np.full((4, 2), 0.75), rtol=1e-5)
    assert graph.origins["w"].dtype == onnx.helper.tensor_dtype_to_np_dtype(kind).name
    assert any("of another float type than f32" in note for note in graph.notes)


def test_sums_of_integers_along_an_axis_are_exact(tmp_path: Path) -> None:
    """As RoBERTa counts its tokens; 2^24 is where sums of f32 stop to count."""
    nodes = [
        make_node("CumSum", ["x", "axis"], ["sums"]),
        make_node("Sub", ["sums", "many"], ["few"]),
        make_node("Cast", ["few"], ["y"], to=TensorProto.FLOAT),
    ]
    weights = {"axis": np.int64(1), "many": np.int64(2**24)}
    model = make(nodes, {"x": (TensorProto.INT64, (2, 7))}, ["y"], weights)
    x = np.array([[2**24, 1, 1, 1, 0, 5, 1], [2**24, -3, 1, 1, 7, 7, 7]])
    np.testing.assert_array_equal(evaluate(load(save(model, tmp_path)), {"x": x})["y"], x.cumsum(1) - 2**24)


# --- states of the batch in the file ---


def recurrent(state: np.ndarray, *, computed: bool) -> onnx.ModelProto:
    """A GRU at batch 2 whose initial state is repeated along it; `computed`: to the batch of x, as traces do."""
    shape = [
        make_node("Shape", ["x"], ["lengths"]),
        make_node("Gather", ["lengths", "one"], ["batch"]),
        make_node("Concat", ["single", "batch", "hidden"], ["to"], axis=0),
    ]
    nodes = [
        *(shape if computed else []),
        make_node("Expand", ["state", "to"], ["h"]),
        make_node("GRU", ["x", "w", "r", "", "", "h"], ["", "last"], hidden_size=3),
        make_node("Neg", ["last"], ["y"]),
    ]
    weights = {"w": normal(1, 9, 4), "r": normal(1, 9, 3), "state": state, "one": np.array([1])}
    weights |= {"single": np.array([1]), "hidden": np.array([3])} if computed else {"to": np.array([1, 2, 3])}
    return make(nodes, {"x": (5, 2, 4)}, ["y"], weights, opset=14)


def test_an_initial_state_follows_the_batch(tmp_path: Path) -> None:
    state = normal(1, 1, 3)
    graph = load(save(recurrent(state, computed=False), tmp_path))
    x = normal(2, 5, 4).reshape(5, 2, 4)
    expected = evaluate(graph, {"x": x})["y"]
    # The leading axis is time there: what is asked for is a batch on the axis behind it.
    path = save(batch_first(recurrent(state, computed=False)), tmp_path)
    other = load(path, batch=3)
    assert other.tensors["y"].shape == (1, 3, 3)
    y = evaluate(other, {"x": np.concatenate([x, x[:, :1]], axis=1).transpose(1, 0, 2)})["y"]
    np.testing.assert_allclose(y[:, :2], expected, rtol=1e-6)
    np.testing.assert_allclose(y[:, 2], expected[:, 0], rtol=1e-6)


def batch_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """With x as [batch, time, features]."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    dims = result.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_value, dims[1].dim_value = 2, 5
    for node in result.graph.node:
        node.input[:] = ["turned" if i == "x" else i for i in node.input]
    result.graph.node.insert(0, make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]))
    return result


def test_an_initial_state_of_zeros_holds_no_batch(tmp_path: Path) -> None:
    model = batch_first(recurrent(np.zeros((1, 2, 3), np.float32), computed=True))
    assert load(save(model, tmp_path), batch=3).tensors["y"].shape == (1, 3, 3)


def test_a_batch_that_a_constant_holds_is_named(tmp_path: Path) -> None:
    model = batch_first(recurrent(normal(1, 2, 3), computed=False))
    with pytest.raises(UsageError, match=r"may hold its batch \(2\): use --batch 2, or export with a dynamic batch"):
        load(save(model, tmp_path), batch=3)
