"""convolution_packed_grad_input.c."""

from __future__ import annotations

from math import gcd

import numpy as np

from poetc.kernels.convolution import loops_direct as _direct
from poetc.kernels.convolution.loops_packed import is_shifted, pack_planes
from poetc.kernels.convolution.selection import PackedGradInput
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.convolution_window import output_range
from poetc.kernels.gemm.loops_packed import carve, parts, run, runs_of_columns
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts

_MASKED_MOST = 64  # masks of rows: poetc_convolution_packed.h
_MOST_APART = 4  # strides of results that are put back by masks


def _spread(w: Convolution, m: Machine, block_rows: int) -> Loops:
    """All calls of `spread` for one channel, rows of the output in blocks."""
    if m.lanes == 16 and is_shifted(w) and w.kernel_w * w.width <= _MASKED_MOST:
        blocks = w.batch * max(1, -(-w.output_height // block_rows))
        vectors = blocks * -(-min(block_rows, w.output_height) * w.width // 16)
        return {"spread.masked_tap": blocks * w.taps, "spread.masked": vectors * w.taps}
    if m.lanes == 16 and 1 < w.stride_w <= _MOST_APART:
        return _spread_apart(w, block_rows)
    loops: Loops = {"spread.channel": 1}
    oh = np.arange(w.output_height)
    for kh in range(w.kernel_h):
        ih = oh * w.stride_h - w.pad_top + kh * w.dilation_h
        rows = int(((ih >= 0) & (ih < w.height)).sum()) * w.batch
        add(loops, {"spread.row": w.batch * w.output_height})
        if m.has_fours and _has_threes(w):
            add(loops, {"spread.threes": rows, "spread.three_four": rows * (w.width // 4)})
            continue
        add(loops, {"spread.tap": rows * w.kernel_w})
        for kw in range(w.kernel_w):
            low, high = output_range(kw * w.dilation_w - w.pad_left, w.stride_w, w.width, w.output_width)
            count = int(high - low)
            if w.stride_w == 1:
                add(loops, {"spread.four": rows * (count // 4), "spread.single": rows * (count % 4)})
            else:
                add(loops, {"spread.strided": rows * count})
    return loops


def _has_threes(w: Convolution) -> bool:
    """Whether three taps of a row are added at once (add_threes)."""
    plain = is_shifted(w) and (w.kernel_w, w.dilation_w, w.pad_left) == (3, 1, 1)
    return plain and w.width >= 8 and w.width % 4 == 0


def _fill(w: Convolution, channels: int) -> Loops:
    """The first values of gx."""
    return {"fill.plane": w.batch * channels, "fill.float": w.batch * channels * w.height * w.width}


def _spread_apart(w: Convolution, block_rows: int) -> Loops:
    blocks, most = -(-w.batch * w.output_height // block_rows), (15 + w.stride_w) // w.stride_w
    rows = vectors = 0
    for kh in range(w.kernel_h):
        top, bottom = output_range(kh * w.dilation_h - w.pad_top, w.stride_h, w.height, w.output_height)
        for kw in range(w.kernel_w):
            left, right = output_range(kw * w.dilation_w - w.pad_left, w.stride_w, w.width, w.output_width)
            rows += w.batch * max(0, int(bottom - top))
            vectors += w.batch * max(0, int(bottom - top)) * max(0, -(-int(right - left) // most))
    return {"spread.masked_tap": max(blocks, w.batch) * w.taps, "spread.apart_row": rows, "spread.apart": vectors}


def _stream_weights(w: Convolution, m: Machine, size: int, depth: int) -> Loops:
    """stream_weights of convolution_packed_grad_input.c; nothing where it does not apply."""
    channels, outputs = w.channels // w.group, w.outputs // w.group
    unit = m.columns // gcd(w.taps, m.columns)
    most = (size - 16) // (3 * w.pixels * w.taps) // unit * unit
    if w.batch != 1 or w.pixels > 2 * m.rows or w.pixels % m.lanes or channels % unit or most <= 0:
        return {}
    one: Loops = {}
    for count, many in parts(channels, most):
        columns = count * w.taps
        for number, (terms, times) in enumerate(parts(outputs, depth)):
            first = many if number == 0 else 0
            add(one, dict(run(m, w.pixels, terms, 0, columns, columns, "", False)), first)
            add(one, dict(run(m, w.pixels, terms, 0, columns, columns, "", True)), many * times - first)
        add(one, {"transpose.block": columns // m.lanes * (w.pixels // m.lanes), "spread.call": 1}, many)
    add(one, _spread(w, m, w.output_height), channels)
    add(one, _fill(w, channels))
    loops: Loops = {}
    add(loops, one, w.group)
    return loops


@counts("conv_grad_input_packed")
def conv_grad_input_packed(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(PackedGradInput)
    w, size, depth, held = p.convolution, p.workspace_floats, p.terms, p.held_floats
    block_rows, block = p.block_rows, p.block_channels
    channels, outputs, all_rows = w.channels // w.group, w.outputs // w.group, w.batch * w.output_height
    most, _ = carve(m, size - held, depth, 1, block_rows * w.output_width, True)
    pointwise = held == 0
    if m.lanes >= 8 and not pointwise and (streamed := _stream_weights(w, m, size, depth)):
        return {"conv_grad_input_packed.call": 1, **streamed}
    if m.lanes == 16 and not pointwise and (done := _direct.grad_input(w, size, depth)):
        return {"conv_grad_input_packed.call": 1, **done}
    one: Loops = {}
    for rows, row_times in parts(all_rows, block_rows):
        # Blocks of output rows begin anywhere in an image; where one crosses into the next image hardly matters.
        span = rows * w.output_width
        # The packed operands serve all channels: each block of terms stays where it is.
        once = -(-outputs // depth) * (-(-span // m.columns) * m.columns) <= most
        for number_of_block, (count, channel_times) in enumerate(parts(channels, block)):
            for column, columns, many, alike in runs_of_columns(span, most, w.pixels):
                sums: Loops = {}
                segment = w.pixels if pointwise else span
                for number, (terms, times) in enumerate(parts(outputs, depth)):
                    first = 1 if number == 0 else 0
                    add(sums, dict(run(m, count * w.taps, terms, column, columns, segment, "contiguous", False)), first)
                    add(
                        sums,
                        dict(run(m, count * w.taps, terms, column, columns, segment, "contiguous", True)),
                        times - first,
                    )
                    packed = dict(pack_planes(m, w.pixels, terms, column, columns))
                    if not once:
                        add(sums, packed, times)
                    elif number_of_block == 0:
                        add(one, packed, row_times * alike)
                add(one, {name: round(n * many) for name, n in sums.items()}, row_times * channel_times * alike)
            if not pointwise:
                add(one, {"spread.call": row_times * channel_times})
    if not pointwise:
        add(one, _spread(w, m, block_rows), channels)
        add(one, _fill(w, channels))
    loops: Loops = {"conv_grad_input_packed.call": 1, "conv_grad_input_packed.group": w.group}
    add(loops, one, w.group)
    return loops
