"""Which parameters are trained (`--train`), and what holds for some of them only (`--lr-for`, `--weight-decay-for`)."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Sequence

from poetc.errors import UsageError, shortened
from poetc.graph import Graph, Role
from poetc.ops import bind, spec, view_roots


def select_parameters(graph: Graph, train: str, option: str = "--train") -> frozenset[str]:
    """Names of the parameters that `option` means. `last:N` counts layers that hold a product (convolution, matrix
    product); norms and biases that follow a layer belong to it. Raises UsageError for a pattern that matches nothing.
    """
    parameters = [name for name, t in graph.tensors.items() if t.role is Role.PARAMETER]
    if not parameters:
        raise UsageError(f"{graph.name}: the model has no trainable parameters")
    if train == "all":
        return frozenset(parameters)
    if train.startswith("last:"):
        return _last_layers(graph, train, option)
    chosen: set[str] = set()
    for pattern in (p.strip() for p in train.split(",")):
        matched = fnmatch.filter(parameters, pattern) or [name for name in parameters if name == pattern]
        if not matched:
            near = difflib.get_close_matches(pattern, parameters, n=3, cutoff=0.3) or parameters[:3]
            raise UsageError(
                f"{option} {pattern!r} matches no parameter; there are for example {', '.join(near)}"
                " (poetc analyze MODEL --parameters lists all)"
            )
        chosen.update(matched)
    return frozenset(chosen)


def parse_entry(option: str, entry: str) -> tuple[str, float]:
    """PATTERN and VALUE of "PATTERN=VALUE"; the value is a number of at least 0. UsageError names the option."""
    pattern, equals, value = entry.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (equals and pattern.strip() and 0 <= number < 3.4028234e38):  # the C holds 32 bits
        raise UsageError(f"{option} {shortened(entry, 80)!r}: write PATTERN=NUMBER with a number of at least 0")
    return pattern, number


def values_by_pattern(
    graph: Graph, option: str, entries: Sequence[str], trained: frozenset[str], default: float
) -> dict[str, float]:
    """The value of each trained parameter: that of the last entry that matches it, or `default`.

    Raises UsageError for an entry that matches no parameter, or none that is trained.
    """
    values = dict.fromkeys(sorted(trained), default)
    for entry in entries:
        pattern, value = parse_entry(option, entry)
        chosen = select_parameters(graph, pattern, option) & trained
        if not chosen:
            raise UsageError(f"{option} {shortened(entry, 80)!r}: none of these parameters is trained (--train)")
        values.update(dict.fromkeys(sorted(chosen), value))
    return values


def _last_layers(graph: Graph, train: str, option: str) -> frozenset[str]:
    try:
        wanted = int(train.removeprefix("last:"))
    except ValueError:
        wanted = 0
    if wanted < 1:
        raise UsageError(f"{option} {train!r}: write last:N with a whole number N of at least 1, e.g. last:2")
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
