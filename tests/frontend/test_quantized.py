"""Quantised models train as float models: outputs lie within the quantisation error of onnxruntime's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc.errors import UnsupportedModelError, UsageError
from poetc.frontend import load
from poetc.graph import Role
from tests.frontend.support import evaluate, kinds, make, normal, parameters, save
from tests.frontend.test_microsoft import session

SCALE, ZERO = np.array(0.05, np.float32), np.array(100, np.uint8)
STEP = {"s": SCALE, "z": ZERO}


def network() -> onnx.ModelProto:
    """Convolutions with a ReLU and a ReLU6, a shortcut, pools, a product and a softmax."""
    nodes = [
        make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        make_node("Relu", ["c1"], ["r1"]),
        make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1], group=4),
        make_node("Clip", ["c2", "zero", "six"], ["r2"]),
        make_node("Conv", ["r2", "w3", "b3"], ["c3"]),
        make_node("Add", ["c3", "r1"], ["sum"]),
        make_node("MaxPool", ["sum"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("LeakyRelu", ["p"], ["l"], alpha=0.1),
        make_node("GlobalAveragePool", ["l"], ["g"]),
        make_node("Flatten", ["g"], ["f"]),
        make_node("Gemm", ["f", "w4", "b4"], ["h"], transB=1),
        make_node("Sigmoid", ["h"], ["y"]),
    ]
    weights = {
        "w1": normal(4, 3, 3, 3) * 0.4, "b1": normal(4), "w2": normal(4, 1, 3, 3), "b2": normal(4) + 2,
        "w3": normal(4, 4, 1, 1), "b3": normal(4), "w4": normal(5, 4), "b4": normal(5),
        "zero": np.array(0, np.float32), "six": np.array(6, np.float32),
    }  # fmt: skip
    model = make(nodes, {"x": (2, 3, 6, 6)}, ["y"], weights)
    model.ir_version = 10
    return model


class _Samples:
    def __init__(self) -> None:
        self.rest: Iterator[dict[str, Any]] = iter([{"x": normal(2, 3, 6, 6, seed=k)} for k in range(6)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.rest, None)


def quantised(folder: Path, form: str, activation: str = "QUInt8", per_channel: bool = False) -> Path:
    """The network as onnxruntime quantises it: dynamic, QDQ or QOperator."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    source, out = save(network(), folder), folder / "quantised.onnx"
    types = quantization.QuantType
    if form == "dynamic":
        quantization.quantize_dynamic(source, out, weight_type=types.QUInt8, per_channel=per_channel)
        return out
    quantization.quantize_static(
        source, out, _Samples(), quant_format=getattr(quantization.QuantFormat, form), per_channel=per_channel,
        activation_type=getattr(types, activation), weight_type=types.QInt8,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
def test_network_within_the_quantisation_error(tmp_path: Path, form: str, per_channel: bool) -> None:
    activation = "QInt8" if per_channel else "QUInt8"
    path = quantised(tmp_path, form, activation, per_channel)
    feeds = {"x": normal(2, 3, 6, 6, seed=1)}
    (exact,) = session(network()).run(None, feeds)
    (rounded,) = session(path).run(None, feeds)
    graph = load(path)
    (found,) = evaluate(graph, feeds).values()
    error = np.abs(rounded - exact).max()
    assert 0 < error < 0.05
    assert np.abs(found - rounded).max() < 1.5 * error
    assert np.abs(found - exact).max() < 1.5 * error  # its weights are still rounded
    assert sum(graph.tensors[n].role is Role.PARAMETER for n in graph.values) == 8
    # The exporter left out both; the file's ranges stand for them.
    assert [k for k in kinds(graph) if k in ("Relu", "Clip")] == ["Relu", "Clip"]
    assert any("quantised activations train as float numbers" in n for n in graph.notes)


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
def test_network_that_onnxruntime_optimised(tmp_path: Path, form: str) -> None:
    """With channels last, and operators of com.microsoft."""
    import onnxruntime

    path, saved = quantised(tmp_path, form), tmp_path / "optimised.onnx"
    session(path, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, saved)
    feeds = {"x": normal(2, 3, 6, 6, seed=1)}
    (before,), (after,) = (evaluate(load(p), feeds).values() for p in (path, saved))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def quantised_by(scale: float, zero: int, lowest: int, highest: int, x: np.ndarray) -> np.ndarray:
    q = np.clip(np.round(x / np.float32(scale)) + zero, lowest, highest)
    return np.asarray(((q - zero) * np.float32(scale)).astype(np.float32))


# name → (nodes between "q" and "r", both quantised with STEP; weights)
CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "add": ([make_node("QLinearAdd", ["q", "s", "z", "q", "s", "z", "s", "z"], ["r"], domain="com.microsoft")], {}),
    "multiply": (
        [make_node("QLinearMul", ["q", "s", "z", "k", "s", "z", "s", "z"], ["r"], domain="com.microsoft")],
        {"k": np.array([90, 120, 100, 110], np.uint8)},
    ),
    "softmax": (
        [make_node("QLinearSoftmax", ["q", "s", "z", "s", "z"], ["r"], domain="com.microsoft", axis=-1, opset=17)], {},
    ),
    "leaky": ([make_node("QLinearLeakyRelu", ["q", "s", "z", "s", "z"], ["r"], domain="com.microsoft", alpha=0.2)], {}),
    "concat": (
        [
            make_node(
                "QLinearConcat", ["s", "z", "q", "s", "z", "q", "s2", "z2"], ["r"], domain="com.microsoft", axis=1
            ),
        ],
        {"s2": np.array(0.1, np.float32), "z2": np.array(90, np.uint8)},
    ),
    "where": (
        [make_node("QLinearWhere", ["if", "q", "s", "z", "k", "s", "z", "s", "z"], ["r"], domain="com.microsoft")],
        {"if": np.array([True, False, True, False]), "k": np.array([90, 120, 100, 110], np.uint8)},
    ),
    "gemm": (
        [make_node("QGemm", ["q", "s", "z", "w", "sw", "zw", "b", "s", "z"], ["r"], domain="com.microsoft", transB=1)],
        {
            "w": np.arange(-10, 10, dtype=np.int8).reshape(5, 4), "sw": np.full(5, 0.02, np.float32),
            "zw": np.zeros(5, np.int8), "b": np.arange(5, dtype=np.int32) * 100,
        },
    ),
    "padded": (
        [make_node("Pad", ["q", "pads", "pad"], ["r"])],
        {"pads": np.array([0, 1, 0, 2]), "pad": np.array(9, np.uint8)},
    ),
    "integers": (
        [
            make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
            make_node("Mul", ["f", "s"], ["m"]),
            make_node("QuantizeLinear", ["m", "s", "z"], ["r"]),
        ],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operator_within_the_quantisation_error(tmp_path: Path, name: str) -> None:
    nodes, weights = CASES[name]
    ends = [make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), make_node("DequantizeLinear", ["r", "s", "z"], ["y"])]
    model = make([ends[0], *nodes, ends[1]], {"x": (3, 4)}, ["y"], {**STEP, **weights})
    model.ir_version = 10
    model.opset_import.add(domain="com.microsoft", version=1)
    x = np.round(normal(3, 4) / SCALE).clip(-40, 40).astype(np.float32) * SCALE  # exact in integers, and in range
    (rounded,) = session(model).run(None, {"x": x})
    found = evaluate(load(save(model, tmp_path)), {"x": x})["y"]
    np.testing.assert_allclose(found, rounded, atol=0.51 * SCALE, rtol=1e-5)


def test_integers_that_the_model_is_given(tmp_path: Path) -> None:
    """An input of 8 bits keeps its integers, and an output holds real numbers."""
    weights = {"s": SCALE, "z": np.array(-7, np.int8), "w": np.arange(-6, 6, dtype=np.int8).reshape(4, 3)}
    weights |= {"sw": np.full(3, 0.1, np.float32), "zw": np.zeros(3, np.int8)}
    node = make_node("QLinearMatMul", ["x", "s", "z", "w", "sw", "zw", "s", "z"], ["y"])
    model = make([node], {"x": (TensorProto.INT8, (2, 4))}, ["y"], weights)
    model.ir_version = 10
    x = np.array([[-9, -7, 0, 5], [3, 8, -20, -30]], np.int8)
    (integers,) = session(model).run(None, {"x": x})
    graph = load(save(model, tmp_path))
    real = SCALE * (integers.astype(np.float32) + 7)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], real, atol=0.51 * SCALE)
    assert parameters(graph) == {"w"}


def test_range_of_a_relu_that_the_exporter_left_out(tmp_path: Path) -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]),
        make_node("QuantizeLinear", ["h", "s", "low"], ["q"]),
        make_node("Reshape", ["q", "shape"], ["r"]),
        make_node("DequantizeLinear", ["r", "s", "low"], ["y"]),
    ]
    weights = {"w": normal(4, 3), "s": SCALE, "low": np.array(-128, np.int8), "shape": np.array([3, 2])}
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], weights), tmp_path))
    assert kinds(graph) == ["MatMul", "Relu"]
    x = normal(2, 4)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"].reshape(2, 3), np.maximum(x @ weights["w"], 0), rtol=1e-5)


SIGNED = {
    "attribute": [make_node("QuantizeLinear", ["h", "s"], ["q"], output_dtype=TensorProto.INT8)],
    "input": [
        make_node("QuantizeLinear", ["h", "s", "none"], ["p"]),
        make_node("QLinearAdd", ["p", "s", "", "p", "s", "", "s"], ["q"], domain="com.microsoft"),
    ],
}


@pytest.mark.parametrize("form", SIGNED)
def test_signed_integers_without_a_zero_point_are_no_relu(tmp_path: Path, form: str) -> None:
    """The type of the integers is in an attribute, or that of an input."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]),
        *SIGNED[form],
        make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    weights = {"w": normal(4, 3), "s": SCALE, "none": np.array(0, np.int8)}
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], weights, 21), tmp_path))
    assert "Relu" not in kinds(graph)
    x = normal(2, 4)
    times = {"attribute": 1, "input": 2}[form]
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], times * (x @ weights["w"]), rtol=1e-5)


def test_float_weights_behind_both_operators_stay_as_they_are(tmp_path: Path) -> None:
    """Training tools keep the float weight, and round it in the graph."""
    nodes = [
        make_node("QuantizeLinear", ["w", "sw", "zw"], ["q"], axis=0),
        make_node("DequantizeLinear", ["q", "sw", "zw"], ["v"], axis=0),
        make_node("MatMul", ["x", "v"], ["y"]),
    ]
    weights = {"w": normal(4, 3), "sw": np.full(4, 0.1, np.float32), "zw": np.zeros(4, np.int8)}
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"w"}
    np.testing.assert_array_equal(graph.values["w"], weights["w"])


def test_one_table_for_rows_and_for_a_product(tmp_path: Path) -> None:
    """Rows that move before they are dequantised, and the same integers in a product: one tied weight."""
    nodes = [
        make_node("Gather", ["t", "x"], ["rows"]),
        make_node("Transpose", ["rows"], ["turned"], perm=[0, 1]),
        make_node("DequantizeLinear", ["turned", "s", "z"], ["h"]),
        make_node("DequantizeLinear", ["t", "s", "z"], ["v"]),
        make_node("Transpose", ["v"], ["u"], perm=[1, 0]),
        make_node("MatMul", ["h", "u"], ["y"]),
    ]
    table = np.arange(20, dtype=np.uint8).reshape(5, 4)
    model = make(nodes, {"x": (TensorProto.INT64, (3,))}, ["y"], {"t": table, **STEP})
    x = np.array([1, 4, 0])
    graph = load(save(model, tmp_path))
    real = SCALE * (table.astype(np.float32) - 100)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], real[x] @ real.T, rtol=1e-5)
    assert parameters(graph) == {"t"}


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_product_with_weights_of_few_bits(tmp_path: Path, bits: int) -> None:
    import onnxruntime

    rows, columns, block = 20, 6, 16
    random, blocks = np.random.default_rng(0), 2
    weights = {
        "w": random.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8),
        "s": random.uniform(0.1, 0.2, columns * blocks).astype(np.float32),
        "z": random.integers(0, 256, columns * -(-blocks * bits // 8), np.uint8),
    }
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": block}
    model = make(
        [make_node("MatMulNBits", ["x", "w", "s", "z"], ["y"], domain="com.microsoft", **attributes)],
        {"x": (3, rows)}, ["y"], weights,
    )  # fmt: skip
    model.ir_version = 10
    model.opset_import.add(domain="com.microsoft", version=1)
    try:
        (expected,) = session(model).run(None, {"x": normal(3, rows)})
    except onnxruntime.capi.onnxruntime_pybind11_state.OrtException:
        pytest.skip(f"this onnxruntime has no product with {bits} bits")
    found = evaluate(load(save(model, tmp_path)), {"x": normal(3, rows)})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", [None, 0])
def test_codes_whose_file_is_absent_are_named(tmp_path: Path, seed: int | None) -> None:
    """As where `model.onnx.data` was left behind: no seeded numbers stand for them."""
    attributes = {"K": 16, "N": 6, "bits": 4, "block_size": 16}
    weights = {"w": np.zeros((6, 1, 8), np.uint8), "s": np.ones(6, np.float32)}
    node = make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
    model = make([node], {"x": (3, 16)}, ["y"], weights)
    model.opset_import.add(domain="com.microsoft", version=1)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    load(path)
    (tmp_path / "m.data").unlink()
    with pytest.raises(UnsupportedModelError, match=r"lie in 'm.data', which is absent; .* --frozen int4"):
        load(path, random_weights=seed)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([make_node("QuantizeLinear", ["x", "x", "z"], ["q"])], "QuantizeLinear 'q': the scale that is computed"),
        (
            [
                make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                make_node("BitShift", ["q", "z"], ["y"], direction="LEFT"),
            ],
            "BitShift 'y': the float form of this operator on quantised numbers",
        ),
        ([make_node("QLinearAdd", ["x"], ["y"], domain="com.microsoft")], "QLinearAdd 'y'.*(missing|malformed)"),
        ([make_node("QuantizeLinear", ["x", "none", "z"], ["q"])], "'none' is not above 0"),
        (
            [
                make_node("Constant", [], ["empty"]),
                make_node("Clip", ["x", "empty"], ["c"]),
                make_node("QuantizeLinear", ["c", "s", "z"], ["q"]),
            ],
            "Clip 'c': the Constant 'empty' holds no number",
        ),
        (
            [
                make_node("Constant", [], ["list"], value=[1, 2]),
                make_node("Clip", ["x", "list"], ["c"]),
                make_node("QuantizeLinear", ["c", "s", "z"], ["q"]),
            ],
            "Clip 'c': attribute 'value' is not a tensor",
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_node(tmp_path: Path, nodes: list[onnx.NodeProto], message: str) -> None:
    weights = {**STEP, "none": np.array(0, np.float32)}
    model = make(nodes, {"x": (2, 4)}, [nodes[-1].output[0]], weights)
    with pytest.raises((UnsupportedModelError, UsageError), match=message) as error:
        load(save(model, tmp_path))
    assert len(str(error.value).splitlines()) <= 2
