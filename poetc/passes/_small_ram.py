"""Kernels for operands that do not fit in RAM: they pass through it in blocks.

The kernel of a convolution, or of a product, is chosen by the bytes of its operands. Large ones get Winograd's filters
and long panels, whose workspaces are larger than the RAM of a microcontroller. A step that must stream its operands has
the kernels of small ones instead. They add up in another order, so this is a choice of the step. All schedules of a
step have the same bits.
"""

from __future__ import annotations

from dataclasses import replace

from poetc.graph import Graph, Operator, TrainingGraph
from poetc.ops import bind, spec

SMALL_RAM = "small_ram"  # the attribute of an operator that has such a kernel


def for_small_ram(graph: TrainingGraph) -> TrainingGraph:
    """The step with these kernels; itself where no operator has another one."""
    return replace(graph, operators=made) if (made := _operators(graph)) is not None else graph


def model_for_small_ram(graph: Graph) -> Graph:
    """The model with the kernels that it has in such a step."""
    return replace(graph, operators=made) if (made := _operators(graph)) is not None else graph


def _operators(graph: Graph | TrainingGraph) -> tuple[Operator, ...] | None:
    operators = tuple(_operator(op, graph) for op in graph.operators)
    return None if all(a is b for a, b in zip(operators, graph.operators, strict=True)) else operators


def _operator(op: Operator, graph: Graph | TrainingGraph) -> Operator:
    kind = spec(op.kind)
    if kind.is_view:
        return op
    other = replace(op, attributes={**op.attributes, SMALL_RAM: 1})
    same = kind.kernel(bind(op, graph.tensors)) == kind.kernel(bind(other, graph.tensors))
    return op if same else other
