"""Which tensors are the same bytes: a view shares the storage of its root."""

from __future__ import annotations

from poetc.graph import Graph
from poetc.ops._registry import spec


def view_roots(graph: Graph) -> dict[str, str]:
    """Maps every tensor to the tensor that owns its bytes (itself unless it is a view)."""
    roots = {name: name for name in graph.tensors}
    for op in graph.operators:
        if spec(op.kind).is_view:
            roots[op.outputs[0]] = roots[op.inputs[0]]
    return roots
