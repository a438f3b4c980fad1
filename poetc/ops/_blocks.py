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
        cut_so: list[Kernel] = []
        of_outer: dict[Block, Kernel | None] = {}  # blocks along an inner axis have it in common
        for (name, block), *inner in along:
            if block not in of_outer:
                of_outer[block] = block_kernel(kernel, name, block)
            of_block = of_outer[block]
            for inner_name, inner_block in inner:
                of_block = None if of_block is None else block_kernel(of_block, inner_name, inner_block)
            if of_block is None:
                break
            cut_so.append(of_block)
        else:
            kernels_by_name[kernel.name] = tuple(cut_so)
    return kernels_by_name


def _along(cut: Cut, ranges: Sequence[Range]) -> list[tuple[str, Block]]:
    """The name of each axis and the block along it."""
    blocks = []
    for axis, (begin, end) in zip(cut.axes, ranges, strict=True):
        banded = next((n for n, p in enumerate(axis.parts) if p is not None and p.span is not None), None)
        first, last = (begin, end) if banded is None else axis.span(banded).of(begin, end, axis.extent)
        blocks.append((axis.name, Block(begin, end, axis.extent, first, last)))
    return blocks
