"""Operators of onnxruntime's optimizer: outputs are onnxruntime's, gradients agree with finite differences."""

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
from tests.frontend.support import evaluate, kinds, make, normal, save
from tests.frontend.test_node_gradients import disagreements

MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
TOKENS = np.array([[1, 4, 2, 0, 0], [3, 3, 1, 2, 4]], np.int32)
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]], np.int32)

# name → (operator, domain, values of the inputs ("": left out; integers are weights), attributes)
CASES: dict[str, tuple[str, str, list[Any], dict[str, Any]]] = {
    "gelu": ("Gelu", "m", [normal(3, 4)], {}),
    "bias_gelu": ("BiasGelu", "m", [normal(3, 4), normal(4)], {}),
    "fast_gelu": ("FastGelu", "m", [normal(3, 4)], {}),
    "fast_gelu_bias": ("FastGelu", "m", [normal(3, 4), normal(4)], {}),
    "quick_gelu": ("QuickGelu", "m", [normal(3, 4)], {"alpha": 1.5}),
    "matmul": ("FusedMatMul", "m", [normal(2, 3, 4), normal(2, 5, 4)], {"transB": 1, "alpha": 0.5}),
    "matmul_a": ("FusedMatMul", "m", [normal(2, 4, 3), normal(4, 5)], {"transA": 1}),
    "matmul_batch": ("FusedMatMul", "m", [normal(3, 2, 4), normal(4, 2, 5)], {"transBatchA": 1, "transBatchB": 1}),
    "matmul_both": (
        "FusedMatMul", "m", [normal(4, 2, 3), normal(5, 2, 4)],
        {"transA": 1, "transBatchA": 1, "transB": 1, "transBatchB": 1},
    ),
    "gemm": ("FusedGemm", "m", [normal(3, 4), normal(4, 5), normal(5)], {"activation": "Relu"}),
    "gemm_leaky": (
        "FusedGemm", "m", [normal(3, 4), normal(5, 4), normal(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1, "beta": 0.5},
    ),
    "conv": (
        "FusedConv", "m", [normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(3)],
        {"activation": "Clip", "activation_params": [0.0, 2.0]},
    ),
    "conv_sum": (
        "FusedConv", "m", [normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(3), normal(1, 3, 3, 3)],
        {"activation": "Relu", "kernel_shape": [3, 3]},
    ),
    "conv_hard": (
        "FusedConv", "m", [normal(1, 2, 5, 5), normal(3, 2, 3, 3)],
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ),
    "rms_norm": ("SimplifiedLayerNormalization", "", [normal(2, 3, 4), normal(4)], {"epsilon": 1e-3}),
    "skip_norm": (
        "SkipLayerNormalization", "m", [normal(2, 5, 4), normal(2, 5, 4, seed=1), normal(4), normal(4, seed=1)], {},
    ),
    "skip_norm_bias": (
        "SkipLayerNormalization", "m", [normal(2, 5, 4), normal(1, 5, 4), normal(4), "", normal(4, seed=2)],
        {"epsilon": 1e-2},
    ),
    "skip_rms_norm": (
        "SkipSimplifiedLayerNormalization", "m",
        [normal(2, 5, 4), normal(2, 5, 4, seed=1), normal(4), normal(4, seed=2)], {"epsilon": 1e-3},
    ),
    "embedding": (
        "EmbedLayerNormalization", "m",
        [TOKENS, SEGMENTS, normal(6, 4), normal(7, 4), normal(2, 4), normal(4), normal(4, seed=1), MASK],
        {"epsilon": 1e-3},
    ),
    "embedding_places": (
        "EmbedLayerNormalization", "m",
        [TOKENS, "", normal(6, 4), normal(7, 4), "", normal(4), normal(4, seed=1), "", SEGMENTS], {"epsilon": 1e-3},
    ),
    "attention": ("Attention", "m", [normal(2, 5, 4), normal(4, 12), normal(12)], {"num_heads": 2}),
    "attention_causal": (
        "Attention", "m", [normal(2, 5, 4), normal(4, 12), normal(12)], {"num_heads": 2, "unidirectional": 1},
    ),
    "attention_masked": ("Attention", "m", [normal(2, 5, 4), normal(4, 12), normal(12), MASK], {"num_heads": 2}),
    "attention_lengths": (
        "Attention", "m", [normal(2, 5, 4), normal(4, 12), normal(12), MASK.sum(1, dtype=np.int32)], {"num_heads": 2},
    ),
    "attention_sizes": (
        "Attention", "m", [normal(2, 5, 4), normal(4, 10), normal(10), "", "", normal(2, 2, 5, 5)],
        {"num_heads": 2, "qkv_hidden_sizes": [4, 4, 2], "scale": 0.7},
    ),
    "multi_head": (
        "MultiHeadAttention", "m", [normal(2, 5, 4), normal(2, 3, 4), normal(2, 3, 6)], {"num_heads": 2},
    ),
    "multi_head_bias": (
        "MultiHeadAttention", "m",
        [normal(2, 5, 4), normal(2, 5, 4, seed=1), normal(2, 5, 4, seed=2), normal(12), MASK], {"num_heads": 2},
    ),
    "multi_head_keys": (
        "MultiHeadAttention", "m",
        [normal(2, 5, 4), normal(2, 2, 3, 2), normal(2, 2, 3, 2, seed=1), "", "", normal(1, 2, 5, 3)], {"num_heads": 2},
    ),
}  # fmt: skip


def case_model(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    op, domain, values, attributes = CASES[name]
    feeds = {f"i{k}": v for k, v in enumerate(values) if not isinstance(v, str)}
    names = [f"i{k}" if f"i{k}" in feeds else "" for k in range(len(values))]
    outputs = ["y", "count"] if op == "EmbedLayerNormalization" else ["y"]  # onnxruntime wants both
    node = make_node(op, names, outputs, domain="com.microsoft" if domain else "", **attributes)
    types = {k: (onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()}
    model = make([node], types, ["y"])
    model.ir_version = 10
    model.opset_import.add(domain="com.microsoft", version=1)
    return model, feeds


def session(model: onnx.ModelProto | Path, level: Any = None, saved: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level or levels.ORT_DISABLE_ALL
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", CASES)
def test_operator_as_onnxruntime_computes_it(tmp_path: Path, name: str) -> None:
    model, feeds = case_model(name)
    (expected,) = session(model).run(None, feeds)
    graph = load(save(model, tmp_path))
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    floats = sum(v.dtype == np.float32 for v in feeds.values())
    assert disagreements(graph, feeds) == (floats, [])


def test_further_outputs(tmp_path: Path) -> None:
    values = CASES["embedding"][2]
    feeds = {f"i{k}": v for k, v in enumerate(values)}
    nodes = [
        make_node("EmbedLayerNormalization", list(feeds), ["e", "count", "sum"], domain="com.microsoft", epsilon=1e-3),
        make_node("SkipLayerNormalization", ["e", "sum", "i5", "i6"], ["s", "", "", "both"], domain="com.microsoft"),
        make_node("Attention", ["both", "w", "b", "count"], ["y"], domain="com.microsoft", num_heads=2),
    ]
    feeds |= {"w": normal(4, 12), "b": normal(12)}
    types = {k: (onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()}
    model = make(nodes, types, ["y", "s"])
    model.ir_version = 10
    model.opset_import.add(domain="com.microsoft", version=1)
    found = evaluate(load(save(model, tmp_path)), feeds)
    for name, expected in zip(["y", "s"], session(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


def test_constant_masks_are_no_operators(tmp_path: Path) -> None:
    model, feeds = case_model("attention_masked")
    model.graph.initializer.append(onnx.numpy_helper.from_array(MASK, "i3"))
    graph = load(save(model, tmp_path))
    assert "Where" not in kinds(graph) and "Greater" not in kinds(graph)
    (expected,) = session(model).run(None, feeds)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_of_the_optimizer_does_not_raise_the_operator_set(tmp_path: Path) -> None:
    """Softmax of operator set 11 takes all axes from the second on for one."""
    nodes = [
        make_node("LayerNormalization", ["x", "s", "b"], ["n"]),
        make_node("Softmax", ["n"], ["y"], axis=1),
    ]
    weights = {"s": normal(4), "b": normal(4, seed=1)}
    model = make(nodes, {"x": (2, 3, 4)}, ["y"], weights, opset=11)
    model.opset_import.add(domain="com.microsoft", version=1)
    model.ir_version = 10
    feeds = {"x": normal(2, 3, 4)}
    (expected,) = session(model).run(None, feeds)
    np.testing.assert_allclose(evaluate(load(save(model, tmp_path)), feeds)["y"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (make_node("MoE", ["x", "x"], ["y"], domain="com.microsoft"), "MoE 'y': this operator"),
        (make_node("Conv", ["x", "x"], ["y"], domain="com.microsoft.nchwc"), "ORT_ENABLE_EXTENDED"),
        (make_node("FusedGemm", ["x", "x"], ["y"], domain="com.microsoft", activation="Warp"), "activation 'Warp'"),
        (make_node("Attention", ["x3", "x"], ["y"], domain="com.microsoft", num_heads=1, do_rotary=1), "do_rotary"),
    ],
)
def test_refused(tmp_path: Path, node: onnx.NodeProto, message: str) -> None:
    model = make([node], {"x": (4, 4), "x3": (1, 4, 4)}, ["y"])
    with pytest.raises(UnsupportedModelError, match=r"(com\.microsoft|ORT_ENABLE)") as error:
        load(save(model, tmp_path))
    assert message in str(error.value)


def test_malformed(tmp_path: Path) -> None:
    node = make_node("Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=3)
    model = make([node], {"x": (1, 5, 4)}, ["y"], {"w": normal(4, 12), "b": normal(12)})
    with pytest.raises(UsageError, match="3 heads do not divide"):
        load(save(model, tmp_path))


def test_a_constant_operand_of_the_optimizers_operator(tmp_path: Path) -> None:
    """An operator of that domain whose inputs are all known is emitted: onnx cannot evaluate it."""
    nodes = [
        make_node("Gelu", ["w"], ["g"], domain="com.microsoft"),
        make_node("MatMul", ["x", "g"], ["y"]),
    ]
    model = make(nodes, {"x": (2, 3)}, ["y"], {"w": normal(3, 4)})
    feeds = {"x": normal(2, 3)}
    model.ir_version = 10
    model.opset_import.add(domain="com.microsoft", version=1)
    (expected,) = session(model).run(None, feeds)
    np.testing.assert_allclose(evaluate(load(save(model, tmp_path)), feeds)["y"], expected, rtol=1e-5)


def test_keys_and_values_beside_queries(tmp_path: Path) -> None:
    """onnxruntime computes these layouts on a GPU alone: they are compared with three tensors."""
    packed = normal(2, 5, 2, 3, 2)
    parts = [packed[:, :, :, k].reshape(2, 5, 4) for k in range(3)]
    forms = {
        "qkv": {"q": packed},
        "kv": {"q": parts[0], "k": packed[:, :, :, 1:]},
        "each": dict(zip("qkv", parts, strict=True)),
    }
    results = []
    for feeds in forms.values():
        node = make_node("MultiHeadAttention", list(feeds), ["y"], domain="com.microsoft", num_heads=2)
        graph = load(save(make([node], {k: v.shape for k, v in feeds.items()}, ["y"]), tmp_path))
        results.append(evaluate(graph, feeds)["y"])
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[1], results[2])


def test_an_optimized_file_trains_as_the_file_did(tmp_path: Path) -> None:
    """The same gradients at every level, whose operators differ."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["m"]),
        make_node("Add", ["m", "b"], ["a"]),
        make_node("Div", ["a", "root"], ["d"]),
        make_node("Erf", ["d"], ["e"]),
        make_node("Add", ["e", "one"], ["f"]),
        make_node("Mul", ["a", "f"], ["g"]),
        make_node("Mul", ["g", "half"], ["h"]),
        make_node("Add", ["h", "x"], ["r"]),
        make_node("LayerNormalization", ["r", "s", "t"], ["y"], epsilon=1e-5),
    ]
    weights = {"w": normal(8, 8), "b": normal(8), "s": normal(8, seed=1), "t": normal(8, seed=2)}
    weights |= {"root": np.float32(1.4142135), "one": np.float32(1), "half": np.float32(0.5)}
    model = make(nodes, {"x": (TensorProto.FLOAT, (2, 3, 8))}, ["y"], weights)
    model.ir_version = 10
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3, 8)))
    optimized = tmp_path / "optimized.onnx"
    session(model, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, optimized)
    left = {f"{n.domain}.{n.op_type}" for n in onnx.load(optimized).graph.node}
    assert {"com.microsoft.BiasGelu", "com.microsoft.SkipLayerNormalization"} & left
    feeds = {"x": normal(2, 3, 8)}
    whole, part = load(save(model, tmp_path)), load(optimized)
    np.testing.assert_allclose(evaluate(part, feeds)["y"], evaluate(whole, feeds)["y"], rtol=1e-5, atol=1e-6)
    assert disagreements(part, feeds) == (1, [])
