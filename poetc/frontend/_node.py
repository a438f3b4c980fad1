"""A typed look at one ONNX node."""

from __future__ import annotations

import math
from collections.abc import Set

import onnx


class Unsupported(Exception):
    """The node is valid ONNX but poetc cannot train it; the text names the missing feature."""


class Malformed(Exception):
    """The node breaks the ONNX rules; the text says how."""


class Node:
    """One ONNX node: inputs and outputs by name, attributes by type. Malformed when one has another type."""

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.proto = proto
        self.op = proto.op_type
        self.inputs = tuple(proto.input)
        self.outputs = tuple(proto.output)
        self._attributes = {a.name: a for a in proto.attribute}
        captured = {i for a in proto.attribute for g in (a.g, *a.graphs) for i in outer_names(g)}
        # Its inputs, and the tensors around it that its subgraphs read.
        self.reads = (*self.inputs, *sorted(captured))

    @property
    def is_standard(self) -> bool:
        """Whether it is an operator of the default domain."""
        return self.proto.domain in ("", "ai.onnx")

    @property
    def key(self) -> str:
        """Its operator, with the domain before it unless that is the default one."""
        return self.op if self.is_standard else f"{self.proto.domain}.{self.op}"

    @property
    def label(self) -> str:
        """Its name in messages: operator and node name, or its output where it has no name."""
        key = self.key.replace("\n", "\\n")  # a message of several lines names several nodes
        return f"{key} {self.name or '?'!r}"

    @property
    def name(self) -> str:
        """Its own, or that of its first output that is read; "" where it has neither."""
        return self.proto.name or next((o for o in self.outputs if o), "")

    def keep_outputs(self, read: Set[str]) -> None:
        """Leave out the outputs that nobody reads.

        Exporters name them all, and a mask or a cache that is asked for restricts the translation.
        """
        self.outputs = tuple(o if o in read else "" for o in self.outputs)
        self.proto.output[:] = self.outputs

    def has(self, attribute: str) -> bool:
        return attribute in self._attributes

    def has_input(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] != ""

    def has_output(self, index: int) -> bool:
        return index < len(self.outputs) and self.outputs[index] != ""

    def _get(self, name: str, type: int, what: str) -> onnx.AttributeProto | None:
        attribute = self._attributes.get(name)
        if attribute is not None and attribute.type != type:
            raise Malformed(f"attribute {name!r} is not {what}")
        return attribute

    def get_int(self, name: str, default: int = 0) -> int:
        attribute = self._get(name, onnx.AttributeProto.INT, "an integer")
        return default if attribute is None else attribute.i

    def get_float(self, name: str, default: float = 0.0) -> float:
        attribute = self._get(name, onnx.AttributeProto.FLOAT, "a number")
        if attribute is not None:
            require_number(self.op, name, attribute.f)
        return default if attribute is None else attribute.f

    def get_str(self, name: str, default: str = "") -> str:
        attribute = self._get(name, onnx.AttributeProto.STRING, "a string")
        return default if attribute is None else attribute.s.decode("utf-8", "replace")

    def get_strs(self, name: str) -> tuple[str, ...]:
        attribute = self._get(name, onnx.AttributeProto.STRINGS, "a list of strings")
        return () if attribute is None else tuple(s.decode("utf-8", "replace") for s in attribute.strings)

    def get_ints(self, name: str) -> tuple[int, ...] | None:
        entry = self._attributes.get(name)
        if entry is not None and entry.type == onnx.AttributeProto.INT:
            return (entry.i,)  # as some tools write a list of one
        attribute = self._get(name, onnx.AttributeProto.INTS, "a list of integers")
        return None if attribute is None else tuple(attribute.ints)

    def get_floats(self, name: str) -> tuple[float, ...] | None:
        attribute = self._get(name, onnx.AttributeProto.FLOATS, "a list of numbers")
        return None if attribute is None else tuple(attribute.floats)

    def get_graph(self, name: str) -> onnx.GraphProto:
        attribute = self._get(name, onnx.AttributeProto.GRAPH, "a graph")
        if attribute is None:
            raise Malformed(f"attribute {name!r} is missing")
        return attribute.g

    def get_tensor(self, name: str) -> onnx.TensorProto | None:
        attribute = self._get(name, onnx.AttributeProto.TENSOR, "a tensor")
        return None if attribute is None else attribute.t


def outer_names(graph: onnx.GraphProto) -> set[str]:
    """The tensors around a subgraph that its nodes read."""
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {o for n in graph.node for o in n.output}
    read = {i for n in graph.node for i in n.input} | {o.name for o in graph.output}
    read |= {i for n in graph.node for a in n.attribute for g in (a.g, *a.graphs) for i in outer_names(g)}
    return read - own - {""}


# Kinds whose attributes may be infinite: a bound that stands for none, or padding that no maximum takes.
_MAY_BE_INFINITE = frozenset({"Clip", "Pad"})


def require_number(kind: str, name: str, value: float) -> None:
    """Malformed for an attribute that is not a number, or infinite where `kind` has no use for that."""
    if math.isnan(value):
        raise Malformed(f"attribute {name!r} is not a number")
    if math.isinf(value) and kind not in _MAY_BE_INFINITE:
        raise Malformed(f"attribute {name!r} is infinite")


def normalize_axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise Malformed(f"axis {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis
