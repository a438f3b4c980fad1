"""Whether two graphs compute the same, whatever their names.

They do if they have the same operators in the same order on tensors with the same numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poetc.graph._ir import Graph, materialize


def matching(a: Graph, b: Graph) -> Mapping[str, str] | None:
    """The name in `b` of each tensor of `a`; None where the graphs differ in inputs, outputs, operators or types.

    A weight of `a` may have several names in `b`: here it has the first, and `differing` compares it with each.
    """
    pairs = _pairs(a, b)
    if pairs is None:
        return None
    names: dict[str, str] = {}
    for name, other in pairs:
        names.setdefault(name, other)
    return names


def differing(a: Graph, b: Graph) -> list[str] | None:
    """The tensors of `a` whose values differ in `b`; None where the graphs do not match."""
    pairs = _pairs(a, b)
    if pairs is None:
        return None
    values = sorted({pair for pair in pairs if pair[0] in a.values})
    return list(dict.fromkeys(name for name, other in values if not _same_numbers(a, name, b, other)))


def _same_numbers(a: Graph, name: str, b: Graph, other: str) -> bool:
    if a.values[name] is b.values[other]:
        return True
    x, y = (materialize(g.values[n], g.tensors[n].type) for g, n in ((a, name), (b, other)))
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def _pairs(a: Graph, b: Graph) -> list[tuple[str, str]] | None:
    """Every place in `a` and the same place in `b`."""
    if (a.inputs, a.outputs, len(a.operators)) != (b.inputs, b.outputs, len(b.operators)):
        return None
    partner = {name: name for name in a.inputs}
    pairs = [*partner.items()]
    for x, y in zip(a.operators, b.operators, strict=True):
        if (x.kind, dict(x.attributes)) != (y.kind, dict(y.attributes)):
            return None
        if (len(x.inputs), len(x.outputs)) != (len(y.inputs), len(y.outputs)):
            return None
        for name, other in zip(x.inputs, y.inputs, strict=True):
            if (name in a.values) != (other in b.values) or partner.get(name, other) != other:
                return None
            pairs.append((name, other))
        for name, other in zip(x.outputs, y.outputs, strict=True):
            partner[name] = other
            pairs.append((name, other))
    if any(partner.get(name) != name for name in a.outputs):
        return None
    return pairs if all(a.tensors[n].type == b.tensors[m].type for n, m in pairs) else None
