"""Order of the backward operators: independent neighbours are swapped where that lowers the memory in use.

Typical: a weight gradient runs before the input gradient of the same layer, so that the saved input can go. An update
runs as soon as its gradient is whole.
"""

from __future__ import annotations

from dataclasses import replace

from poetc.graph import Operator, Phase, TrainingGraph
from poetc.ops import bind, spec, view_roots
from poetc.passes._memory import Workspaces

MAX_ROUNDS = 20


def order_backward(graph: TrainingGraph) -> TrainingGraph:
    """Bubble neighbours until no swap lowers (peak over the two, level between them); views follow their sources."""
    roots = view_roots(graph)
    views = [op for op in graph.operators if spec(op.kind).is_view]
    ops = [op for op in graph.operators if not spec(op.kind).is_view]
    size = {name: t.size_bytes for name, t in graph.tensors.items()}
    reads = [frozenset(roots[t] for t in op.inputs) for op in ops]
    makes = [frozenset(op.outputs) for op in ops]
    replaces = [frozenset(roots[op.inputs[i]] for i, _ in spec(op.kind).must_alias) for op in ops]
    resident = {roots[t] for t in graph.tensors if graph.tensors[t].role.is_state} | {roots[t] for t in graph.outputs}
    uses_left: dict[str, int] = {}
    for read in reads:
        for tensor in read:
            uses_left[tensor] = uses_left.get(tensor, 0) + 1
    allocates = [sum(size[t] for t in outputs if t not in resident) for outputs in makes]
    workspaces = Workspaces()
    workspace = [workspaces.bytes_of(op, bind(op, graph.tensors)) for op in ops]
    movable = [op.phase in (Phase.BACKWARD, Phase.UPDATE) for op in ops]

    def independent(a: int, b: int) -> bool:
        return reads[b].isdisjoint(makes[a]) and reads[a].isdisjoint(replaces[b])

    order = list(range(len(ops)))
    for _ in range(MAX_ROUNDS):
        swapped = False
        left = dict(uses_left)
        for k in range(len(order) - 1):
            a, b = order[k], order[k + 1]
            if movable[a] and movable[b] and independent(a, b):
                now = _key(a, b, allocates, workspace, _gone(a, b, reads, left, size, resident))
                then = _key(b, a, allocates, workspace, _gone(b, a, reads, left, size, resident))
                if then < now:
                    order[k], order[k + 1] = b, a
                    swapped = True
            for tensor in reads[order[k]]:
                left[tensor] -= 1
        if not swapped:
            break
    return replace(graph, operators=_with_views([ops[i] for i in order], views))


def _key(a: int, b: int, allocates: list[int], workspace: list[int], freed_between: int) -> tuple[int, int]:
    """(peak over `a` then `b`, level between them), relative to the level before."""
    between = allocates[a] - freed_between
    return max(allocates[a] + workspace[a], between + allocates[b] + workspace[b]), between


def _gone(
    a: int,
    b: int,
    reads: list[frozenset[str]],
    left: dict[str, int],
    size: dict[str, int],
    resident: set[str],
) -> int:
    """Bytes that go between `a` and `b` when `a` runs first: inputs of `a` with no other use from here on."""
    return sum(size[t] for t in reads[a] if left[t] == 1 and t not in reads[b] and t not in resident)


def _with_views(ops: list[Operator], views: list[Operator]) -> tuple[Operator, ...]:
    """`ops` with each view put right before its first reader."""
    pending = {view.outputs[0]: view for view in views}
    result: list[Operator] = []

    def place(tensor: str) -> None:
        view = pending.pop(tensor, None)
        if view is not None:
            place(view.inputs[0])
            result.append(view)

    for op in ops:
        for tensor in op.inputs:
            place(tensor)
        result.append(op)
    for tensor in list(pending):
        place(tensor)
    return tuple(result)
