"""numpy broadcasting: shapes, and the sum that undoes it in a gradient."""

from __future__ import annotations

from collections.abc import Sequence

from poetc.ops._builder import Builder


def broadcast_shapes(kind: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape. ValueError naming the kind and the shapes if there is none."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wanted = {n for n in sizes if n != 1} or {1}
        if len(wanted) > 1:
            raise ValueError(f"{kind}: shapes {', '.join(map(str, shapes))} do not broadcast")
        result.append(wanted.pop())
    return tuple(result)


def reduce_to(b: Builder, tensor: str, shape: tuple[int, ...]) -> str:
    """Sum `tensor` over the axes along which something of `shape` was broadcast to it; itself if there are none."""
    source = b.type(tensor).shape
    if source == shape:
        return tensor
    padded = (1,) * (len(source) - len(shape)) + shape
    axes = tuple(i for i, (n, p) in enumerate(zip(source, padded, strict=True)) if n != p)
    if axes:
        tensor = b.emit1("ReduceSum", [tensor], {"axes": axes, "keepdims": 1})
    if b.type(tensor).shape != shape:
        tensor = b.emit1("Reshape", [tensor], {"shape": shape})
    return tensor
