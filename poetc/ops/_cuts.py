"""The axes along which an operator's work may be cut into blocks, so that an operand passes through a window.

A kind declares its cuts. Workspace and traffic of a streamed operator follow from the declaration
(`poetc.devices.streaming`), and so do the calls of its kernel (`poetc.codegen`). No kind writes them by hand.

The rule of every declaration: a result of a block has the terms of the whole operator's sum, in the same order. So a
cut changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from poetc.graph import TensorType
from poetc.ops._bound import Bound


@dataclass(frozen=True, slots=True)
class Part:
    """An operand seen as [rows, extent of the cut, inner], in elements. A block is [rows, units, inner] of it.

    `axis`: of the operand; None where it is cut as a flat array. `is_strided`: the kernel reads or writes a block where
    it lies in the whole operand. Any other operand in RAM must have one row, so that a block of it lies together.
    """

    rows: int
    inner: int
    axis: int | None = None
    is_strided: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis of `extent` units. `parts`: of the inputs, then of the outputs; None: a block has the whole operand."""

    name: str
    extent: int
    parts: tuple[Part | None, ...]


def along(type: TensorType, axis: int, *, is_strided: bool = False) -> Part:
    """The part of an operand that is cut along one of its axes."""
    return Part(math.prod(type.shape[:axis]), math.prod(type.shape[axis + 1 :]), axis, is_strided)


def flat(op: Bound, cut_inputs: int) -> Cut:
    """The cut of an element-wise operator: its first `cut_inputs` inputs and all outputs, as flat arrays."""
    parts: list[Part | None] = [Part(1, 1)] * cut_inputs + [None] * (len(op.inputs) - cut_inputs)
    return Cut("elements", op.inputs[0].elements, (*parts, *([Part(1, 1)] * len(op.outputs))))


def block_of(op: Bound, cut: Cut, units: int) -> Bound:
    """The operator that a block of `units` units is, for its work and its costs."""

    def typed(types: Sequence[TensorType], parts: Sequence[Part | None]) -> tuple[TensorType, ...]:
        return tuple(_block_type(t, p, units) for t, p in zip(types, parts, strict=True))

    count = len(op.inputs)
    return Bound(op.attributes, typed(op.inputs, cut.parts[:count]), typed(op.outputs, cut.parts[count:]))


def _block_type(type: TensorType, part: Part | None, units: int) -> TensorType:
    if part is None:
        return type
    if part.axis is None:
        return TensorType((part.rows * units * part.inner,), type.dtype)
    return TensorType((*type.shape[: part.axis], units, *type.shape[part.axis + 1 :]), type.dtype)
