"""Which parameters are trained (`--train`)."""

from __future__ import annotations

import difflib
import fnmatch

from poetc.errors import UsageError
from poetc.graph import Graph, Role
from poetc.ops import bind, spec, view_roots


def select_parameters(graph: Graph, train: str) -> frozenset[str]:
    """Names of the parameters to train. `last:N` counts layers that hold a product (convolution, matrix product); norms
    and biases that follow a layer belong to it. Raises UsageError for a pattern that matches nothing."""
    parameters = [name for name, t in graph.tensors.items() if t.role is Role.PARAMETER]
    if not parameters:
        raise UsageError(f"{graph.name}: the model has no trainable parameters")
    if train == "all":
        return frozenset(parameters)
    if train.startswith("last:"):
        return _last_layers(graph, train)
    chosen: set[str] = set()
    for pattern in (p.strip() for p in train.split(",")):
        matched = fnmatch.filter(parameters, pattern) or [name for name in parameters if name == pattern]
        if not matched:
            near = difflib.get_close_matches(pattern, parameters, n=3, cutoff=0.3) or parameters[:3]
            raise UsageError(
                f"--train {pattern!r} matches no parameter; there are for example {', '.join(near)}"
                " (poetc analyze MODEL --parameters lists all)"
            )
        chosen.update(matched)
    return frozenset(chosen)


def _last_layers(graph: Graph, train: str) -> frozenset[str]:
    try:
        wanted = int(train.removeprefix("last:"))
    except ValueError:
        wanted = 0
    if wanted < 1:
        raise UsageError(f"--train {train!r}: write last:N with a whole number N of at least 1, e.g. last:2")
    roots = view_roots(graph)
    chosen: set[str] = set()
    layers = 0
    for op in reversed(graph.operators):
        own = {roots[t] for t in op.inputs if graph.tensors[roots[t]].role is Role.PARAMETER}
        if spec(op.kind).is_view or not own:
            continue
        chosen |= own
        if spec(op.kind).work(bind(op, graph.tensors)).macs > 0:
            layers += 1
            if layers == wanted:
                break
    return frozenset(chosen)
