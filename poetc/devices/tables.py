"""Weights of which a step may read single rows from the store: their pieces have checksums there."""

from __future__ import annotations

from poetc.graph import Graph, Role
from poetc.ops import bind, spec, view_roots
from poetc.runtime.layout import has_sums
from poetc.scheduling import Problem


def summed_tables(graph: Graph, problem: Problem, block_bytes: int) -> frozenset[str]:
    """The names of the tables that get checksums of their blocks.

    They are long, no step changes them, and an operator of `graph` reads single rows of them.
    """
    roots, read = view_roots(graph), set[str]()
    for op in graph.operators:
        if spec(op.kind).reads_rows:
            cuts = spec(op.kind).cuts(bind(op, graph.tensors))
            read |= {roots[op.inputs[n]] for cut in cuts for n in cut.tables}
    replaced = {p.input for op in problem.operators for p in (*op.in_place, *op.replaces) if p.required}
    return frozenset(
        tensor.name
        for number, tensor in enumerate(problem.tensors)
        if tensor.name in read
        and tensor.initial
        and number not in replaced
        and graph.tensors[tensor.name].role not in (Role.INPUT, Role.TARGET)
        and has_sums(graph.tensors[tensor.name].size_bytes, block_bytes)
    )
