"""The axis of an output that holds the classes: that of a Softmax, or of the units of the layer that makes the scores.

Every class has weights of its own in the last layer, so its units are the classes: channels of a convolution, columns
of a product. The axis is followed through operators that move data or work on each element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from poetc.frontend.facts._axes import int_of, makers, reshaped, tuple_of
from poetc.graph import Fact, Graph, Operator

KIND = "class axis"
_Shape = tuple[int, ...]
_Move = tuple[_Shape, _Shape | None]  # the shapes before and after a Reshape, or the permutation of a Transpose
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Maximum", "Minimum")
_ONE_INPUT = ("Affine", "Clip", "Sigmoid", "Relu", "Tanh", "Neg", "Exp", "Log", "Cast", "BatchNormApply", "DropoutSite")


def find(graph: Graph) -> Iterator[Fact]:
    """One fact for each output of three axes or more that tells its classes; of fewer axes the last holds them."""
    made_by = makers(graph)
    for name in graph.outputs:
        rank = len(graph.tensors[name].shape)
        guess = _axis(graph, made_by, name) if rank > 2 else None
        if guess is not None and guess[0]:
            axis, what, confidence = guess
            yield Fact(KIND, name, axis, what, confidence, "--class-axis")


def _axis(graph: Graph, made_by: Mapping[str, Operator], name: str) -> tuple[int, str, str] | None:
    """The axis of `name`, the layer or Softmax that tells it, and the confidence."""
    op = made_by.get(name)
    moves: list[_Move] = []
    while op is not None:
        shape = graph.tensors[name].shape
        if op.kind in ("Softmax", "LogSoftmax"):
            return _moved(moves, int_of(op, "axis", -1) % len(shape), f"the axis of {op.kind} {op.source!r}", "certain")
        if op.kind in ("Conv", "ConvTranspose"):
            return _moved(moves, 1, f"the channels of {op.source!r}, a convolution", "likely")
        if op.kind == "MatMul":
            return _of_product(graph, made_by, op, moves)
        before = _source(graph, op, name)
        if before is None:
            return None
        if op.kind == "Transpose":
            moves.append((tuple_of(op, "perm"), None))
        elif op.kind == "Reshape":
            moves.append((graph.tensors[before].shape, shape))
        name, op = before, made_by.get(before)
    return None


def _source(graph: Graph, op: Operator, name: str) -> str | None:
    """The input whose axes those of `name` are, up to a move."""
    if op.kind in ("Transpose", "Reshape", "Slice", "Split", *_ONE_INPUT):
        return op.inputs[0]
    if op.kind in _ELEMENTWISE:
        shape = graph.tensors[name].shape
        same = [t for t in op.inputs if graph.tensors[t].shape == shape and t not in graph.values]
        return same[0] if len(same) == 1 else None
    if op.kind == "Concat":
        return op.inputs[0]
    return None


def _of_product(
    graph: Graph, made_by: Mapping[str, Operator], op: Operator, moves: list[_Move]
) -> tuple[int, str, str] | None:
    rank = len(graph.tensors[op.outputs[0]].shape)
    for k, axis in ((1, rank - 1), (0, rank - 2)):
        weight = op.inputs[k]
        while weight not in graph.values and weight in made_by and made_by[weight].kind in ("Reshape", "Transpose"):
            weight = made_by[weight].inputs[0]
        if weight in graph.values:
            return _moved(moves, axis, f"the units of {op.source!r}, a product with weights", "likely")
    return None


def _moved(moves: list[_Move], axis: int, what: str, confidence: str) -> tuple[int, str, str] | None:
    """The axis behind the operators that move data, the last one of the graph first in `moves`."""
    moved: int | None = axis
    for before, after in reversed(moves):
        if moved is None:
            return None
        moved = before.index(moved) if after is None else reshaped(before, moved, after)
    return None if moved is None else (moved, what, confidence)
