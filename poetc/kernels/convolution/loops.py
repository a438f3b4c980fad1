"""convolution.c."""

from __future__ import annotations

from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.convolution_window import output_range, window
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts

_SEGMENT = 256


def _row(
    channels: int,
    depth: int,
    rows: int,
    columns: int,
    column: int,
    column_step: int,
    pixels: int,
    pixel_step: int,
    size: int,
) -> Loops:
    """correlate_row, on a source of `size` columns."""
    reach = (columns - 1) * column_step
    leftmost, rightmost = column + min(reach, 0), column + max(reach, 0)
    low, high = max(0, -(leftmost // pixel_step)), min(pixels, (size - 1 - rightmost) // pixel_step + 1)
    if columns == 0 or rows == 0 or high - low < 4:
        low = high = 0
    loops: Loops = {"correlate.row": 1}
    if high > low:
        height = 4 if channels >= 4 else 1
        tiles = -(-channels // height) * -(-(high - low) // 4)
        name = f"correlate.tile_{height}"
        step = "" if pixel_step == 1 else "_strided"
        add(
            loops,
            {name: tiles, f"{name}_row": tiles * depth * rows, f"{name}_tap{step}": tiles * depth * rows * columns},
        )
    fours, ones = channels // 4, channels % 4
    for p in (*range(low), *range(high, pixels)):
        at = column + p * pixel_step
        taps = sum(1 for k in range(columns) if 0 <= at + k * column_step < size)
        add(loops, {"correlate.border": 1, "correlate.skipped": columns - taps})
        for name, groups in (("correlate.border_4", fours), ("correlate.border_1", ones)):
            inner = groups * depth * rows if taps else 0
            add(loops, {name: groups, f"{name}_row": inner, f"{name}_tap": inner * taps})
    return loops


@counts("conv")
def conv(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    image: Loops = {}
    seen: dict[int, int] = {}
    for oh in range(w.output_height):
        top = oh * w.stride_h - w.pad_top
        rows = sum(1 for k in range(w.kernel_h) if 0 <= top + k * w.dilation_h < w.height)
        seen[rows] = seen.get(rows, 0) + 1
    for rows, many in seen.items():
        channels, depth = w.outputs // w.group, w.channels // w.group
        one = _row(channels, depth, rows, w.kernel_w, -w.pad_left, w.dilation_w, w.output_width, w.stride_w, w.width)
        add(image, one, many)
    loops: Loops = {"conv.call": 1}
    add(loops, image, w.batch * w.group)
    return loops


def _taps_at(at: int, kernel: int, dilation: int, stride: int, limit: int | None) -> list[int]:
    """Outputs that the taps through which a position was read belong to."""
    places = [(at - k * dilation) // stride for k in range(kernel) if (at - k * dilation) % stride == 0]
    return places if limit is None else [p for p in places if 0 <= p < limit]


@counts("conv_grad_input")
def conv_grad_input(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    seen: dict[int, int] = {}
    for ih in range(w.height):
        rows = len(_taps_at(ih + w.pad_top, w.kernel_h, w.dilation_h, w.stride_h, w.output_height))
        seen[rows] = seen.get(rows, 0) + 1
    image: Loops = {"conv_grad_input.row": w.height}
    for phase in range(min(w.stride_w, w.width)):
        across = _taps_at(phase + w.pad_left, w.kernel_w, w.dilation_w, w.stride_w, None)
        column = across[0] if across else 0
        step = across[1] - across[0] if len(across) > 1 else 0
        pixels = -(-(w.width - phase) // w.stride_w)
        for rows, many in seen.items():
            channels, depth = w.channels // w.group, w.outputs // w.group
            add(image, _row(channels, depth, rows, len(across), column, step, pixels, 1, w.output_width), many)
    image["conv_grad_input.tap"] = w.height * (w.kernel_h + min(w.stride_w, w.width) * w.kernel_w)
    loops: Loops = {"conv_grad_input.call": 1}
    add(loops, image, w.batch * w.group)
    return loops


@counts("conv_grad_weight")
def conv_grad_weight(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    outputs, depth = w.outputs // w.group, w.channels // w.group
    block = 4 if outputs >= 4 else 1
    weights = w.group * -(-outputs // block) * depth
    loops: Loops = {"conv_grad_weight.call": 1, "conv_grad_weight.weight": weights * w.taps}
    heights = [_range(w, kh, True) for kh in range(w.kernel_h)]
    widths = [_range(w, kw, False) for kw in range(w.kernel_w)]
    name, step = f"segment.of_{block}", "" if w.stride_w == 1 else "_strided"
    for height in heights:
        for width in widths:
            rows = w.batch * height
            whole, rest = divmod(width, _SEGMENT)
            counts = {
                "segment.flush": 1 + rows * width // _SEGMENT,
                "segment.row": rows,
                name: rows * (whole + (rest > 0)),
                f"{name}_four{step}": rows * (whole * _SEGMENT // 4 + rest // 4),
                f"{name}_single": rows * (rest % 4),
            }
            add(loops, counts, weights)
    return loops


def _range(w: Convolution, k: int, is_row: bool) -> int:
    """Outputs whose tap k along an axis lies on the image."""
    if is_row:
        low, high = output_range(k * w.dilation_h - w.pad_top, w.stride_h, w.height, w.output_height)
    else:
        low, high = output_range(k * w.dilation_w - w.pad_left, w.stride_w, w.width, w.output_width)
    return int(high - low)
