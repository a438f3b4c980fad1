"""Operators on constants alone are evaluated once, at import, rather than at every training step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from poetc.frontend._reading import LARGEST_FOLDED_BYTES
from poetc.graph import Graph, Operator, Role, materialize
from poetc.ops import bind, spec


def fold_constants(graph: Graph) -> Graph:
    """The graph without operators that read only CONSTANT tensors; their results become CONSTANT where they are needed.

    Reference numerics, so the values are those that the operator would compute. Outputs of the graph stay computed.
    """
    tensors, values = dict(graph.tensors), dict(graph.values)
    kept: list[Operator] = []
    room_bytes = LARGEST_FOLDED_BYTES + sum(tensors[t].size_bytes for t in values)
    for op in graph.operators:
        known = (
            op.kind != "RandomSite"
            and bool(op.inputs)
            and all(tensors[t].role is Role.CONSTANT and t in values for t in op.inputs)
        )
        needed_bytes = sum(tensors[t].size_bytes for t in (*op.inputs, *op.outputs)) if known else 0
        small = needed_bytes <= room_bytes
        if not known or not small or any(t in graph.outputs for t in op.outputs):
            kept.append(op)
            continue
        room_bytes -= sum(tensors[t].size_bytes for t in op.outputs)
        inputs = [np.asarray(materialize(values[t], tensors[t].type)) for t in op.inputs]
        with np.errstate(all="ignore"):
            results = spec(op.kind).evaluate(bind(op, tensors), inputs)
        for name, result in zip(op.outputs, results, strict=True):
            tensors[name] = replace(tensors[name], role=Role.CONSTANT)
            values[name] = np.asarray(result, tensors[name].dtype.numpy, order="C")
    used = {t for op in kept for t in (*op.inputs, *op.outputs)} | set(graph.inputs)
    return replace(
        graph,
        operators=tuple(kept),
        tensors={n: t for n, t in tensors.items() if n in used},
        values={n: v for n, v in values.items() if n in used},
    )
