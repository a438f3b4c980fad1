"""An ONNX file, tensor by tensor: protobuf's own writer needs a model's bytes three times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped,unused-ignore]

MOST_BYTES = 2**31 - 1  # of a protobuf message
_HAS_LENGTH = 2  # protobuf's wire type
_GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number


def write_model(model: onnx.ModelProto, out: Path) -> None:
    """Write the bytes of `model.SerializeToString()` to `out`. ValueError: more than a protobuf message may have."""
    tensors = model.graph.initializer
    graph = [_without(model.graph, _INITIALIZER, is_before) for is_before in (True, False)]
    graph_bytes = len(graph[0]) + sum(_field_bytes(_INITIALIZER, t.ByteSize()) for t in tensors) + len(graph[1])
    whole = [_without(model, _GRAPH, is_before) for is_before in (True, False)]
    if len(whole[0]) + _field_bytes(_GRAPH, graph_bytes) + len(whole[1]) > MOST_BYTES:
        raise ValueError("more than the bytes of a message")
    with out.open("wb") as file:
        file.write(whole[0] + _key(_GRAPH, graph_bytes) + graph[0])
        file.writelines(_numbered(tensors))
        file.write(graph[1] + whole[1])


def _without(message: Any, number: int, is_before: bool) -> bytes:
    """The fields of a message before a field or behind it: protobuf writes them in the order of their numbers.

    Those that this onnx does not know, of a newer format, come last.
    """
    part = type(message)()
    for field, value in message.ListFields():
        if (field.number < number) if is_before else (field.number > number):
            if isinstance(value, str | bytes | int | float):
                setattr(part, field.name, value)
            else:
                getattr(part, field.name).MergeFrom(value)
    return bytes(part.SerializeToString()) + (b"" if is_before else _unknown(message))


def _unknown(message: Any) -> bytes:
    """The serialized fields that the installed onnx package does not know."""
    fields = b""
    for field in UnknownFieldSet(message):
        fields += _varint(field.field_number << 3 | field.wire_type)
        if field.wire_type == _HAS_LENGTH:
            fields += _varint(len(field.data)) + field.data
        elif field.wire_type == 0:
            fields += _varint(field.data)
        else:
            fields += field.data.to_bytes({1: 8, 5: 4}[field.wire_type], "little")
    return fields


def _numbered(tensors: Iterable[onnx.TensorProto]) -> Iterator[bytes]:
    for tensor in tensors:
        yield _key(_INITIALIZER, tensor.ByteSize())
        yield tensor.SerializeToString()


def _key(number: int, size_bytes: int) -> bytes:
    """The bytes before a field of `size_bytes`."""
    return _varint(number << 3 | _HAS_LENGTH) + _varint(size_bytes)


def _field_bytes(number: int, size_bytes: int) -> int:
    return len(_key(number, size_bytes)) + size_bytes


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes((*encoded, value))
