"""What `validate` lets pass and what it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import poetc

SIZE, CLASSES = 16, 5


def attention(path: Path) -> Path:
    """One head with a bias of its own on the keys, which softmax cancels: its gradient is zero."""
    random = np.random.default_rng(0)
    shapes = {"wq": (SIZE, SIZE), "wk": (SIZE, SIZE), "wv": (SIZE, SIZE), "bq": (SIZE,), "bk": (SIZE,), "bv": (SIZE,)}
    shapes |= {"wo": (SIZE, CLASSES), "bo": (CLASSES,)}
    weights = [
        numpy_helper.from_array((0.3 * random.normal(size=shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    weights.append(numpy_helper.from_array(np.float32(0.25), "scale"))
    nodes = []
    for name in "qkv":
        nodes.append(helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]))
        nodes.append(helper.make_node("Add", [f"{name}0", f"b{name}"], [name]))
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["raw"]),
        helper.make_node("Mul", ["raw", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["m"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["m", "wo"], ["l"]),
        helper.make_node("Add", ["l", "bo"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 12, SIZE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [4, CLASSES])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_the_rounding_noise_of_a_gradient_that_cancels_is_no_difference(tmp_path: Path) -> None:
    model = poetc.load(attention(tmp_path / "attention.onnx"))
    solution = model.solve(device="stm32f746", budget="80%", gap=1.0, time_limit_s=20)
    found = solution.validate()  # raises CheckFailed
    assert found["passed"] and found["bit_identical_to_keep_all"]
