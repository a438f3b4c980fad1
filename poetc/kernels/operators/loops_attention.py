"""attention.c: the products of each strip of queries, and the softmax of its rows."""

from __future__ import annotations

from collections import Counter

from poetc.kernels.gemm.selection import PackedProduct, Strides
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import BESIDES, COUNTS, Loops, Machine, add, counts
from poetc.kernels.operators.attention import AttentionRows
from poetc.kernels.operators.parameters import Axis


def _product(m: Machine, p: AttentionRows, kind: int, rows: int, columns: int, depth: int, turned: str) -> Loops:
    """One of a strip. `turned`: the operand whose terms do not lie together, or of which columns do not."""
    a = (1, rows) if turned == "a" else (depth, 1)
    b = (1, depth) if turned == "b" else (columns, 1)
    parameters = PackedProduct(
        rows, columns, depth, False, Strides(*a, *b, columns), (), p.product_floats, p.terms[kind]
    )
    return COUNTS["poetc_op_matmul_packed"](Kernel("poetc_op_matmul_packed", parameters, (1.0,)), m)


def _rows(m: Machine, name: str, rows: int, count: int) -> Loops:
    return COUNTS[f"poetc_op_{name}"](Kernel(f"poetc_op_{name}", Axis(rows, count, 1)), m)


@counts("attention", "attention_grad")
def attention(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(AttentionRows)
    s = p.sizes
    loops: Loops = {}
    want_q, want_k, want_v = p.wants or (0, 0, 0)
    for (rows, keys, visible), times in Counter(p.strips()).items():
        if not keys:
            continue
        strip: Loops = {}
        add(strip, _product(m, p, 0, rows, keys, s.size, "b"))
        add(strip, _rows(m, "softmax", rows, max(1, visible // rows)))
        if p.mask or p.capped:
            add(strip, {"mul.call": 1, "mul.chunk": visible // 16} if m.lanes > 1 else {"mul.single": visible})
        if not p.is_backward:
            add(strip, _product(m, p, 1, rows, s.width, keys, ""))
        if want_q or want_k:
            add(strip, _product(m, p, 2, rows, keys, s.width, "b"))
            add(strip, _rows(m, "softmax_grad", rows, keys))
        if want_q:
            add(strip, _product(m, p, 3, rows, s.size, keys, ""))
        add(loops, strip, s.heads * times)
    for (keys, queries), times in Counter(p.sums() if p.is_backward else ()).items():
        for wanted, kind, columns in ((want_v, 4, s.width), (want_k, 5, s.size)):
            if wanted:
                add(loops, _product(m, p, kind, keys, columns, queries, "a"), s.heads * times)
    return loops


for name in ("attention", "attention_grad"):
    BESIDES[f"poetc_op_{name}"] = "matmul_packed"  # whose operands these are
