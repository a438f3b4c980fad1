"""convolution_packed_grad_weight.c."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.kernels.convolution import loops_direct as _direct
from poetc.kernels.convolution.selection import PackedGradWeight, PackedGradWeightSgd
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.convolution_window import output_range
from poetc.kernels.gemm.loops_packed import carve, pack_transposed, parts, run
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts


def _row_pieces(w: Convolution, depth: int) -> Any:
    """(row, column, pixels) of the pieces of output rows that blocks of `depth` pixels of an image fall into."""
    rows = []
    for first in range(0, w.pixels, depth):
        at, end = first, min(w.pixels, first + depth)
        while at < end:
            piece = min(w.output_width - at % w.output_width, end - at)
            rows.append((at // w.output_width, at % w.output_width, piece))
            at += piece
    return np.array(rows)


def _pack_windows(w: Convolution, m: Machine, inputs: int, depth: int, most: int) -> Loops:
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
        counts = {
            "windows.segment": blocks,
            "windows.row": len(piece),
            "windows.outside": zeros,
            "windows.zero": zeros * taken,
            name: plain,
            "windows.copied": plain * taken if name == "windows.copy" else 0,
            "windows.edge": edge,
            "windows.edge_tap": edge * taken,
        }
        add(loops, counts, many)
    if left := -width % m.columns:
        add(loops, {"windows.end": left * blocks, "windows.end_zero": left * w.pixels})
    return loops


def _pack_strips(w: Convolution, m: Machine, inputs: int, depth: int, most: int, strip: int) -> Loops:
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
    channels = 0  # copied with zeros around them
    for begin in range(0, width, most):
        at, columns = 0, min(most, width - begin)
        channels += (begin + columns - 1) // w.taps - begin // w.taps + 1
        while at < columns:
            tap, lane = (begin + at) % w.taps, at % m.columns
            kw = tap % w.kernel_w
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
        counts = {
            "windows.segment": strips,
            "windows.row": rows,
            name: w.pixels,
            "windows.copied": w.pixels * taken if name == "windows.copy" else 0,
        }
        add(loops, counts, many)
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
    def of(cls, w: Convolution, inputs: int, terms: int) -> _Slots:
        reach_h = (w.output_height - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h
        reach_w = (w.output_width - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w
        padded = w.pad_top > 0 or w.pad_left > 0 or reach_h >= w.height or reach_w >= w.width
        return cls(padded, reach_w + 1 if padded else w.width, min((w.taps + 2) // w.taps + 1, inputs), terms)

    def slot_floats(self, w: Convolution, rows: int) -> int:
        return ((rows - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1) * self.width

    def strip_floats(self, w: Convolution, size: int) -> int:
        rows = min(max(0, self.terms - 2) // w.output_width + 2, w.output_height)
        floats = self.slots * self.slot_floats(w, rows) + 4 if self.is_padded else 0
        return floats if self.terms >= 2 and 2 * floats <= size else 0

    def rows(self, w: Convolution, strip: int) -> int:
        if not self.is_padded:
            return w.output_height
        room, rows = (strip - 4) // self.slots, 0
        while rows < w.output_height and self.slot_floats(w, rows + 1) <= room:
            rows += 1
        return rows


def _pack_by_four(w: Convolution, m: Machine, inputs: int, depth: int, most: int, strip: int) -> Loops:
    """All calls of pack_strips, or pack_windows, for one image and group."""
    slots = _Slots.of(w, inputs, depth)
    held = slots.rows(w, strip)
    if held == 0:
        return _pack_windows(w, m, inputs, depth, most)
    width = inputs * w.taps
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
    in_fours = w.stride_w == 1 and m.has_fours
    for begin in range(0, width, most):
        columns = min(most, width - begin)
        if slots.is_padded:
            channels = (begin + columns - 1) // w.taps - begin // w.taps + 1
            copied = (len(flat) - len(pieces)) * w.stride_h + len(pieces) * ((w.kernel_h - 1) * w.dilation_h + 1)
            quads, singles = divmod(min(w.width, slots.width), 4)
            add(loops, {"windows.strip_row": copied, "windows.strip_four": copied * quads}, channels)
            add(loops, {"windows.strip_single": copied * (singles + slots.width - w.width)}, channels)
    fours = int((flat // 4).sum()) if in_fours else 0
    counts = {
        "windows.panel": len(pieces),
        "windows.row": len(flat),
        "windows.sixteen": fours,
        "windows.pixel": int(flat.sum()) - 4 * fours,
    }
    add(loops, counts, sum(-(-size // 4) * many for size, many in parts(width, most)))
    return loops


def _windows_by_four(w: Convolution, inputs: int, pieces: Any, blocks: int) -> Loops:
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
        counts = {
            "windows.row": len(piece),
            "windows.clipped": int(clipped.sum()),
            "windows.side": int(sides.sum()),
            "windows.checked": int((piece - (end - begin)).sum()),
            "windows.run": int((end > begin).sum()),
            "windows.pixel": int((end - begin)[quick].sum()),
            "windows.strided": int((end - begin)[~quick].sum()),
        }
        add(loops, counts, many)
    return loops


def _strip(m: Machine, p: PackedGradWeight) -> int:
    """Floats of the workspace for a strip of the image."""
    w = p.convolution
    if m.columns != 4 or p.strip_floats or w.is_pointwise:
        return p.strip_floats
    return _Slots.of(w, w.channels // w.group, p.terms).strip_floats(w, p.workspace_floats)


def _grad_weight_space(m: Machine, p: PackedGradWeight) -> tuple[int, int]:
    w, size = p.convolution, p.workspace_floats - _strip(m, p)
    blocks = -(-w.pixels // p.terms)
    return carve(m, size, p.terms, blocks if blocks > 1 else w.batch, w.channels // w.group * w.taps, False)


def moves_at_once(m: Machine, p: PackedGradWeightSgd) -> bool:
    """Whether poetc_op_conv_grad_weight_sgd_packed has one block of terms, whose sums move the weights."""
    return (m.lanes >= 8 or m.has_fours) and p.convolution.batch * p.convolution.pixels <= p.terms


def strip_columns(m: Machine, p: PackedGradWeightSgd) -> int:
    """Columns of the strip of weights that poetc_op_conv_grad_weight_sgd_packed moves at once."""
    w, (most, _) = p.convolution, _grad_weight_space(m, p)
    if moves_at_once(m, p):
        return most  # there is no strip
    return min(most, (p.total_floats - p.workspace_floats) // (w.outputs // w.group) // m.columns * m.columns)


@counts("conv_grad_weight_packed")
def conv_grad_weight_packed(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(PackedGradWeight)
    return grad_weight(p, m, p.workspace_floats)


def grad_weight(p: PackedGradWeight, m: Machine, most: int, moves: bool = False) -> Loops:
    """Loops where at most `most` columns run at once. `moves`: the first block, too, adds to earlier sums."""
    w, size, depth = p.convolution, p.workspace_floats, p.terms
    inputs, outputs = w.channels // w.group, w.outputs // w.group
    if m.lanes == 16 and not w.is_pointwise and (done := _direct.grad_weight(w, size, depth)):
        return {"conv_grad_weight_packed.call": 1, **done}
    if m.has_fours and not w.bias_or_norm and (done := _direct.grad_weight_of_threes(w, size, depth)):
        return {"conv_grad_weight_packed.call": 1, **done}
    width, (columns_at_once, at_once) = inputs * w.taps, _grad_weight_space(m, p)
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
            first = min(at_once, w.pixels * images)  # the first block of a column is not added to earlier sums
            add(one, dict(run(m, outputs, first, 0, columns, width, "", True, depth)), -many)
            add(one, dict(run(m, outputs, first, 0, columns, width, "", False, depth)), many)
    if not w.is_pointwise:
        add(one, _pack_strips(w, m, inputs, at_once, most, _strip(m, p)), w.batch)
    loops: Loops = {"conv_grad_weight_packed.call": 1, "conv_grad_weight_packed.group": w.group}
    add(loops, one, w.group)
    return loops
