"""An index of a graph's tensors, in which passes look up makers and readers."""

from __future__ import annotations

from poetc.graph import Graph, Operator, TrainingGraph
from poetc.ops import spec, view_roots


def readers_of(graph: Graph) -> dict[str, list[Operator]]:
    """By tensor, the operators that read it, in their order."""
    readers: dict[str, list[Operator]] = {name: [] for name in graph.tensors}
    for op in graph.operators:
        for tensor in dict.fromkeys(op.inputs):
            readers[tensor].append(op)
    return readers


class Indexed:
    """`graph` with tables: makers and readers of each tensor, places of operators, roots of views, and updates.

    A storage has at most one operator that updates it, since a second would read the replaced version (`check_graph`).
    """

    def __init__(self, graph: TrainingGraph) -> None:
        self.graph = graph
        self.maker = {t: op for op in graph.operators for t in op.outputs}
        self.readers = readers_of(graph)
        self.place = {op.name: i for i, op in enumerate(graph.operators)}
        self.roots = view_roots(graph)
        self.updated = {
            self.roots[op.inputs[i]]: self.place[op.name] for op in graph.operators for i, _ in spec(op.kind).must_alias
        }
