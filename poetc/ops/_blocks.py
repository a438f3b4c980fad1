"""The kernels of blocks of an operator that is cut."""

from __future__ import annotations

from collections.abc import Sequence

from poetc.kernels import Kernel
from poetc.kernels.blocks import block_kernel
from poetc.kernels.kernel import Block
from poetc.ops._bound import Bound
from poetc.ops._cuts import WHOLE, Cut, Range
from poetc.ops._registry import spec


def kernels_of_blocks(
    kind: str, op: Bound, cut: Cut, kernels: Sequence[Kernel], blocks: Sequence[Sequence[Range]]
) -> dict[str, tuple[Kernel, ...]]:
    """The kernel of each of `blocks`, by the name of the whole operator's, without those that cannot be cut so.

    A block is given by its units along each axis of `cut`.
    """
    if cut.name == WHOLE:
        return {kernel.name: (kernel,) * len(blocks) for kernel in kernels}
    kernels_by_name: dict[str, tuple[Kernel, ...]] = {}
    if cut.binds:
        own = spec(kind)
        bound = [{k.name: k for k in own.kernels(own.block(op, cut, ranges))} for ranges in blocks]
        for kernel in kernels:
            bound_kernels = [
                b[kernel.name] for b in bound if kernel.name in b and b[kernel.name].repeats == kernel.repeats
            ]
            if len(bound_kernels) == len(blocks):
                kernels_by_name[kernel.name] = tuple(bound_kernels)
        return kernels_by_name
    along = [_along(cut, ranges) for ranges in blocks]
    for kernel in kernels:
        cut_so = [_cut(kernel, axes) for axes in along]
        if (of_blocks := tuple(k for k in cut_so if k is not None)) and len(of_blocks) == len(blocks):
            kernels_by_name[kernel.name] = of_blocks
    return kernels_by_name


def _along(cut: Cut, ranges: Sequence[Range]) -> list[tuple[str, Block]]:
    """The name of each axis and the block along it."""
    blocks = []
    for axis, (begin, end) in zip(cut.axes, ranges, strict=True):
        banded = next((n for n, p in enumerate(axis.parts) if p is not None and p.span is not None), None)
        first, last = (begin, end) if banded is None else axis.span(banded).of(begin, end, axis.extent)
        blocks.append((axis.name, Block(begin, end, axis.extent, first, last)))
    return blocks


def _cut(kernel: Kernel, axes: Sequence[tuple[str, Block]]) -> Kernel | None:
    of_block: Kernel | None = kernel
    for name, block in axes:
        of_block = None if of_block is None else block_kernel(of_block, name, block)
    return of_block
