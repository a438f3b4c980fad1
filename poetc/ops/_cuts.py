"""The axes along which an operator's work may be cut into blocks, so that operands pass through windows.

A kind declares its cuts. Workspace and traffic of a streamed operator follow from the declaration
(`poetc.devices.blocks`), and so do the calls of its kernel (`poetc.program`). No kind writes them by hand.

The rule of every declaration: a result of a block has the terms of the whole operator's sum, in the same order. So a
cut changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace

from poetc.graph import TensorType
from poetc.ops._bound import Bound

INDICES = "indices"  # the cut that reads single rows of tables
WHOLE = "whole"  # the cut that is none: one block, in which operands on the store have windows as large as they are


Range = tuple[int, int]
Axes = int | tuple[int, int] | None  # an axis, the first and the last of several that are cut as one, or none


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of an operand, of `limit`, that units of an axis need: a band with its halo.

    Units begin .. end - 1 need rows from (begin · mul + low) / div to ((end - 1) · mul + high) / div, both rounded
    down, both included. The first block begins with row 0, and the last one has the last row.
    """

    limit: int
    mul: int = 1
    div: int = 1
    low: int = 0
    high: int = 0

    def of(self, begin: int, end: int, extent: int) -> tuple[int, int]:
        """The first row and the one behind the last, of units of an axis of `extent` units."""
        first = 0 if begin == 0 else min(self.limit, max(0, (begin * self.mul + self.low) // self.div))
        last = self.limit if end == extent else min(self.limit, ((end - 1) * self.mul + self.high) // self.div + 1)
        return first, max(first, last)

    @property
    def has_halo(self) -> bool:
        """Whether it differs from the units themselves."""
        return (self.mul, self.div, self.low, self.high) != (1, 1, 0, 0)


@dataclass(frozen=True, slots=True)
class Part:
    """An operand seen as [rows, extent of the cut, inner], in elements. A block is [rows, units, inner] of it.

    The kernel of a block finds that together. `axis`: of the operand; the last one where several, from `first` on, are
    cut as one; None where it is cut as a flat array. `span`: the extent is another than that of the cut.
    """

    rows: int
    inner: int
    axis: int | None = None
    span: Span | None = None
    first: int | None = None

    def reshaped(self, shape: Sequence[int], units: int) -> tuple[int, ...]:
        """`shape` with so many units along the last of its axes, and one along the others."""
        if self.axis is None:
            return (self.rows * units * self.inner,)
        first = self.axis if self.first is None else self.first
        return (*shape[:first], *[1] * (self.axis - first), units, *shape[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis of `extent` units. `parts`: of the inputs, then of the outputs; None: a block has the whole operand.

    Blocks have a multiple of `step` units, and at most `most` if it is not 0. `within`: each block is cut along another
    axis, too. `binds`: the kernel of a block is the kernel that the operator has for operands of its sizes. `fills`:
    blocks fill a result that an axis does not cut, or add to it, in its window; or the last pass makes it. `tables`:
    operands of which a block needs the rows alone that its part of the operand `indices` names. Their windows have
    these rows one after the other, and the kernel finds indices 0, 1, ...
    """

    name: str
    extent: int
    parts: tuple[Part | None, ...]
    step: int = 1
    within: Cut | None = None
    binds: bool = False
    fills: bool = False
    tables: tuple[int, ...] = ()
    indices: int = -1
    most: int = 0
    _axes: tuple[Cut, ...] = field(init=False, repr=False, compare=False)  # made once: searches ask for them often

    def __post_init__(self) -> None:
        outer = () if self.within is None else (replace(self, within=None), self.within)
        object.__setattr__(self, "_axes", outer)

    @property
    def axes(self) -> tuple[Cut, ...]:
        """The outer axis, and the one within if there is one."""
        return self._axes or (self,)

    def allows(self, units: int) -> bool:
        """Whether its blocks may have so many."""
        return not self.most or units <= self.most

    @property
    def title(self) -> str:
        """Its name in a problem."""
        return "/".join(axis.name for axis in self.axes)

    def span(self, operand: int) -> Span:
        """Of an operand that is cut."""
        part = self.parts[operand]
        return (part.span if part is not None else None) or Span(self.extent)


def along(type: TensorType, axis: int, *, first: int | None = None, span: Span | None = None) -> Part:
    """The part of an operand that is cut along one of its axes, or along several as one."""
    rows = math.prod(type.shape[: axis if first is None else first])
    return Part(rows, math.prod(type.shape[axis + 1 :]), axis, span, None if first == axis else first)


def within_steps(elements: int, start: int, steps: Sequence[int], extents: Sequence[int], loop: int) -> Part | None:
    """The part of an operand of `elements` that loops of `extents` walk from `start` in `steps`, cut along one of them.

    None: it is the same all along that loop. ValueError where the elements of a block are no such part.
    """
    step, extent = steps[loop], extents[loop]
    if step == 0:
        return None
    if min(steps) < 0:
        raise ValueError(f"steps {tuple(steps)} go back")
    others = [(s, n) for k, (s, n) in enumerate(zip(steps, extents, strict=True)) if k != loop and n > 1]
    pitch = min((s for s, _ in others if s >= step), default=elements)
    first, inside = start % pitch // step, sum(s * (n - 1) for s, n in others if s < step)
    is_even = all(s % pitch == 0 for s, _ in others if s >= step) and elements % pitch == pitch % step == 0
    if not is_even or start % step + inside not in range(step) or (first + extent) * step > pitch:
        raise ValueError(f"steps {tuple(steps)} along {tuple(extents)} have no part along axis {loop}")
    limit = pitch // step
    span = None if limit == extent else Span(limit, low=first, high=first)
    return Part(elements // pitch, step, span=span)


def in_window(view: Sequence[int], part: Part, extent: int, units: Range) -> tuple[int, ...]:
    """The start and the steps in a window that has a part of `within_steps`, for the units of a block."""
    span = part.span or Span(extent)
    first, last = span.of(*units, extent)
    pitch, (start, *steps) = span.limit * part.inner, view
    rows, within = divmod(start, pitch)
    begin = (units[0] - first) * part.inner + within
    window = (last - first) * part.inner
    return (rows * window + begin, *(s // pitch * window if s >= pitch else s for s in steps))


def flat(op: Bound, cut_inputs: int, *, binds: bool = False) -> Cut:
    """The cut of an element-wise operator: its first `cut_inputs` inputs and all outputs, as flat arrays."""
    parts: list[Part | None] = [Part(1, 1)] * cut_inputs + [None] * (len(op.inputs) - cut_inputs)
    return Cut("elements", op.outputs[0].elements, (*parts, *([Part(1, 1)] * len(op.outputs))), binds=binds)


def whole(op: Bound) -> Cut:
    """One block with all of every operand: any operator can read its operands from the store so."""
    return Cut(WHOLE, 1, tuple(Part(1, t.elements) for t in (*op.inputs, *op.outputs)))


def on_axis(op: Bound, name: str, axes: Sequence[Axes], *, binds: bool = True) -> tuple[Cut, ...]:
    """The cut of an operator along an axis of each operand, None where it has none; no cut of less than two units."""
    ranges = [(a, a) if isinstance(a, int) else a for a in axes]
    cut = [(t, a) for t, a in zip((*op.inputs, *op.outputs), ranges, strict=True)]
    extent = next(math.prod(t.shape[a[0] : a[1] + 1]) for t, a in cut if a is not None)
    if extent < 2:
        return ()
    parts = tuple(None if a is None else along(t, a[1], first=a[0]) for t, a in cut)
    return (Cut(name, extent, parts, binds=binds),)


def runs(extents: Sequence[int], patterns: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Neighbouring axes of equal pattern, as (first, last). Axes whose pattern is None are left out.

    An axis of length 1 with any pattern ends no run.
    """
    spans: list[tuple[int, int]] = []
    before: Hashable = None
    for axis, (n, pattern) in enumerate(zip(extents, patterns, strict=True)):
        if n == 1 and pattern is not None:
            continue
        if pattern is not None:
            is_next = pattern == before
            spans[-1:] = [(spans[-1][0], axis)] if is_next else [*spans[-1:], (axis, axis)]
        before = pattern
    return spans


def on_runs(op: Bound, every: Sequence[Sequence[Axes]]) -> tuple[Cut, ...]:
    """The cuts of an operator along a run of axes, and along another one, each alone and within the other."""
    names = "rows", "columns"
    cuts = [cut for name, axes in zip(names, every, strict=False) for cut in on_axis(op, name, axes)]
    return crossed(op, *cuts) if len(cuts) == 2 else tuple(cuts)


def untouched(op: Bound, axes: Collection[int]) -> tuple[Cut, ...]:
    """The cuts along the first two runs of `axes` of any length. All operands have them alike."""
    shape = op.outputs[0].shape
    spans = runs(shape, [True if a in axes else None for a in range(len(shape))])
    return on_runs(op, [[run] * (len(op.inputs) + len(op.outputs)) for run in spans[:2]])


def broadcast(op: Bound) -> tuple[Cut, ...]:
    """The cuts of an operator whose inputs broadcast to its output: along its first two runs of axes."""
    shape = op.outputs[0].shape
    lead = [len(shape) - len(x.shape) for x in op.inputs]

    def has(n: int, axis: int) -> bool:
        return axis >= lead[n] and op.inputs[n].shape[axis - lead[n]] > 1

    numbers = range(len(op.inputs))
    spans = runs(shape, [tuple(has(n, axis) for n in numbers) for axis in range(len(shape))])[:2]
    own = [[(a - lead[n], b - lead[n]) if has(n, a) else None for n in numbers] for a, b in spans]
    return on_runs(op, [[*axes, run] for axes, run in zip(own, spans, strict=True)])


def crossed(op: Bound, first: Cut, second: Cut) -> tuple[Cut, ...]:
    """Each cut alone, and one within blocks of the other. None has less than two units.

    Operands that the inner cut alone cuts are read again for each outer block: they are the smaller ones.
    """
    cuts = [cut for cut in (first, second) if cut.extent > 1]
    if len(cuts) < 2:
        return tuple(cuts)

    def size_bytes(cut: Cut, other: Cut) -> int:
        alone = (p is not None and q is None for p, q in zip(cut.parts, other.parts, strict=True))
        return sum(t.size_bytes for t, is_cut in zip(op.inputs, alone, strict=False) if is_cut)

    inner, outer = sorted((second, first), key=lambda c: size_bytes(c, second if c is first else first))
    return (*cuts, replace(outer, within=inner))


def summing(results: Cut, terms: Cut) -> tuple[Cut, ...]:
    """By results, and in each block of these by terms of their sums: a block of terms adds to the sums so far.

    For kernels alone whose sums have these terms outermost. None where either has less than two units.
    """
    return (replace(results, within=terms, fills=True),) if min(results.extent, terms.extent) > 1 else ()


def block_of(op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
    """The operator with the operands of a block. `OpSpec.block` has its attributes, too."""
    if cut.name == WHOLE:
        return op
    count = len(op.inputs)
    types = [*op.inputs, *op.outputs]
    for axis, (begin, end) in zip(cut.axes, ranges, strict=True):
        for n, part in enumerate(axis.parts):
            if part is not None:
                first, last = axis.span(n).of(begin, end, axis.extent)
                types[n] = _block_type(types[n], part, last - first)
    return Bound(op.attributes, tuple(types[:count]), tuple(types[count:]))


def block_with_shape(op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
    """`block_of` of an operator whose attribute `shape` is that of its result."""
    block = block_of(op, cut, ranges)
    return Bound({**op.attributes, "shape": block.outputs[0].shape}, block.inputs, block.outputs)


def _block_type(type: TensorType, part: Part, units: int) -> TensorType:
    return TensorType(part.reshaped(type.shape, units), type.dtype)
