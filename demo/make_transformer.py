"""Write a small vision transformer for 8 x 8 digits as ONNX: python demo/make_transformer.py OUT.onnx

Patches of 2 x 2 pixels, two blocks of 32 numbers a patch with four heads, a mean and a last layer. Its weights are
random: it stands for a model that a reader brings.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, PATCHES, CLASSES, BLOCKS = 32, 4, 16, 10, 2


class Writer:
    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int, value: float | None = None) -> str:
        bound = 1 / np.sqrt(shape[-1])
        array = self.random.uniform(-bound, bound, shape) if value is None else np.full(shape, value)
        self.tensors.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"constant.{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        weight = self.node("Transpose", self.weight(f"{name}.weight", outputs, inputs), perm=[1, 0])
        return self.node("Add", self.node("MatMul", x, weight), self.weight(f"{name}.bias", outputs, value=0))

    def norm(self, x: str, name: str) -> str:
        scale, shift = self.weight(f"{name}.weight", WIDTH, value=1), self.weight(f"{name}.bias", WIDTH, value=0)
        return self.node("LayerNormalization", x, scale, shift, axis=-1)

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def attention(self, x: str, name: str) -> str:
        parts = [self.linear(x, f"{name}.{part}", WIDTH, WIDTH) for part in ("query", "key", "value")]
        query, key, value = (self.reshape(p, 0, PATCHES, HEADS, WIDTH // HEADS) for p in parts)
        scale = self.constant(np.array((WIDTH // HEADS) ** -0.5, np.float32))
        scores = self.node(
            "MatMul", self.node("Transpose", query, perm=[0, 2, 1, 3]), self.node("Transpose", key, perm=[0, 2, 3, 1])
        )
        shares = self.node("Softmax", self.node("Mul", scores, scale), axis=-1)
        mixed = self.node("MatMul", shares, self.node("Transpose", value, perm=[0, 2, 1, 3]))
        joined = self.reshape(self.node("Transpose", mixed, perm=[0, 2, 1, 3]), 0, PATCHES, WIDTH)
        return self.linear(joined, f"{name}.out", WIDTH, WIDTH)

    def block(self, x: str, name: str) -> str:
        x = self.node("Add", x, self.attention(self.norm(x, f"{name}.norm1"), f"{name}.attention"))
        hidden = self.node("Gelu", self.linear(self.norm(x, f"{name}.norm2"), f"{name}.up", WIDTH, 2 * WIDTH))
        return self.node("Add", x, self.linear(hidden, f"{name}.down", 2 * WIDTH, WIDTH))

    def model(self) -> onnx.ModelProto:
        patch = self.weight("patch.weight", WIDTH, 1, 2, 2)
        image = self.node("Conv", "image", patch, self.weight("patch.bias", WIDTH, value=0), strides=[2, 2])
        x = self.node("Transpose", self.reshape(image, 0, WIDTH, PATCHES), perm=[0, 2, 1])
        x = self.node("Add", x, self.weight("position", 1, PATCHES, WIDTH))
        for k in range(BLOCKS):
            x = self.block(x, f"blocks.{k}")
        x = self.node("ReduceMean", self.norm(x, "norm"), self.constant(np.array([1], np.int64)), keepdims=0)
        head, bias = self.weight("head.weight", CLASSES, WIDTH), self.weight("head.bias", CLASSES, value=0)
        self.nodes.append(helper.make_node("Gemm", [x, head, bias], ["logits"], name="head", transB=1))
        image_info = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])
        graph = helper.make_graph(self.nodes, "transformer", [image_info], [logits], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def main() -> None:
    model = Writer().model()
    onnx.checker.check_model(model)
    onnx.save(model, sys.argv[1])


if __name__ == "__main__":
    main()
