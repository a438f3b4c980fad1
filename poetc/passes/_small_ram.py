"""Kernels for operands that do not fit in RAM: they pass through it in blocks.

The kernel of a convolution, or of a product, is chosen by the bytes of its operands. Large ones get Winograd's filters
and long panels, whose workspaces are larger than the RAM of a microcontroller. A step that must stream its operands has
the kernels of smaller ones instead. They add up in another order, so this is a choice of the step. All schedules of a
step have the same bits.

An operator streams a few operands only. So a concatenation of many tensors becomes several, each of the one before and
of more tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from poetc.graph import Graph, Operator, Role, Tensor, TensorType, TrainingGraph
from poetc.ops import bind, spec
from poetc.ops.convolution import ConvGradWeight
from poetc.ops.sgd_of import SgdOf

SMALL_RAM = "small_ram"  # of an operator: the bytes of operands whose kernel it has
MOST_BYTES = (512 << 10) - 1  # of operands that a microcontroller holds
MOST_PIECES = 10  # of a concatenation or a split: fewer than an operator can stream
G = TypeVar("G", Graph, TrainingGraph)
SHARE = 4  # of RAM, at most, are the operands by which a kernel is chosen


def for_small_ram(graph: TrainingGraph, ram_bytes: int) -> TrainingGraph:
    """The step with kernels for a device of `ram_bytes`; 0 asks for those of the least workspace."""
    graph = _with_short_concats(graph)
    return replace(graph, operators=_operators(graph, ram_bytes))


def model_for_small_ram(graph: Graph, ram_bytes: int) -> Graph:
    """A model for predictions with the kernels that `for_small_ram` gives its training step."""
    graph = _with_short_concats(graph)
    return replace(graph, operators=_operators(graph, ram_bytes))


def model_as_it_was(graph: Graph) -> Graph:
    """The model before `model_for_small_ram`, as its file has it; one that was not changed is the same."""
    operators = [_without_size(op) for op in graph.operators]
    names = {op.name: op for op in operators}
    joined = list[Operator]()
    parts: dict[str, Operator] = {}  # by tensor: the piece that made it, with all before it
    for op in operators:
        base, _, number = op.name.rpartition(".")
        whole = names.get(base) if number.isdecimal() else None
        is_piece = whole is not None and whole.kind == op.kind and op.kind in ("Concat", "Split")
        before = parts.get(op.inputs[0]) if op.kind in ("Concat", "Split") and op.inputs else None
        if before is not None:
            op = _joined(before, op)
        if is_piece:
            parts[op.outputs[0] if op.kind == "Concat" else op.outputs[-1]] = op
        else:
            joined.append(op)
    tensors = {name: t for name, t in graph.tensors.items() if name not in parts}
    return replace(graph, operators=tuple(joined), tensors=tensors)


def _without_size(op: Operator) -> Operator:
    if SMALL_RAM not in op.attributes:
        return op
    return replace(op, attributes={name: value for name, value in op.attributes.items() if name != SMALL_RAM})


def _joined(first: Operator, then: Operator) -> Operator:
    """Two pieces of a concatenation, or of a split, as one; with the name of the second."""
    if then.kind == "Concat":
        return replace(then, inputs=(*first.inputs, *then.inputs[1:]))
    sizes = (first.attributes["sizes"], then.attributes["sizes"])
    assert isinstance(sizes[0], tuple) and isinstance(sizes[1], tuple)
    attributes = {**then.attributes, "sizes": (*sizes[0][:-1], *sizes[1])}
    return replace(then, inputs=first.inputs, outputs=(*first.outputs[:-1], *then.outputs), attributes=attributes)


def _with_short_concats(graph: G) -> G:
    """The same with at most `MOST_PIECES` operands of a concatenation, or of a split."""
    operators, tensors = list[Operator](), dict(graph.tensors)
    for op in graph.operators:
        if op.kind == "Concat" and len(op.inputs) > MOST_PIECES:
            operators += _concats(op, tensors)
        elif op.kind == "Split" and len(op.outputs) > MOST_PIECES:
            operators += _splits(op, tensors)
        else:
            operators.append(op)
    return replace(graph, operators=tuple(operators), tensors=tensors)


def _part(op: Operator, of: str, extent: int, number: int, tensors: dict[str, Tensor]) -> str:
    """A tensor that has so much of the tensor `of` along the operator's axis."""
    whole, axis, name = tensors[of], int(op.attributes["axis"]), f"{of}.{number}"  # type: ignore[arg-type]
    while name in tensors:
        name += "'"
    shape = list(whole.shape)
    shape[axis] = extent
    role = whole.role if whole.role in (Role.ACTIVATION, Role.GRADIENT) else Role.ACTIVATION
    tensors[name] = replace(whole, name=name, type=TensorType(tuple(shape), whole.dtype), role=role)
    return name


def _concats(op: Operator, tensors: dict[str, Tensor]) -> Iterator[Operator]:
    axis = int(op.attributes["axis"])  # type: ignore[arg-type]
    left, number = list(op.inputs), 0
    while len(left) > MOST_PIECES:
        pieces, left = left[:MOST_PIECES], left[MOST_PIECES:]
        extent = sum(tensors[t].shape[axis] for t in pieces)
        number += 1
        left.insert(0, _part(op, op.outputs[0], extent, number, tensors))
        yield replace(op, name=f"{op.name}.{number}", inputs=tuple(pieces), outputs=(left[0],))
    yield replace(op, inputs=tuple(left))


def _splits(op: Operator, tensors: dict[str, Tensor]) -> Iterator[Operator]:
    sizes = op.attributes["sizes"]
    assert isinstance(sizes, tuple)
    left, of, first, number = list(op.outputs), op.inputs[0], 0, 0
    while len(left) > MOST_PIECES:
        pieces, left = left[: MOST_PIECES - 1], left[MOST_PIECES - 1 :]
        own = sizes[first : first + len(pieces)]
        first, number = first + len(pieces), number + 1
        rest = _part(op, op.inputs[0], sum(sizes[first:]), number, tensors)  # type: ignore[arg-type]
        attributes = {**op.attributes, "sizes": (*own, sum(sizes[first:]))}
        yield replace(op, name=f"{op.name}.{number}", inputs=(of,), outputs=(*pieces, rest), attributes=attributes)
        of = rest
    yield replace(op, inputs=(of,), outputs=tuple(left), attributes={**op.attributes, "sizes": sizes[first:]})


def _operators(graph: Graph | TrainingGraph, ram_bytes: int) -> tuple[Operator, ...]:
    most = min(MOST_BYTES, ram_bytes // SHARE)
    return tuple(_operator(op, graph, most) for op in graph.operators)


def _operator(op: Operator, graph: Graph | TrainingGraph, most_bytes: int) -> Operator:
    kind = spec(op.kind)
    if kind.is_view:
        return op
    plain, size = kind.kernel(bind(op, graph.tensors)), most_bytes
    while size <= MOST_BYTES:  # a kernel that descends, or makes a norm again, must be one that packs
        other = replace(op, attributes={**op.attributes, SMALL_RAM: size})
        bound = bind(other, graph.tensors)
        descends = not isinstance(kind, SgdOf) or kind.fits(kind.part(bound))
        if descends and (not isinstance(kind, ConvGradWeight) or kind.has_kernel(bound)):
            return op if kind.kernel(bound) == plain else other
        size = max(1024, 2 * size)
    return op
