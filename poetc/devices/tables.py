"""Tables of which a step may read single rows from the store: their pieces have checksums there."""

from __future__ import annotations

from typing import NamedTuple

from poetc.graph import Graph, Operator, Role
from poetc.ops import INDICES, bind, spec, view_roots
from poetc.runtime.layout import has_sums
from poetc.scheduling import Problem


def summed_tables(graph: Graph, problem: Problem, block_bytes: int) -> frozenset[str]:
    """Frozen ones: an operator of `graph` reads rows of them, no step changes them, and they are long enough."""
    roots, read = view_roots(graph), set[str]()
    for op in graph.operators:
        read |= {roots[op.inputs[n]] for n in row_tables(graph, op) if n < len(op.inputs)}
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


class Trained(NamedTuple):
    """A table whose rows a step may move alone, and its next version. `operator`: the place of the update."""

    name: str
    version: str
    operator: int
    rows: int  # that a step moves at most


def trained_tables(graph: Graph, problem: Problem, block_bytes: int) -> tuple[Trained, ...]:
    """Those whose only update knows which rows it moves; long ones."""
    operators, tables = {op.name: op for op in graph.operators}, list[Trained]()
    for place, plain in enumerate(problem.operators):
        op = operators[plain.name]
        moved = [n - len(op.inputs) for n in row_tables(graph, op) if n >= len(op.inputs)]
        for output in moved:
            pairs = {o: i for i, o in spec(op.kind).must_alias}
            name, version = op.inputs[pairs[output]], op.outputs[output]
            size_bytes = graph.tensors[name].size_bytes
            if graph.tensors[name].role is Role.PARAMETER and has_sums(size_bytes, block_bytes):
                rows = next(c.extent for c in spec(op.kind).cuts(bind(op, graph.tensors)) if c.name == INDICES)
                tables.append(Trained(name, version, place, rows))
    return tuple(tables)


def moved_by_rows(graph: Graph, problem: Problem, block_bytes: int) -> dict[str, int]:
    """The tables whose rows move alone in this schedule, and how many rows a step moves at most."""
    trained = trained_tables(graph, problem, block_bytes)
    return {t.name: t.rows for t in trained if problem.operators[t.operator].cut == INDICES}


def row_tables(graph: Graph, op: Operator) -> set[int]:
    """The operands of which a block needs some rows alone, by number."""
    if not spec(op.kind).reads_rows:
        return set()
    return {n for cut in spec(op.kind).cuts(bind(op, graph.tensors)) for n in cut.tables}
