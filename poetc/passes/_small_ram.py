"""Kernels for operands that do not fit in RAM: they pass through it in blocks.

The kernel of a convolution, or of a product, is chosen by the bytes of its operands. Large ones get Winograd's filters
and long panels, whose workspaces are larger than the RAM of a microcontroller. A step that must stream its operands has
the kernels of smaller ones instead. They add up in another order, so this is a choice of the step. All schedules of a
step have the same bits.
"""

from __future__ import annotations

from dataclasses import replace

from poetc.graph import Graph, Operator, TrainingGraph
from poetc.ops import bind, spec
from poetc.ops.sgd_of import SgdOf

SMALL_RAM = "small_ram"  # of an operator: the bytes of operands whose kernel it has
MOST_BYTES = (512 << 10) - 1  # of operands that a microcontroller holds
SHARE = 4  # of RAM, at most, are the operands by which a kernel is chosen


def for_small_ram(graph: TrainingGraph, ram_bytes: int) -> TrainingGraph:
    """The step with kernels for so much RAM, those with the least workspace for none."""
    return replace(graph, operators=_operators(graph, ram_bytes))


def model_for_small_ram(graph: Graph, ram_bytes: int) -> Graph:
    """The model with the kernels that it has in such a step."""
    return replace(graph, operators=_operators(graph, ram_bytes))


def _operators(graph: Graph | TrainingGraph, ram_bytes: int) -> tuple[Operator, ...]:
    most = min(MOST_BYTES, ram_bytes // SHARE)
    return tuple(_operator(op, graph, most) for op in graph.operators)


def _operator(op: Operator, graph: Graph | TrainingGraph, most_bytes: int) -> Operator:
    kind = spec(op.kind)
    if kind.is_view:
        return op
    plain, size = kind.kernel(bind(op, graph.tensors)), most_bytes
    while size <= MOST_BYTES:  # a kernel that descends must be one that packs
        other = replace(op, attributes={**op.attributes, SMALL_RAM: size})
        bound = bind(other, graph.tensors)
        if not isinstance(kind, SgdOf) or kind.fits(kind.part(bound)):
            return op if kind.kernel(bound) == plain else other
        size = max(1024, 2 * size)
    return op
