"""Small networks for small boards, as ONNX: an MLP, LeNet, DS-CNN, a slim ResNet, MobileNetV2. Weights from a seed.

    python demo/boards/networks.py NAME OUT.onnx        (mlp, lenet, lenet5, ds-cnn, resnet, mobilenet)

All take digits: [batch, 1, 8, 8], LeNet-5 [batch, 1, 28, 28], MobileNetV2 [batch, 1, 32, 32], and give ten logits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 10


class Network:
    """Adds one layer after another; `at` is the name of the last tensor, `channels` and `side` its shape."""

    def __init__(self, name: str, side: int, channels: int = 1) -> None:
        self.name, self.side, self.channels, self.at = name, side, channels, "image"
        self.input_shape = channels, side, side
        self._random = np.random.default_rng(1)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def _weight(self, name: str, *shape: int, fan_in: int) -> str:
        array = self._random.standard_normal(shape) * np.sqrt(2.0 / fan_in)
        return self._constant(name, array.astype(np.float32))

    def _constant(self, name: str, array: np.ndarray) -> str:
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def _node(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, [self.at, *inputs], [output], output, **attributes))
        self.at = output
        return output

    def conv(
        self,
        channels: int,
        kernel: int = 3,
        stride: int = 1,
        group: int = 1,
        norm: bool = False,
        padded: bool = True,
    ) -> Network:
        layer, pad = f"layer{len(self._nodes)}", kernel // 2 if padded else 0
        inputs = self.channels // group
        weights = [self._weight(f"{layer}.weight", channels, inputs, kernel, kernel, fan_in=inputs * kernel**2)]
        if not norm:
            weights.append(self._constant(f"{layer}.bias", np.zeros(channels, np.float32)))
        self._node("Conv", *weights, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=group)
        self.channels, self.side = channels, (self.side + 2 * pad - kernel) // stride + 1
        return self.norm() if norm else self

    def norm(self) -> Network:
        layer, n = f"layer{len(self._nodes)}", self.channels
        ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
        parts = (("scale", ones), ("bias", zeros), ("mean", zeros), ("var", ones))
        self._node("BatchNormalization", *(self._constant(f"{layer}.{p}", v) for p, v in parts))
        return self

    def relu(self) -> Network:
        self._node("Relu")
        return self

    def pool(self) -> Network:
        self._node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
        self.side //= 2
        return self

    def global_pool(self) -> Network:
        self._node("GlobalAveragePool")
        self.side = 1
        return self

    def dense(self, features: int) -> Network:
        if self.side:
            self._node("Flatten", axis=1)
            self.channels, self.side = self.channels * self.side**2, 0
        layer = f"layer{len(self._nodes)}"
        weight = self._weight(f"{layer}.weight", features, self.channels, fan_in=self.channels)
        self._node("Gemm", weight, self._constant(f"{layer}.bias", np.zeros(features, np.float32)), transB=1)
        self.channels = features
        return self

    def add(self, other: str) -> Network:
        self._node("Add", other)
        return self

    def model(self) -> onnx.ModelProto:
        self._nodes[-1].output[0] = "logits"
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *self.input_shape])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        onnx.checker.check_model(model)
        return model


def mlp() -> Network:
    """1.2 k parameters."""
    return Network("mlp", 8).dense(16).relu().dense(CLASSES)


def lenet() -> Network:
    """3.4 k parameters."""
    return Network("lenet", 8).conv(6).relu().pool().conv(16).relu().pool().dense(32).relu().dense(CLASSES)


def lenet5() -> Network:
    """For 28x28 images, 62 k parameters."""
    net = Network("lenet5", 28).conv(6, 5).relu().pool().conv(16, 5, padded=False).relu().pool()
    return net.dense(120).relu().dense(84).relu().dense(CLASSES)


def ds_cnn() -> Network:
    """Depthwise separable, as for keyword spotting; 5 k parameters."""
    net = Network("ds-cnn", 8).conv(24, norm=True).relu()
    for _ in range(3):
        net.conv(24, group=24, norm=True).relu().conv(24, kernel=1, norm=True).relu()
    return net.global_pool().dense(CLASSES)


def resnet() -> Network:
    """Two residual blocks, 12 k parameters."""
    net = Network("resnet", 8).conv(12, norm=True).relu()
    for channels, stride in ((12, 1), (24, 2)):
        start, width, side = net.at, net.channels, net.side
        net.conv(channels, stride=stride, norm=True).relu().conv(channels, norm=True)
        end = net.at
        if stride != 1 or width != channels:
            net.at, net.channels, net.side = start, width, side
            net.conv(channels, kernel=1, stride=stride, norm=True)
            start = net.at
        net.at = end
        net.add(start).relu()
    return net.global_pool().dense(CLASSES)


def mobilenet() -> Network:
    """MobileNetV2 of width 0.35 for 32x32: the second stride of the published one is 1 here; 0.4 M parameters."""
    net = Network("mobilenet", 32).conv(16, stride=2, norm=True).relu()
    for expansion, channels, repeats, stride in (
        (1, 8, 1, 1), (6, 8, 2, 1), (6, 16, 3, 2), (6, 24, 4, 2), (6, 32, 3, 1), (6, 56, 3, 2), (6, 112, 1, 1)
    ):  # fmt: skip
        for i in range(repeats):
            start, inputs = net.at, net.channels
            step = stride if i == 0 else 1
            if expansion != 1:
                net.conv(inputs * expansion, kernel=1, norm=True).relu()
            hidden = net.channels
            net.conv(hidden, stride=step, group=hidden, norm=True).relu().conv(channels, kernel=1, norm=True)
            if step == 1 and inputs == channels:
                net.add(start)
    return net.conv(448, kernel=1, norm=True).relu().global_pool().dense(CLASSES)


NETWORKS: dict[str, Callable[[], Network]] = {
    "mlp": mlp,
    "lenet": lenet,
    "lenet5": lenet5,
    "ds-cnn": ds_cnn,
    "resnet": resnet,
    "mobilenet": mobilenet,
}


def write(name: str, path: Path) -> Path:
    path.write_bytes(NETWORKS[name]().model().SerializeToString(deterministic=True))
    return path


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
