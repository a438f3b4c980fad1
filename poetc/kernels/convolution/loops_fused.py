"""convolution_packed_grad_weight.c where it moves weights, and gradients of weights whose input is made again."""

from __future__ import annotations

from dataclasses import replace

from poetc.kernels.convolution.loops_packed_grad_weight import grad_weight, moves_at_once, strip_columns
from poetc.kernels.convolution.selection import PackedGradWeight, PackedGradWeightSgd, norm_table_floats
from poetc.kernels.convolution_shape import ConvolutionParameters
from poetc.kernels.gemm.loops_packed import parts
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import COUNTS, Loops, Machine, add, counts
from poetc.kernels.operators.loops import normalized
from poetc.kernels.operators.loops_sgd_of import descend


@counts("conv_grad_weight_sgd_packed")
def conv_grad_weight_sgd_packed(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(PackedGradWeightSgd)
    w, moves = p.convolution, moves_at_once(m, p)
    plain = grad_weight(p, m, strip_columns(m, p), moves)
    loops = {name.replace("conv_grad_weight_packed", "conv_grad_weight_sgd_packed"): n for name, n in plain.items()}
    if moves:
        return loops
    if "direct.taps" in loops:  # sums are whole, too
        return {**loops, "direct.taps_moved": loops["direct.taps"]}
    width = w.channels // w.group * w.taps
    for columns, many in parts(width, strip_columns(m, p)):
        add(loops, descend(m, w.outputs, columns), many)
    return loops


@counts(
    "conv_grad_weight_norm_packed", "conv_grad_weight_sgd_norm_packed", "depthwise_grad_weight_norm", without="_norm"
)
def made_again(kernel: Kernel, m: Machine) -> Loops:
    """The loops as without the work on x first, and that work apart, once for every pixel."""
    p, plain = kernel.parameters_as(ConvolutionParameters), kernel.symbol.replace("_norm", "")
    c = p.convolution
    table = norm_table_floats(c.channels)
    if isinstance(p, PackedGradWeight):
        p = replace(p, workspace_floats=p.workspace_floats - table)
    if isinstance(p, PackedGradWeightSgd):
        p = replace(p, total_floats=p.total_floats - table)
    if not isinstance(p, PackedGradWeight):
        p = p.with_convolution(bias_or_norm=0)
    loops = COUNTS[plain](Kernel(plain, p), m)
    pixels = c.batch * c.channels * c.height * c.width
    add(loops, normalized(m, -(-pixels // m.lanes), c.channels))
    return loops
