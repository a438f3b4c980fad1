"""An operator's numbers in numpy, a block at a time: temporary arrays as large as a block, not as a table of words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from poetc.graph import Array, TensorType
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, Range
from poetc.ops._registry import spec

Box: TypeAlias = tuple[slice, ...]


def box_of(type: TensorType, cut: Cut, operand: int, ranges: Sequence[Range]) -> tuple[tuple[int, ...], Box]:
    """The shape in which an operand is cut, and its part in a block."""
    parts = [(axis, axis.parts[operand], r) for axis, r in zip(cut.axes, ranges, strict=True)]
    flat = next((part for _, part, _ in parts if part is not None and part.axis is None), None)
    shape = type.shape if flat is None else (flat.rows, type.elements // (flat.rows * flat.inner), flat.inner)
    for axis, part, _ in parts:
        if part is not None and part.axis is not None:
            shape = part.reshaped(shape, axis.span(operand).limit)
    box = [slice(0, n) for n in shape]
    for axis, part, (begin, end) in parts:
        if part is not None:
            box[1 if part.axis is None else part.axis] = slice(*axis.span(operand).of(begin, end, axis.extent))
    return shape, tuple(box)


def results_by_parts(
    kind: str, op: Bound, inputs: Sequence[Array], most_bytes: int
) -> Iterator[list[tuple[tuple[int, ...], Box, Array]]]:
    """The results of each block: for each output the shape in which it is cut, its part, and the numbers there.

    Blocks have about `most_bytes` of the largest result. One block is the whole where no cut of the kind divides all
    results. A block's inputs are read when it is made: a result may replace the same part of an input.
    """
    largest = max(t.size_bytes for t in op.outputs)
    cut = _cut(kind, op) if largest > most_bytes else None
    if cut is None:
        boxes = [tuple(slice(0, n) for n in t.shape) for t in op.outputs]
        results = spec(kind).evaluate(op, inputs)
        yield [(t.shape, box, r) for t, box, r in zip(op.outputs, boxes, results, strict=True)]
        return
    count = -(-largest // most_bytes)
    units = max(1, cut.extent // count // cut.step) * cut.step
    begins = [*range(0, cut.extent, units), cut.extent]
    for begin, end in itertools.pairwise(begins):
        ranges, parts = [(begin, end)], []
        block = spec(kind).block(op, cut, ranges)
        for n, (array, type) in enumerate(zip(inputs, op.inputs, strict=True)):
            shape, box = box_of(type, cut, n, ranges)
            if cut.parts[n] is not None:
                array = np.ascontiguousarray(array.reshape(shape)[box]).reshape(block.inputs[n].shape)
            parts.append(array)
        of_block = spec(kind).evaluate_block(block, cut, begin, parts)
        places = list[tuple[tuple[int, ...], Box, Array]]()
        for n, (type, result) in enumerate(zip(op.outputs, of_block, strict=True), len(inputs)):
            shape, box = box_of(type, cut, n, ranges)
            part = cut.parts[n]
            if part is not None and part.axis is None:  # in the shape of the block, or flat
                result = np.asarray(result).reshape([b.stop - b.start for b in box])
            places.append((shape, box, result))
        yield places


def _cut(kind: str, op: Bound) -> Cut | None:
    """The cut of the most units that divides each result; without halos, so that blocks do not overlap."""
    count, is_able = len(op.inputs), spec(kind).evaluates_blocks
    cuts = [replace(cut, within=None) for cut in spec(kind).cuts(op) if not (cut.fills or cut.tables)]
    fitting = [
        cut
        for cut in cuts
        if all(part is not None for part in cut.parts[count:])
        and all(part is None or (part.span is None and (is_able or part.axis is None)) for part in cut.parts)
    ]
    return max(fitting, key=lambda cut: cut.extent, default=None)
