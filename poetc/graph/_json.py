"""Graphs as JSON, with their values in another file: `poetc solve` writes both for `emit` and `validate`.

The structures are the format, field by field (docs/reference/formats.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from poetc.graph._ir import (
    Array,
    Attribute,
    DType,
    Fact,
    Filed,
    Fill,
    Graph,
    Operator,
    Origin,
    Phase,
    Role,
    Tensor,
    TensorType,
    TrainingGraph,
    Value,
    materialize,
)

FORMAT = "poetc-graph/1"


class _Tensor(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: Role


class _Operator(msgspec.Struct):
    """`attributes` as `_pack` gives them."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    phase: Phase
    source: str


class _Training(msgspec.Struct):
    """The fields of a TrainingGraph that a Graph has not; `options` as `_pack` gives them."""

    loss: str
    target: str
    gradients: dict[str, str]
    zero_gradients: tuple[str, ...]
    updates: dict[str, str]
    options: dict[str, Any]


class _Document(msgspec.Struct, omit_defaults=True):
    format: str
    name: str
    tensors: tuple[_Tensor, ...]
    operators: tuple[_Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]
    fills: dict[str, Fill]
    origins: dict[str, Origin] = {}
    facts: tuple[Fact, ...] = ()
    training: _Training | None = None


def graph_to_json(graph: Graph, arrays: dict[str, Array]) -> dict[str, Any]:
    """A JSON-able document. Values that are arrays go into `arrays` under the tensor's name, Fills are written out."""
    arrays.update(
        {n: materialize(v, graph.tensors[n].type) for n, v in graph.values.items() if not isinstance(v, Fill)}
    )
    own = {f.name: getattr(graph, f.name) for f in fields(graph) if f.name in _Training.__struct_fields__}
    if own:
        own["options"] = {k: _pack(v) for k, v in own["options"].items()}
    document = _Document(
        format=FORMAT,
        name=graph.name,
        tensors=tuple(_Tensor(t.name, t.shape, t.dtype, t.role) for t in graph.tensors.values()),
        operators=tuple(
            _Operator(
                op.name, op.kind, op.inputs, op.outputs, {k: _pack(v) for k, v in sorted(op.attributes.items())},
                op.phase, op.source,
            )
            for op in graph.operators
        ),
        inputs=graph.inputs,
        outputs=graph.outputs,
        notes=graph.notes,
        fills={name: v for name, v in sorted(graph.values.items()) if isinstance(v, Fill)},
        origins=dict(sorted(graph.origins.items())),
        facts=graph.facts,
        training=_Training(**own) if own else None,
    )  # fmt: skip
    built: dict[str, Any] = msgspec.to_builtins(document)
    usual = msgspec.to_builtins(Origin(tensor=""))  # most weights: their fields are left out
    for origin in built.get("origins", {}).values():
        for name in [n for n, v in origin.items() if n != "tensor" and v == usual[n]]:
            del origin[name]
    return built


def graph_from_json(document: dict[str, Any], arrays: Mapping[str, Array | Filed]) -> Graph:
    """The inverse of `graph_to_json`. ValueError that names the place when the document is not one of ours."""
    try:
        held = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if held.format != FORMAT:
        raise ValueError(f"format {held.format!r}, expected {FORMAT!r}")
    tensors = {t.name: Tensor(t.name, TensorType(t.shape, t.dtype), t.role) for t in held.tensors}
    operators = tuple(
        Operator(o.name, o.kind, o.inputs, o.outputs, _unpacked(o.attributes), o.phase, o.source)
        for o in held.operators
    )
    values: dict[str, Value] = {**{name: arrays[name] for name in tensors if name in arrays}, **held.fills}
    parts = (held.name, tensors, operators, held.inputs, held.outputs, values, held.notes, held.origins, held.facts)
    if held.training is None:
        return Graph(*parts)
    own = msgspec.structs.asdict(held.training)
    return TrainingGraph(*parts, **{**own, "options": _unpacked(own["options"])})


def _pack(value: Attribute) -> Any:
    """JSON has no infinities, and does not tell (1,) from [1]."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"float": str(value)}
    return [_pack(v) for v in value] if isinstance(value, tuple) else value


def _unpacked(packed: dict[str, Any]) -> dict[str, Any]:
    return {name: _unpack(value) for name, value in packed.items()}


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"])
    return tuple(_unpack(v) for v in value) if isinstance(value, list) else value
