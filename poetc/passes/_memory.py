"""The least memory that operators need, which no pass may raise."""

from __future__ import annotations

from collections.abc import Mapping

from poetc.graph import Graph, Operator, Role, Tensor
from poetc.ops import bind, spec, view_roots


def operator_bytes(op: Operator, tensors: Mapping[str, Tensor], roots: Mapping[str, str]) -> int:
    """The RAM of an operator: operands and results that are no constants, and its workspace."""
    kind, bound = spec(op.kind), bind(op, tensors)
    if kind.is_view:
        return 0
    read = {roots[t] for t in op.inputs if tensors[roots[t]].role is not Role.CONSTANT}
    in_place = {o for _, o in (*kind.must_alias, *kind.may_alias(bound))}
    written_bytes = sum(t.size_bytes for o, t in enumerate(bound.outputs) if o not in in_place)
    return sum(tensors[t].size_bytes for t in read) + written_bytes + kind.kernel(bound).workspace_bytes


def most_bytes(graph: Graph) -> int:
    """The need of the operator that needs the most."""
    roots = view_roots(graph)
    return max(operator_bytes(op, graph.tensors, roots) for op in graph.operators)
