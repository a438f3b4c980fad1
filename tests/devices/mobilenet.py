"""MobileNetV2 (Sandler et al., 2018), whose training steps have been published for several devices."""

from __future__ import annotations

from poetc.graph import Fill, Graph, Role, TensorType
from poetc.ops import Builder

_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(batch: int, size: int, width: float = 1.0, classes: int = 1000) -> Graph:
    """Table 2 of the paper: expansion, channels, repeats, stride of a bottleneck. Only the work counts."""
    b = Builder()

    def parameter(name: str, *shape: int, role: Role = Role.PARAMETER) -> str:
        return b.add_tensor(b.fresh(name), TensorType(shape), role, Fill("zeros"))

    def convolution(x: str, channels: int, kernel: int, stride: int, group: int = 1, relu: bool = True) -> str:
        pad = kernel // 2
        geometry = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1), "group": group}
        weight = parameter("weight", channels, b.type(x).shape[1] // group, kernel, kernel)
        x = b.emit1("Conv", [x, weight], geometry)
        moments = [parameter(name, channels, role=Role.STATISTIC) for name in ("mean", "var")]
        affine = [parameter(name, channels) for name in ("scale", "bias")]
        normal = {"epsilon": 1e-5, "training": False, "momentum": 0.9}
        x = b.emit1("BatchNormApply", [x, *moments, *affine], normal)
        return b.emit1("Clip", [x], {"min": 0.0, "max": 6.0}) if relu else x

    def scaled(channels: int) -> int:
        return max(8, int(channels * width + 4) // 8 * 8)

    x = b.add_tensor("image", TensorType((batch, 3, size, size)), Role.INPUT)
    x = convolution(x, scaled(32), 3, 2)
    for expansion, channels, repeats, first_stride in _BLOCKS:
        for repeat in range(repeats):
            shortcut, inner = x, b.type(x).shape[1] * expansion
            stride = first_stride if repeat == 0 else 1
            if expansion > 1:
                x = convolution(x, inner, 1, 1)
            x = convolution(x, inner, 3, stride, group=inner)
            x = convolution(x, scaled(channels), 1, 1, relu=False)
            if b.type(x).shape == b.type(shortcut).shape:
                x = b.emit1("Add", [shortcut, x])
    x = convolution(x, 1280 if width <= 1 else scaled(1280), 1, 1)
    x = b.emit1("ReduceMean", [x], {"axes": (2, 3), "keepdims": False})
    weight, bias = parameter("fc.weight", classes, b.type(x).shape[1]), parameter("fc.bias", classes)
    y = b.emit1("MatMul", [x, weight, bias], {"trans_a": False, "trans_b": True, "alpha": 1.0})
    return Graph("mobilenet_v2", b.tensors, tuple(b.operators), ("image",), (y,), b.values)
