"""linear_loss.c: the two products for each block of rows, and the losses of all rows."""

from __future__ import annotations

from dataclasses import replace

from poetc.devices.loops._machine import BESIDES, COUNTS, Loops, Machine, add, counts
from poetc.ops import Kernel
from poetc.ops.coded import CodedProduct
from poetc.ops.kernels.matmul import PackedProduct, Product
from poetc.ops.linear_loss import FLOPS, FLOPS_GRAD, LinearLoss

SYMBOLS = {
    Product: "poetc_op_matmul",
    PackedProduct: "poetc_op_matmul_packed",
    CodedProduct: "poetc_op_matmul_coded",
}


@counts("linear_cross_entropy")
def linear_cross_entropy(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(LinearLoss)
    whole, rest = divmod(p.rows, p.at_once)
    loops: Loops = {}
    for rows, times in ((p.at_once, whole), (rest, 1 if rest else 0)):
        for product in (p.forward, p.backward):
            symbol = SYMBOLS[type(product)]
            part = Kernel(symbol, replace(product, rows=rows), kernel.floats[2:])
            if times:
                add(loops, COUNTS[symbol](part, m), times)
    for group, flops in (("CrossEntropy", FLOPS), ("CrossEntropyGrad", FLOPS_GRAD)):
        add(loops, {f"{group}.call": 1, f"{group}.flop": flops * p.rows * p.classes})
    return loops


BESIDES["poetc_op_linear_cross_entropy"] = "matmul_packed"  # whose operands these are
