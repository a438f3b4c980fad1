"""A model or a training step as a graph of networkx."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx


def graph_network(graph: Any) -> networkx.DiGraph[str]:
    """Of a `Graph`: operators and tensors are nodes, named as in the graph, and an edge leads along each operand.

    Tensors have shape, dtype, role and bytes, operators kind, phase, ONNX nodes and attributes (as JSON). In a training
    step `updates` and `gradient` name the next version of state and the gradient of a parameter.
    """
    import networkx  # takes long to import

    network: networkx.DiGraph[str] = networkx.DiGraph(name=graph.name)
    updates, gradients = getattr(graph, "updates", {}), getattr(graph, "gradients", {})
    for name, tensor in graph.tensors.items():
        origin = graph.origins.get(name)
        network.add_node(
            f"tensor {name}",
            type="tensor",
            label=name,
            shape="x".join(map(str, tensor.shape)),
            dtype=tensor.dtype.value,
            role=tensor.role.value,
            size_bytes=tensor.size_bytes,
            is_input=name in graph.inputs,
            is_output=name in graph.outputs,
            updates=updates.get(name, ""),
            gradient=gradients.get(name, ""),
            file_tensor="" if origin is None else origin.tensor,
        )
    for op in graph.operators:
        network.add_node(
            f"op {op.name}",
            type="operator",
            label=op.name,
            kind=op.kind,
            phase=op.phase.value,
            source=op.source,
            attributes=json.dumps(dict(op.attributes), default=str),
        )
        for number, t in enumerate(op.inputs):
            network.add_edge(f"tensor {t}", f"op {op.name}", operand=number)
        for number, t in enumerate(op.outputs):
            network.add_edge(f"op {op.name}", f"tensor {t}", operand=number)
    return network
