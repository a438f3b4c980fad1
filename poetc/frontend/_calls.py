"""The metadata of PyTorch's default exporter: the call that a node stands for, the parameters of the program."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx

_FX = "pkg.torch.onnx.fx_node"
_SCOPES = "pkg.torch.onnx.name_scopes"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_PLACEHOLDER = re.compile(r"%([pb])_(\w+)")
_DECLARED = re.compile(r"^[pb]_(\w+): (PARAMETER|BUFFER) target='([^'\s]{1,500})'", re.MULTILINE)
_TARGET = re.compile(r"target=torch\.ops\.aten\.(\w+)")
_WORD = re.compile(r"'([^']*)'")
_LONGEST_TEXT = 20_000
_LONGEST_SIGNATURE = 4_000_000


def mangled(name: str) -> str:
    """As the exporter writes a parameter's name in a call."""
    return re.sub(r"\W", "_", name)


@dataclass(slots=True)
class Call:
    """The call of the PyTorch program that a node stands for."""

    text: str  # of the whole call: nodes with the same one were made of it together
    target: str
    parameters_and_buffers: list[str]  # mangled, in the order of its arguments
    parameters: list[str]
    buffers: list[str]
    scopes: list[str]


def declared(graph: onnx.GraphProto) -> dict[str, tuple[str, str]]:
    """Mangled name → kind (PARAMETER or BUFFER) and name: those of the whole program, where the file lists them."""
    texts = [p.value for p in graph.metadata_props if p.key == _SIGNATURE and len(p.value) <= _LONGEST_SIGNATURE]
    return {flat: (kind, name) for text in texts for flat, kind, name in _DECLARED.findall(text)}


def call_of(node: onnx.NodeProto) -> Call | None:
    """None where the metadata name no call."""
    properties = {p.key: p.value for p in node.metadata_props if p.key in (_FX, _SCOPES)}
    text = properties.get(_FX, "")
    target = _TARGET.search(text[:_LONGEST_TEXT])
    if target is None or len(text) > _LONGEST_TEXT:
        return None
    placeholders = _PLACEHOLDER.findall(text)
    scopes = _WORD.findall(properties.get(_SCOPES, "")[:_LONGEST_TEXT])
    names = {kind: [n for k, n in placeholders if k == kind] for kind in "pb"}
    return Call(text, target[1], [n for _, n in placeholders], names["p"], names["b"], scopes)
