"""A network whose largest weight does not fit the RAM of the tests that train it."""

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
