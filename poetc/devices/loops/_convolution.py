"""convolution_packed*.c."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np

from poetc.devices.loops import _direct
from poetc.devices.loops._gemm import carve, pack_transposed, parts, put, put_end, run, runs_of_columns
from poetc.devices.loops._machine import Loops, Machine, add, counts
from poetc.devices.loops._window import Window, output_range, window
from poetc.ops import Kernel

_MASKED_TAPS, _MASKED_MOST = 64, 64  # of a window, and masks of rows: poetc_convolution_packed.h
_MOST_APART = 4  # strides of results that are put back by masks: convolution_packed_grad_input.c
_MANY_OUTPUTS, _FEW_TERMS, _MANY_OF_FEW = 64, 64, 32  # of convolution_packed.c
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


def _pack_pixels(w: Window, m: Machine, inputs: int, k: int, depth: int, most: int) -> Loops:
    """All calls of pack_pixels of one group of channels."""
    if m.columns == 4:
        return _pixels_by_four(w, inputs, k, depth)
    if _is_masked(w, m) or _is_gathered(w, m):
        return _pixels_by_sixteen(w, m, k, depth, most)
    return _pixels_by_tap(w, m, inputs, k, depth, most)


def _is_shifted(w: Window) -> bool:
    return w.stride_h == w.stride_w == 1 and w.output_width == w.width


def _is_masked(w: Window, m: Machine) -> bool:
    """Whether pixels are packed sixteen at a time."""
    return m.lanes == 16 and _is_shifted(w) and w.taps <= _MASKED_TAPS and (w.batch == 1 or w.pixels % 16 == 0)


def _is_gathered(w: Window, m: Machine) -> bool:
    """Whether they are gathered then."""
    return m.lanes == 16 and (w.stride_w > 1 or w.output_width < 16) and w.taps <= _MASKED_TAPS


def _pixels_by_sixteen(w: Window, m: Machine, k: int, depth: int, most: int) -> Loops:
    kind = "masked" if _is_masked(w, m) else "gathered"
    loops: Loops = {}
    for columns, many in parts(w.batch * w.pixels, most):
        chunks = -(-columns // m.columns) * m.columns // 16
        calls = many * -(-k // depth)
        add(loops, {"pixels.masked_call": calls, "pixels.masked_tap": calls * chunks * w.taps})
        add(loops, {"pixels.masked_chunk": calls * chunks, f"pixels.{kind}": many * chunks * k})
    return loops


def _pixels_by_four(w: Window, inputs: int, k: int, depth: int) -> Loops:
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


def _pixels_by_tap(w: Window, m: Machine, inputs: int, k: int, depth: int, most: int) -> Loops:
    total, loops = w.batch * w.pixels, Loops()
    runs = -(-total // most)
    blocks = [_blocks_with_tap(k, depth, w.taps, tap) for tap in range(w.taps)]
    add(loops, {"pixels.call": runs * -(-k // depth), "pixels.tap": runs * -(-k // depth) * w.taps})
    pieces: list[tuple[int, int, int, int]] = []  # lane, row of the output, column, pixels
    for begin in range(0, total, most):
        at, end = begin, min(total, begin + most)
        while at < end:
            oh, ow = at % w.pixels // w.output_width, at % w.output_width
            piece = min(w.output_width - ow, end - at)
            pieces.append(((at - begin) % m.columns, oh, ow, piece))
            at += piece
    step = -(-len(pieces) // _MOST_ROWS)
    chosen, scale = pieces[::step], len(pieces) / len(pieces[::step])
    puts: Loops = {}
    for kw in range(w.kernel_w):
        low, high = (int(v) for v in output_range(kw * w.dilation_w - w.pad_left, w.stride_w, w.width, w.output_width))
        for kh in range(w.kernel_h):
            add(loops, {"pixels.row": blocks[kh * w.kernel_w + kw] * len(pieces)})
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
    w, size, depth = window(kernel), kernel.ints[17], kernel.ints[18]
    inputs, outputs, total = w.channels // w.group, w.outputs // w.group, w.batch * w.pixels
    k = inputs * w.taps
    many_outputs = _MANY_OF_FEW if k <= _FEW_TERMS else _MANY_OUTPUTS
    direct = m.lanes == 16 and not w.is_pointwise and not (outputs >= many_outputs and _is_masked(w, m))
    if direct and (done := _direct.conv(w, size, depth)):
        return {"conv_packed.call": 1, **done}
    most, at_once = carve(m, size, depth, -(-k // depth), total, False)
    one: Loops = {}
    for column, columns, many in runs_of_columns(total, most):
        sums: Loops = {}
        for number, (terms, times) in enumerate(parts(k, at_once)):
            first = 1 if number == 0 else 0
            add(sums, dict(run(m, outputs, terms, column, columns, w.pixels, "", False, depth)), first)
            add(sums, dict(run(m, outputs, terms, column, columns, w.pixels, "", True, depth)), times - first)
            if w.is_pointwise:
                add(sums, dict(pack_planes(m, w.pixels, terms, column % w.pixels, columns)), times)
        add(one, {name: round(count * many) for name, count in sums.items()})
    if not w.is_pointwise:
        add(one, _pack_pixels(w, m, inputs, k, at_once, most))
    loops: Loops = {"conv_packed.call": 1, "conv_packed.group": w.group}
    add(loops, one, w.group)
    return loops


def _row_pieces(w: Window, depth: int) -> Any:
    """(row, column, pixels) of the pieces of output rows that blocks of `depth` pixels of an image fall into."""
    found = []
    for first in range(0, w.pixels, depth):
        at, end = first, min(w.pixels, first + depth)
        while at < end:
            piece = min(w.output_width - at % w.output_width, end - at)
            found.append((at // w.output_width, at % w.output_width, piece))
            at += piece
    return np.array(found)


def _pack_windows(w: Window, m: Machine, inputs: int, depth: int, most: int) -> Loops:
    """All calls of pack_windows for one image and group."""
    width, pieces = inputs * w.taps, _row_pieces(w, depth)
    calls = -(-width // most) * -(-w.pixels // depth)
    loops: Loops = {"windows.call": calls}
    oh, ow, piece = pieces.T
    if m.columns == 4:
        add(loops, _windows_by_four(w, inputs, pieces, -(-w.pixels // depth)))
        return loops
    segments: dict[tuple[int, int, int, bool], int] = {}
    for begin in range(0, width, most):
        at, columns = 0, min(most, width - begin)
        while at < columns:
            tap, lane = (begin + at) % w.taps, at % m.columns
            kh, kw = divmod(tap, w.kernel_w)
            taken = min(w.kernel_w - kw, columns - at, m.columns - lane)
            spill = w.dilation_w == 1 and 1 < taken < 4 and lane + 4 <= m.columns
            segments[kh, kw, taken, spill] = segments.get((kh, kw, taken, spill), 0) + 1
            at += taken
    blocks = -(-w.pixels // depth)
    for (kh, kw, taken, spill), many in segments.items():
        offset = kw * w.dilation_w - w.pad_left
        low, _ = output_range(offset, w.stride_w, w.width, w.output_width)
        _, high = output_range(offset + (taken - 1) * w.dilation_w, w.stride_w, w.width, w.output_width)
        ih = oh * w.stride_h - w.pad_top + kh * w.dilation_h
        on = (ih >= 0) & (ih < w.height)
        usual = np.where(on, np.clip(np.minimum(high, ow + piece) - np.maximum(low, ow), 0, piece), 0)
        zeros, plain = int(np.where(on, 0, piece).sum()), int(usual.sum())
        edge = int(piece.sum()) - zeros - plain
        name = "windows.one" if taken == 1 else "windows.spill" if spill else "windows.copy"
        found = {
            "windows.segment": blocks,
            "windows.row": len(piece),
            "windows.outside": zeros,
            "windows.zero": zeros * taken,
            name: plain,
            "windows.copied": plain * taken if name == "windows.copy" else 0,
            "windows.edge": edge,
            "windows.edge_tap": edge * taken,
        }
        add(loops, found, many)
    if left := -width % m.columns:
        add(loops, {"windows.end": left * blocks, "windows.end_zero": left * w.pixels})
    return loops


def _is_every_second(w: Window, m: Machine) -> bool:
    """A window is a pixel, every second one of a row."""
    return m.lanes == 16 and w.taps == 1 and w.stride_w == 2 and w.pad_top == w.pad_left == 0


def _spreads_every_second(w: Window, m: Machine) -> bool:
    """Whether spread_every_second writes all pixels of gx, and nothing is filled before."""
    strided = (-(-w.height // w.stride_h), -(-w.width // 2)) == (w.output_height, w.output_width)
    return _is_every_second(w, m) and strided and w.width > 8


def _packs_every_second(w: Window, m: Machine, depth: int, width: int) -> bool:
    """Whether pack_every_second packs windows: sixteen pixels are a part of a row or some whole rows."""
    fits = w.output_width % 16 == 0 or w.output_width in (4, 8)
    inside = 2 * w.output_width - 1 <= w.width and (w.output_height - 1) * w.stride_h < w.height
    return _is_every_second(w, m) and fits and inside and not (w.pixels % 16 or depth % 16 or width % m.columns)


def _pack_every_second(w: Window, inputs: int, depth: int, most: int) -> Loops:
    """All calls for one image and group: squares of sixteen pixels and channels."""
    squares = w.pixels // 16 * (inputs // 16)
    calls = -(-inputs // most) * -(-w.pixels // depth)
    return {"windows.call": calls, "pixels.masked": 16 * squares, "transpose.block": squares}


def _pack_strips(w: Window, m: Machine, inputs: int, depth: int, most: int, strip: int) -> Loops:
    """All calls of pack_strips for one image and group."""
    reach = (w.kernel_h - 1) * w.dilation_h
    row = (w.output_width - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1
    room = (strip - 4) // row - reach - 1
    if m.columns == 4:
        return _pack_by_four(w, m, inputs, depth, most, strip)
    if room < 0:
        return _pack_windows(w, m, inputs, depth, most)
    width = inputs * w.taps
    calls = -(-width // most) * -(-w.pixels // depth)
    loops: Loops = {"windows.call": calls}
    segments: dict[tuple[int, bool], int] = {}
    whole = m.lanes == 16 and (w.kernel_h, w.kernel_w, w.dilation_w) == (3, 3, 1)
    windows = [0, 0]  # of 3 x 3 at once, in one panel and in two
    channels = 0  # copied with zeros around them
    for begin in range(0, width, most):
        at, columns = 0, min(most, width - begin)
        channels += (begin + columns - 1) // w.taps - begin // w.taps + 1
        while at < columns:
            tap, lane = (begin + at) % w.taps, at % m.columns
            kw = tap % w.kernel_w
            if whole and tap == 0 and at + 9 <= columns:
                windows[lane + 9 > m.columns] += 1
                at += 9
                continue
            taken = min(w.kernel_w - kw, columns - at, m.columns - lane)
            spill = w.dilation_w == 1 and 1 < taken <= 4 and lane + 4 <= m.columns
            segments[taken, spill] = segments.get((taken, spill), 0) + 1
            at += taken
    held = room // w.stride_h + 1
    touched = [-(-min(depth, w.pixels - k) // w.output_width) for k in range(0, w.pixels, depth)]
    strips = sum(-(-rows // held) for rows in touched)
    rows = -(-w.pixels // w.output_width) + -(-w.pixels // depth) - 1
    for (taken, spill), many in segments.items():
        name = "windows.one" if taken == 1 else "windows.spill" if spill else "windows.copy"
        found = {
            "windows.segment": strips,
            "windows.row": rows,
            name: w.pixels,
            "windows.copied": w.pixels * taken if name == "windows.copy" else 0,
        }
        add(loops, found, many)
    add(loops, {"windows.whole": w.pixels * sum(windows), "windows.whole_rest": w.pixels * windows[1]})
    add(loops, {"windows.whole_row": rows * sum(windows)})
    copied = (w.output_height - 1) * w.stride_h + 1 + strips * reach
    add(loops, {"windows.strip": strips, "windows.strip_row": copied}, channels)
    add(loops, {"windows.strip_wide": copied * -(-row // m.lanes)}, channels)
    if left := -width % m.columns:
        add(loops, {"windows.end": left, "windows.end_zero": left * w.pixels})
    return loops


@dataclass(frozen=True, slots=True)
class _Slots:
    """The strip of poetc_op_conv_grad_weight_packed for panels of four columns, where windows reach over the edges."""

    is_padded: bool
    width: int  # of a row
    slots: int
    terms: int

    @classmethod
    def of(cls, w: Window, inputs: int, terms: int) -> _Slots:
        reach_h = (w.output_height - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h
        reach_w = (w.output_width - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w
        padded = w.pad_top > 0 or w.pad_left > 0 or reach_h >= w.height or reach_w >= w.width
        return cls(padded, reach_w + 1 if padded else w.width, min((w.taps + 2) // w.taps + 1, inputs), terms)

    def slot_floats(self, w: Window, rows: int) -> int:
        return ((rows - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1) * self.width

    def strip_floats(self, w: Window, size: int) -> int:
        rows = min(max(0, self.terms - 2) // w.output_width + 2, w.output_height)
        floats = self.slots * self.slot_floats(w, rows) + 4 if self.is_padded else 0
        return floats if self.terms >= 2 and 2 * floats <= size else 0

    def rows(self, w: Window, strip: int) -> int:
        if not self.is_padded:
            return w.output_height
        room, rows = (strip - 4) // self.slots, 0
        while rows < w.output_height and self.slot_floats(w, rows + 1) <= room:
            rows += 1
        return rows


def _pack_by_four(w: Window, m: Machine, inputs: int, depth: int, most: int, strip: int) -> Loops:
    """All calls of pack_strips, or pack_windows, for one image and group."""
    slots = _Slots.of(w, inputs, depth)
    held = slots.rows(w, strip)
    if held == 0:
        return _pack_windows(w, m, inputs, depth, most)
    width, down = inputs * w.taps, w.dilation_h * slots.width
    loops: Loops = {"windows.call": -(-width // most) * -(-w.pixels // depth)}
    pieces: list[list[int]] = []  # pixels of each row, of every strip
    for first in range(0, w.pixels, depth):
        at, end = first, min(w.pixels, first + depth)
        while at < end:
            ow = at % w.output_width
            left = min(end - at, held * w.output_width - ow)
            at += left
            pieces.append([min(w.output_width - ow, left)])
            left -= pieces[-1][0]
            pieces[-1] += [min(w.output_width, left - k) for k in range(0, left, w.output_width)]
    flat = np.array([count for piece in pieces for count in piece])
    panels: dict[str, int] = {}
    for begin in range(0, width, most):
        columns = min(most, width - begin)
        for at in range(0, columns, 4):
            taps = [divmod(min(begin + at + lane, begin + columns - 1), w.taps) for lane in range(4)]
            offset = [c * 10**9 + t // w.kernel_w * down + t % w.kernel_w * w.dilation_w for c, t in taps]
            name = _groups(offset) if w.stride_w == 1 and not m.is_soft else "plain"
            panels[name] = panels.get(name, 0) + 1
        if slots.is_padded:
            channels = (begin + columns - 1) // w.taps - begin // w.taps + 1
            copied = (len(flat) - len(pieces)) * w.stride_h + len(pieces) * ((w.kernel_h - 1) * w.dilation_h + 1)
            quads, singles = divmod(min(w.width, slots.width), 4)
            add(loops, {"windows.strip_row": copied, "windows.strip_four": copied * quads}, channels)
            add(loops, {"windows.strip_single": copied * (singles + slots.width - w.width)}, channels)
    for name, many in panels.items():
        fours = int((flat // 4).sum()) if name != "plain" else 0
        found = {
            "windows.panel": len(pieces),
            "windows.row": len(flat),
            f"windows.{name}_four": fours,
            "windows.pixel": int(flat.sum()) - 4 * fours,
        }
        add(loops, found, many)
    return loops


def _groups(offset: list[int]) -> str:
    """Whether four taps lie side by side, in two groups, or in more."""
    split = next((lane for lane in range(1, 4) if offset[lane] != offset[0] + lane), 4)
    if split == 4:
        return "one"
    return "two" if all(offset[lane] == offset[split] + lane - split for lane in range(split, 4)) else "plain"


def _windows_by_four(w: Window, inputs: int, pieces: Any, blocks: int) -> Loops:
    """Taps (c, kh, kw) in fours, the last of them again beyond the end."""
    width = inputs * w.taps
    oh, ow, piece = pieces.T
    last = ow + piece
    fours: dict[tuple[int, ...], int] = {}
    for at in range(0, width, 4):
        taps = tuple(min(at + lane, width - 1) % w.taps for lane in range(4))
        fours[taps] = fours.get(taps, 0) + 1
    loops: Loops = {"windows.four_taps": -(-width // 4) * blocks}
    for taps, many in fours.items():
        across = [tap % w.kernel_w * w.dilation_w - w.pad_left for tap in taps]
        down = [tap // w.kernel_w * w.dilation_h - w.pad_top for tap in taps]
        ranges = [output_range(offset, w.stride_w, w.width, w.output_width) for offset in across]
        low, high = max(int(r[0]) for r in ranges), min(int(r[1]) for r in ranges)
        begin = np.clip(low, ow, last)
        end = np.maximum(begin, np.minimum(high, last))
        rows = oh * w.stride_h
        clipped = (rows + min(down) < 0) | (rows + max(down) >= w.height)
        quick = ~clipped if w.stride_w == 1 else np.zeros_like(clipped)
        sides = (begin > ow).astype(int) + (last > end)
        found = {
            "windows.row": len(piece),
            "windows.clipped": int(clipped.sum()),
            "windows.side": int(sides.sum()),
            "windows.checked": int((piece - (end - begin)).sum()),
            "windows.run": int((end > begin).sum()),
            "windows.pixel": int((end - begin)[quick].sum()),
            "windows.strided": int((end - begin)[~quick].sum()),
        }
        add(loops, found, many)
    return loops


def _strip(w: Window, m: Machine, kernel: Kernel) -> int:
    """Floats of the workspace for a strip of the image."""
    size, terms, strip = kernel.ints[17:20]
    if m.columns != 4 or strip or w.is_pointwise:
        return strip
    return _Slots.of(w, w.channels // w.group, terms).strip_floats(w, size)


def _grad_weight_space(w: Window, m: Machine, kernel: Kernel) -> tuple[int, int]:
    size, terms, _ = kernel.ints[17:20]
    size -= _strip(w, m, kernel)
    blocks = -(-w.pixels // terms)
    return carve(m, size, terms, blocks if blocks > 1 else w.batch, w.channels // w.group * w.taps, False)


def moves_at_once(m: Machine, kernel: Kernel) -> bool:
    """Whether poetc_op_conv_grad_weight_sgd_packed has one block of terms, whose sums move the weights."""
    w = window(kernel)
    return (m.lanes >= 8 or m.has_fours) and w.batch * w.pixels <= kernel.ints[18]


def strip_columns(m: Machine, kernel: Kernel) -> int:
    """Columns of the strip of weights that poetc_op_conv_grad_weight_sgd_packed moves at once."""
    w, size, total = window(kernel), kernel.ints[17], kernel.ints[20]
    most, _ = _grad_weight_space(w, m, kernel)
    if moves_at_once(m, kernel):
        return most  # there is no strip
    return min(most, (total - size) // (w.outputs // w.group) // m.columns * m.columns)


@counts("conv_grad_weight_packed")
def conv_grad_weight_packed(kernel: Kernel, m: Machine) -> Loops:
    return grad_weight(kernel, m, kernel.ints[17])


def grad_weight(kernel: Kernel, m: Machine, most: int, moves: bool = False) -> Loops:
    """Of at most so many columns at once; `moves`: the first block of sums is added to what is there too."""
    w, size, depth = window(kernel), kernel.ints[17], kernel.ints[18]
    inputs, outputs = w.channels // w.group, w.outputs // w.group
    if m.lanes == 16 and not w.is_pointwise and (done := _direct.grad_weight(w, size, depth)):
        return {"conv_grad_weight_packed.call": 1, **done}
    width, (columns_at_once, at_once) = inputs * w.taps, _grad_weight_space(w, m, kernel)
    most = min(most, columns_at_once)
    images = 1 if w.pixels > depth else min(at_once // depth, w.batch)
    one: Loops = {}
    for columns, many in parts(width, most):
        for taken, turns in parts(w.batch, images):
            for terms, times in parts(taken * w.pixels, at_once if images == 1 else taken * w.pixels):
                add(one, dict(run(m, outputs, terms, 0, columns, width, "", True, depth)), many * times * turns)
                if w.is_pointwise:
                    add(one, pack_transposed(m, terms // taken, columns), many * times * turns * taken)
        if not moves:
            first = min(at_once, w.pixels * images)  # the first block of a column is not added to what is there
            add(one, dict(run(m, outputs, first, 0, columns, width, "", True, depth)), -many)
            add(one, dict(run(m, outputs, first, 0, columns, width, "", False, depth)), many)
    if _packs_every_second(w, m, at_once, width) and "_norm" not in kernel.symbol:
        add(one, _pack_every_second(w, inputs, at_once, most), w.batch)
    elif not w.is_pointwise:
        add(one, _pack_strips(w, m, inputs, at_once, most, _strip(w, m, kernel)), w.batch)
    loops: Loops = {"conv_grad_weight_packed.call": 1, "conv_grad_weight_packed.group": w.group}
    add(loops, one, w.group)
    return loops


def _spread(w: Window, m: Machine, block_rows: int) -> Loops:
    """All calls of `spread` for one channel, rows of the output in blocks."""
    if m.lanes == 16 and _is_shifted(w) and w.kernel_w * w.width <= _MASKED_MOST:
        blocks = w.batch * max(1, -(-w.output_height // block_rows))
        vectors = blocks * -(-min(block_rows, w.output_height) * w.width // 16)
        return {"spread.masked_tap": blocks * w.taps, "spread.masked": vectors * w.taps}
    if _spreads_every_second(w, m):
        return {"spread.masked": w.batch * w.height * -(-w.width // 16)}
    if _has_halves(w, m):
        return _spread_halves(w, block_rows)
    if m.lanes == 16 and 1 < w.stride_w <= _MOST_APART:
        return _spread_apart(w, block_rows)
    loops: Loops = {"spread.channel": 1}
    oh = np.arange(w.output_height)
    for kh in range(w.kernel_h):
        ih = oh * w.stride_h - w.pad_top + kh * w.dilation_h
        rows = int(((ih >= 0) & (ih < w.height)).sum()) * w.batch
        add(loops, {"spread.row": w.batch * w.output_height, "spread.tap": rows * w.kernel_w})
        for kw in range(w.kernel_w):
            low, high = output_range(kw * w.dilation_w - w.pad_left, w.stride_w, w.width, w.output_width)
            count = int(high - low)
            if w.stride_w == 1:
                add(loops, {"spread.four": rows * (count // 4), "spread.single": rows * (count % 4)})
            else:
                add(loops, {"spread.strided": rows * count})
    return loops


def _has_halves(w: Window, m: Machine) -> bool:
    return m.lanes == 16 and w.stride_w == 2 and w.taps <= _MASKED_MOST


def _spread_halves(w: Window, block_rows: int) -> Loops:
    """Even and odd pixels of gx, sixteen of each at once; of several rows where they are short and images whole."""
    short = block_rows % w.output_height == 0 and w.output_width in (4, 8) and (w.width + 1) // 2 == w.output_width
    rows = 16 // w.output_width if short else 1
    chunks = -(-w.output_height // rows) * (1 if short else -(-w.output_width // 16))
    return {"spread.masked_tap": w.taps, "spread.apart": w.batch * chunks * w.taps}


def _fill(w: Window, m: Machine, block_rows: int, channels: int) -> Loops:
    """What gx begins with, unless it is made as a whole."""
    if _spreads_every_second(w, m) or (_has_halves(w, m) and block_rows % w.output_height == 0):
        return {}
    return {"fill.plane": w.batch * channels, "fill.float": w.batch * channels * w.height * w.width}


def _spread_apart(w: Window, block_rows: int) -> Loops:
    blocks, most = -(-w.batch * w.output_height // block_rows), (15 + w.stride_w) // w.stride_w
    rows = vectors = 0
    for kh in range(w.kernel_h):
        top, bottom = output_range(kh * w.dilation_h - w.pad_top, w.stride_h, w.height, w.output_height)
        for kw in range(w.kernel_w):
            left, right = output_range(kw * w.dilation_w - w.pad_left, w.stride_w, w.width, w.output_width)
            rows += w.batch * max(0, int(bottom - top))
            vectors += w.batch * max(0, int(bottom - top)) * max(0, -(-int(right - left) // most))
    return {"spread.masked_tap": max(blocks, w.batch) * w.taps, "spread.apart_row": rows, "spread.apart": vectors}


def _stream_weights(w: Window, m: Machine, size: int, depth: int) -> Loops:
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
    add(one, _fill(w, m, w.output_height, channels))
    loops: Loops = {}
    add(loops, one, w.group)
    return loops


@counts("conv_grad_input_packed")
def conv_grad_input_packed(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    size, depth, held, block_rows, block = kernel.ints[17:22]
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
        # What is packed serves all channels: each block of terms stays where it is.
        once = -(-outputs // depth) * (-(-span // m.columns) * m.columns) <= most
        for number_of_block, (count, channel_times) in enumerate(parts(channels, block)):
            for column, columns, many in runs_of_columns(span, most):
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
                    packed = dict(pack_planes(m, w.pixels, terms, column % w.pixels, columns))
                    if not once:
                        add(sums, packed, times)
                    elif number_of_block == 0:
                        add(one, packed, row_times)
                add(one, {name: round(n * many) for name, n in sums.items()}, row_times * channel_times)
            if not pointwise:
                add(one, {"spread.call": row_times * channel_times})
    if not pointwise:
        add(one, _spread(w, m, block_rows), channels)
        add(one, _fill(w, m, block_rows, channels))
    loops: Loops = {"conv_grad_input_packed.call": 1, "conv_grad_input_packed.group": w.group}
    add(loops, one, w.group)
    return loops
