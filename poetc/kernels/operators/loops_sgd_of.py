"""sgd_of.c."""

from __future__ import annotations

from poetc.kernels.gemm.loops_packed import carve, pack, parts, run
from poetc.kernels.gemm.selection import STRIP_ROWS, PackedSgdProduct, SgdProduct
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts
from poetc.kernels.operators.parameters import DescendingSlices


def descend(m: Machine, rows: int, width: int) -> Loops:
    """The loop counts of poetc_descend.h: plain SGD on `rows` rows of `width` elements."""
    lanes = max(4, m.lanes)
    return {"descend.row": rows, "descend.wide": rows * (width // lanes), "descend.single": rows * (width % lanes)}


@counts("gather_grad_sgd")
def gather_grad_sgd(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(DescendingSlices)
    inner, number = p.size, p.count
    loops = {"gather_grad_sgd.call": 1, "gather_grad_sgd.slice": number, "gather_grad_sgd.pair": number * (number - 1)}
    add(loops, {"gather_grad_sgd.element": number * inner, "gather_grad_sgd.cleared": inner})
    add(loops, descend(m, number, inner))
    return loops


@counts("matmul_sgd")
def matmul_sgd(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(SgdProduct)
    rows, columns, depth = p.rows, p.columns, p.depth
    lanes = max(4, m.lanes)
    wide, single = rows * (columns // lanes), rows * (columns % lanes)
    prefix = "matmul_sgd.one_" if depth == 1 else "matmul_sgd."
    loops = {"matmul_sgd.call": 1}
    if depth == 1 and m.has_fours:
        fours, rows = divmod(rows, 4)
        wide, single = rows * (columns // 4), rows * (columns % 4)
        loops |= {"matmul_sgd.four": fours, "matmul_sgd.four_twelve": fours * (columns // 12)}
        loops |= {"matmul_sgd.four_quad": fours * (columns % 12 // 4), "matmul_sgd.four_single": fours * (columns % 4)}
    loops |= {f"{prefix}row": rows, f"{prefix}wide": wide, f"{prefix}single": single}
    if depth > 1:
        loops |= {"matmul_sgd.wide_term": wide * depth, "matmul_sgd.single_term": single * depth}
    return loops


@counts("matmul_sgd_packed")
def matmul_sgd_packed(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(PackedSgdProduct)
    rows, columns, k, depth, width = p.rows, p.columns, p.depth, p.terms, p.columns_at_once
    assert carve(m, p.block_floats, depth, 1, width, True)[0] >= min(width, columns)
    loops: Loops = {"matmul_sgd_packed.call": 1}
    for taken, many in parts(columns, width):
        part: Loops = {}
        for number, (terms, times) in enumerate(parts(k, depth)):
            first = 1 if number == 0 else 0
            add(part, pack(m, terms, taken), times)
            if m.has_fours and k <= depth:  # sums that are whole move the weights at once
                add(part, dict(run(m, rows, terms, 0, taken, taken, "contiguous", True)))
                continue
            for strip, strips in parts(rows, STRIP_ROWS):
                add(part, dict(run(m, strip, terms, 0, taken, width, "contiguous", False)), first * strips)
                add(part, dict(run(m, strip, terms, 0, taken, width, "contiguous", True)), (times - first) * strips)
        if not m.has_fours or k > depth:
            add(part, descend(m, rows, taken))
        add(loops, part, many)
    return loops
