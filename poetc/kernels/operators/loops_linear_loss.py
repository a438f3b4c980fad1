"""linear_loss.c: the two products for each block of rows, and the losses of all rows; linear_loss_classes.c."""

from __future__ import annotations

from dataclasses import replace

from poetc.kernels.gemm.coded import CodedProduct
from poetc.kernels.gemm.selection import PackedProduct, Product
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import BESIDES, COUNTS, Loops, Machine, add, counts
from poetc.kernels.operators.linear_loss import FLOPS, FLOPS_GRAD, LinearLoss, LinearLossClasses

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


@counts("linear_cross_entropy_classes")
def linear_cross_entropy_classes(kernel: Kernel, m: Machine) -> Loops:
    """Loop counts of the second pass: it computes the logits again, and adds the gradient of x by blocks of terms."""
    p = kernel.parameters_as(LinearLossClasses)
    whole, rest = divmod(p.whole.rows, p.whole.at_once)
    blocks, more = divmod(p.units, p.terms)
    loops: Loops = {}
    for rows, times in ((p.whole.at_once, whole), (rest, 1 if rest else 0)):
        products = [(p.forward, times)]
        if p.number:
            products += [(p.backward, times * blocks), (replace(p.backward, depth=more), times if more else 0)]
        for product, often in products:
            symbol = SYMBOLS[type(product)]
            if often:
                add(loops, COUNTS[symbol](Kernel(symbol, replace(product, rows=rows), (1.0,)), m), often)
    logits = p.whole.rows * p.units
    add(loops, {"CrossEntropy.call": 1, "CrossEntropy.flop": FLOPS * logits})
    if p.number:
        add(loops, {"CrossEntropyGrad.call": 1, "CrossEntropyGrad.flop": FLOPS_GRAD * logits})
        single = p.whole.rows * p.whole.features * (blocks + bool(more))
        add(
            loops,
            {
                "add.call": blocks + bool(more),
                "add.single" if m.lanes == 1 else "add.chunk": single // (1 if m.lanes == 1 else 16),
            },
        )
    return loops


for name in ("linear_cross_entropy", "linear_cross_entropy_classes"):
    BESIDES[f"poetc_op_{name}"] = "matmul_packed"  # whose operands these are
