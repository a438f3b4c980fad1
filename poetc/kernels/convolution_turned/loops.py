"""convolution_turned.c."""

from __future__ import annotations

from poetc.kernels.convolution_turned.selection import TERMS, TurnedGradWeight, images_at_once
from poetc.kernels.gemm.loops_packed import pack_transposed, parts, run
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts


@counts("conv_grad_weight_turned", "conv_grad_weight_sgd_turned")
def grad_weight(kernel: Kernel, m: Machine) -> Loops:
    p, name = kernel.parameters_as(TurnedGradWeight), kernel.symbol.removeprefix("poetc_op_")
    w = p.convolution
    inputs, outputs = w.channels // w.group, w.outputs // w.group
    one: Loops = {}  # of a panel of channels
    add(one, pack_transposed(m, w.height * w.width, m.columns), w.batch)
    for taken, times in parts(w.batch, images_at_once(p.workspace_floats, w)):
        sums = run(m, outputs, taken * w.pixels, 0, m.columns, m.columns, "", True, TERMS)
        add(one, dict(sums), w.taps * times)
        if m.is_neon:  # the place of each pixel is read from a table
            places = sum(n for loop, n in sums if loop.startswith("gemm.terms_"))
            add(one, {"conv_grad_weight_turned.place": places}, w.taps * times)
    weights = m.columns * w.taps
    if m.lanes >= 8 and w.taps <= m.lanes:
        add(one, {"transpose.block": m.columns // m.lanes}, outputs)
    else:
        add(one, {f"{name}.single" if m.is_neon else "transpose.single": weights}, outputs)
    if "sgd" in name:
        add(one, {"descend.wide": weights // m.lanes}, outputs)
    loops: Loops = {f"{name}.call": 1}
    add(loops, one, w.group * inputs // m.columns)
    return loops
