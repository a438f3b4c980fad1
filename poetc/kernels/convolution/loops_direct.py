"""poetc_direct.h: convolutions of few channels, on 16 lanes, and those of 3 x 3 in the FPU of Cortex-M."""

from __future__ import annotations

from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.gemm.loops_packed import parts
from poetc.kernels.machine import Loops, add

_LANES = 16


def _pieces(columns: int) -> int:
    return -(-columns // _LANES)


def _pays(columns: int, rows: int) -> bool:
    return _pieces(columns) * _LANES * rows < columns * (rows + 24)


def _shapes(rows: int) -> list[tuple[int, int]]:
    """(rows, vectors) of the blocks."""
    result = []
    while rows > 0:
        if rows >= 12 and rows != 16:
            size = 12
        else:
            size = next(s for s in (8, 6, 4, 2, 1) if s <= rows)
        result.append((size, 2 if size >= 8 else 4))
        rows -= size
    return result


def _strip(channels: int, rows: int, row: int) -> Loops:
    return {
        "direct.strip": 1,
        "direct.strip_row": channels * rows,
        "direct.strip_wide": channels * rows * -(-row // _LANES),
    }


def conv(w: Convolution, size: int, depth: int) -> Loops | None:
    """direct_conv; None where it is not done."""
    inputs, outputs = w.channels // w.group, w.outputs // w.group
    terms, pieces = inputs * w.taps, _pieces(w.output_width)
    row, reach = w.output_width + (w.kernel_w - 1) * w.dilation_w, (w.kernel_h - 1) * w.dilation_h
    room = (size - 1 - terms - _LANES) // (inputs * row) - reach - 1
    if w.stride_w != 1 or room < 0 or not _pays(w.output_width, outputs):
        return None
    one: Loops = {}
    for here, many in parts(w.output_height, min(w.output_height, room // w.stride_h + 1)):
        block = {"direct.offset": terms, **_strip(inputs, (here - 1) * w.stride_h + reach + 1, row)}
        for rows, vectors in _shapes(outputs):
            tiles = -(-here * pieces // vectors)
            counts = {
                f"direct.tile_{rows}": tiles * -(-terms // depth),
                f"direct.terms_{rows}": tiles * terms,
                "direct.put": here * pieces * rows,
            }
            add(block, counts)
        add(one, block, many)
    return {name: n * w.batch * w.group for name, n in one.items()}


def conv_of_threes(w: Convolution, size: int, depth: int) -> Loops | None:
    """direct_conv of poetc_direct_fpu.h; None where it is not done."""
    inputs, outputs, width = w.channels // w.group, w.outputs // w.group, w.output_width
    row, reach, blocks = width + 2, 2 * w.dilation_h, -(-9 * inputs // depth)
    room = (size - 2 - 2 * blocks) // (inputs * row) - reach - 1
    if (w.kernel_h, w.kernel_w, w.stride_w, w.dilation_w) != (3, 3, 1, 1) or room < 0 or width < 4 or outputs < 4:
        return None
    held, tiles, fours = min(w.output_height, room // w.stride_h + 1), -(-width // 4), -(-outputs // 4)
    if 16 * tiles > 5 * width or 16 * fours > 5 * outputs or held * width < 32:
        return None
    one: Loops = {}
    for here, many in parts(w.output_height, held):
        lines = inputs * ((here - 1) * w.stride_h + reach + 1)
        block = {"direct.strip": 1, "direct.strip_row": lines, "direct.strip_four": lines * (w.width // 4)}
        rows = here * fours
        add(block, {"direct.fours": fours, "direct.row": rows, "direct.tile": rows * tiles})
        add(block, {"direct.cut": rows * tiles * (blocks - 1), "direct.channel": rows * tiles * inputs})
        add(one, block, many)
    return {name: n * w.batch * w.group for name, n in one.items()}


def grad_input(w: Convolution, size: int, depth: int) -> Loops | None:
    """direct_grad_input; None where it is not done."""
    channels, outputs = w.channels // w.group, w.outputs // w.group
    wide, reach = (w.kernel_w - 1) * w.dilation_w, (w.kernel_h - 1) * w.dilation_h
    pieces, row = _pieces(w.width), w.width + wide
    room = (size - 1 - outputs - _LANES) // (outputs * row) - reach
    held = min(w.height, room - room % 2 if room > 2 else room)
    if w.stride_h != 1 or w.stride_w != 1 or held < 1 or outputs > depth or not _pays(w.width, channels * 2):
        return None
    one: Loops = {}
    for here, many in parts(w.height, held):
        block = {"direct.offset": outputs, **_strip(outputs, here + reach, row)}
        for rows, vectors in _shapes(channels):
            tiles = -(-here * pieces // vectors)
            counts = {
                f"direct.tile_{rows}": tiles * w.taps,
                f"direct.terms_{rows}": tiles * w.taps * outputs,
                "direct.masked": tiles * w.taps * rows * vectors,
                "direct.put": here * pieces * rows,
            }
            add(block, counts)
        add(one, block, many)
    return {name: n * w.batch * w.group for name, n in one.items()}


def grad_weight(w: Convolution, size: int, depth: int) -> Loops | None:
    """direct_grad_weight; None where it is not done."""
    inputs, outputs = w.channels // w.group, w.outputs // w.group
    right = (w.output_width - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1 - w.pad_left
    reach = (w.kernel_h - 1) * w.dilation_h
    bottom = (w.output_height - 1) * w.stride_h + reach + 1 - w.pad_top
    padded = w.pad_top > 0 or w.pad_left > 0 or right > w.width or bottom > w.height
    row = right + w.pad_left if padded else w.width
    touched = min(w.output_height, (depth + w.output_width - 2) // w.output_width + 1)
    strip_rows = (touched - 1) * w.stride_h + reach + 1
    fixed = 1 + depth * _LANES + (_LANES if padded else 0)
    each = (strip_rows * row if padded else 0) + w.taps * (_LANES + 1)
    held = min(inputs, (size - fixed) // each) if size > fixed else 0
    if held < 1 or outputs > 32:
        return None
    blocks = w.batch * -(-w.pixels // depth)
    one: Loops = {}
    for here, many in parts(inputs, held):
        taps, part = here * w.taps, Loops()
        left = taps
        while left:
            take = 27 if left >= 27 and w.taps % 25 else next(s for s in (25, 18, 9, 4, 1) if s <= left)
            add(part, {f"direct.taps_{take}": blocks, f"direct.pixels_{take}": w.batch * w.pixels})
            left -= take
        add(part, {"direct.turned": w.batch * w.pixels, "direct.offset": taps, "direct.result": taps * _LANES})
        if padded:
            add(part, _strip(here, strip_rows, row), blocks)
        add(one, part, many)
    loops: Loops = {}
    add(loops, one, w.group * -(-outputs // _LANES))
    return loops


def grad_weight_of_threes(w: Convolution, size: int, depth: int) -> Loops | None:
    """direct_grad_weight of poetc_direct_taps_fpu.h; None where it is not done."""
    inputs, outputs, width = w.channels // w.group, w.outputs // w.group, w.output_width
    row, plane = width + 2, (w.output_height - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1
    most, fours = min(inputs, (size - 2) // (plane * row)), -(-outputs // 4)
    if w.batch != 1 or (w.kernel_w, w.stride_w, w.dilation_w) != (3, 1, 1) or width % 8 or depth % width:
        return None
    if w.pixels <= depth or outputs < 4 or 16 * fours > 5 * outputs or most < 1:
        return None
    tiles = inputs * fours * w.kernel_h
    loops = {
        "direct.strip": -(-inputs // most),
        "direct.strip_row": inputs * plane,
        "direct.strip_four": inputs * plane * (w.width // 4),
        "direct.taps": tiles,
        "direct.taps_block": tiles * -(-w.pixels // depth),
        "direct.taps_row": tiles * w.output_height,
        "direct.taps_eight": tiles * w.pixels // 8,
    }
    return {name: n * w.group for name, n in loops.items()}
