"""Rules of low-workspace kernels: fewer tiles, or outputs, at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poetc.kernels.convolution_winograd import selection as winograd
from poetc.kernels.kernel import Kernel, Parameters, Rule, Sized


def _winograd(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(winograd.WinogradConvolution)
    if "grad_weight" in kernel.symbol:
        shape = winograd.shape_of(p.convolution, "conv_grad_weight")
        plans = (plan[1:] for plan in winograd.sum_plans(shape) if plan[1] < p.workspace_floats)
        for floats, block in sorted(plans, reverse=True):
            yield replace(p, workspace_floats=floats, block=block), floats
        return
    kind = kernel.symbol.removeprefix("poetc_op_").removesuffix("_winograd")
    shape = winograd.shape_of(p.convolution, kind)
    tiles, _ = winograd.plan_products(p.workspace_floats, shape, p.block)
    while tiles > 12:
        tiles = winograd.round_up(tiles // 2, 12)
        floats = winograd.product_floats(shape, p.block, tiles)
        yield replace(p, workspace_floats=floats), floats
        tiles = tiles if tiles > 12 else 0


RULES: dict[type[Parameters], Rule] = {winograd.WinogradConvolution: _winograd}
