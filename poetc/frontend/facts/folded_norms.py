"""Batch norms that an exporter folded into the layer before them: without them training begins from chance.

The file's own record of the program tells it; else every one of many convolutions has a bias, and there is no norm.
"""

from __future__ import annotations

from collections.abc import Iterator

from poetc.graph import Fact, Graph

KIND = "folded norms"
_MANY = 8  # convolutions
_NORMS = ("BatchNormApply", "GroupNorm", "LayerNorm", "RmsNorm")


def find(graph: Graph, recorded: int = 0) -> Iterator[Fact]:
    """One fact for the model, or none. `recorded`: batch norms that the file names and does not hold."""
    convolutions = [op for op in graph.operators if op.kind == "Conv"]
    if recorded and not any(op.kind == "BatchNormApply" for op in graph.operators):
        evidence = f"the file names {recorded} batch norm{'s' * (recorded > 1)} of the program and holds none"
        yield Fact(KIND, graph.name, recorded, evidence, "certain")
        return
    if len(convolutions) <= _MANY or any(op.kind in _NORMS for op in graph.operators):
        return
    if all(len(op.inputs) == 3 for op in convolutions):
        evidence = f"each of {len(convolutions)} convolutions has a bias, and there is no norm"
        yield Fact(KIND, graph.name, len(convolutions), evidence, "likely")
