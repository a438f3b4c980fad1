"""Write autoencoder.onnx: windows of 8 samples of an accelerometer and a gyroscope, through 12 features, and back.

python demo/sensor/make_model.py autoencoder.onnx
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SAMPLES, AXES, FEATURES = 8, 6, 12


def make(batch: int = 4) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    size = SAMPLES * AXES

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = random.standard_normal(shape) / np.sqrt(shape[-1]) if len(shape) > 1 else np.zeros(shape)
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Gemm", ["window", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["features"]),
        helper.make_node("Gemm", ["features", "w2", "b2"], ["again"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "sensor",
        [helper.make_tensor_value_info("window", TensorProto.FLOAT, [batch, size])],
        [helper.make_tensor_value_info("again", TensorProto.FLOAT, [batch, size])],
        [weight("w1", FEATURES, size), weight("b1", FEATURES), weight("w2", size, FEATURES), weight("b2", size)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    onnx.save(make(), Path(sys.argv[1]))
