"""Networks of boards with room: shapes of vision networks, and activations, that small boards do not run.

Every network comes twice in a row, so that it is measured with fused operators and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from poetc.benchmark._networks import CLASSES, Part, graph_of_parts, window
from poetc.benchmark._networks import GrowingNetwork as Network
from poetc.graph import Attribute, Graph

TIMES, TOGETHER = 2, 4  # of a network, and parts in one
ACTIVATIONS = ("Silu", "HardSwish", "LeakyRelu", "Clip", "Relu")
# (batch, channels, height, width, outputs, stride) of a block with two dense convolutions and a pointwise one.
BLOCKS = ((1, 3, 9, 9, 6, 1), (2, 8, 16, 16, 12, 1), (1, 16, 11, 7, 5, 1), (1, 4, 1, 65, 8, 1), (1, 24, 8, 8, 16, 1))
# More channels than pixels, so that products are turned.
TURNED = ((1, 256, 28, 28, 192, 2), (1, 320, 20, 20, 160, 2)), ((1, 128, 28, 28, 256, 2), (1, 192, 20, 20, 128, 2))
# (batch, channels, height, width, expansion, outputs, stride) of an inverted residual.
INVERTED = (
    *((1, 16, 40, 40, 6, 24, 2), (1, 8, 28, 28, 6, 8, 1), (2, 24, 20, 20, 6, 24, 1), (1, 32, 14, 14, 6, 64, 2)),
    *((1, 16, 56, 56, 1, 8, 1), (1, 64, 10, 10, 4, 96, 1), (1, 96, 7, 7, 6, 160, 1), (4, 8, 24, 24, 6, 16, 2)),
)
# As `CONVOLUTIONS`: few channels on large planes, and the layers of residual networks.
CONVOLUTIONS = (
    *((1, 3, 16, 48, 48, (3, 3), 2, 1, True, False), (1, 3, 32, 72, 72, (3, 3), 2, 1, True, False)),
    *((1, 8, 8, 24, 24, (3, 3), 1, 1, True, False), (1, 16, 16, 20, 20, (3, 3), 1, 1, True, False)),
    *((1, 8, 48, 36, 36, (1, 1), 1, 1, False, False), (1, 48, 8, 36, 36, (1, 1), 1, 1, False, False)),
    *((1, 16, 96, 28, 28, (1, 1), 1, 1, False, False), (1, 96, 16, 28, 28, (1, 1), 1, 1, False, False)),
    *((1, 24, 144, 20, 20, (1, 1), 1, 1, False, False), (1, 144, 24, 20, 20, (1, 1), 1, 1, False, False)),
    *((4, 12, 24, 16, 16, (3, 3), 1, 1, True, False), (1, 64, 64, 16, 16, (3, 3), 1, 1, True, False)),
    *((8, 64, 64, 8, 8, (3, 3), 1, 1, True, False), (1, 128, 128, 8, 8, (3, 3), 1, 1, True, False)),
    *((2, 256, 256, 4, 4, (3, 3), 1, 1, True, False), (1, 64, 128, 12, 12, (3, 3), 2, 1, True, False)),
    *((8, 6, 16, 12, 12, (5, 5), 1, 1, False, True), (4, 64, 64, 25, 5, (1, 1), 1, 1, False, False)),
)
# By Winograd's algorithm, and turned products of strided ones: they begin at larger operands than small boards have.
LARGE = (
    *((1, 64, 64, 32, 32, (3, 3), 1, 1, True, False), (4, 128, 128, 8, 8, (3, 3), 1, 1, True, True)),
    *((16, 32, 32, 16, 16, (3, 3), 1, 1, True, False), (8, 128, 128, 4, 4, (3, 3), 1, 1, True, False)),
    *((1, 96, 96, 28, 28, (3, 3), 1, 1, True, False), (4, 48, 64, 24, 24, (3, 3), 1, 1, True, False)),
    *((1, 256, 256, 8, 8, (3, 3), 1, 1, True, False), (16, 40, 56, 11, 13, (3, 3), 1, 1, True, False)),
    *((1, 48, 80, 31, 27, (3, 3), 1, 1, True, False), (6, 64, 32, 20, 14, (3, 3), 1, 1, True, False)),
    *((2, 128, 128, 14, 14, (3, 3), 2, 1, True, False), (8, 64, 128, 16, 16, (3, 3), 2, 1, True, False)),
    *((1, 512, 256, 7, 7, (1, 1), 2, 1, False, False), (4, 256, 512, 8, 8, (1, 1), 2, 1, False, False)),
    *((3, 160, 96, 17, 15, (3, 3), 2, 1, True, False), (1, 256, 320, 10, 10, (3, 3), 2, 1, True, False)),
    *((1, 64, 128, 28, 28, (3, 3), 2, 1, True, False), (2, 32, 32, 40, 40, (3, 3), 2, 1, True, False)),
    *((1, 32, 96, 44, 44, (3, 3), 2, 1, True, False), (2, 32, 64, 36, 30, (5, 5), 2, 1, True, False)),
)


def residual(shape: tuple[int, int, int, int, int, int], activation: str, summed: bool, n: Network) -> str:
    """Three convolutions, each with batch norm and an activation; with `summed` the second has a shortcut."""
    batch, channels, height, width, outputs, stride = shape
    limits: dict[str, Attribute] = {}
    if activation in ("Clip", "LeakyRelu"):
        limits = {"min": 0.0, "max": 6.0} if activation == "Clip" else {"alpha": 0.1}
    x = n.input(batch, channels, height, width)
    for number, (kernel, step) in enumerate(((3, stride), (1, 1), (3, stride))):
        h = n.batch_norm(n.conv(x, outputs, kernel, step))
        h = n.b.emit1("Add", [h, x]) if summed and number == 1 else h
        x = n.b.emit1(activation, [h], limits)
    return n.linear(n.b.emit1("ReduceMean", [x], {"axes": (2, 3), "keepdims": False}), CLASSES)


def inverted(shape: tuple[int, int, int, int, int, int, int], n: Network) -> str:
    """Behind a batch norm, so that the block's input has a gradient."""
    batch, channels, height, width, expansion, outputs, stride = shape
    limits: dict[str, Attribute] = {"min": 0.0, "max": 6.0}
    x = n.batch_norm(n.conv(n.input(batch, 3, height, width), channels, 3))
    inner = channels * expansion
    h = n.b.emit1("Clip", [n.batch_norm(n.conv(x, inner, 1))], limits)
    h = n.b.emit1("Clip", [n.batch_norm(n.conv(h, inner, 3, stride, group=inner))], limits)
    h = n.batch_norm(n.conv(h, outputs, 1))
    h = n.b.emit1("Add", [h, x]) if stride == 1 and outputs == channels else h
    return n.linear(n.b.emit1("ReduceMean", [h], {"axes": (2, 3), "keepdims": False}), CLASSES)


def roomy_networks() -> Iterator[Graph]:
    for name, parts in _parts():
        for _ in range(TIMES):
            yield graph_of_parts(name, parts)


def _parts() -> Iterator[tuple[str, list[Part]]]:
    for activation in ACTIVATIONS:
        for summed in (False, True):
            name = f"{'sum' if summed else 'plain'}.{activation}"
            yield name, [(str(i), partial(residual, shape, activation, summed)) for i, shape in enumerate(BLOCKS)]
    for number, shapes in enumerate(TURNED):
        yield f"turned.{number}", [(str(i), partial(residual, s, "Relu", False)) for i, s in enumerate(shapes)]
    blocks = [partial(inverted, block) for block in INVERTED]
    layers = [partial(window, layer) for layer in CONVOLUTIONS]
    large = [partial(window, layer) for layer in LARGE]
    for name, parts in (("inverted", blocks), ("vision", layers), ("large", large)):
        for first in range(0, len(parts), TOGETHER):
            yield f"{name}.{first}", [(str(i), part) for i, part in enumerate(parts[first : first + TOGETHER])]
