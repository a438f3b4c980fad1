"""The least memory that operators need, which no pass may raise."""

from __future__ import annotations

from collections.abc import Mapping

from poetc.graph import Graph, Operator, Role, Tensor
from poetc.ops import Bound, bind, spec, view_roots


class Workspaces:
    """The workspaces of operators in their fastest kernels, once for all that differ in names alone."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], int] = {}

    def bytes_of(self, op: Operator, bound: Bound) -> int:
        key = op.kind, tuple(sorted(bound.attributes.items())), bound.inputs, bound.outputs
        if key not in self._known:
            self._known[key] = spec(op.kind).kernel(bound).workspace_bytes
        return self._known[key]


def operator_bytes(
    op: Operator, tensors: Mapping[str, Tensor], roots: Mapping[str, str], workspaces: Workspaces | None = None
) -> int:
    """The RAM of an operator: operands and results that are no constants, and its workspace."""
    kind, bound = spec(op.kind), bind(op, tensors)
    if kind.is_view:
        return 0
    read = {roots[t] for t in op.inputs if tensors[roots[t]].role is not Role.CONSTANT}
    in_place = {o for _, o in (*kind.must_alias, *kind.may_alias(bound))}
    written_bytes = sum(t.size_bytes for o, t in enumerate(bound.outputs) if o not in in_place)
    return sum(tensors[t].size_bytes for t in read) + written_bytes + (workspaces or Workspaces()).bytes_of(op, bound)


def most_bytes(graph: Graph) -> int:
    """The need of the operator that needs the most."""
    roots, workspaces = view_roots(graph), Workspaces()
    return max(operator_bytes(op, graph.tensors, roots, workspaces) for op in graph.operators)
