"""Workspace of the kernels that pack their operands, and the rule by which they are chosen.

The sizes follow runtime/kernels/poetc_gemm.h, for the largest register block of all targets: what is bound does not
depend on the target.
"""

from __future__ import annotations

from poetc.ops._registry import Kernel

ROWS, COLUMNS, DEPTH = 12, 32, 128  # of a register block; terms of a sum that are added up before they join the total
PANELS = 2  # of packed columns at once, where there are so many

# A packing kernel is bound when its workspace is at most this part of its operands. The peak of a training step is a
# multiple of what any operator reads and writes, so it hardly moves; tiny operators keep their lean kernels.
SHARE = 4


def workspace_floats(columns: int, depth: int, extra: int = 0) -> int:
    """For products with `columns` columns and sums of `depth` terms. `extra`: the caller's own buffer."""
    depth = min(depth, DEPTH)
    panels = min(PANELS, -(-columns // COLUMNS))
    return 16 + ROWS * COLUMNS + ROWS * depth + panels * COLUMNS * depth + extra


def worthwhile(floats: int, operand_bytes: int) -> bool:
    """Whether `floats` of workspace may be spent on operands of `operand_bytes` in all."""
    return 4 * floats * SHARE <= operand_bytes


def choose(
    lean: Kernel, columns: int, depth: int, operand_bytes: int, held: int = 0, extra: tuple[int, ...] = ()
) -> Kernel:
    """`lean`, or its packing variant: the workspace's size joins its ints, then `extra`."""
    floats = workspace_floats(columns, depth, held)
    if not worthwhile(floats, operand_bytes):
        return lean
    return Kernel(f"{lean.symbol}_packed", (*lean.ints, floats, *extra), lean.floats, 4 * floats)


STRIP_FLOATS = 2048  # about what the strip of a depthwise convolution takes of the workspace


def strip(
    lean: Kernel, padded: int, stride: tuple[int, int], reach: int, size: tuple[int, int], gradient: bool
) -> Kernel:
    """A depthwise kernel in place of `lean`: strips of a plane whose rows are `padded` floats long, over which a
    window of `reach` rows makes a result of `size`. `gradient`: rows of the result's size are held too.
    """
    phase = -(-padded // stride[1]) + 4
    row = stride[1] * phase
    held = -(-size[1] // 4) * 4 if gradient else 0
    rows = max(1, min(size[0], (STRIP_FLOATS - reach * row) // (stride[0] * row + held)))
    taken = ((rows - 1) * stride[0] + reach) * row
    symbol = lean.symbol.replace("conv", "depthwise")
    return Kernel(symbol, (*lean.ints, stride[1], phase, row, rows, taken), lean.floats, 4 * (taken + rows * held + 16))
