"""Small networks whose training steps run every common kernel over a sweep of shapes.

A kernel is measured where it is used, in a training step: its operands hold what they hold there (a ReLU is faster on
data of one sign), and are where the step before left them in the caches. Parts of many shapes share a step, because
most of the time goes into compiling; `Operator.source` tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

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
# (rows, width) of what a dense network or a transformer layer starts from.
ROWS = ((1, 64), (8, 32), (8, 256), (16, 128), (32, 64), (64, 256), (128, 128), (64, 512))


def networks(*, merged: bool = True) -> Iterator[Graph]:
    """All of them: few of many parts, or each part by itself, for boards with little RAM."""
    for activation in ("Relu", "Clip", "HardSwish"):
        parts = [("x".join(map(str, i)), partial(convolutional, i, activation)) for i in IMAGES]
        yield from _graphs(f"conv.{activation}", parts, merged)
    yield from _graphs("dense", [(f"{r}x{w}", partial(dense, r, w)) for r, w in ROWS], merged)
    yield from _graphs("transformer", [(f"{r}x{w}", partial(transformer, r, w)) for r, w in ROWS], merged)


Part = tuple[str, Callable[["_Network"], str]]


def _graphs(name: str, parts: Sequence[Part], merged: bool) -> Iterator[Graph]:
    for chosen in [parts] if merged else [[part] for part in parts]:
        yield _graph(name if merged else f"{name}.{chosen[0][0]}", chosen)


def _graph(name: str, parts: Sequence[Part]) -> Graph:
    """One graph of all parts; each gives rows of CLASSES logits."""
    n, outputs = _Network(name), []
    for part, build in parts:
        n.b.source = part
        outputs.append(build(n))
    n.b.source = ""
    y = n.b.emit1("Concat", outputs, {"axis": 0}) if len(outputs) > 1 else outputs[0]
    inputs = tuple(t.name for t in n.b.tensors.values() if t.role is Role.INPUT)
    return Graph(name, n.b.tensors, tuple(n.b.operators), inputs, (y,), n.b.values)


class _Network:
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


def convolutional(image: tuple[int, int, int], activation: str, n: _Network) -> str:
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


def dense(rows: int, width: int, n: _Network) -> str:
    """Four linear layers with the usual activations."""
    h = n.input(rows, width)
    for size, activation in ((2 * width, "Relu"), (width, "Tanh"), (width // 2, "Sigmoid"), (width, "Gelu")):
        attributes = {"approximate": "none"} if activation == "Gelu" else {}
        h = n.b.emit1(activation, [n.linear(h, size)], attributes)
    return n.linear(h, CLASSES)


def transformer(rows: int, width: int, n: _Network) -> str:
    """One layer over two sequences of `rows` tokens: embedding, attention of four heads, layer norms, feed-forward."""
    b, heads = n.b, 4
    h = b.emit1("Gather", [n.weight(64, width), n.input(2, rows, dtype=DType.I32)], {"axis": 0})
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
