"""Graphs as JSON, with their values in another file: `poetc solve` writes both for `emit` and `validate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

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


def graph_to_json(graph: Graph, arrays: dict[str, Array]) -> dict[str, Any]:
    """A JSON-able document. Values that are arrays go into `arrays` under the tensor's name, Fills are written out."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "name": graph.name,
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype.value, "role": t.role.value}
            for t in graph.tensors.values()
        ],
        "operators": [
            {
                "name": op.name,
                "kind": op.kind,
                "inputs": list(op.inputs),
                "outputs": list(op.outputs),
                "attributes": {k: _pack(v) for k, v in sorted(op.attributes.items())},
                "phase": op.phase.value,
                "source": op.source,
            }
            for op in graph.operators
        ],
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "notes": list(graph.notes),
        "fills": {name: asdict(v) for name, v in sorted(graph.values.items()) if isinstance(v, Fill)},
    }
    arrays.update(
        {n: materialize(v, graph.tensors[n].type) for n, v in graph.values.items() if not isinstance(v, Fill)}
    )
    if graph.origins:
        document["origins"] = {name: _origin_to_json(origin) for name, origin in sorted(graph.origins.items())}
    if graph.facts:
        document["facts"] = [asdict(fact) for fact in graph.facts]
    if isinstance(graph, TrainingGraph):
        document["training"] = {
            "loss": graph.loss,
            "target": graph.target,
            "gradients": dict(graph.gradients),
            "zero_gradients": list(graph.zero_gradients),
            "updates": dict(graph.updates),
            "options": {k: _pack(v) for k, v in graph.options.items()},
        }
    return document


def graph_from_json(document: dict[str, Any], arrays: Mapping[str, Array | Filed]) -> Graph:
    """The inverse of `graph_to_json`. KeyError, ValueError or TypeError when the document is not one of ours."""
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r}, expected {FORMAT!r}")
    tensors = {
        t["name"]: Tensor(t["name"], TensorType(tuple(t["shape"]), DType(t["dtype"])), Role(t["role"]))
        for t in document["tensors"]
    }
    operators = tuple(
        Operator(
            o["name"],
            o["kind"],
            tuple(o["inputs"]),
            tuple(o["outputs"]),
            {k: _unpack(v) for k, v in o["attributes"].items()},
            Phase(o["phase"]),
            o["source"],
        )
        for o in document["operators"]
    )
    values: dict[str, Value] = {name: arrays[name] for name in tensors if name in arrays}
    values.update({name: Fill(**fill) for name, fill in document["fills"].items()})
    graph = Graph(
        document["name"],
        tensors,
        operators,
        tuple(document["inputs"]),
        tuple(document["outputs"]),
        values,
        tuple(document["notes"]),
        {name: _origin_from_json(origin) for name, origin in document.get("origins", {}).items()},
        tuple(Fact(**fact) for fact in document.get("facts", ())),
    )
    if "training" not in document:
        return graph
    training = document["training"]
    options = {k: _unpack(v) for k, v in training["options"].items()}
    fields = {name: getattr(graph, name) for name in Graph.__slots__}
    zero_gradients = tuple(training["zero_gradients"])
    return replace(TrainingGraph(**fields), **{**training, "options": options, "zero_gradients": zero_gradients})


def _origin_to_json(origin: Origin) -> dict[str, Any]:
    """Without the fields that are as they are for most weights."""
    fields = asdict(origin)
    defaults = asdict(Origin(origin.tensor))
    return {k: v for k, v in fields.items() if k == "tensor" or v != defaults[k]}


def _origin_from_json(document: dict[str, Any]) -> Origin:
    copies = tuple((str(name), str(how)) for name, how in document.get("copies", ()))
    return Origin(**{**document, "copies": copies})


def _pack(value: Attribute) -> Any:
    """JSON has no infinities, and does not tell (1,) from [1]."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"float": str(value)}
    return [_pack(v) for v in value] if isinstance(value, tuple) else value


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"])
    return tuple(_unpack(v) for v in value) if isinstance(value, list) else value
