"""convolution_packed.c."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from poetc.kernels.convolution import loops_direct as _direct
from poetc.kernels.convolution.selection import PackedConvolution
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.convolution_window import output_range
from poetc.kernels.gemm.loops_packed import carve, parts, put, put_end, run, runs_of_columns
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts

MASKED_TAPS = 64  # of a window: poetc_convolution_packed.h
_MANY_OUTPUTS, _FEW_TERMS, _MANY_OF_FEW = 64, 64, 32
_MOST_ROWS = 256  # pieces of output rows that are looked at one by one; more are taken from as many


@lru_cache(maxsize=16384)
def pack_planes(m: Machine, pixels: int, depth: int, column: int, columns: int) -> tuple[tuple[str, int], ...]:
    loops: Loops = {"planes.call": 1}
    at = 0
    while at < columns:
        piece = min(pixels - (column + at) % pixels, columns - at)
        add(loops, {"planes.run": 1})
        add(loops, put(m, at, piece, 1), depth)
        at += piece
    add(loops, put_end(m, depth, columns))
    return tuple(loops.items())


def _blocks_with_tap(k: int, depth: int, taps: int, tap: int) -> int:
    """Blocks of `depth` of the k terms (c, tap) that hold this tap of any channel."""
    return sum(
        1
        for first in range(0, k, depth)
        if (first - tap + taps - 1) // taps * taps + tap < min(k, first + depth) or first <= tap < first + depth
    )


def _pack_pixels(w: Convolution, m: Machine, inputs: int, k: int, depth: int, most: int) -> Loops:
    """All calls of pack_pixels of one group of channels."""
    if m.columns == 4:
        return _pixels_by_four(w, m, inputs, k, depth)
    if _is_masked(w, m) or _is_gathered(w, m):
        return _pixels_by_sixteen(w, m, k, depth, most)
    return _pixels_by_tap(w, m, inputs, k, depth, most)


def is_shifted(w: Convolution) -> bool:
    return w.stride_h == w.stride_w == 1 and w.output_width == w.width


def _is_masked(w: Convolution, m: Machine) -> bool:
    """Whether pixels are packed sixteen at a time."""
    return m.lanes == 16 and is_shifted(w) and w.taps <= MASKED_TAPS and (w.batch == 1 or w.pixels % 16 == 0)


def _is_gathered(w: Convolution, m: Machine) -> bool:
    """Whether they are gathered then."""
    return m.lanes == 16 and (w.stride_w > 1 or w.output_width < 16) and w.taps <= MASKED_TAPS


def _pixels_by_sixteen(w: Convolution, m: Machine, k: int, depth: int, most: int) -> Loops:
    kind = "masked" if _is_masked(w, m) else "gathered"
    loops: Loops = {}
    for columns, many in parts(w.batch * w.pixels, most):
        chunks = -(-columns // m.columns) * m.columns // 16
        calls = many * -(-k // depth)
        add(loops, {"pixels.masked_call": calls, "pixels.masked_tap": calls * chunks * w.taps})
        add(loops, {"pixels.masked_chunk": calls * chunks, f"pixels.{kind}": many * chunks * k})
    return loops


def _pixels_by_four(w: Convolution, m: Machine, inputs: int, k: int, depth: int) -> Loops:
    total = w.batch * w.pixels
    first = np.arange(0, total, 4)
    column = first[:, None] + np.arange(4)
    there = column < total
    oh, ow = column % w.pixels // w.output_width, column % w.output_width
    top = np.where(there, oh * w.stride_h - w.pad_top, -(1 << 24))
    left = ow * w.stride_w - w.pad_left
    lowest, rightmost = w.height - (w.kernel_h - 1) * w.dilation_h, w.width - (w.kernel_w - 1) * w.dilation_w
    whole = there[:, 3]
    together = (w.stride_w == 1) & whole & (ow[:, 0] + 4 <= w.output_width)
    inside = whole & ((top >= 0) & (top < lowest) & (left >= 0) & (left < rightmost)).all(axis=1)
    starts = range(0, k, depth)
    rows = inputs * w.kernel_h + sum(1 for s in starts if s % w.kernel_w)  # pieces of a window's rows
    loops: Loops = {"pixels.call": len(starts), "pixels.four": len(starts) * len(first)}
    usual, apart = int((together & inside).sum()), int((~together & inside).sum())
    checked, blocks = int((~together & ~inside).sum()), len(starts)
    for name, groups in (("usual", usual), ("apart", apart), ("checked", checked)):
        add(loops, {f"pixels.{name}": groups * blocks, f"pixels.{name}_row": rows * groups})
        add(loops, {f"pixels.{name}_tap": k * groups})
    edge = together & ~inside
    if edge.any():
        kh, kw = np.arange(w.kernel_h) * w.dilation_h, np.arange(w.kernel_w) * w.dilation_w
        ih = top[edge][:, :1] + kh
        on = ((ih >= 0) & (ih < w.height)).sum(axis=1)  # rows of the window on the image
        position = left[edge][:, :1] + kw
        plain = ((position >= 0) & (position + 4 <= w.width)).sum(axis=1)
        add(
            loops,
            {
                "pixels.edge": blocks * len(on),
                "pixels.edge_row": rows * len(on),
                "pixels.edge_plain": inputs * int((on * plain).sum()),
                "pixels.edge_mixed": inputs * int((on * (w.kernel_w - plain)).sum()),
                "pixels.edge_zero": inputs * int(((w.kernel_h - on) * w.kernel_w).sum()),
            },
        )
    return loops


def _pixels_by_tap(w: Convolution, m: Machine, inputs: int, k: int, depth: int, most: int) -> Loops:
    total, loops = w.batch * w.pixels, Loops()
    runs = -(-total // most)
    blocks = [_blocks_with_tap(k, depth, w.taps, tap) for tap in range(w.taps)]
    add(loops, {"pixels.call": runs * -(-k // depth), "pixels.tap": runs * -(-k // depth) * w.taps})
    # Pieces end with a row of the output, and with a run. A large batch has millions of them.
    begins = np.arange(0, total, most)
    at = np.concatenate((np.arange(0, total, w.output_width), begins[begins % w.output_width != 0]))
    at.sort(kind="stable")
    pieces, step = len(at), -(-len(at) // _MOST_ROWS)
    sizes = np.diff(at, append=total)[::step]
    at = at[::step]
    scale = pieces / len(at)
    rows = (at % most % m.columns, at % w.pixels // w.output_width, at % w.output_width, sizes)
    chosen = list(zip(*(numbers.tolist() for numbers in rows), strict=True))  # lane, row, column, pixels
    puts: Loops = {}
    for kw in range(w.kernel_w):
        low, high = (int(v) for v in output_range(kw * w.dilation_w - w.pad_left, w.stride_w, w.width, w.output_width))
        for kh in range(w.kernel_h):
            add(loops, {"pixels.row": blocks[kh * w.kernel_w + kw] * pieces})
            for lane, oh, ow, piece in chosen:
                ih = oh * w.stride_h - w.pad_top + kh * w.dilation_h
                begin = min(max(low - ow, 0), piece) if 0 <= ih < w.height else piece
                end = min(max(high - ow, begin), piece)
                if begin > 0:
                    add(puts, put(m, lane, begin, 0))
                add(puts, put(m, lane + begin, end - begin, 1 if w.stride_w == 1 else 2))
                if end < piece:
                    add(puts, put(m, lane + end, piece - end, 0))
    add(loops, {name: round(count * scale) for name, count in puts.items()}, inputs)
    if left := -total % m.columns:
        add(loops, put(m, total, left, 0), k)
    return loops


@counts("conv_packed")
def conv_packed(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(PackedConvolution)
    w, size, depth = p.convolution, p.workspace_floats, p.terms
    inputs, outputs, total = w.channels // w.group, w.outputs // w.group, w.batch * w.pixels
    k = inputs * w.taps
    many_outputs = _MANY_OF_FEW if k <= _FEW_TERMS else _MANY_OUTPUTS
    direct = m.lanes == 16 and not w.is_pointwise and not (outputs >= many_outputs and _is_masked(w, m))
    if direct and (done := _direct.conv(w, size, depth)):
        return {"conv_packed.call": 1, **done}
    if m.has_fours and (done := _direct.conv_of_threes(w, size, depth)):
        return {"conv_packed.call": 1, **done}
    most, at_once = carve(m, size, depth, -(-k // depth), total, False)
    one: Loops = {}
    for column, columns, many, alike in runs_of_columns(total, most, w.pixels):
        sums: Loops = {}
        for number, (terms, times) in enumerate(parts(k, at_once)):
            first = 1 if number == 0 else 0
            add(sums, dict(run(m, outputs, terms, column, columns, w.pixels, "", False, depth)), first)
            add(sums, dict(run(m, outputs, terms, column, columns, w.pixels, "", True, depth)), times - first)
            if w.is_pointwise:
                add(sums, dict(pack_planes(m, w.pixels, terms, column, columns)), times)
        add(one, {name: round(count * many) for name, count in sums.items()}, alike)
    if not w.is_pointwise:
        add(one, _pack_pixels(w, m, inputs, k, at_once, most))
    loops: Loops = {"conv_packed.call": 1, "conv_packed.group": w.group}
    add(loops, one, w.group)
    return loops
