"""Losses in blocks of their samples: the cuts of a loss and of its gradient, and the block's share.

A loss adds each block to sums in its workspace, sample by sample in the order of memory, as the whole operator does.
A gradient is divided by a number of the whole: one that is known, or sums over all targets. It then goes over its
samples twice. The first pass adds up, and the second one makes gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from poetc.ops._bound import Bound
from poetc.ops._cuts import Axes, Cut, Part, Range, block_of, crossed, on_axis

SUMS_BYTES = 32  # of a loss so far: poetc_loss_sums of poetc_loss.h
_PASS = "pass"
_WHOLE, _FIRST, _LATER, _ADDED = range(4)  # which part of a loss a block is, as poetc_loss.h numbers them
_MEAN_OF, _PART = "mean_of", "part"  # attributes of a block


def of_samples(op: Bound, axis: int) -> tuple[Cut, Cut]:
    """The cuts by samples before and behind the axis of the classes; of one unit where there is but one."""
    shape = op.inputs[0].shape

    def axes(before: bool) -> list[Axes]:
        ranges = list[Axes]()
        for t in (*op.inputs, *op.outputs):
            own = len(t.shape) == len(shape)
            behind = axis + own, len(t.shape) - 1
            ranges.append(None if t.elements == 1 else (0, axis - 1) if before else behind)
        return ranges

    def cut(name: str, extents: Sequence[int], before: bool) -> Cut:
        if math.prod(extents) < 2:
            return Cut(name, 1, (None,) * (len(op.inputs) + len(op.outputs)), binds=True)
        return on_axis(op, name, axes(before))[0]

    return cut("samples", shape[:axis], True), cut("places", shape[axis + 1 :], False)


def of_elements(op: Bound) -> Cut:
    """The cut of a loss of elements, or of its gradient: prediction, target and result as flat arrays."""
    parts = tuple(Part(1, 1) if n < 2 or t.elements > 1 else None for n, t in enumerate((*op.inputs, *op.outputs)))
    return Cut("elements", op.inputs[0].elements, parts, binds=True)


def in_order(before: Cut, behind: Cut) -> tuple[Cut, ...]:
    """The cuts of `of_samples` whose blocks follow each other in memory."""
    if min(before.extent, behind.extent) < 2:
        return tuple(cut for cut in (before, behind) if cut.extent > 1)
    return before, replace(before, within=behind, most=1)


def in_any_order(op: Bound, before: Cut, behind: Cut) -> tuple[Cut, ...]:
    """The cuts of a gradient whose samples depend on no sum."""
    return crossed(op, before, behind)


def summed(cuts: Sequence[Cut]) -> tuple[Cut, ...]:
    """The cuts of a loss, whose blocks add to its sums."""
    return tuple(replace(cut, fills=True) for cut in cuts)


def twice(cuts: Sequence[Cut]) -> tuple[Cut, ...]:
    """Of a gradient that needs sums over all samples: a pass for these, then another one. Blocks have one more axis."""
    return tuple(
        Cut(_PASS, 2, (None,) * len(cut.parts), within=cut, binds=True, fills=True)
        for cut in cuts
        if cut.within is None
    )


def block_of_mean(op: Bound, cut: Cut, ranges: Sequence[Range], mean_of: int) -> Bound:
    """The block, which knows of how many samples the mean is, and which part of the loss it is."""
    block = block_of(op, cut, ranges)
    part = _WHOLE if not cut.fills else _LATER if any(begin for begin, _ in ranges) else _FIRST
    if cut.name == _PASS and ranges[0][0]:
        part = _ADDED
    return Bound({**op.attributes, _MEAN_OF: mean_of, _PART: part}, block.inputs, block.outputs)


def mean_of(op: Bound, samples: int) -> int:
    """Of how many samples the mean is, of which this block has `samples`."""
    return op.get_int(_MEAN_OF, samples)


def part_of(op: Bound) -> int:
    """The block's place among the blocks of a loss, as C numbers it: _WHOLE, _FIRST, _LATER or _ADDED.

    _WHOLE also where an earlier pass has the sums.
    """
    return op.get_int(_PART)


def adds_up(op: Bound) -> bool:
    """Whether a block of a gradient makes none yet."""
    return part_of(op) in (_FIRST, _LATER)


def sums_bytes(op: Bound) -> int:
    """Of workspace that a block takes for the sums of its loss."""
    return SUMS_BYTES if part_of(op) else 0
