"""Rules of low-workspace kernels: fewer columns, or channels, at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from poetc.kernels.convolution.selection import (
    PackedConvolution,
    PackedGradInput,
    PackedGradWeight,
    PackedGradWeightSgd,
    norm_table_floats,
    window_strip,
)
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.gemm.packing import DEEP_BYTES, PANELS, panel_columns, workspace_floats
from poetc.kernels.kernel import Kernel, Parameters, Rule, Sized


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


RULES: dict[type[Parameters], Rule] = {
    PackedConvolution: _convolution,
    PackedGradInput: _grad_input,
    PackedGradWeight: _grad_weight,
    PackedGradWeightSgd: _grad_weight,
}


def direct(kernel: Kernel) -> tuple[int, ...]:
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
