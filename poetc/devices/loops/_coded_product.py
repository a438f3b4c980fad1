"""matmul_coded.c: the packed product, and the numbers that are decoded for it."""

from __future__ import annotations

from poetc.devices.loops._gemm import matmul_packed
from poetc.devices.loops._machine import BESIDES, Loops, Machine, add, counts
from poetc.ops import Kernel
from poetc.ops.coded import CodedProduct
from poetc.ops.kernels.matmul import PackedProduct, Strides


@counts("matmul_coded")
def matmul_coded(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(CodedProduct)
    lies = (1, p.depth) if p.turned else (p.columns, 1)
    strides = Strides(p.depth, 1, *lies, p.columns)
    sizes = (p.rows, p.columns, p.depth, p.has_bias)
    product = PackedProduct(*sizes, strides, (), p.panel_floats, p.terms)
    loops = dict(matmul_packed(Kernel("poetc_op_matmul_packed", product, kernel.floats), m))
    add(loops, {"affine.single": p.columns * p.depth})  # a difference and a product for each number
    return loops


BESIDES["poetc_op_matmul_coded"] = "matmul_packed"
