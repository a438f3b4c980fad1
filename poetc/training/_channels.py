"""Weights of which a share of the input channels is trained: the input that is saved, and the place of an update.

The gradient of these columns of a weight needs these channels of its input alone. A copy of them is made in the forward
pass, so that a schedule keeps the copy and not the input. The update moves a copy of the columns, which goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from poetc.graph import Array, Attribute, DType, Graph, Operator, Role, TensorType, materialize
from poetc.ops import Builder
from poetc.training._layers import PRODUCTS, Layer, layers_of
from poetc.training._state import emit_update
from poetc.training._updates import Channels, Updates


@dataclass(frozen=True, slots=True)
class Part:
    """The trained channels of a weight: `channels` of its `axis`, ascending; `type` of the copy of them.

    `indices` is a constant of the graph that holds the channels, `like` a tensor of that type which nothing makes.
    """

    layer: Layer
    channels: tuple[int, ...]
    type: TensorType
    indices: str
    like: str

    def of_input(self, b: Builder, op: Operator, name: str) -> str:
        """Emit the copy of the channels of the input of `op`, one of the weight's operators."""
        axis = len(b.type(op.inputs[0]).shape) - 1 if op.kind == "MatMul" else 1
        return self._take(b, op.inputs[0], axis, name)

    def of_weight(self, b: Builder) -> str:
        """Emit a Gather of the trained columns of the weight; returns its output."""
        return self._take(b, self.layer.weight, self.layer.axis, b.fresh(self.like))

    def put_back(self, b: Builder, moved: str) -> str:
        """Emit the weight's next version, with the columns `moved`."""
        inputs = [self.layer.weight, self.indices, moved]
        return emit_update(b, "PutSlices", inputs, {"axis": self.layer.axis})[0]

    def _take(self, b: Builder, tensor: str, axis: int, name: str) -> str:
        shape = b.type(tensor).shape
        if self.channels != tuple(range(len(self.channels))):
            return b.emit("Gather", [tensor, self.indices], {"axis": axis}, outputs=[name])[0]
        sizes = tuple(len(self.channels) if k == axis else n for k, n in enumerate(shape))
        attributes: dict[str, Attribute] = {"starts": (0,) * len(shape), "sizes": sizes, "steps": (1,) * len(shape)}
        return b.emit("Slice", [tensor], attributes, outputs=[name])[0]


def declare_parts(b: Builder, graph: Graph, updates: Updates) -> dict[str, Part]:
    """The shares of channels that are trained (`--train PATTERN@1/4`), by weight. Adds their indices to `b`."""
    layers = layers_of(graph) if updates.channels else {}
    parts = {}
    for name, share in updates.channels.items():
        layer, shape, dtype = layers[name], graph.tensors[name].shape, graph.tensors[name].dtype
        channels = chosen_channels(layer, share, materialize(graph.values[name], graph.tensors[name].type))
        array = np.array(channels, np.int32)
        indices = b.add_tensor(b.fresh(f"{name}.channels"), TensorType(array.shape, DType.I32), Role.CONSTANT, array)
        type = TensorType(tuple(len(channels) if k == layer.axis else n for k, n in enumerate(shape)), dtype)
        like = b.add_tensor(b.fresh(f"{name}.part"), type, Role.CONSTANT)
        parts[name] = Part(layer, channels, type, indices, like)
    return parts


def chosen_channels(layer: Layer, share: Channels, weight: Array) -> tuple[int, ...]:
    """The input channels of a weight that are trained, ascending."""
    count = share.count(layer.inputs)
    if not share.largest:
        return tuple(range(count))
    squares = np.square(weight.astype(np.float64)).sum(tuple(k for k in range(weight.ndim) if k != layer.axis))
    return tuple(sorted(np.argsort(-squares, kind="stable")[:count].tolist()))


def part_of(parts: Mapping[str, Part], op: Operator) -> Part | None:
    """The part of the weight that `op` multiplies by, if it is trained in part."""
    return parts.get(op.inputs[1]) if op.kind in PRODUCTS else None
