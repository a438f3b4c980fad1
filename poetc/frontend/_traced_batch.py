"""The batch of an export, where the file has a symbolic batch but constants of Reshape hold the number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from poetc.frontend._importer import Value
from poetc.frontend._node import Node
from poetc.frontend._reading import read_tensor

_MOST_CANDIDATES = 4

Shapes = Mapping[str, tuple[int, ...]]


def batch_of(inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes) -> tuple[list[str], int] | None:
    """The inputs whose leading dimension is symbolic and is the batch, and the batch; None: there are none."""
    dims = {i.name: i.type.tensor_type.shape.dim for i in inputs}
    opened = [n for n, d in dims.items() if d and not d[0].HasField("dim_value")]
    if not opened:
        return None
    batch = shapes[opened[0]][0]
    return [n for n in opened if shapes[n][0] == batch], batch


def other_batches(nodes: Sequence[Node], initializers: Sequence[Value], batch: int) -> Iterator[int]:
    """The batches that constant shapes of Reshape may have been made for."""
    first = {shape[0] for _, shape in _reshapes(nodes, initializers)}
    yield from sorted(d for d in first if 0 < d != batch)[:_MOST_CANDIDATES]


def merging(
    nodes: Sequence[Node], initializers: Sequence[Value], shapes: Shapes, batch: int
) -> tuple[Node, tuple[int, ...]] | None:
    """The first Reshape that moves the batch into an axis of -1 behind a constant 1, and its constant."""
    constants = {v.name for v in initializers}
    for n, target in _reshapes(nodes, initializers):
        x = shapes.get(n.inputs[0], ())
        if len(x) > 1 and x[0] == batch > 1 == target[0] and -1 in target and n.inputs[0] not in constants:
            return n, target
    return None


def _reshapes(nodes: Sequence[Node], initializers: Sequence[Value]) -> Iterator[tuple[Node, tuple[int, ...]]]:
    known = {v.name: v.array for v in initializers}
    for n in nodes:
        for a in n.proto.attribute if n.op == "Constant" else ():
            if a.name == "value" and len(a.t.dims) == 1:
                known[n.outputs[0]] = read_tensor(a.t, Path())
        shape = known.get(n.inputs[1]) if n.op == "Reshape" and n.has_input(1) else None
        if isinstance(shape, np.ndarray) and shape.ndim == 1 and shape.size and shape.dtype.kind == "i":
            yield n, tuple(int(d) for d in shape)
