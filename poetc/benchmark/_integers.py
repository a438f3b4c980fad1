"""Training steps in integers, and with encodings of saved tensors, that run their kernels over a sweep of shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from poetc import passes, training
from poetc.graph import Attribute, DType, Fill, Graph, Role, TensorType, TrainingGraph
from poetc.ops import Builder
from poetc.ops.encoding import FORMATS
from poetc.training import RESCALES, TrainingOptions

_SCALE = 2.0**-5  # of all codes
_UNIT: dict[str, Attribute] = {"scale": _SCALE, "zero": 0}
CLASSES, SCANNED = 10, 6  # every so manieth network keeps a history of scans
# A layer is a convolution (outputs, kernel, stride, group, padded; outputs 0: depthwise), or a pool (kind, kernel,
# stride). It may also be a residual around the layer before, or a dense layer of so many outputs.
Layer = tuple[Any, ...]
_POINT, _SEPARABLE = ("conv", 64, (1, 1), 1, 1, False), ("conv", 0, (3, 3), 1, 0, True)
# (shape of the input, layers) of networks of which none is like those of demo/boards.
NETWORKS: tuple[tuple[tuple[int, ...], tuple[Layer, ...]], ...] = (
    (
        (1, 3, 24, 24),
        (
            *(("conv", 16, (3, 3), 1, 1, True), ("conv", 16, (3, 3), 1, 1, True), ("residual",), ("MaxPool", 3, 2)),
            *(("conv", 24, (3, 3), 2, 1, True), ("conv", 32, (1, 1), 2, 1, False), ("AveragePool", 3, 3)),
        ),
    ),
    (
        (2, 1, 20, 20),
        (
            *(("conv", 8, (5, 5), 1, 1, False), ("MaxPool", 2, 2), ("conv", 16, (5, 5), 1, 1, True)),
            *(("MaxPool", 2, 2), ("dense", 60), ("dense", 33)),
        ),
    ),
    (
        (1, 1, 40, 12),
        (
            *(("conv", 32, (8, 4), 2, 1, True), _SEPARABLE, ("conv", 48, (1, 1), 1, 1, False), _SEPARABLE),
            *(("conv", 40, (1, 1), 1, 1, False), ("AveragePool", 5, 5)),
        ),
    ),
    ((1, 64, 20, 6), (_SEPARABLE, _POINT, _SEPARABLE, _POINT, ("residual",), ("AveragePool", 3, 2))),
    (
        (4, 6, 9, 11),
        (
            *(("conv", 13, (3, 3), 1, 1, True), ("conv", 0, (5, 5), 2, 0, True), ("conv", 0, (7, 7), 1, 0, True)),
            *(("conv", 33, (1, 1), 1, 1, False), ("conv", 0, (3, 3), 2, 0, True), ("dense", 7)),
        ),
    ),
    (
        (2, 48, 8, 8),
        (
            *(("conv", 64, (3, 3), 1, 1, True), ("conv", 40, (1, 1), 1, 1, False), ("conv", 40, (3, 3), 1, 1, True)),
            *(("residual",), ("conv", 64, (3, 3), 2, 2, True)),
        ),
    ),
    (
        (3, 16, 12, 12),
        (
            *(_SEPARABLE, ("conv", 0, (3, 3), 2, 0, True), ("conv", 24, (1, 1), 1, 1, False)),
            *(("conv", 0, (5, 5), 1, 0, True), ("MaxPool", 3, 1), ("AveragePool", 2, 1)),
        ),
    ),
    ((8, 64), (("dense", 128), ("dense", 96))),
    ((1, 400), (("dense", 120), ("dense", 84))),
    ((16, 23), (("dense", 47), ("dense", 64), ("dense", 5))),
    (
        (1, 32, 1, 64),
        (("conv", 20, (1, 9), 1, 1, True), ("conv", 32, (1, 3), 2, 1, True), ("conv", 17, (1, 1), 1, 1, False)),
    ),
    (
        (2, 12, 16, 16),
        (
            ("MaxPool", 2, 2),
            ("conv", 16, (1, 1), 1, 1, False),
            ("conv", 64, (3, 3), 2, 1, True),
            ("conv", 64, (3, 3), 1, 1, True),
        ),
    ),
    ((1, 8, 6, 6), (("conv", 8, (3, 3), 1, 1, True), ("residual",), ("conv", 8, (3, 3), 1, 1, True), ("residual",))),
    ((3, 5, 9, 7), (("conv", 5, (1, 1), 1, 1, False), ("residual",), ("MaxPool", 2, 2), ("MaxPool", 3, 1))),
)


def integer_steps() -> Iterator[TrainingGraph]:
    """The steps of `NETWORKS` in integers, then one of floats with each format of saved tensors."""
    for number, (shape, layers) in enumerate(NETWORKS):
        options = TrainingOptions(precision="niti", rescale=RESCALES[number % SCANNED == SCANNED - 1])
        graph = _network(f"integers.{number}", shape, layers)
        yield passes.run_standard(training.build(training.in_precision(graph, options), options))
    for name in FORMATS:
        graph = _network(f"saved.{name}", *NETWORKS[1])
        step = passes.run_standard(training.build(graph, TrainingOptions()))
        yield passes.encoded(step, passes.offered(step, name))


def coded_steps() -> Iterator[TrainingGraph]:
    """The steps of `NETWORKS` on codes of 8 bits with a scale for each output (`--precision qas`)."""
    for number, (shape, layers) in enumerate(NETWORKS):
        options = TrainingOptions(precision="qas")
        yield passes.run_standard(training.build(_coded_network(f"codes.{number}", shape, layers), options))


def _coded_network(name: str, shape: Sequence[int], layers: Sequence[Layer]) -> Graph:
    """The graph that a QDQ model becomes: every layer has its own scales, and a rectifier is a lowest code."""
    random, b = np.random.default_rng(0), Builder()
    codes: dict[str, Attribute] = {"x_scale": _SCALE, "x_zero": 0, "scale": _SCALE, "zero": 0}
    rectified: dict[str, Attribute] = {**codes, "low": 0, "high": 127, "stops_low": 1, "stops_high": 0}

    def weights(*sizes: int) -> list[str]:
        w, scale, bias = (b.fresh(n) for n in ("weight", "weight:scale", "bias"))
        value = random.integers(-127, 128, sizes).astype(np.int8)
        b.add_tensor(w, TensorType(sizes, DType.I8), Role.PARAMETER, value)
        each = np.full(sizes[0], 1 / (64 * math.sqrt(math.prod(sizes[1:]))), np.float32)
        b.add_tensor(scale, TensorType(sizes[:1]), Role.CONSTANT, each)
        b.add_tensor(bias, TensorType(sizes[:1], DType.I32), Role.PARAMETER, np.zeros(sizes[0], np.int32))
        return [w, scale, bias]

    def dense(x: str, outputs: int, more: dict[str, Attribute]) -> str:
        size = b.type(x).elements // shape[0]
        if b.type(x).shape[1] != size:
            x = b.emit1("Reshape", [x], {"shape": (shape[0], size, 1, 1)})
        return b.emit1("QLinearConv", [x, *weights(outputs, size, 1, 1)], more)

    image = (*shape, 1, 1) if len(shape) == 2 else tuple(shape)
    first = b.add_tensor("x", TensorType(image), Role.INPUT)
    x = before = b.emit1("QuantizeLinear", [first], {"scale": _SCALE, "zero": 0})
    for kind, *numbers in layers:
        at = x
        if kind == "conv":
            outputs, (kernel_h, kernel_w), stride, group, padded = numbers
            channels = b.type(x).shape[1]
            outputs, group = outputs or channels, group or channels
            pads = (kernel_h // 2, kernel_w // 2, (kernel_h - 1) // 2, (kernel_w - 1) // 2) if padded else (0,) * 4
            attributes = {**rectified, "pads": pads, "strides": (stride,) * 2, "dilations": (1, 1), "group": group}
            x = b.emit1("QLinearConv", [x, *weights(outputs, channels // group, kernel_h, kernel_w)], attributes)
        elif kind == "residual":
            scales = {f"{operand}_{name}": value for operand in "ab" for name, value in _UNIT.items()}
            x = b.emit1("QLinearAdd", [x, before], {**rectified, **scales})
        elif kind == "dense":
            x = dense(x, numbers[0], rectified)
        else:
            attributes = {"kernel": (numbers[0],) * 2, "strides": (numbers[1],) * 2}
            x = b.emit(f"QLinear{kind}", [x], {**codes, **attributes} if kind == "AveragePool" else attributes)[0]
        before = at
    x = b.emit1("DequantizeLinear", [dense(x, CLASSES, codes)], {"scale": _SCALE, "zero": 0})
    y = b.emit1("Reshape", [x], {"shape": (shape[0], CLASSES)})
    return Graph(name, b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def _network(name: str, shape: Sequence[int], layers: Sequence[Layer]) -> Graph:
    b = Builder()

    def weight(*sizes: int) -> str:
        fresh = b.fresh("weight")
        return b.add_tensor(fresh, TensorType(sizes), Role.PARAMETER, Fill("normal", 0.2, seed_name=f"{name}/{fresh}"))

    def dense(x: str, outputs: int) -> str:
        size = b.type(x).elements // shape[0]
        if len(b.type(x).shape) > 2:
            x = b.emit1("Reshape", [x], {"shape": (shape[0], size)})
        return b.emit1("MatMul", [x, weight(size, outputs), weight(outputs)])

    x = before = b.add_tensor("x", TensorType(tuple(shape)), Role.INPUT)
    for kind, *numbers in layers:
        at = x
        if kind == "conv":
            outputs, (kernel_h, kernel_w), stride, group, padded = numbers
            channels = b.type(x).shape[1]
            outputs, group = outputs or channels, group or channels
            pads = (kernel_h // 2, kernel_w // 2, (kernel_h - 1) // 2, (kernel_w - 1) // 2) if padded else (0,) * 4
            attributes = {"pads": pads, "strides": (stride,) * 2, "dilations": (1, 1), "group": group}
            x = b.emit1(
                "Conv", [x, weight(outputs, channels // group, kernel_h, kernel_w), weight(outputs)], attributes
            )
            x = b.emit1("Relu", [x])
        elif kind == "residual":
            x = b.emit1("Relu", [b.emit1("Add", [x, before])])
        elif kind == "dense":
            x = b.emit1("Relu", [dense(x, numbers[0])])
        else:
            x = b.emit(kind, [x], {"kernel": (numbers[0],) * 2, "strides": (numbers[1],) * 2})[0]
        before = at
    y = dense(x, CLASSES)
    return Graph(name, b.tensors, tuple(b.operators), ("x",), (y,), b.values)
