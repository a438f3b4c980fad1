"""Caches of keys and values: inputs and outputs of a decoder that generates text. Training begins with empty ones.

An input that only attention and Concat read as a cache becomes an empty constant, and an output that hands it on is
dropped. Nothing is before the first token then: the mask of such a model is all ones, and the positions count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from poetc.frontend._reading import element_dtype
from poetc.frontend._translations import MICROSOFT

# Where attention has the caches of keys and values: (inputs, outputs).
_PLACES = {
    (MICROSOFT, "GroupQueryAttention"): ((3, 4), (1, 2)),
    (MICROSOFT, "MultiHeadAttention"): ((6, 7), (1, 2)),
    (MICROSOFT, "Attention"): ((4,), (1,)),
    ("", "Attention"): ((4, 5), (1, 2)),
}
_CACHE = re.compile(r"(^|[._/])(past|cache|past_key|past_value)(_|[._/]|\d|$)|past_key_values|(key|value)_cache")
_HANDED_ON = re.compile(r"(^|[._/])present(_|[._/]|\d|$)|past_key_values|(key|value)_cache")
_MASK, _POSITIONS = re.compile(r"attention_mask$"), re.compile(r"position_ids$")
_SHOWN = 3


def without_caches(model: onnx.ModelProto) -> list[str]:
    """Make the caches of `model` empty, in place; a note where there are some.

    A cache whose length the file fixes is an input like any other.
    """
    graph = model.graph
    nodes = [*graph.node]
    initializers = {t.name for t in graph.initializer}
    inputs = {i.name: i for i in graph.input if i.name not in initializers}
    caches = _caches(nodes, inputs)
    dropped = _handed_on(nodes, [o.name for o in graph.output], bool(caches))
    notes = []
    for name in caches:
        graph.initializer.append(_empty(inputs[name]))
        graph.input.remove(inputs[name])
    if dropped and len(dropped) < len(graph.output):
        kept = [o for o in graph.output if o.name not in dropped]
        del graph.output[:]
        graph.output.extend(kept)
    else:
        dropped = []
    if caches or dropped:
        notes.append(
            f"caches of keys and values: {len(caches)} inputs are empty{_shown(caches)},"
            f" {len(dropped)} outputs are dropped{_shown(dropped)}"
        )
    if caches:
        notes += _first_prompt(model, {n: i for n, i in inputs.items() if n not in caches})
    return notes


def _caches(nodes: Iterable[onnx.NodeProto], inputs: dict[str, onnx.ValueInfoProto]) -> list[str]:
    """Inputs of floats that attention reads as a cache, or that bear the name of one and are only joined."""
    by_place, readers = set[str](), dict[str, set[str]]()
    for node in nodes:
        places = _PLACES.get((node.domain, node.op_type), ((), ()))[0]
        by_place.update(node.input[k] for k in places if k < len(node.input))
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    floats = [n for n, i in inputs.items() if _is_float(i) and not np.prod(_dims(i))]
    return [
        n for n in floats if n in by_place or (_CACHE.search(n) and readers.get(n, {""}) <= {"Concat", "Shape", "Cast"})
    ]


def _handed_on(nodes: Iterable[onnx.NodeProto], outputs: list[str], has_caches: bool) -> list[str]:
    """Outputs of the model that are the caches of the next call."""
    derived = set[str]()
    for node in nodes:
        if not has_caches and node.op_type != "GroupQueryAttention":
            continue
        places = _PLACES.get((node.domain, node.op_type), ((), ()))[1]
        derived.update(node.output[k] for k in places if k < len(node.output) and node.output[k])
    return [o for o in outputs if o in derived or (has_caches and _HANDED_ON.search(o))]


def _is_float(info: onnx.ValueInfoProto) -> bool:
    kind = info.type.tensor_type.elem_type
    return kind in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def _empty(info: onnx.ValueInfoProto) -> onnx.TensorProto:
    """A tensor without elements."""
    dtype = element_dtype(info.type.tensor_type.elem_type, f"input {info.name!r}")
    return numpy_helper.from_array(np.zeros(_dims(info), dtype), info.name)


def _dims(info: onnx.ValueInfoProto) -> list[int]:
    """A length that is not known is 0, that of the batch too."""
    return [d.dim_value for d in info.type.tensor_type.shape.dim]


def _first_prompt(model: onnx.ModelProto, inputs: dict[str, onnx.ValueInfoProto]) -> list[str]:
    """Give the mask and the positions the values that they have for whole samples and an empty cache."""
    graph = model.graph
    integers = [n for n, i in inputs.items() if not _is_float(i) and len(i.type.tensor_type.shape.dim) == 2]
    tokens = [n for n in integers if not _MASK.search(n) and not _POSITIONS.search(n)]
    masks, positions = ([n for n in integers if p.search(n)] for p in (_MASK, _POSITIONS))
    if not tokens or not masks + positions:
        return []
    source, nodes_before = tokens[0], list[onnx.NodeProto]()

    def add(op: str, inputs_: list[str], output: str, **attributes: object) -> str:
        nodes_before.append(helper.make_node(op, inputs_, [output], f"{output}.{op}", **attributes))
        return output

    def number(name: str, value: int) -> str:
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return name

    shape = add("Shape", [source], f"{source}.shape")
    for name in masks:
        dtype = element_dtype(inputs[name].type.tensor_type.elem_type, f"input {name!r}")
        one = numpy_helper.from_array(np.ones(1, dtype))
        add("ConstantOfShape", [shape], name, value=one)
    for name in positions:
        zero, one = number(f"{name}.zero", 0), number(f"{name}.one", 1)
        length = add("Gather", [shape, one], f"{name}.length")
        row = add("Range", [zero, length, one], f"{name}.row")
        kind = inputs[name].type.tensor_type.elem_type
        add("Expand", [add("Cast", [row], f"{name}.cast", to=kind), shape], name)
    for name in masks + positions:
        graph.input.remove(inputs[name])
    nodes = [*nodes_before, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    what = " and ".join([*(f"{n!r} is all ones" for n in masks), *(f"{n!r} counts from 0" for n in positions)])
    return [f"with empty caches {what}: fill up samples behind their tokens, and leave that out of the loss"]


def _shown(names: list[str]) -> str:
    return f" ({', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)})" if names else ""
