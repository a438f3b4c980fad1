"""Small networks that onnxruntime quantises to QDQ, for training as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

CLASSES = 5
CODES = "codes"  # the input of `given_codes`


def residual(batch: int = 4) -> onnx.ModelProto:
    """A stem, a depthwise convolution with ReLU6, a shortcut, pools, a dense layer and a softmax."""
    nodes = [
        make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        make_node("Relu", ["c1"], ["r1"]),
        make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1], group=8),
        make_node("Clip", ["c2", "zero", "six"], ["r2"]),
        make_node("Conv", ["r2", "w3", "b3"], ["c3"]),
        make_node("Add", ["c3", "r1"], ["sum"]),
        make_node("Relu", ["sum"], ["r3"]),
        make_node("MaxPool", ["r3"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("GlobalAveragePool", ["p"], ["g"]),
        make_node("Flatten", ["g"], ["f"]),
        make_node("Gemm", ["f", "w4", "b4"], ["h"], transB=1),
        make_node("Softmax", ["h"], ["y"], axis=1),
    ]
    weights = {
        "w1": _normal(1, 8, 3, 3, 3) * 0.4, "b1": _normal(2, 8), "w2": _normal(3, 8, 1, 3, 3),
        "b2": _normal(4, 8) + 2, "w3": _normal(5, 8, 8, 1, 1), "b3": _normal(6, 8),
        "w4": _normal(7, CLASSES, 8), "b4": _normal(8, CLASSES),
        "zero": np.array(0, np.float32), "six": np.array(6, np.float32),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 3, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, CLASSES))],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def images(seed: int, batch: int = 4) -> Any:
    """Inputs of `residual`."""
    return _normal(100 + seed, batch, 3, 8, 8)


class _Samples:
    def __init__(self) -> None:
        self.rest: Iterator[dict[str, Any]] = iter([{"x": images(k)} for k in range(6)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.rest, None)


def quantised(folder: Path, activation: str = "QUInt8", per_channel: bool = True, form: str = "QDQ") -> Path:
    """`residual` as onnxruntime quantises it."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    source, out = folder / "float.onnx", folder / f"{activation}-{per_channel}-{form}.onnx"
    onnx.save(residual(), source)
    types = quantization.QuantType
    quantization.quantize_static(
        source, out, _Samples(), quant_format=getattr(quantization.QuantFormat, form), per_channel=per_channel,
        activation_type=getattr(types, activation), weight_type=types.QInt8,
    )  # fmt: skip
    return out


def given_codes(path: Path) -> Path:
    """The model of `path` with codes as its input, called CODES; it stands beside `path`."""
    model = onnx.load(path)
    graph = model.graph
    made = next(n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x")
    is_u8 = any(t.name == made.input[2] and t.data_type == TensorProto.UINT8 for t in graph.initializer)
    graph.node.remove(made)
    graph.input[0].name = CODES
    graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8 if is_u8 else TensorProto.INT8
    for node in graph.node:
        node.input[:] = [CODES if name == made.output[0] else name for name in node.input]
    onnx.save(model, path.with_suffix(".codes.onnx"))
    return path.with_suffix(".codes.onnx")
