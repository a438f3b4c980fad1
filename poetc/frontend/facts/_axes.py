"""Axes through operators that move data."""

from __future__ import annotations

import math

from poetc.graph import Graph, Operator


def makers(graph: Graph) -> dict[str, Operator]:
    """The operator that makes each tensor."""
    return {t: op for op in graph.operators for t in op.outputs}


def tuple_of(op: Operator, name: str) -> tuple[int, ...]:
    value = op.attributes[name]
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


def int_of(op: Operator, name: str, default: int) -> int:
    value = op.attributes.get(name, default)
    assert isinstance(value, int)
    return value


def reshaped(before: tuple[int, ...], axis: int, after: tuple[int, ...]) -> int | None:
    """The axis of `after` that holds the elements of `axis` of `before`; None where it was split or merged."""
    left = math.prod(before[:axis])
    for k, length in enumerate(after):
        if length == before[axis] and math.prod(after[:k]) == left:
            return k
    return None
