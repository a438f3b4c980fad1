"""The kernel of a block of an operator that is cut."""

from __future__ import annotations

from collections.abc import Sequence

from poetc.ops._bound import Bound
from poetc.ops._cuts import WHOLE, Cut, Range, block_of
from poetc.ops._registry import spec
from poetc.ops.kernels import Kernel
from poetc.ops.kernels.blocks import block_kernel
from poetc.ops.kernels.kernel import Block


def kernel_of_block(kind: str, op: Bound, cut: Cut, kernel: Kernel, ranges: Sequence[Range]) -> Kernel | None:
    """Of the units `ranges` along each axis of `cut`; None where `kernel`, of the whole operator, cannot be cut."""
    if cut.name == WHOLE:
        return kernel
    if cut.binds:
        of_first = next((k for k in spec(kind).kernels(block_of(op, cut, ranges)) if k.name == kernel.name), None)
        return None if of_first is None or of_first.repeats != kernel.repeats else of_first
    of_block: Kernel | None = kernel
    for axis, (begin, end) in zip(cut.axes, ranges, strict=True):
        banded = next((n for n, p in enumerate(axis.parts) if p is not None and p.span is not None), None)
        first, last = (begin, end) if banded is None else axis.span(banded).of(begin, end, axis.extent)
        of_block = block_kernel(of_block, axis.name, Block(begin, end, axis.extent, first, last)) if of_block else None
    return of_block
