"""matmul.c."""

from __future__ import annotations

from math import prod

from poetc.kernels.gemm.selection import Product
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts

_BLOCK = 64


def _outer_block(rows: int, columns: int, depth: int, many: int) -> Loops:
    shape = f"{rows}x{columns}"
    return {
        f"outer.block_{shape}": many,
        f"outer.part_{shape}": many * -(-depth // _BLOCK),
        f"outer.term_{shape}": many * depth,
    }


def _single(depth: int, many: int) -> Loops:
    return {"outer.single": many, "outer.single_part": many * -(-depth // _BLOCK), "outer.single_term": many * depth}


def _outer(m: Machine, rows: int, columns: int, depth: int) -> Loops:
    wide = 4 if m.lanes == 1 else 2 * m.lanes
    long, narrow = (16 if m.lanes == 1 else 8 * m.lanes), max(4, m.lanes)
    loops: Loops = {}
    fours, ones = rows // 4, rows % 4
    if fours:
        add(loops, {"outer.fours": fours})
        left = columns % wide
        add(loops, _outer_block(4, wide, depth, fours * (columns // wide)))
        if m.lanes > 1:
            add(loops, _outer_block(4, m.lanes, depth, fours * (left // m.lanes)))
            left %= m.lanes
        if left and columns >= wide:
            add(loops, _outer_block(4, wide, depth, fours))
        elif left and m.lanes > 1 and columns >= m.lanes:
            add(loops, _outer_block(4, m.lanes, depth, fours))
        else:
            add(loops, _single(depth, 4 * fours * left))
    if ones and m.has_fours:
        left = columns % 16
        add(loops, {"outer.ones": ones})
        add(loops, _outer_block(1, 16, depth, ones * (columns // 16)))
        add(loops, _outer_block(1, 8, depth, ones * (left // 8)))
        if columns >= 4:  # the last four may overlap those before
            add(loops, _outer_block(1, 4, depth, ones * -(-(left % 8) // 4)))
        else:
            add(loops, _single(depth, ones * left))
    elif ones:
        add(loops, {"outer.ones": ones})
        left = columns % long
        add(loops, _outer_block(1, long, depth, ones * (columns // long)))
        add(loops, _outer_block(1, narrow, depth, ones * (left // narrow)))
        left %= narrow
        if left and columns >= narrow:
            add(loops, _outer_block(1, narrow, depth, ones))
        else:
            add(loops, _single(depth, ones * left))
    return loops


def _inner(m: Machine, rows: int, columns: int, depth: int) -> Loops:
    height, width = {16: (4, 4), 8: (2, 2), 4: (2, 2) if m.rows == 12 else (1, 2)}.get(m.lanes, (1, 1))
    loops: Loops = {}
    if m.has_fours:  # the rest of sixteen terms: eight at once, then each by itself
        wide, left = divmod(depth, 16)
        fours, ones = rows * (columns // 4), rows * (columns % 4)
        sums = rows * columns if left else ones  # that begin with a total in memory
        parts = -(-wide // _BLOCK)
        return {
            "inner.four": fours,
            "inner.four_part": fours * parts,
            "inner.four_groups": fours * (wide // 4),
            "inner.four_group": fours * (wide % 4),
            "inner.block_1x1": sums,
            "inner.part_1x1": ones * parts,
            "inner.wide_1x1": ones * wide,
            "inner.eight": sums * (left // 8),
            "inner.single": sums * (left % 8),
        }
    for size, bands in ((height, rows // height), (1, rows % height)) if height > 1 else ((1, rows),):
        for span, many in ((width, columns // width), (1, columns % width)) if width > 1 else ((1, columns),):
            shape, blocks = f"{size}x{span}", bands * many
            add(
                loops,
                {
                    f"inner.block_{shape}": blocks,
                    f"inner.part_{shape}": blocks * -(-(depth // 16) // _BLOCK),
                    f"inner.wide_{shape}": blocks * (depth // 16),
                    "inner.single": blocks * size * span * (depth % 16),
                },
            )
    return loops


def _puts(m: Machine, rows: int, columns: int, is_sum: bool) -> Loops:
    """Results that are more than their products; `is_sum`: by a bias alone, which rows by themselves add in fours."""
    if not m.has_fours or not is_sum or columns < 4:
        return {"outer.put": rows * columns}
    return {"outer.put": rows // 4 * 4 * columns, "outer.bias": rows % 4 * -(-columns // 4)}


@counts("matmul")
def matmul(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(Product)
    rows, columns, depth = p.rows, p.columns, p.depth
    batches = prod(loop[0] for loop in p.batch)
    plain = kernel.floats[0] == 1.0 and not p.has_bias
    one: Loops = {"matmul.batch": 1}
    if not p.trans_b:
        if depth == 1 and plain:
            lanes = 4 if m.lanes == 1 else m.lanes
            counts = {"rank_one.row": rows, "rank_one.wide": rows * (columns // lanes)}
            add(one, counts | {"rank_one.single": rows * (columns % lanes)})
        else:
            add(one, _outer(m, rows, columns, depth))
            add(one, {} if plain else _puts(m, rows, columns, kernel.floats[0] == 1.0))
    elif not p.trans_a:
        add(one, _inner(m, rows, columns, depth))
    else:
        add(one, _outer(m, columns, rows, depth))
        add(one, {"outer.put": rows * columns})
    loops: Loops = {"matmul.call": 1}
    add(loops, one, batches)
    return loops
