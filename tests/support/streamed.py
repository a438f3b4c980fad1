"""Networks that need streamed operands, or encodings of saved tensors, in the RAM of the tests that train them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def dense(path: Path) -> Path:
    """Written to `path`: a dense layer of 147 kB behind a convolution, for any batch."""
    random = np.random.default_rng(0)
    shapes = {"w1": (16, 2, 3, 3), "b1": (16,), "w2": (64, 576), "b2": (64,), "w3": (5, 64)}
    weights = [
        numpy_helper.from_array((0.1 * random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["d"], transB=1),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "w3"], ["y"], transB=1),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["N", 2, 12, 12]), ("y", ["N", 5]))
    ]
    graph = helper.make_graph(nodes, "dense", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def rectified(path: Path) -> Path:
    """Written to `path`: convolutions whose rectified outputs may be kept as signs, for any batch."""
    random = np.random.default_rng(0)
    shapes = {"w1": (8, 1, 3, 3), "w2": (16, 8, 3, 3), "w3": (16, 16, 3, 3), "w4": (16, 5)}
    weights = [
        numpy_helper.from_array((0.2 * random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p2", "w3"], ["c3"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w4"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["N", 1, 16, 16]), ("y", ["N", 5]))
    ]
    graph = helper.make_graph(nodes, "rectified", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path
