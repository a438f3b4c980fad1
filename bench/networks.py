"""Networks of the papers that no folder of graphs here has: architectures alone, their weights absent.

    python -m bench.networks FOLDER      writes NAME.train.graph.onnx and NAME.legacy.graph.onnx of each

`poetc` takes them with `--random-weights`. In the first file batch norms are trained, in the second they are folded
into convolutions with biases. Layers, kernels and widths follow the papers: Howard et al. 2017, Simonyan and Zisserman
2015, He et al. 2016, Szegedy et al. 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench._command import main

OPSET = 17
SMALL_BYTES = 1024  # a smaller weight stands in the file


class _Net:
    """A graph that grows layer by layer. Every layer takes the name of a tensor, and gives that of its result."""

    def __init__(self, size: int, is_trained: bool) -> None:
        self.size, self.is_trained = size, is_trained
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, kind: str, inputs: Sequence[str], **attributes: object) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        extra = [f"{name}_mean", f"{name}_var"] if attributes.get("training_mode") else []
        self.nodes.append(helper.make_node(kind, list(inputs), [name, *extra], **attributes))
        return name

    def weight(self, *shape: int, value: float = 0.0) -> str:
        name = f"w{len(self.weights)}"
        if 4 * int(np.prod(shape)) <= SMALL_BYTES or len(shape) == 1:
            self.weights.append(numpy_helper.from_array(np.full(shape, value, np.float32), name))
            return name
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="absent.bin")
        self.weights.append(tensor)
        return name

    def conv(self, x: str, channels: tuple[int, int], kernel: object = 3, **options: object) -> str:
        """Convolution, batch norm and ReLU, `channels` in and out. `stride`, `pad`, `group`, `relu`, `norm`."""
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel  # type: ignore[misc]
        pad = options.get("pad", (kh // 2, kw // 2))
        ph, pw = (pad, pad) if isinstance(pad, int) else pad  # type: ignore[misc]
        stride, group = int(str(options.get("stride", 1))), int(str(options.get("group", 1)))
        has_norm = bool(options.get("norm", True)) and self.is_trained
        inputs = [x, self.weight(channels[1], channels[0] // group, kh, kw)]
        if not has_norm:
            inputs.append(self.weight(channels[1]))
        window = {"kernel_shape": [kh, kw], "strides": [stride] * 2, "pads": [ph, pw, ph, pw], "group": group}
        y = self.add("Conv", inputs, **window)
        if has_norm:
            values = [self.weight(channels[1], value=v) for v in (1.0, 0.0, 0.0, 1.0)]
            y = self.add("BatchNormalization", [y, *values], training_mode=1)
        return self.add("Relu", [y]) if options.get("relu", True) else y

    def pool(self, x: str, kernel: int, stride: int, pad: int = 0, kind: str = "MaxPool") -> str:
        return self.add(kind, [x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        return self.add("Gemm", [x, self.weight(outputs, inputs), self.weight(outputs)], transB=1)

    def head(self, x: str, channels: int, classes: int) -> str:
        return self.dense(self.add("Flatten", [self.add("GlobalAveragePool", [x])]), channels, classes)

    def model(self, output: str, classes: int) -> onnx.ModelProto:
        shape = [1, 3, self.size, self.size]
        ends = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)]
            for name, dims in (("input", shape), (output, [1, classes]))
        ]
        graph = helper.make_graph(self.nodes, "network", *ends, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def mobilenet_v1(net: _Net, classes: int) -> str:
    x, before = net.conv("input", (3, 32), 3, stride=2), 32
    first = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2))
    for width, stride in (*first, *[(512, 1)] * 5, (1024, 2), (1024, 1)):
        x = net.conv(x, (before, before), 3, stride=stride, group=before)
        x, before = net.conv(x, (before, width), 1), width
    return net.head(x, before, classes)


def vgg(blocks: Sequence[int]) -> Callable[[_Net, int], str]:
    def build(net: _Net, classes: int) -> str:
        x, before = "input", 3
        for count, width in zip(blocks, (64, 128, 256, 512, 512), strict=True):
            for _ in range(count):
                x, before = net.conv(x, (before, width), 3, norm=False), width
            x = net.pool(x, 2, 2)
        side = net.size // 32
        x, inputs = net.add("Flatten", [x]), 512 * side * side
        for _ in range(2 if side > 1 else 0):  # on CIFAR one layer of classes follows, as in most code
            x, inputs = net.add("Relu", [net.dense(x, inputs, 4096)]), 4096
        return net.dense(x, inputs, classes)

    return build


def resnet(blocks: Sequence[int]) -> Callable[[_Net, int], str]:
    def build(net: _Net, classes: int) -> str:
        is_small = net.size <= 64
        x, before = net.conv("input", (3, 64), 3 if is_small else 7, stride=1 if is_small else 2), 64
        x = x if is_small else net.pool(x, 3, 2, 1)
        for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True)):
            for number in range(count):
                stride = 2 if stage and not number else 1
                y = net.conv(x, (before, width), 3, stride=stride)
                y = net.conv(y, (width, width), 3, relu=False)
                past = x if before == width else net.conv(x, (before, width), 1, stride=stride, relu=False)
                x, before = net.add("Relu", [net.add("Add", [y, past])]), width
        return net.head(x, before, classes)

    return build


def inception_v3(net: _Net, classes: int) -> str:
    """Without its auxiliary classifier."""

    def chain(x: str, before: int, *layers: tuple[int, object]) -> str:
        for width, kernel in layers:
            x, before = net.conv(x, (before, width), kernel), width
        return x

    def reduced(x: str, before: int, *layers: tuple[int, object]) -> str:
        *first, (width, kernel) = layers
        x = chain(x, before, *first)
        return net.conv(x, (first[-1][0] if first else before, width), kernel, stride=2, pad=0)

    def pooled(x: str, before: int, width: int) -> str:
        mean = net.add("AveragePool", [x], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1], count_include_pad=1)
        return chain(mean, before, (width, 1))

    def join(*parts: str) -> str:
        return net.add("Concat", parts, axis=1)

    x = net.conv("input", (3, 32), 3, stride=2, pad=0)
    x = net.conv(net.conv(x, (32, 32), 3, pad=0), (32, 64), 3)
    x = net.conv(net.pool(x, 3, 2), (64, 80), 1)
    x, c = net.pool(net.conv(x, (80, 192), 3, pad=0), 3, 2), 192
    for width in (32, 64, 64):
        fives, threes = chain(x, c, (48, 1), (64, 5)), chain(x, c, (64, 1), (96, 3), (96, 3))
        x, c = join(chain(x, c, (64, 1)), fives, threes, pooled(x, c, width)), 224 + width
    x, c = join(reduced(x, c, (384, 3)), reduced(x, c, (64, 1), (96, 3), (96, 3)), net.pool(x, 3, 2)), 480 + c
    wide, tall = (1, 7), (7, 1)
    for w in (128, 160, 160, 192):
        once = chain(x, c, (w, 1), (w, wide), (192, tall))
        twice = chain(x, c, (w, 1), (w, tall), (w, wide), (w, tall), (192, wide))
        x, c = join(chain(x, c, (192, 1)), once, twice, pooled(x, c, 192)), 768
    sevens = reduced(x, c, (192, 1), (192, wide), (192, tall), (192, 3))
    x, c = join(reduced(x, c, (192, 1), (320, 3)), sevens, net.pool(x, 3, 2)), 1280
    for _ in range(2):
        once, twice = chain(x, c, (384, 1)), chain(x, c, (448, 1), (384, 3))
        spread = [chain(y, 384, (384, kernel)) for y in (once, twice) for kernel in ((1, 3), (3, 1))]
        x, c = join(chain(x, c, (320, 1)), *spread, pooled(x, c, 192)), 2048
    return net.head(x, c, classes)


NETWORKS: dict[str, tuple[Callable[[_Net, int], str], int, int]] = {  # by name: layers, pixels a side, classes
    "mobilenetv1_224": (mobilenet_v1, 224, 1000),
    **{
        f"{name}_{kind}": (build, size, classes)
        for name, build in (
            ("vgg11", vgg((1, 1, 2, 2, 2))),
            ("vgg16", vgg((2, 2, 3, 3, 3))),
            ("vgg19", vgg((2, 2, 4, 4, 4))),
            ("resnet18", resnet((2, 2, 2, 2))),
            ("resnet34", resnet((3, 4, 6, 3))),
        )
        for kind, size, classes in (("cifar", 32, 10), ("imagenet", 224, 1000))
    },
    "inceptionv3_299": (inception_v3, 299, 1000),
}


def write(name: str, folder: Path) -> None:
    """Both files of a network, where they are missing."""
    build, size, classes = NETWORKS[name]
    for kind, is_trained in (("train", True), ("legacy", False)):
        path = folder / f"{name}.{kind}.graph.onnx"
        if not path.exists():
            net = _Net(size, is_trained)
            path.write_bytes(net.model(build(net, classes), classes).SerializeToString())


def write_all(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        write(name, folder)


if __name__ == "__main__":
    main(write_all)
