"""depthwise.c, without Helium."""

from __future__ import annotations

from dataclasses import dataclass

from poetc.devices.loops._machine import Loops, Machine, add, counts
from poetc.devices.loops._window import Window, window
from poetc.ops import Kernel


@dataclass(frozen=True, slots=True)
class _Strip:
    """describe_strip."""

    phases: int
    row: int
    slack: int
    pairs: bool


def _strip(kernel: Kernel, w: Window, m: Machine) -> _Strip:
    phases, _, row = kernel.ints[17:20]
    slack = ((w.kernel_w - 1) * w.dilation_w + 15) // 4 * 4
    if _is_tiled(m) and phases == 2 and w.kernel_h == w.kernel_w == 3 and w.dilation_w == 1:
        return _Strip(1, min(row, w.width + max(2, w.pad_left)), slack, True)
    return _Strip(phases, row, slack, False)


def _is_tiled(m: Machine) -> bool:
    """Scalars in hardware: tiles of pixels in registers."""
    return m.lanes == 1 and not m.is_soft


def _clear(m: Machine, floats: int, times: int = 1) -> Loops:
    lanes = max(4, m.lanes)
    return {"clear.call": times, "clear.wide": times * (floats // lanes), "clear.single": times * (floats % lanes)}


def _copy_rows(rows: int, width: int) -> Loops:
    quads = -(-width // 4)
    loops: Loops = {"copy.call": 1, "copy.four": width // 4, "copy.single": width % 4}
    if quads == 2:
        return loops | {"copy.short": rows - 1}
    return loops | {"copy.row": rows - 1, "copy.row_four": (rows - 1) * quads}


def _clear_gaps(rows: int, gap: int) -> Loops:
    return {"gaps.column": max(0, gap), "gaps.float": max(0, gap) * rows}


def _pad(
    m: Machine, s: _Strip, source: tuple[int, int], spread: tuple[int, int], above: int, left: int, top: int, rows: int
) -> Loops:
    """pad_strip: rows [top, top + rows) of a plane of `source`, spread apart."""
    height, width = source
    loops: Loops = {"strip.call": 1}
    if s.phases == 1 and spread == (1, 1):
        first = max(0, top - above)
        count = min(top + rows - above, height) - first
        if count <= 0:
            add(loops, _clear(m, rows * s.row + s.slack))
            return loops
        lead = first - (top - above)
        add(loops, _clear(m, lead * s.row + left))
        add(loops, _copy_rows(count, width))
        add(loops, _clear_gaps(count, s.row - width))
        add(loops, _clear(m, (rows - lead - count) * s.row + s.slack - left))
        return loops
    there = sum(
        1 for r in range(top - above, top - above + rows) if 0 <= r // spread[0] < height and r % spread[0] == 0
    )
    add(loops, {"strip.row": rows, "strip.source_row": there})
    add(loops, _clear(m, rows * s.row + s.slack))
    if s.phases == 1:
        add(loops, {"strip.spread": there * width})
    elif s.phases == 2:
        add(loops, {"strip.pair": there * (width // 2), "strip.odd": there * (width % 2)})
    else:
        add(loops, {"strip.phase": there * width})
    return loops


def _correlate(m: Machine, s: _Strip, w: Window, rows: int, width: int, stride_h: int) -> Loops:
    """correlate_strip."""
    small = w.kernel_h == w.kernel_w == 3
    flat = stride_h == s.phases == w.dilation_h == w.dilation_w == 1
    if _is_tiled(m):
        low = rows >= 4 or (4 - rows) * s.row + 2 <= s.slack
        if flat and small and low and not s.pairs:
            return {
                "tiles.call": 1,
                "tiles.column": width // 4,
                "tiles.pair": width // 4 * -(-rows // 2),
                "tiles.narrow": width % 4,
                "tiles.narrow_four": width % 4 * -(-rows // 4),
            }
        if s.pairs:
            return {
                "pairs.call": 1,
                "pairs.row": rows,
                "pairs.four": rows * (width // 4),
                "pairs.single": rows * (width % 4),
            }
    lanes = max(4, m.lanes)
    if m.lanes > 1 and flat and small and width % lanes and width < 3 * lanes:  # rows that do not fill vectors
        return {"tiles.call": 1, "tiles.wide": -(-((rows - 1) * s.row + width) // lanes), **_copy_rows(rows, width)}
    if m.is_soft or width < lanes:
        fours = width // 4 if m.is_soft or m.lanes > 4 else 0
        name = "any" if m.is_soft else "four"
        return {
            "filter.few": rows,
            f"filter.{name}_block": rows * fours,
            f"filter.{name}_row": rows * fours * w.kernel_h,
            f"filter.{name}_tap": rows * fours * w.taps,
            "filter.pixel": rows * (width - 4 * fours),
            "filter.pixel_row": rows * (width - 4 * fours) * w.kernel_h,
            "filter.pixel_tap": rows * (width - 4 * fours) * w.taps,
        }
    loops: Loops = {}
    blocks = -(-width // lanes)
    if small and stride_h == 1 and w.dilation_h == 1:
        loops |= {"filter.pair": rows // 2, "filter.pair_block": rows // 2 * blocks}
        rows %= 2
    if small:
        return loops | {"filter.row": rows, "filter.row_block": rows * blocks}
    return {
        "filter.any": rows,
        "filter.any_block": rows * blocks,
        "filter.any_row": rows * blocks * w.kernel_h,
        "filter.any_tap": rows * blocks * w.taps,
    }


@counts("depthwise", "depthwise_grad_input")
def depthwise(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    s, block = _strip(kernel, w, m), kernel.ints[20]
    backward = kernel.symbol.endswith("grad_input")
    reach_h, reach_w = (w.kernel_h - 1) * w.dilation_h, (w.kernel_w - 1) * w.dilation_w
    plane: Loops = {}
    height = w.height if backward else w.output_height
    for top in range(0, height, block):
        rows = min(block, height - top)
        if backward:
            source, spread = (w.output_height, w.output_width), (w.stride_h, w.stride_w)
            add(plane, _pad(m, s, source, spread, reach_h - w.pad_top, reach_w - w.pad_left, top, rows + reach_h))
            add(plane, _correlate(m, s, w, rows, w.width, 1))
        else:
            taken = (rows - 1) * w.stride_h + reach_h + 1
            add(plane, _pad(m, s, (w.height, w.width), (1, 1), w.pad_top, w.pad_left, top * w.stride_h, taken))
            add(plane, _correlate(m, s, w, rows, w.output_width, w.stride_h))
    name = kernel.symbol.removeprefix("poetc_op_")
    loops: Loops = {f"{name}.call": 1, f"{name}.plane": w.batch * w.channels}
    add(loops, plane, w.batch * w.channels)
    return loops


@counts("depthwise_grad_weight")
def depthwise_grad_weight(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    s, block = _strip(kernel, w, m), kernel.ints[20]
    reach = (w.kernel_h - 1) * w.dilation_h
    flat = w.stride_h == w.stride_w == 1
    step = s.row if flat else -(-w.output_width // 4) * 4
    small = w.kernel_h == w.kernel_w == 3
    plane: Loops = {}
    for top in range(0, w.output_height, block):
        rows = min(block, w.output_height - top)
        taken = (rows - 1) * w.stride_h + reach + 1
        add(plane, _pad(m, s, (w.height, w.width), (1, 1), w.pad_top, w.pad_left, top * w.stride_h, taken))
        add(plane, _copy_rows(rows, w.output_width))
        add(plane, _clear_gaps(rows, step - w.output_width))
        add(plane, _clear(m, -(rows * step) % 4))
        lines, quads = (1, -(-rows * step // 4)) if flat else (rows, step // 4)
        if s.pairs:
            name, calls = "taps.pairs", 3
        elif _is_tiled(m) and flat and w.kernel_w == 3 and w.dilation_w == 1:
            name, calls = "taps.three", w.kernel_h
        elif small:
            name, calls = "taps.small", 3 if m.lanes == 1 else 1
        else:
            name, calls = "taps.tap", w.taps
        add(plane, {name: calls, f"{name}_row": calls * lines, f"{name}_quad": calls * lines * quads})
    loops: Loops = {
        "depthwise_grad_weight.call": 1,
        "depthwise_grad_weight.channel": w.channels,
        "depthwise_grad_weight.tap": w.channels * w.taps,
    }
    add(loops, plane, w.batch * w.channels)
    return loops
