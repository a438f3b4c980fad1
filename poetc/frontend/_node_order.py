"""The nodes of an ONNX graph that its outputs need, in an order in which they can run."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from poetc.errors import UsageError
from poetc.frontend._node import Node


def refuse_duplicates(names: Sequence[str], what: str) -> None:
    """Raise UsageError where two of the names are equal. `what`: a noun for the message."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(f"two {what}s are named {name!r}")
        seen.add(name)


def live_in_order(graph: onnx.GraphProto, outputs: Sequence[str]) -> list[Node]:
    """The nodes that the outputs need, in order. UsageError for cycles, missing and doubly made tensors."""
    nodes = [Node(n) for n in graph.node]
    sources = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    maker: dict[str, int] = {}
    for k, n in enumerate(nodes):
        for o in n.outputs:
            if o and (o in maker or o in sources):
                raise UsageError(f"tensor {o!r} is made twice, the second time by {n.label}")
            if o:
                maker[o] = k
    for o in outputs:
        if o not in maker and o not in sources:
            raise UsageError(f"nothing makes output {o!r}")
    # Depth-first from the outputs, explicit stack: 0 unseen, 1 open, 2 done.
    state, order = [0] * len(nodes), list[int]()
    for root in (maker[o] for o in outputs if o in maker):
        stack = [root]
        while stack:
            k = stack[-1]
            if state[k] == 2:
                stack.pop()
                continue
            pending = []
            for i in nodes[k].reads:
                if not i or i in sources:
                    continue
                if i not in maker:
                    raise UsageError(f"{nodes[k].label} reads tensor {i!r}, which nothing makes")
                if state[maker[i]] == 1:
                    raise UsageError(f"the graph has a cycle through {nodes[maker[i]].label}")
                if state[maker[i]] == 0:
                    pending.append(maker[i])
            if pending:
                state[k] = 1
                stack.append(pending[0])
            else:
                state[k] = 2
                order.append(k)
                stack.pop()
    # The file's own order where it is a valid one, else ours: readers of reports expect the file's.
    kept = sorted(order)
    place = {k: p for p, k in enumerate(kept)}
    valid = all(place[maker[i]] < place[k] for k in kept for i in nodes[k].reads if i in maker)
    read = {i for k in kept for i in nodes[k].reads} | set(outputs)
    for k in kept:
        nodes[k].keep_outputs(read)
    return [nodes[k] for k in (kept if valid else order)]
