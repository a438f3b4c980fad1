"""Low-workspace kernels run the same C function, with fewer columns, images, tiles or outputs at a time.

The bits are the same: no sum has other terms or another order, since blocks of terms stay as they are. Kernels without
workspace add up in another order, and Winograd's filters compute something else. So neither is a low-workspace kernel
of a packing one. On Helium a convolution runs without packing where its workspace has room (convolution_packed*.c,
direct_*). No low-workspace kernel changes that: they are chosen by shape alone, for all targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from poetc.ops.kernels import turned, winograd
from poetc.ops.kernels.convolution import (
    PackedConvolution,
    PackedGradInput,
    PackedGradWeight,
    PackedGradWeightSgd,
    norm_table_floats,
    window_strip,
)
from poetc.ops.kernels.convolution_shape import Convolution
from poetc.ops.kernels.kernel import Kernel, Parameters
from poetc.ops.kernels.matmul import PackedProduct, PackedSgdProduct, sgd_block_floats
from poetc.ops.kernels.packed_operands import COLUMNS, DEEP_BYTES, panel_columns, workspace_floats

WORTH = 8  # each saves at least this part of the workspace of the one before
PANELS = (4, 2, 1)

Sized = tuple[Parameters, int]  # and floats of workspace


def low_workspace_kernels(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the alternatives to `kernel`, each with less workspace than the one before."""
    rule = _RULES.get(type(kernel.parameters))
    if rule is None or not kernel.workspace_bytes:
        return ()
    kernels: list[Kernel] = []
    least, direct = kernel.workspace_bytes, _direct(kernel)
    for parameters, floats in rule(kernel):
        other = replace(kernel, parameters=parameters, workspace_bytes=4 * floats, alternative=1 + len(kernels))
        if WORTH * other.workspace_bytes <= (WORTH - 1) * least and _direct(other) == direct:
            kernels.append(other)
            least = other.workspace_bytes
    return tuple(kernels)


def _product(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(PackedProduct)
    for panels in PANELS:
        floats = workspace_floats(p.columns, p.terms, panels, p.strides.a_term != 1)
        yield replace(p, workspace_floats=floats), floats


def _sgd_product(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(PackedSgdProduct)
    for panels in PANELS:
        columns = panels * COLUMNS
        fewer = replace(p, block_floats=sgd_block_floats(p.terms, columns), columns_at_once=columns)
        yield fewer, fewer.workspace_floats


def _convolution(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(PackedConvolution)
    columns = p.convolution.batch * p.convolution.pixels
    for panels in PANELS:
        floats = workspace_floats(columns, p.terms, panels, False)
        yield replace(p, workspace_floats=floats), floats


def _grad_input(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(PackedGradInput)
    columns, held, block = p.block_rows * p.convolution.output_width, p.held_floats, p.block_channels
    for panels in PANELS:
        floats = workspace_floats(columns, p.terms, panels, True) + held
        yield replace(p, workspace_floats=floats), floats
    while held and block > 4:  # fewer channels at a time
        held, block = held // block * (block // 2 // 4 * 4), block // 2 // 4 * 4
        floats = workspace_floats(columns, p.terms, 1, True) + held
        yield replace(p, workspace_floats=floats, held_floats=held, block_channels=block), floats


def _grad_weight(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(PackedGradWeight)
    c = p.convolution
    columns = c.channels // c.group * c.taps
    blocks = c.batch if c.pixels <= p.terms else -(-c.pixels // p.terms)
    makes_norm = c.bias_or_norm > 0
    strip = window_strip(c, p.terms) if makes_norm else 0
    more = strip + norm_table_floats(c.channels) if makes_norm else 0
    for panels in PANELS:
        floats = workspace_floats(columns, p.terms, panels, False)
        fewer = replace(p, workspace_floats=floats + more, strip_floats=strip)
        if isinstance(fewer, PackedGradWeightSgd):
            total = floats + more + c.outputs // c.group * panel_columns(columns, blocks, floats, p.terms)
            yield replace(fewer, total_floats=total), total
        else:
            yield fewer, floats + more


def _turned_images(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(turned.TurnedGradWeight)
    each, least = turned.floats_of(p.convolution)
    images = turned.images_at_once(p.workspace_floats, p.convolution)
    while images > 1:
        images = -(-images // 2)
        floats = least + turned.sum_floats(p.convolution) + images * each
        yield replace(p, workspace_floats=floats), floats


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


_RULES: dict[type[Parameters], Callable[[Kernel], Iterator[Sized]]] = {
    PackedProduct: _product,
    PackedSgdProduct: _sgd_product,
    PackedConvolution: _convolution,
    PackedGradInput: _grad_input,
    PackedGradWeight: _grad_weight,
    PackedGradWeightSgd: _grad_weight,
    turned.TurnedGradWeight: _turned_images,
    winograd.WinogradConvolution: _winograd,
}


def _direct(kernel: Kernel) -> tuple[int, ...]:
    """The choices for a convolution on Helium that follow from the room in the workspace.

    That is whether direct_* of convolution_packed*.c makes it, and how many rows the gradient of the weights takes at
    a time.
    """
    rule = _DIRECT.get(type(kernel.parameters))
    if rule is None:
        return ()
    p = kernel.parameters_as(PackedConvolution)
    c = p.convolution
    inputs = c.channels // c.group
    floats = c.batch * c.channels * c.height * c.width + c.batch * c.outputs * c.pixels + c.outputs * inputs * c.taps
    if 4 * floats >= DEEP_BYTES:
        return ()  # No Helium: no microcontroller trains larger operands.
    reach_h = (c.output_height - 1) * c.stride_h + (c.kernel_h - 1) * c.dilation_h
    reach_w = (c.output_width - 1) * c.stride_w + (c.kernel_w - 1) * c.dilation_w
    padded = c.pad_top > 0 or c.pad_left > 0 or reach_h >= c.height or reach_w >= c.width
    return rule(p, c, padded) if c.stride_w == 1 else ()


def _direct_grad_weight(p: PackedConvolution, c: Convolution, padded: bool) -> tuple[int, ...]:
    if c.bias_or_norm:
        return ()
    inputs, reach, width = c.channels // c.group, (c.kernel_h - 1) * c.dilation_h, c.output_width
    row, offsets = (width - 1) * c.stride_w + (c.kernel_w - 1) * c.dilation_w + 1, -(-inputs * c.taps // 4) * 4
    each = 6 * width + (inputs * c.stride_h * row if padded else 0)
    room = p.workspace_floats - 1 - offsets - (inputs * (reach + 1 - c.stride_h) * row if padded else 0)
    most = min(c.output_height, (p.terms + width - 1) // width)
    held = 0 if room < each else min(most, room // each)
    return (held,) if held and 2 * held >= most else ()


def _direct_grad_input(p: PackedConvolution, c: Convolution, padded: bool) -> tuple[int, ...]:
    if c.dilation_w != 1 or c.kernel_w not in (3, 5):
        return ()
    taps, row = c.taps, c.width + c.kernel_w - 1
    at_once = 1 if taps > 64 else 150 // taps if taps > 16 else 64 // taps
    room = (p.workspace_floats - 1 - 6 * at_once * taps - 4) // (at_once * row)
    held = c.height if room >= c.output_height else min(c.height, room - c.kernel_h + 1)
    return (1,) if held * c.width >= 16 else ()


def _direct_convolution(p: PackedConvolution, c: Convolution, padded: bool) -> tuple[int, ...]:
    if c.dilation_w != 1 or c.kernel_w not in (3, 5):
        return ()
    inputs, size = c.channels // c.group, p.workspace_floats
    row, used = c.output_width + c.kernel_w - 1 if padded else c.width, 6 * inputs * c.taps
    room = (size - 1 - used - 4) // (inputs * row) - (c.kernel_h - 1) * c.dilation_h - 1
    if padded:
        fit = 0 if room < 0 else room // c.stride_h + 1
    else:
        fit = c.output_height if used < size else 0
    return (1,) if min(c.output_height, fit) * c.output_width >= 32 else ()


_DIRECT: dict[type[Any], Callable[[PackedConvolution, Convolution, bool], tuple[int, ...]]] = {
    PackedConvolution: _direct_convolution,
    PackedGradInput: _direct_grad_input,
    PackedGradWeight: _direct_grad_weight,
}
