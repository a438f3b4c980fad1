"""Choose how kernels pack their operands, and with how large a workspace.

The sizes follow runtime/kernels/gemm/poetc_gemm_pack.h, for the largest register block of all targets: no binding
depends on the target.
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS, COLUMNS = 12, 32  # of a register block
PANELS = (4, 2, 1)  # of columns, that low-workspace kernels pack at a time

# Panels of packed columns at once, and terms of a sum that are added up before they join the total: the first
# that fits. Short sums keep rounding errors near those of single terms.
SHAPES = ((4, 64), (2, 64), (1, 64), (1, 32), (1, 16))

# A packing kernel is bound if its workspace is at most this part of its operands. The peak of a training step is a
# multiple of the operands of any operator, so it hardly moves. Tiny operators keep their kernels without one.
SHARE = 2


# Panels of one block each, for several blocks of terms at once: with caches results are then read and written less
# often. Only where that is next to nothing beside the operands: no microcontroller holds tensors of that size.
WIDE_PANELS = (32, 16, 8)
WIDE_SHARE = 8
THREAD_FLOATS = 131072  # of workspace, at most half of the share that each of several threads has
# (POETC_THREADS_FLOATS)
WINDOW_STRIP = 2048  # floats: rows of an image with zeros around them
WIDE_DEPTH = 256  # terms, of poetc_gemm.c
DEEP_PANELS = 2  # of the same: with so few columns
DEEP = 2304  # terms at once, about, where operands are too large for a microcontroller
DEEP_BYTES = 512 << 10
# Panels of a gradient of weights with a single block of terms: rows of weights are moved in pieces as long.
LONG_PANELS = (48, 32, 16)
LONG_STRIP = 64  # columns of the strip of results in which targets without wide vectors make it
# Products of matrices with operands of so many bytes have sums of blocks of up to WIDE_DEPTH terms. So results are read
# and written less often, whatever the workspace. Where rows are packed too, only if it makes sums whole.
PRODUCT_BYTES, PRODUCT_TERMS = 1 << 20, 128
WHOLE_BYTES = 1 << 19  # where that makes sums whole
PRODUCT_PANELS = (8, 4)
PRODUCT_SHARE = 5  # of operands: weights are read in longer pieces


def workspace_floats(columns: int, depth: int, panels: int, pack_rows: bool) -> int:
    """For products with `columns` columns in blocks of `depth` terms."""
    panels = min(panels, -(-columns // COLUMNS))
    return 16 + (ROWS * depth if pack_rows else 0) + panels * COLUMNS * depth


def panel_columns(columns: int, blocks: int, floats: int, terms: int) -> int:
    """Columns that are packed at once, at most: poetc_gemm_carve without packed rows."""
    most = min(SHAPES[0][0], -(-columns // COLUMNS)) * COLUMNS
    fit = max(1, (floats - 16) // (terms * most))
    return (floats - 16) // (min(fit, most_blocks(columns, blocks, terms)) * terms * COLUMNS) * COLUMNS


def most_blocks(columns: int, blocks: int, terms: int, width: int = COLUMNS) -> int:
    """Blocks of terms that are packed at once, at most, on a target with panels of `width` columns."""
    return blocks if columns <= DEEP_PANELS * width else min(blocks, WIDE_DEPTH // terms)


def _wide_floats(columns: int, blocks: int, terms: int, operand_bytes: int, deep: bool) -> int | None:
    """The floats of a workspace for more than one block of terms, if there may be one."""
    needed = -(-columns // COLUMNS)
    if deep and needed <= DEEP_PANELS and operand_bytes >= DEEP_BYTES:
        for pieces in range(-(-blocks * terms // DEEP), -(-blocks * terms // WIDE_DEPTH)):
            floats = workspace_floats(columns, terms * -(-blocks // pieces), needed, False)
            if 4 * floats * WIDE_SHARE <= operand_bytes:
                return floats
    for panels in WIDE_PANELS if blocks > 1 else ():
        at_once = min(blocks, panels // min(SHAPES[0][0], needed), WIDE_DEPTH // terms)
        floats = workspace_floats(columns, terms * at_once, panels // at_once, False)
        if 4 * floats * WIDE_SHARE <= operand_bytes:
            return floats
    return None


@dataclass(frozen=True, slots=True)
class Packing:
    """A kernel packs in a workspace of so many floats, and a block of a sum has `terms` terms.

    `strip_floats` of the workspace hold a strip of an image; they are 0 if there is none, or the kernel decides.
    """

    workspace_floats: int
    terms: int
    strip_floats: int = 0

    @property
    def workspace_bytes(self) -> int:
        return 4 * self.workspace_floats


def choose(
    columns: int,
    depth: int,
    operand_bytes: int,
    *,
    pack_rows: bool = False,
    held: int = 0,
    sums: int = 1,
    strip: bool = False,
    product: bool = False,
) -> Packing | None:
    """Choose how products with `columns` columns and sums of `depth` terms are packed; None if packing does not pay.

    With `pack_rows` the left operand is packed too. `held` is the size of the kernel's own buffer in floats. A result
    adds up `sums` sums of `depth` terms each. With `strip` there may be a strip of an image. A `product` of matrices
    has longer blocks of terms where it is large.
    """
    least, most = (WHOLE_BYTES, PRODUCT_TERMS) if pack_rows else (PRODUCT_BYTES, depth)
    if product and operand_bytes >= least and 64 < depth <= most:
        terms = min(depth, WIDE_DEPTH)
        for panels in PRODUCT_PANELS:
            floats = workspace_floats(columns, terms, panels, pack_rows)
            if 4 * (floats - 16) * PRODUCT_SHARE <= operand_bytes:
                break
        return Packing(floats, terms)
    terms = min(depth, SHAPES[0][1])
    blocks = sums if depth <= terms else -(-depth // terms)
    # For powers of two, the line on which panels begin must not decide.
    room_bytes = operand_bytes + (64 * WIDE_SHARE if product else 0)
    if not pack_rows and (wide := _wide_floats(columns, blocks, terms, room_bytes, not strip)):
        more = WINDOW_STRIP if strip else 0
        return Packing(wide + more, terms, more)
    wide_panels = WIDE_PANELS if product else WIDE_PANELS[1:]
    for panels in wide_panels if pack_rows and not held else ():  # more columns share packed rows
        floats = workspace_floats(columns, terms, panels, True)
        if 4 * floats * WIDE_SHARE <= operand_bytes:
            return Packing(floats, terms)
    for panels in LONG_PANELS if strip and blocks == 1 and operand_bytes >= DEEP_BYTES else ():
        floats = workspace_floats(columns, terms, panels, False) + WINDOW_STRIP
        if 4 * floats * WIDE_SHARE <= operand_bytes:
            return Packing(floats, terms, WINDOW_STRIP)
    for panels, most in SHAPES:
        terms = min(depth, most)
        floats = workspace_floats(columns, terms, panels, pack_rows) + held
        if 4 * floats * SHARE <= operand_bytes:
            return Packing(floats, terms)
    return None
