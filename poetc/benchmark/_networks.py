"""Small networks whose training steps run every common kernel over a sweep of shapes.

A kernel is measured where it is used, in a training step. So its operands hold typical values: a ReLU is faster on data
of one sign. They are where the step before left them in the caches. Parts of many shapes share a step, because most of
the time goes into compiling; `Operator.source` tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from poetc.graph import Attribute, DType, Fill, Graph, Role, TensorType
from poetc.ops import Builder

# (channels, height, width) of the image that a convolutional network starts from: square ones, narrow ones
# (spectrograms), one row (time series).
IMAGES = (
    *(
        (3, 8, 8),
        (8, 16, 16),
        (4, 32, 32),
        (32, 8, 8),
        (16, 32, 32),
        (64, 14, 14),
        (128, 7, 7),
        (24, 56, 56),
        (256, 4, 4),
    ),
    *((64, 28, 28), (3, 96, 96), (32, 49, 10), (64, 25, 5), (9, 1, 128), (32, 1, 64)),
)
CLASSES = 10
ACTIVATIONS = ("Relu", "Clip", "HardSwish")
# The part of these that an emulator runs in a moment.
BOARD_IMAGES = ((3, 8, 8), (8, 16, 16), (4, 32, 32), (32, 8, 8), (16, 25, 5), (24, 14, 14), (9, 1, 128), (32, 1, 64))
BOARD_ROWS = ((1, 64), (8, 32), (8, 256), (16, 128), (32, 64), (64, 48))
# (batch, channels, outputs, height, width, (kernel_h, kernel_w), stride, group, padded, bias): numbers that the
# networks above do not vary. Outputs 0: depthwise.
CONVOLUTIONS = (
    *((1, 3, 16, 32, 32, (3, 3), 2, 1, True, False), (1, 3, 20, 28, 28, (5, 5), 1, 1, False, True)),
    *((2, 16, 33, 7, 7, (1, 1), 1, 1, False, False), (1, 6, 16, 14, 14, (5, 5), 1, 1, False, True)),
    *((1, 24, 40, 5, 5, (3, 3), 1, 1, True, True), (1, 17, 19, 9, 11, (3, 3), 1, 1, True, False)),
    *((3, 12, 10, 6, 6, (3, 3), 2, 1, True, True), (1, 32, 64, 4, 4, (1, 1), 1, 1, False, False)),
    *((1, 8, 8, 1, 64, (1, 9), 1, 1, True, False), (1, 3, 6, 40, 40, (7, 7), 2, 1, True, False)),
    *((1, 16, 16, 8, 8, (3, 3), 1, 2, True, False), (1, 64, 7, 8, 8, (1, 1), 1, 1, False, True)),
    *((4, 20, 50, 12, 12, (5, 5), 1, 1, False, True), (1, 48, 96, 2, 2, (3, 3), 1, 1, True, False)),
    *((1, 5, 3, 10, 10, (3, 3), 1, 1, True, True), (2, 9, 14, 1, 33, (1, 3), 2, 1, True, False)),
    *((1, 40, 80, 3, 3, (1, 1), 1, 1, False, False), (1, 3, 8, 21, 21, (3, 3), 1, 1, False, False)),
    *((5, 4, 12, 13, 6, (3, 5), 1, 1, True, False), (1, 30, 29, 4, 4, (3, 3), 2, 1, True, True)),
    *((4, 2, 4, 6, 6, (3, 3), 1, 1, True, False), (2, 3, 5, 5, 5, (3, 3), 1, 1, True, True)),
    *((1, 2, 3, 9, 9, (5, 5), 1, 1, True, False), (1, 4, 4, 5, 5, (3, 3), 2, 1, True, False)),
    *((2, 1, 6, 7, 7, (3, 3), 1, 1, False, True), (1, 3, 2, 12, 12, (3, 3), 1, 1, True, False)),
    *((1, 6, 8, 3, 3, (3, 3), 1, 1, True, False), (1, 2, 9, 1, 20, (1, 5), 1, 1, True, True)),
    *((3, 4, 1, 8, 8, (2, 2), 2, 1, False, False), (4, 4, 4, 6, 6, (3, 3), 1, 1, True, False)),
    *((1, 6, 6, 8, 8, (3, 3), 2, 2, True, False), (2, 4, 6, 5, 7, (1, 1), 1, 1, False, True)),
    *((1, 5, 12, 12, 8, (3, 3), 1, 1, True, False), (1, 6, 16, 18, 16, (3, 3), 1, 1, True, True)),
    *((1, 3, 8, 40, 16, (3, 3), 1, 1, True, False), (1, 7, 8, 11, 32, (3, 3), 1, 1, True, False)),
    *((1, 24, 24, 10, 8, (3, 3), 1, 1, True, False), (1, 4, 8, 33, 8, (3, 3), 1, 1, True, True)),
)
DEPTHWISE = (
    *((1, 8, 0, 16, 16, (7, 7), 1, 1, True, True), (1, 8, 0, 16, 16, (7, 7), 2, 1, True, False)),
    *((1, 24, 0, 8, 8, (5, 5), 1, 1, True, True), (2, 16, 0, 9, 9, (5, 5), 2, 1, True, False)),
    *((1, 40, 0, 4, 4, (3, 3), 1, 1, True, True), (1, 40, 0, 4, 4, (5, 5), 1, 1, True, False)),
    *((1, 48, 0, 4, 4, (7, 7), 1, 1, True, True), (1, 64, 0, 2, 2, (3, 3), 1, 1, True, False)),
    *((1, 64, 0, 2, 2, (5, 5), 1, 1, True, True), (1, 64, 0, 2, 2, (7, 7), 1, 1, True, False)),
    *((1, 16, 0, 25, 5, (3, 3), 1, 1, True, False), (1, 12, 0, 1, 50, (1, 5), 1, 1, True, False)),
    *((1, 16, 0, 12, 12, (3, 3), 2, 1, True, True), (1, 10, 0, 7, 7, (3, 3), 1, 1, True, False)),
    *((1, 6, 0, 33, 17, (3, 3), 1, 1, True, False), (3, 20, 0, 5, 5, (3, 3), 2, 1, True, True)),
    *((1, 32, 0, 4, 4, (5, 5), 2, 1, True, False), (1, 32, 0, 6, 6, (7, 7), 2, 1, True, True)),
    *((1, 8, 0, 28, 40, (5, 5), 1, 1, True, False), (1, 8, 0, 15, 15, (3, 3), 1, 1, False, False)),
    *((1, 64, 0, 1, 1, (3, 3), 1, 1, True, False), (1, 48, 0, 3, 3, (3, 3), 1, 1, True, False)),
    *((1, 40, 0, 4, 4, (3, 3), 1, 1, True, False), (1, 40, 0, 2, 2, (3, 3), 2, 1, True, False)),
    *((1, 24, 0, 4, 4, (3, 3), 2, 1, True, False), (1, 24, 0, 6, 6, (3, 3), 2, 1, True, False)),
    *((1, 16, 0, 8, 8, (3, 3), 2, 1, True, False), (1, 16, 0, 10, 10, (3, 3), 2, 1, True, False)),
    *((1, 24, 0, 9, 6, (3, 3), 1, 1, True, False), (1, 16, 0, 16, 16, (3, 3), 1, 1, True, False)),
    *((1, 24, 0, 8, 8, (3, 3), 1, 1, True, False), (1, 8, 0, 24, 24, (3, 3), 1, 1, True, True)),
)
# (rows, inputs, outputs) of a dense layer.
LAYERS = (
    *((1, 64, 1), (1, 400, 120), (1, 84, 10), (3, 50, 7), (5, 17, 33), (12, 96, 31), (33, 40, 9), (2, 128, 128)),
    *((1, 640, 16), (7, 256, 5), (16, 23, 47), (64, 48, 192), (9, 192, 48), (24, 65, 130), (4, 31, 6), (48, 12, 20)),
)
# Shapes for everything that goes over elements or rows.
SHAPES = ((1, 6, 5, 7), (2, 16, 1, 1), (1, 4, 9, 16), (3, 10, 2, 3), (1, 1, 12, 40), (1, 24, 1, 33), (2, 8, 8, 8))
# (batch, units) of recurrent layers.
CELLS = ((1, 8), (2, 33), (8, 32), (4, 100), (16, 20))
# (rows, width) of the input of a dense network or a transformer layer.
ROWS = ((1, 64), (8, 32), (8, 256), (16, 128), (32, 64), (64, 256), (128, 128), (64, 512))


Part = tuple[str, Callable[["GrowingNetwork"], str]]
FAR_BYTES = 4 << 20  # tensors of a forward pass that no second level of cache holds in training
MOST_COPIES, MOST_OPERATORS = 8, 300


def networks() -> Iterator[Graph]:
    """Every part as a network of its own, then, where it is small, in as many copies as are beyond the cache."""
    for number, (name, part) in enumerate(_parts()):
        alone = graph_of_parts(name, [part])
        yield alone
        size = sum(t.size_bytes for t in alone.tensors.values())
        copies = min(MOST_COPIES, FAR_BYTES // size, MOST_OPERATORS // len(alone.operators))
        if copies > 1 and (not name.startswith("image.") or number % len(ACTIVATIONS) == 0):
            yield graph_of_parts(name, [part] * copies)


def _parts() -> Iterator[tuple[str, Part]]:
    for number, image in enumerate(IMAGES):
        shape = "x".join(map(str, image))
        for activation in (*ACTIVATIONS[number % 3 :], *ACTIVATIONS[: number % 3]):  # the first is copied
            yield f"image.{activation}.{shape}", (shape, partial(convolutional, image, activation))
    for name, shapes, sweep in (*SWEEPS, *HOST_SWEEPS):
        for number, shape in enumerate(shapes):
            yield f"{name}.{number}", (f"{number}", partial(sweep, shape))
    for name, build in (("dense", dense), ("transformer", transformer)):
        for r, w in ROWS:
            yield f"{name}.{r}x{w}", (f"{r}x{w}", partial(build, r, w))


def graph_of_parts(name: str, parts: Sequence[tuple[str, Callable[[GrowingNetwork], str]]]) -> Graph:
    """One graph of all parts; each gives rows of CLASSES logits."""
    n, outputs = GrowingNetwork(name), []
    for part, build in parts:
        n.b.source = part
        outputs.append(build(n))
    n.b.source = ""
    y = n.b.emit1("Concat", outputs, {"axis": 0}) if len(outputs) > 1 else outputs[0]
    inputs = tuple(t.name for t in n.b.tensors.values() if t.role is Role.INPUT)
    return Graph(name, n.b.tensors, tuple(n.b.operators), inputs, (y,), n.b.values)


class GrowingNetwork:
    """A growing graph with seeded weights."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.b = Builder()

    def weight(self, *shape: int, role: Role = Role.PARAMETER, kind: str = "normal", value: float = 0.1) -> str:
        name = self.b.fresh("weight")
        return self.b.add_tensor(name, TensorType(shape), role, Fill(kind, value, seed_name=f"{self.name}/{name}"))

    def conv(self, x: str, channels: int, kernel: int, stride: int = 1, group: int = 1, *, bias: bool = False) -> str:
        pad = kernel // 2
        weight = self.weight(channels, self.b.type(x).shape[1] // group, kernel, kernel)
        more = [self.weight(channels)] if bias else []
        attributes: dict[str, Attribute] = {
            "strides": (stride,) * 2,
            "pads": (pad,) * 4,
            "dilations": (1, 1),
            "group": group,
        }
        return self.b.emit1("Conv", [x, weight, *more], attributes)

    def batch_norm(self, x: str) -> str:
        channels = self.b.type(x).shape[1]
        moments = [self.weight(channels, role=Role.STATISTIC, kind=kind) for kind in ("zeros", "ones")]
        affine = [self.weight(channels, kind=kind) for kind in ("ones", "zeros")]
        attributes = {"epsilon": 1e-5, "training": False, "momentum": 0.9}
        return self.b.emit1("BatchNormApply", [x, *moments, *affine], attributes)

    def linear(self, x: str, width: int) -> str:
        weights = [self.weight(width, self.b.type(x).shape[-1]), self.weight(width)]
        return self.b.emit1("MatMul", [x, *weights], {"trans_a": False, "trans_b": True, "alpha": 1.0})

    def input(self, *shape: int, dtype: DType = DType.F32) -> str:
        return self.b.add_tensor(self.b.fresh("x"), TensorType(shape, dtype), Role.INPUT)


def convolutional(image: tuple[int, int, int], activation: str, n: GrowingNetwork) -> str:
    """An inverted residual, a dense convolution with bias, max and average pooling, a classifier. Batch 2."""
    b = n.b
    limits: dict[str, Attribute] = {"min": 0.0, "max": 6.0} if activation == "Clip" else {}

    def act(x: str) -> str:
        return b.emit1(activation, [x], limits)

    channels = image[0]
    x = n.input(2, *image)
    h = act(n.batch_norm(n.conv(x, 2 * channels, 1)))
    h = act(n.batch_norm(n.conv(h, 2 * channels, 3, group=2 * channels)))
    h = n.batch_norm(n.conv(h, channels, 1))
    h = b.emit1("Add", [x, h])
    h = act(n.batch_norm(n.conv(h, channels, 3, bias=True)))
    h = act(n.batch_norm(n.conv(h, channels, 5, stride=2, group=channels)))
    h = act(n.batch_norm(n.conv(h, 2 * channels, 3, stride=2)))
    pooling = (min(2, image[1]), 2)
    window: dict[str, Attribute] = {"kernel": pooling, "strides": pooling, "pads": (0, 0, 0, 0), "ceil_mode": False}
    wide = act(n.conv(x, channels, 3, stride=1))
    pooled = b.emit("MaxPool", [wide], {**window, "dilations": (1, 1)})[0]
    average = b.emit1("AveragePool", [wide], {**window, "count_include_pad": False})
    merged = b.emit1("Concat", [pooled, average], {"axis": 1})
    merged = n.batch_norm(n.conv(merged, channels, 1))
    heads = [b.emit1("ReduceMean", [t], {"axes": (2, 3), "keepdims": False}) for t in (h, merged)]
    return n.linear(b.emit1("Concat", heads, {"axis": 1}), CLASSES)


def dense(rows: int, width: int, n: GrowingNetwork) -> str:
    """Four linear layers with the usual activations."""
    h = n.input(rows, width)
    for size, activation in ((2 * width, "Relu"), (width, "Tanh"), (width // 2, "Sigmoid"), (width, "Gelu")):
        attributes = {"approximate": "none"} if activation == "Gelu" else {}
        h = n.b.emit1(activation, [n.linear(h, size)], attributes)
    return n.linear(h, CLASSES)


def transformer(rows: int, width: int, n: GrowingNetwork) -> str:
    """One layer over two sequences of `rows` tokens: embedding, attention of four heads, layer norms, feed-forward."""
    b, heads = n.b, 4
    h = b.emit1("Gather", [n.weight(16 + 3 * rows, width), n.input(2, rows, dtype=DType.I32)], {"axis": 0})
    h = b.emit1("Add", [h, n.weight(rows, width)])

    def norm(t: str) -> str:
        return b.emit1("LayerNorm", [t, n.weight(width, kind="ones"), n.weight(width)], {"axis": 2, "epsilon": 1e-5})

    def split(t: str) -> str:
        shaped = b.emit1("Reshape", [n.linear(t, width)], {"shape": (2, rows, heads, width // heads)})
        return b.emit1("Transpose", [shaped], {"perm": (0, 2, 1, 3)})

    t = norm(h)
    q, k, v = (split(t) for _ in range(3))
    scores = b.emit1("MatMul", [q, k], {"trans_a": False, "trans_b": True, "alpha": (width // heads) ** -0.5})
    weights = b.emit1("Softmax", [scores], {"axis": 3})
    mixed = b.emit1("MatMul", [weights, v], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    mixed = b.emit1("Transpose", [mixed], {"perm": (0, 2, 1, 3)})
    h = b.emit1("Add", [h, n.linear(b.emit1("Reshape", [mixed], {"shape": (2, rows, width)}), width)])
    inner = b.emit1("Gelu", [n.linear(norm(h), 4 * width)], {"approximate": "none"})
    h = b.emit1("Add", [h, n.linear(inner, width)])
    return b.emit1("Reshape", [n.linear(norm(h), CLASSES)], {"shape": (2 * rows, CLASSES)})


def window(shape: tuple[int, int, int, int, int, tuple[int, int], int, int, bool, bool], n: GrowingNetwork) -> str:
    """One convolution of something that has a gradient."""
    batch, channels, outputs, height, width, kernel, stride, group, padded, bias = shape
    group = group if outputs else channels
    x = n.b.emit1("Add", [n.input(batch, channels, height, width), n.weight(channels, 1, 1)])
    pads = (kernel[0] // 2, kernel[1] // 2) * 2 if padded else (0,) * 4
    attributes: dict[str, Attribute] = {
        "strides": (stride if height > 1 else 1, stride),
        "pads": pads,
        "dilations": (1, 1),
        "group": group,
    }
    weights = [n.weight(outputs or channels, channels // group, *kernel)]
    weights += [n.weight(outputs or channels)] if bias else []
    h = n.b.emit1("Conv", [x, *weights], attributes)
    return n.linear(n.b.emit1("ReduceMean", [h], {"axes": (2, 3), "keepdims": False}), CLASSES)


def layer(shape: tuple[int, int, int], n: GrowingNetwork) -> str:
    """One dense layer of something that has a gradient, with and without a bias."""
    rows, inputs, outputs = shape
    x = n.b.emit1("Add", [n.input(rows, inputs), n.weight(inputs)])
    h = n.linear(x, outputs)
    attributes: dict[str, Attribute] = {"trans_a": False, "trans_b": False, "alpha": 1.0}
    return n.b.emit1("MatMul", [h, n.weight(outputs, CLASSES)], attributes)


def recurrent(shape: tuple[int, int], n: GrowingNetwork) -> str:
    """Three steps of an LSTM layer, two of a GRU layer behind it."""
    batch, hidden = shape
    x, h, cell = n.input(batch, hidden), "", ""
    for step in range(3):
        before = [n.linear(h, 4 * hidden), cell] if step else []
        h, cell, _ = n.b.emit("LstmCell", [n.linear(x, 4 * hidden), *before])
    for _ in range(2):
        h = n.b.emit1("GruCell", [n.linear(x, 3 * hidden), n.linear(h, 3 * hidden), h])
    return n.linear(n.b.emit1("Add", [h, cell]), CLASSES)


UNARY: tuple[tuple[str, dict[str, Attribute]], ...] = (
    ("LeakyRelu", {"alpha": 0.1}),
    ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    ("HardSwish", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("Gelu", {"approximate": "none"}),
    ("Silu", {}),
    ("Elu", {"alpha": 1.0}),
    ("Selu", {"alpha": 1.6732632, "gamma": 1.050701}),
    ("Celu", {"alpha": 1.0}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Mish", {}),
    ("Sin", {}),
    ("Cos", {}),
    ("Atan", {}),
    ("Exp", {}),
    ("Sqrt", {}),
    ("Log", {}),
    ("Reciprocal", {}),
    ("Tanh", {}),
    ("Sigmoid", {}),
    ("Erf", {}),
    ("Neg", {}),
    ("Abs", {}),
    ("Clip", {"min": 0.0, "max": 6.0}),
    ("Relu", {}),
    ("Affine", {"alpha": 0.5, "beta": 0.1}),
    ("Power", {"exponent": 2.0}),
)


def elements(shape: tuple[int, int, int, int], n: GrowingNetwork) -> str:
    """Every element-wise kernel, norms, pooling, movement and reductions on one shape."""
    b, (batch, channels, height, width) = n.b, shape
    x = b.emit1("Add", [n.input(*shape), n.weight(channels, 1, 1)])
    h = x
    for kind, attributes in UNARY:
        if kind in ("Sqrt", "Log", "Reciprocal"):  # of positive numbers
            h = b.emit1("Affine", [b.emit1("Sigmoid", [h], {})], {"alpha": 1.0, "beta": 0.5})
        h = b.emit1(kind, [h], attributes)
        # Numbers as in a network again, and gradients that do not vanish: denormal ones take much longer.
        h = b.emit1("Add", [b.emit1("Mul", [h, n.weight(channels, 1, 1, kind="ones")]), x])
    other = n.weight(*shape[1:], kind="ones")
    h = b.emit1("Sub", [h, b.emit1("Div", [x, other])])
    h = b.emit1("Mul", [b.emit1("Maximum", [h, other]), b.emit1("Minimum", [h, x])])
    h = b.emit1("Where", [b.emit1("Less", [h, x]), h, x])
    h = n.batch_norm(h)
    scale = [n.weight(channels, kind="ones"), n.weight(channels)]
    groups = 2 if channels % 2 == 0 else 1
    h = b.emit("GroupNorm", [h, *scale], {"groups": groups, "epsilon": 1e-5})[0]
    padded = b.emit1("Pad", [h], {"pads": (0, 0, 1, 2, 0, 0, 0, 1), "mode": "constant", "value": 0.0})
    h = b.emit1("Slice", [padded], {"starts": (0, 0, 1, 1), "sizes": shape, "steps": (1, 1, 1, 1)})
    halves = (
        b.emit("Split", [h], {"axis": 1, "sizes": (channels - channels // 2, channels // 2)}) if channels > 1 else [h]
    )
    h = b.emit1("Concat", list(reversed(halves)), {"axis": 1}) if channels > 1 else h
    sizes = (2 * height, width + 1)
    h = b.emit1("Resize", [h], {"mode": "linear", "sizes": sizes, "coordinates": "half_pixel"})
    nearest: dict[str, Attribute] = {"mode": "nearest", "sizes": (height, width), "coordinates": "asymmetric"}
    h = b.emit1("Resize", [h], {**nearest, "nearest": "floor"})
    for kernel, stride, pad, count in (((3, 3), (2, 2), 1, True), ((2, 2), (1, 1), 0, False)):
        if height < kernel[0] or width < kernel[1]:
            continue
        pooling: dict[str, Attribute] = {"kernel": kernel, "strides": stride, "pads": (pad,) * 4, "ceil_mode": False}
        largest = b.emit("MaxPool", [h], {**pooling, "dilations": (1, 1)})[0]
        h = b.emit1("Add", [largest, b.emit1("AveragePool", [h], {**pooling, "count_include_pad": count})])
    height, width = b.type(h).shape[2:]
    window: dict[str, Attribute] = {"kernel": (height, width), "strides": (1, 1), "pads": (0,) * 4, "ceil_mode": False}
    mean = b.emit1(
        "Reshape", [b.emit1("AveragePool", [h], {**window, "count_include_pad": False})], {"shape": (batch, channels)}
    )
    rows = b.emit1("Reshape", [h], {"shape": (batch * channels, height * width)})
    summed = b.emit1("ReduceSum", [b.emit1("Softmax", [rows], {"axis": 1})], {"axes": (1,), "keepdims": False})
    swapped = b.emit1("Transpose", [rows], {"perm": (1, 0)})
    swapped = b.emit1(
        "LayerNorm",
        [swapped, n.weight(batch * channels, kind="ones"), n.weight(batch * channels)],
        {"axis": 1, "epsilon": 1e-5},
    )
    more = b.emit1("ReduceSum", [swapped], {"axes": (0,), "keepdims": False})
    both = b.emit1("Reshape", [b.emit1("Add", [summed, more])], {"shape": (batch, channels)})
    return n.linear(b.emit1("Add", [mean, both]), CLASSES)


SWEEPS: tuple[tuple[str, Sequence[Any], Callable[[Any, GrowingNetwork], str]], ...] = (
    ("conv", CONVOLUTIONS, window),
    ("depthwise", DEPTHWISE, window),
    ("layer", LAYERS, layer),
    ("elements", SHAPES, elements),
    ("recurrent", CELLS, recurrent),
)


def unrolled(shape: tuple[str, int, int, int, int], n: GrowingNetwork) -> str:
    """An LSTM or a GRU over many steps, as the importer makes it."""
    kind, batch, length, features, hidden = shape
    b = n.b
    gates = {"lstm": 4, "gru": 3}[kind] * hidden
    again, bias = n.weight(gates, hidden), n.weight(gates)
    products: dict[str, Attribute] = {"trans_a": False, "trans_b": True, "alpha": 1.0}
    rows = b.emit(
        "Split", [n.linear(n.input(length * batch, features), gates)], {"axis": 0, "sizes": (batch,) * length}
    )
    h, cell = n.input(batch, hidden), n.input(batch, hidden)
    outputs = []
    for row in rows:
        if kind == "lstm":
            h, cell, _ = b.emit("LstmCell", [row, b.emit1("MatMul", [h, again], products), cell])
        else:
            h = b.emit1("GruCell", [row, b.emit1("MatMul", [h, again, bias], products), h])
        outputs.append(h)
    return n.linear(b.emit1("Concat", outputs, {"axis": 0}), CLASSES)


def logits(shape: tuple[int, ...], n: GrowingNetwork) -> str:
    """The input of a loss over many classes or pixels."""
    channels = shape[1]
    return n.b.emit1("Add", [n.input(*shape), n.weight(channels, *(1,) * (len(shape) - 2))])


# Shapes that boards have no room or no use for.
HOST_SWEEPS: tuple[tuple[str, Sequence[Any], Callable[[Any, GrowingNetwork], str]], ...] = (
    (
        "elements.large",
        ((1, 12, 20, 20), (2, 32, 24, 24), (1, 64, 8, 8), (4, 3, 40, 40), (1, 96, 2, 64), (1, 16, 60, 60)),
        elements,
    ),
    (
        "conv.large",
        (
            *((1, 24, 144, 56, 56, (1, 1), 1, 1, False, False), (1, 144, 24, 56, 56, (1, 1), 1, 1, False, False)),
            *((1, 3, 32, 112, 112, (3, 3), 2, 1, True, False), (1, 16, 96, 80, 80, (1, 1), 1, 1, False, False)),
            *((1, 512, 512, 4, 4, (3, 3), 1, 1, True, True), (1, 512, 512, 2, 2, (3, 3), 1, 1, True, True)),
            *((1, 256, 512, 4, 4, (3, 3), 1, 1, True, False), (1, 960, 160, 7, 7, (1, 1), 1, 1, False, False)),
            *((1, 160, 960, 7, 7, (1, 1), 1, 1, False, False), (1, 320, 1280, 4, 4, (1, 1), 1, 1, False, False)),
            *((1, 64, 64, 40, 40, (3, 3), 1, 1, True, False), (2, 128, 64, 16, 16, (3, 3), 1, 1, True, True)),
            *((1, 64, 64, 16, 16, (2, 2), 2, 1, False, True), (1, 32, 128, 24, 24, (2, 2), 2, 1, False, True)),
            *((1, 3, 64, 96, 96, (7, 7), 2, 1, True, False), (1, 64, 256, 28, 28, (3, 3), 1, 1, True, True)),
            *((1, 96, 0, 56, 56, (3, 3), 2, 1, True, False), (1, 144, 0, 40, 40, (5, 5), 1, 1, True, False)),
            *((8, 64, 64, 32, 32, (3, 3), 1, 1, True, False), (4, 256, 256, 8, 8, (3, 3), 1, 1, True, False)),
            *((2, 96, 192, 14, 14, (3, 3), 1, 1, True, False), (8, 512, 512, 4, 4, (3, 3), 1, 1, True, False)),
        ),
        window,
    ),
    (
        "layer.large",
        (
            *((1, 128, 640), (1, 640, 128), (1, 512, 1024), (1, 2048, 512), (1, 1024, 1000), (3, 576, 1024)),
            *((64, 512, 512), (2, 784, 300), (8, 256, 1000), (128, 192, 768)),
        ),
        layer,
    ),
    ("logits", ((1, 10), (32, 512), (64, 65), (1, 1000), (2, 4, 32, 32), (1, 2, 64, 64), (4, 21, 16, 16)), logits),
    (
        "unrolled",
        (
            *(("lstm", 1, 40, 9, 32), ("lstm", 4, 20, 16, 64), ("lstm", 2, 6, 64, 128), ("lstm", 16, 5, 40, 24)),
            *(("gru", 1, 30, 16, 24), ("gru", 3, 8, 40, 64), ("gru", 2, 6, 48, 100), ("gru", 8, 6, 12, 48)),
        ),
        unrolled,
    ),
)


def _board_parts() -> list[tuple[int, Part]]:
    """Parts of all families that a board can run in a moment, with the bytes of their tensors, smallest first."""
    parts: list[Part] = []
    for name, shapes, sweep in SWEEPS:
        parts += [(f"{name}.{i}", partial(sweep, shape)) for i, shape in enumerate(shapes)]
    for number, image in enumerate(BOARD_IMAGES):
        activation = ACTIVATIONS[number % len(ACTIVATIONS)]
        parts.append((f"conv.{activation}.{'x'.join(map(str, image))}", partial(convolutional, image, activation)))
    parts += [(f"dense.{r}x{w}", partial(dense, r, w)) for r, w in BOARD_ROWS]
    parts += [(f"transformer.{r}x{w}", partial(transformer, r, w)) for r, w in BOARD_ROWS]
    sized = [(sum(t.size_bytes for t in graph_of_parts(part[0], [part]).tensors.values()), part) for part in parts]
    return sorted(sized, key=lambda item: (item[0], item[1][0]))


def board_networks(most_bytes: int) -> Iterator[Graph]:
    """All parts, in graphs whose tensors take at most `most_bytes`, or of one part that takes more."""
    chosen: list[Part] = []
    total = number = 0
    for size, part in _board_parts():
        if chosen and total + size > most_bytes:
            yield graph_of_parts(f"boards.{number}", chosen)
            chosen, total, number = [], 0, number + 1
        chosen.append(part)
        total += size
    yield graph_of_parts(f"boards.{number}", chosen)


def board_network(most_bytes: int) -> tuple[Graph, int]:
    """The smallest parts in one graph, and how many bytes their tensors have.

    As many as have tensors of `most_bytes` together, at least one.
    """
    sized = _board_parts()
    chosen, total = [sized[0][1]], sized[0][0]
    for size, part in sized[1:]:
        if total + size > most_bytes:
            break
        chosen.append(part)
        total += size
    return graph_of_parts("sweep", chosen), total
