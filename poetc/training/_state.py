"""State in SSA form: an update makes the next version of a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poetc.graph import Attribute
from poetc.ops import Builder, spec

CLIPPED = ":clipped"  # suffix of the states that count clipped values


def emit_update(b: Builder, kind: str, inputs: Sequence[str], attributes: Mapping[str, Attribute]) -> tuple[str, ...]:
    """Emit an operator that makes the next version of state: outputs are named NAME@K, with the role of NAME."""
    replaces = {output: inputs[i] for i, output in spec(kind).must_alias}
    outputs = []
    for i in range(len(replaces)):
        base, _, version = replaces[i].rpartition("@")
        base, next_version = (base, int(version) + 1) if base and version.isdecimal() else (replaces[i], 1)
        outputs.append(b.fresh(f"{base}@{next_version}"))
    role = b.role
    results: list[str] = []
    b.emit(kind, inputs, attributes, outputs=outputs)
    for i, output in enumerate(outputs):
        tensor = b.tensors[output]
        b.tensors[output] = type(tensor)(output, tensor.type, b.tensors[replaces[i]].role)
        results.append(output)
    b.role = role
    return tuple(results)
