"""A problem as a graph of networkx, which its algorithms take and GraphML and GEXF hold."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx


def problem_network(problem: Any) -> networkx.DiGraph[str]:
    """Of a `Problem`: operators and tensors are nodes, and an edge leads along each operand.

    Every number and text of the problem is an attribute, a tuple a text. Nodes are "op 3" and "tensor 5".
    """
    import networkx  # takes long to import

    graph: networkx.DiGraph[str] = networkx.DiGraph(**_attributes(problem, "operators", "tensors"))
    for index, tensor in enumerate(problem.tensors):
        graph.add_node(f"tensor {index}", type="tensor", label=tensor.name, **_attributes(tensor, "name"))
    for index, op in enumerate(problem.operators):
        node = f"op {index}"
        graph.add_node(node, type="operator", label=op.name, **_attributes(op, "name", "inputs", "outputs"))
        changed = {p.input: p.output for p in op.in_place}
        for t in op.inputs:
            graph.add_edge(f"tensor {t}", node, in_place=t in changed)
        for t in op.outputs:
            graph.add_edge(node, f"tensor {t}", in_place=t in changed.values())
        for t in set(op.reads_store) - set(op.inputs):
            graph.add_edge(f"tensor {t}", node, in_place=False, streamed=True)
    return graph


def _attributes(value: Any, *without: str) -> dict[str, Any]:
    attributes = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in without}
    return {name: plain(item) for name, item in attributes.items() if item is not None}


def plain(value: Any) -> bool | int | float | str:
    """A value that GraphML has a type for; others as their text."""
    if isinstance(value, str):
        return str(value)
    return value if type(value) in (bool, int, float) else str(value)
