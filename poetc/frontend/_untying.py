"""A weight that products read, and others too, gets an initializer of its own for the products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from poetc.errors import UnsupportedModelError
from poetc.frontend._exported import first_output, makers
from poetc.frontend._names import free_name
from poetc.frontend._reading import element_dtype, subgraphs, tensor_dtype
from poetc.graph import Array

_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "FusedMatMul", "FusedGemm", "FusedConv"})
_WEIGHT = 1  # the number of their input
_KEEPING_TYPE = frozenset({"Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten"})


@dataclass(frozen=True, slots=True)
class Untied:
    """`array`: a matrix [inputs, outputs], or [outputs, inputs] if `across`, or the weight of a convolution.

    `nodes`: the products, by name or output.
    """

    name: str
    array: Array
    across: bool
    nodes: tuple[str, ...]


def untie(graph: onnx.GraphProto, weights: Sequence[Untied]) -> Iterator[tuple[Untied, np.dtype[np.generic], Array]]:
    """Give each weight its initializers, which its nodes read; yields the element type of each and its numbers.

    Nodes and initializers that nothing reads then are gone. UnsupportedModelError for a node that is no product, or
    that lies in a body of a loop.
    """
    maker_of, named = makers(graph), _by_label(graph)
    tensors = {t.name: t for t in graph.initializer}
    taken = {*tensors, *(o for n in graph.node for o in n.output), *(i.name for i in graph.input)}
    before: set[str] = set()
    for weight in weights:
        held: dict[tuple[bool, np.dtype[np.generic]], str] = {}
        for label in weight.nodes:
            node = named.get(label)
            if node is None or node.op_type not in _PRODUCTS:
                raise UnsupportedModelError(f"node {label}: cannot be given a weight of its own")
            across = any(a.name == "transB" and a.i for a in node.attribute)
            turned = weight.array.ndim == 2 and across is not weight.across
            element = _element(node.input[_WEIGHT], maker_of, tensors)
            key = turned, element
            if key not in held:
                held[key] = free_name(weight.name, taken)
                taken.add(held[key])
                with np.errstate(over="ignore"):
                    stored = weight.array.astype(element)
                whole = np.ascontiguousarray(stored.T if turned else stored)
                graph.initializer.append(numpy_helper.from_array(whole, held[key]))
                yield weight, element, stored.astype(np.float32)
            before.add(node.input[_WEIGHT])
            node.input[_WEIGHT] = held[key]
    _drop_unread(graph, before)


def _by_label(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The nodes that one label means: their name, else their first output."""
    by_label: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        by_label.setdefault(node.name or first_output(node), []).append(node)
    return {label: nodes[0] for label, nodes in by_label.items() if len(nodes) == 1}


def _element(
    name: str, producers: dict[str, onnx.NodeProto], tensors: dict[str, onnx.TensorProto]
) -> np.dtype[np.generic]:
    """The element type of a weight, through the nodes that read it; float32 behind any other."""
    while name not in tensors and (node := producers.get(name)) is not None:
        if node.op_type == "Cast":
            return element_dtype(next(a.i for a in node.attribute if a.name == "to"), f"node {node.name}")
        if node.op_type == "DequantizeLinear":
            name = node.input[1]
        elif node.op_type in _KEEPING_TYPE:
            name = node.input[0]
        else:
            break
    known = tensors.get(name)
    return np.dtype(np.float32) if known is None else tensor_dtype(known)


def _drop_unread(graph: onnx.GraphProto, names: set[str]) -> None:
    """The makers of `names` go where nothing reads them, and then the makers of their own inputs."""
    while names:
        read = {i for n in (*graph.node, *_inner(graph)) for i in n.input} | {o.name for o in graph.output}
        unread = names - read
        names = set()
        for node in [n for n in graph.node if unread & set(n.output) and not read & set(n.output)]:
            names |= set(node.input)
            graph.node.remove(node)
        for tensor in [t for t in graph.initializer if t.name in unread]:
            graph.initializer.remove(tensor)


def _inner(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [n for inner in subgraphs(graph.node) for n in inner.node]
