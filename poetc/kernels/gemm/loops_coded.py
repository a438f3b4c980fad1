"""matmul_coded.c: the packed product, and the numbers that are decoded for it."""

from __future__ import annotations

from poetc.kernels.gemm.coded import CodedProduct
from poetc.kernels.gemm.loops_packed import carve, matmul_packed, parts, row_blocks, run
from poetc.kernels.gemm.selection import PackedProduct, Strides
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import BESIDES, Loops, Machine, add, counts

_PIECE_BITS = 128  # of a column, that vectors take at once: poetc_coded_block.h
_MORE_ROWS = 3  # than its largest block has take codes from registers


@counts("matmul_coded")
def matmul_coded(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(CodedProduct)
    if not _has_vectors(p, m):
        lies = (1, p.depth) if p.turned else (p.columns, 1)
        strides = Strides(p.depth, 1, *lies, p.columns)
        sizes = (p.rows, p.columns, p.depth, p.has_bias)
        product = PackedProduct(*sizes, strides, (), p.panel_floats, p.terms)
        loops = dict(matmul_packed(Kernel("poetc_op_matmul_packed", product, kernel.floats), m))
        add(loops, {"affine.single": p.columns * p.depth})  # a difference and a product for each number
        return loops
    most = 8 if m.rows >= 12 else 4
    is_few = p.rows <= most + _MORE_ROWS
    groups = sum(many * max(1, size // most) for size, many in row_blocks(m, p.rows)) if is_few else 1
    loops = {"matmul_packed.call": 1, "matmul_packed.batch": 1}
    columns, at_once = carve(m, p.panel_floats, p.terms, -(-p.depth // p.terms), p.columns, False)
    for width, many in parts(p.columns, columns):
        for number, (terms, times) in enumerate(parts(p.depth, at_once)):
            first = 1 if number == 0 else 0
            add(loops, dict(run(m, p.rows, terms, 0, width, p.columns, "", False, p.terms)), many * first)
            add(loops, dict(run(m, p.rows, terms, 0, width, p.columns, "", True, p.terms)), many * (times - first))
    if kernel.floats[0] != 1.0:
        name = "affine" if p.has_bias else "scale"
        add(loops, {"matmul_packed.row": p.rows, f"matmul_packed.{name}": p.rows * p.columns})
    add(loops, {"affine.single": groups * p.columns * p.depth // m.lanes})  # a vector as long as a number alone
    return loops


def _has_vectors(p: CodedProduct, m: Machine) -> bool:
    """Whether vectors decode nearly all codes (coded_fits)."""
    if m.lanes == 1 or p.bits > 8 or p.columns < m.columns:
        return False
    width = p.depth if p.turned else p.columns
    if p.block < width and p.block % (32 // p.bits if p.turned else m.columns):
        return False
    return not p.turned or (p.depth % (_PIECE_BITS // p.bits) == 0 and p.terms % (_PIECE_BITS // p.bits) == 0)


BESIDES["poetc_op_matmul_coded"] = "matmul_packed"
