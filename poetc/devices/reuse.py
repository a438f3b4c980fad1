"""Which operands a step must fetch from beyond the cache: by how much else it touches since it touched them last."""

from __future__ import annotations

from poetc.graph import Graph
from poetc.ops import spec, view_roots


def far_bytes(graph: Graph, cache_bytes: int) -> dict[str, int]:
    """By operator: bytes of its operands that are not in a cache of `cache_bytes` when it runs, step after step in the
    graph's order with every tensor kept until its last use.

    What lies between two uses is counted in bytes touched, again and again if need be: the most that a cache which
    replaces what was used least recently has to hold. A new tensor takes the memory that was let go of last.
    """
    roots = view_roots(graph)
    operators = [op for op in graph.operators if not spec(op.kind).is_view]
    last_use: dict[str, int] = {}
    for at, op in enumerate(operators):
        for t in (*op.inputs, *op.outputs):
            last_use[roots[t]] = at
    made = {t for op in operators for t in op.outputs}
    clock, touched, step_bytes = 0, dict[str, int](), 0
    result: dict[str, int] = {}
    for _ in range(2):  # the second time as in every later step
        step_bytes = clock
        freed: list[tuple[int, int]] = []  # (when, bytes), latest at the end
        for at, op in enumerate(operators):
            reads = dict.fromkeys(roots[t] for t in op.inputs)
            far = 0
            for name in reads:
                size = graph.tensors[name].size_bytes
                if clock - touched.get(name, -cache_bytes) + size > cache_bytes:
                    far += size
            taken_over = {roots[op.inputs[i]] for i, _ in spec(op.kind).must_alias}
            for i, name in enumerate(op.outputs):
                size = graph.tensors[name].size_bytes
                if any(o == i for _, o in spec(op.kind).must_alias):
                    continue  # where an input is
                if clock - _take(freed, size, clock - step_bytes) + size > cache_bytes:
                    far += size
            names = {*reads, *op.outputs}
            clock += sum(graph.tensors[name].size_bytes for name in names)
            for name in names:
                touched[name] = clock
                if last_use[name] == at and name in made and name not in taken_over:
                    freed.append((clock, graph.tensors[name].size_bytes))
            result[op.name] = far
    return result


def _take(freed: list[tuple[int, int]], size: int, a_step_ago: int) -> int:
    """When the memory for `size` bytes was touched last: the latest that was let go of, as much as is needed."""
    oldest = None
    while size > 0 and freed:
        oldest, there = freed.pop()
        if there > size:
            freed.append((oldest, there - size))
        size -= there
    return a_step_ago if oldest is None or size > 0 else oldest
