"""depthwise.c, without Helium."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.convolution_window import window
from poetc.kernels.depthwise.selection import Depthwise
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts

_TAPS = (3, 5, 7)  # of a row, for which there are loops in an FPU
_MOST_PIXELS, _MOST_OF_SEVEN = 8, 6


@dataclass(frozen=True, slots=True)
class _Strip:
    """describe_strip."""

    phases: int
    row: int
    slack: int
    pairs: bool


def _strip(p: Depthwise, w: Convolution, m: Machine) -> _Strip:
    phases, row = p.phases, p.row_floats
    slack = ((w.kernel_w - 1) * w.dilation_w + 15) // 4 * 4
    if m.has_fours and phases == 2 and w.kernel_w in _TAPS and w.kernel_h <= _TAPS[-1] and w.dilation_w == 1:
        right = 2 * w.output_width - 2 + w.kernel_w - w.pad_left - w.width
        return _Strip(1, w.width + max(w.pad_left, right), slack, True)
    return _Strip(phases, row, slack, False)


def _clear(m: Machine, floats: int) -> Loops:
    lanes = max(4, m.lanes)
    return {"clear.call": 1, "clear.wide": floats // lanes, "clear.single": floats % lanes}


def _copy_rows(m: Machine, rows: int, width: int) -> Loops:
    if m.has_fours:
        if width <= 8 or width in (10, 12, 14, 16):
            return {"copy.call": 1, "copy.short": rows}
        pieces = {"copy.row_sixteen": rows * (width // 16), "copy.row_piece": rows * (width % 16).bit_count()}
        return {"copy.call": 1, "copy.row": rows, **pieces}
    quads = -(-width // 4)
    loops: Loops = {"copy.call": 1, "copy.four": width // 4, "copy.single": width % 4}
    if quads == 2:
        return loops | {"copy.short": rows - 1}
    return loops | {"copy.row": rows - 1, "copy.row_four": (rows - 1) * quads}


def _clear_gaps(rows: int, gap: int) -> Loops:
    return {"gaps.column": max(0, gap), "gaps.float": max(0, gap) * rows}


def _planes(m: Machine, s: _Strip, planes: int, fresh: Loops, again: Loops, is_whole: bool) -> Loops:
    """Loops of all planes: where one is one strip, those after the first find its zeros."""
    loops: Loops = {}
    later = planes - 1 if m.has_fours and s.phases == 1 and is_whole else 0
    add(loops, fresh, planes - later)
    add(loops, again, later)
    return loops


def _pad(
    m: Machine, s: _Strip, source: tuple[int, int], above: int, left: int, top: int, rows: int, again: bool
) -> Loops:
    """pad_strip: rows [top, top + rows) of a padded plane, or only those that are not zero."""
    height, width = source
    loops: Loops = {"strip.call": 1}
    first = max(0, top - above)
    count = min(top + rows - above, height) - first
    if s.phases == 1:
        if count <= 0:
            add(loops, _clear(m, rows * s.row + s.slack))
            return loops
        if again:
            add(loops, _copy_rows(m, count, width))
            return loops
        lead = first - (top - above)
        add(loops, _clear(m, lead * s.row + left))
        add(loops, _copy_rows(m, count, width))
        add(loops, _clear_gaps(count, s.row - width))
        add(loops, _clear(m, (rows - lead - count) * s.row + s.slack - left))
        return loops
    there = max(0, count)
    add(loops, {"strip.row": rows, "strip.source_row": there})
    add(loops, _clear(m, rows * s.row + s.slack))
    if s.phases == 2:
        add(loops, {"strip.pair": there * (width // 2), "strip.odd": there * (width % 2)})
    else:
        add(loops, {"strip.phase": there * width})
    return loops


@dataclass(frozen=True, slots=True)
class _Filter:
    """Taps, rows and columns of the strip between them; rows and pixels of the result, and how far apart both lie."""

    kernel_h: int
    kernel_w: int
    down: int
    across: int
    rows: int
    width: int
    row_step: int = 1
    step: int = 1


def _correlate(m: Machine, s: _Strip, f: _Filter, stride_h: int) -> Loops:
    """The loops of `correlate_strip`, once for a strip."""
    rows, width = f.rows, f.width
    loops: Loops = {"filter.call": 1}
    small = f.kernel_h == f.kernel_w == 3 and f.row_step == f.step == 1
    if m.has_fours and (fast := _tiles(s, f, stride_h)):
        return loops | fast | {"filter.plan": 1}
    lanes = max(4, m.lanes)
    flat = stride_h == s.phases == f.down == f.across == 1
    if m.lanes > 1 and small and flat and width % lanes and width < 3 * lanes:  # rows that do not fill vectors
        return loops | {
            "tiles.call": 1,
            "tiles.wide": -(-((rows - 1) * s.row + width) // lanes),
            **_copy_rows(m, rows, width),
        }
    blocks = -(-width // lanes)
    if m.lanes > 1 and small and width >= lanes:
        if stride_h == 1 and f.down == 1:
            loops |= {"filter.pair": rows // 2, "filter.pair_block": rows // 2 * blocks}
            rows %= 2
        return loops | {"filter.row": rows, "filter.row_block": rows * blocks}
    taps = f.kernel_h * f.kernel_w
    apart = lanes if f.step > 1 else 0
    if m.is_soft or width < lanes:
        fours = width // 4 if m.is_soft or m.lanes > 4 else 0
        name = "any" if m.is_soft else "four"
        return loops | {
            "filter.few": rows,
            f"filter.{name}_block": rows * fours,
            f"filter.{name}_row": rows * fours * f.kernel_h,
            f"filter.{name}_tap": rows * fours * taps,
            "filter.apart": rows * fours * 4 if apart or not m.is_soft else 0,
            "filter.pixel": rows * (width - 4 * fours),
            "filter.pixel_row": rows * (width - 4 * fours) * f.kernel_h,
            "filter.pixel_tap": rows * (width - 4 * fours) * taps,
        }
    return loops | {
        "filter.any": rows,
        "filter.any_block": rows * blocks,
        "filter.any_row": rows * blocks * f.kernel_h,
        "filter.any_tap": rows * blocks * taps,
        "filter.apart": rows * blocks * apart,
    }


def _blocks(total: int, most: int) -> tuple[int, int]:
    """set_blocks: how many, and of how many pixels (or pairs) each."""
    blocks = -(-total // most)
    return blocks, -(-total // blocks)


def _tiles(s: _Strip, f: _Filter, stride_h: int) -> Loops:
    """correlate_fast of poetc_depthwise_fpu.h, without the work that is done once.

    Nothing if it has no tiles for the filter.
    """
    if f.across != 1 or s.phases != 1 or f.step != 1 or f.kernel_h > _TAPS[-1] or f.kernel_w not in _TAPS:
        return {}
    if f.kernel_h < 1:
        return {}
    nine = f.kernel_h == 3 and f.kernel_w == 3 and stride_h == 1 and f.down == 1
    if not s.pairs and f.kernel_w == 3 and not nine:
        return {}
    blocks, pixels = _blocks(f.width, _MOST_OF_SEVEN if s.pairs and f.kernel_w == 7 else _MOST_PIXELS)
    rows = blocks * f.rows
    if not s.pairs and nine:
        return {"tiles.block": blocks, "tiles.row": rows, "tiles.pixel": rows * pixels}
    lines = rows * f.kernel_h
    return {
        "slide.block": blocks,
        "slide.row": rows,
        "slide.line": lines,
        f"slide.pixel_{f.kernel_w}": lines * pixels,
    }


def _pairs_of_rows(w: Convolution, top: int, rows: int) -> Loops:
    """gather_rows of poetc_depthwise_fpu.h, of even and of odd taps."""
    even = 1 - (top + w.pad_top) % 2
    blocks, pairs = _blocks(-(-w.width // 2), _MOST_OF_SEVEN if w.kernel_w == 7 else _MOST_PIXELS)
    loops: Loops = {}
    for lines, count in ((w.kernel_h // 2, (rows - even + 1) // 2), (w.kernel_h // 2 + 1, (rows + even) // 2)):
        if count:
            add(loops, {"gather.block": blocks, "gather.row": blocks * count, "gather.line": blocks * count * lines})
            add(loops, {f"gather.pair_{w.kernel_w}": blocks * count * lines * pairs})
    return loops


def _is_gathered(m: Machine, w: Convolution) -> bool:
    most = _TAPS if m.has_fours else (3,)
    taps = w.kernel_h in most and w.kernel_w in most
    return taps and w.stride_h == w.stride_w == 2 and w.dilation_h == w.dilation_w == 1 and not m.is_soft


def _taps_of(at: int, kernel: int, dilation: int, stride: int) -> tuple[int, int]:
    """How many taps read a padded position, and how far apart the outputs lie that they belong to."""
    outputs = [(at - k * dilation) // stride for k in reversed(range(kernel)) if (at - k * dilation) % stride == 0]
    return len(outputs), outputs[1] - outputs[0] if len(outputs) > 1 else 0


def _gather(m: Machine, s: _Strip, w: Convolution, top: int, rows: int) -> Loops:
    """The loops of `gather_pairs_of_rows` and `gather_phases`, which copy rows of the image."""
    loops: Loops = {}
    if _is_gathered(m, w):
        if m.has_fours:
            return _pairs_of_rows(w, top, rows) | {"filter.plan": 2}
        eights, rest = divmod(w.width, 8)
        return {
            "gather.call": 1,
            "gather.pair": -(-rows // 2),
            "gather.tile": -(-rows // 2) * eights,
            "gather.edge": -(-rows // 2) * min(1, rest),
            "gather.edge_pixel": rows * rest,
        }
    for down in range(min(w.stride_h, rows)):
        high, apart = _taps_of(top + down + w.pad_top, w.kernel_h, w.dilation_h, w.stride_h)
        add(loops, {"gather.phase_row": 1, "gather.tap": w.kernel_h})
        for across in range(min(w.stride_w, w.width)):
            wide, step = _taps_of(across + w.pad_left, w.kernel_w, w.dilation_w, w.stride_w)
            add(loops, {"gather.phase": 1, "gather.tap": w.kernel_w})
            height, width = (rows - down - 1) // w.stride_h + 1, (w.width - across - 1) // w.stride_w + 1
            f = _Filter(high, wide, apart, step if wide > 1 else 1, height, width, w.stride_h, w.stride_w)
            add(loops, _correlate(m, s, f, 1))
    return loops


def _again(m: Machine, rows: int, width: int) -> Loops:
    """run_plane and its like: a plane of the size of the one before."""
    return {"strip.again": 1, **_copy_rows(m, rows, width)}


def _in_registers(m: Machine, w: Convolution) -> Loops:
    """Planes for which poetc_depthwise_planes.h has loops; nothing of others."""
    side, stride = w.output_width, w.stride_w
    is_small = m.has_fours and 1 <= side <= 4 and w.output_height == side and w.height == w.width == stride * side
    usual = w.kernel_h == w.kernel_w == 3 and w.stride_h == stride and w.dilation_h == w.dilation_w == 1
    if not is_small or not usual or w.bias_or_norm or w.pad_top != w.pad_left:
        return {}
    if not (w.pad_left == 1 if stride == 1 else stride == 2 and w.pad_left <= 1):
        return {}
    return {f"plane_{stride}_{side}": w.batch * w.channels}


def _is_in_place(m: Machine, w: Convolution) -> bool:
    """Whether poetc_depthwise_in_place.h reads planes where they are."""
    usual = w.kernel_h == w.kernel_w == 3 and w.stride_h == w.stride_w == w.dilation_h == w.dilation_w == 1
    same = (w.output_height, w.output_width) == (w.height, w.width) and w.pad_top == w.pad_left == 1
    return m.has_fours and usual and same and (w.width in (3, 5, 6, 7) or w.width % 8 == 0)


def _slides(w: Convolution) -> Loops:
    """slide_in_place."""
    blocks, rows = -(-w.width // 8), w.height * -(-w.width // 8)
    return {"tiles.place": blocks, "tiles.place_row": rows, "tiles.place_pixel": w.height * w.width}


def _starts(m: Machine, w: Convolution) -> Loops:
    """The loops of `start_with`, which begins the sums of a channel with its bias."""
    return {"filter.start": w.batch * w.channels} if m.has_fours and w.bias_or_norm else {}


def _sums(w: Convolution, flat: bool, rows: int, step: int) -> Loops:
    """add_taps_of_row and add_taps_apart of poetc_depthwise_fpu.h."""
    lines, quads = w.kernel_h, -(-rows * step // 4)
    name = f"taps.{dict(zip(_TAPS, ('three', 'five', 'seven'), strict=True))[w.kernel_w]}"
    loops: Loops = {"taps.call": 1}
    if not flat:
        return loops | {f"{name}_pairs": lines, "taps.row": lines * rows, f"{name}_pairs_quad": lines * quads}
    if w.kernel_w == 3:
        return loops | {name: lines, f"{name}_eight": lines * (quads // 2), f"{name}_quad": lines * (quads % 2)}
    return loops | {name: lines, f"{name}_quad": lines * quads}


@counts("depthwise")
def depthwise(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    if held := _in_registers(m, w):
        return {"depthwise.call": 1, **{f"depthwise.{name}": n for name, n in held.items()}}
    p = kernel.parameters_as(Depthwise)
    s, block = _strip(p, w, m), p.block_rows
    whole = _Filter(w.kernel_h, w.kernel_w, w.dilation_h, w.dilation_w, w.output_height, w.output_width)
    tiles = _tiles(s, whole, w.stride_h) if m.has_fours else {}

    def plane(again: bool) -> Loops:
        if again and tiles:
            reach = (w.output_height - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1
            return _again(m, min(w.height, reach - w.pad_top), w.width) | tiles
        loops: Loops = {}
        for top in range(0, w.output_height, block):
            rows = min(block, w.output_height - top)
            taken = (rows - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1
            add(loops, _pad(m, s, (w.height, w.width), w.pad_top, w.pad_left, top * w.stride_h, taken, again))
            f = _Filter(w.kernel_h, w.kernel_w, w.dilation_h, w.dilation_w, rows, w.output_width)
            add(loops, _correlate(m, s, f, w.stride_h))
        return loops

    planes = w.batch * w.channels
    loops: Loops = {"depthwise.call": 1, "depthwise.plane": planes, **_starts(m, w)}
    if _is_in_place(m, w):
        add(loops, _slides(w), planes)
        return loops
    add(loops, _planes(m, s, planes, plane(False), plane(True), block >= w.output_height))
    return loops


@counts("depthwise_grad_input")
def depthwise_grad_input(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    if held := _in_registers(m, w):
        return {"depthwise_grad_input.call": 1, **{f"depthwise_grad_input.{name}": n for name, n in held.items()}}
    p = kernel.parameters_as(Depthwise)
    s, block = _strip(p, w, m), p.block_rows
    reach_h, reach_w = (w.kernel_h - 1) * w.dilation_h, (w.kernel_w - 1) * w.dilation_w
    left = (reach_w - w.pad_left) // w.stride_w
    is_strided = w.stride_h > 1 or w.stride_w > 1
    if is_strided:
        right = (w.width - 1 + w.pad_left) // w.stride_w + 1 - w.output_width
        s = replace(s, row=w.output_width + max(left, right))

    whole = _Filter(w.kernel_h, w.kernel_w, w.dilation_h, w.dilation_w, w.height, w.width)
    tiles: Loops = {}
    turned: Loops = {}
    if m.has_fours and is_strided and _is_gathered(m, w) and w.height > 1:
        tiles = _pairs_of_rows(w, 0, w.height)
    elif m.has_fours and not is_strided and (tiles := _tiles(s, whole, 1)):
        turned = {"filter.turned": w.taps}

    def plane(again: bool) -> Loops:
        if again and tiles:
            last = (w.height - 1 + w.pad_top) // w.stride_h + 1
            return _again(m, min(w.output_height, last), w.output_width) | tiles | turned
        loops: Loops = dict(turned)
        for top in range(0, w.height, block):
            rows = min(block, w.height - top)
            first, last = -((reach_h - w.pad_top - top) // w.stride_h), (top + rows - 1 + w.pad_top) // w.stride_h
            source = (w.output_height, w.output_width)
            add(loops, _pad(m, s, source, -first, left, 0, max(1, last - first + 1), again))
            if is_strided:
                add(loops, _gather(m, s, w, top, rows))
            else:
                f = _Filter(w.kernel_h, w.kernel_w, w.dilation_h, w.dilation_w, rows, w.width)
                add(loops, _correlate(m, s, f, 1))
        return loops

    planes = w.batch * w.channels
    loops: Loops = {"depthwise_grad_input.call": 1, "depthwise_grad_input.plane": planes, **_starts(m, w)}
    if _is_in_place(m, w):
        add(loops, _slides(w) | {"filter.turned": w.taps}, planes)
        return loops
    add(loops, _planes(m, s, planes, plane(False), plane(True), block >= w.height))
    return loops


@counts("depthwise_grad_weight")
def depthwise_grad_weight(kernel: Kernel, m: Machine) -> Loops:
    w = window(kernel)
    if held := _in_registers(m, w):
        return {"depthwise_grad_weight.call": 1, **{f"depthwise_grad_weight.{name}": n for name, n in held.items()}}
    p = kernel.parameters_as(Depthwise)
    s, block = _strip(p, w, m), p.block_rows
    reach = (w.kernel_h - 1) * w.dilation_h
    flat = w.stride_h == w.stride_w == 1
    step = s.row if flat else -(-w.output_width // 4) * 4
    small = w.kernel_h == w.kernel_w == 3
    is_fast = m.has_fours and (flat or s.pairs) and w.kernel_w in _TAPS and w.dilation_w == 1
    is_copied = step != w.output_width or (flat and w.output_height * step % 4)

    def plane(again: bool) -> Loops:
        loops: Loops = {}
        if again and is_fast:
            reach_of_all = (w.output_height - 1) * w.stride_h + reach + 1
            add(loops, _again(m, min(w.height, reach_of_all - w.pad_top), w.width))
            if is_copied:
                add(loops, _copy_rows(m, w.output_height, w.output_width))
            if not flat or w.kernel_h <= 3:
                add(loops, _sums(w, flat, w.output_height, step))
                return loops
            for above in range(w.pad_top, w.pad_top - w.kernel_h * w.dilation_h, -w.dilation_h):
                first, end = max(0, above), min(w.height + above, w.output_height)
                if first < end:  # rows of gy that meet the image
                    quads = -(-((end - 1) * step + w.output_width) // 4) - first * step // 4
                    add(loops, _sums(replace(w, kernel_h=1), flat, 1, 4 * quads))
            return loops
        for top in range(0, w.output_height, block):
            rows = min(block, w.output_height - top)
            taken = (rows - 1) * w.stride_h + reach + 1
            add(loops, _pad(m, s, (w.height, w.width), w.pad_top, w.pad_left, top * w.stride_h, taken, again))
            if step != w.output_width or (flat and rows * step % 4):
                add(loops, _copy_rows(m, rows, w.output_width))
                if not again:
                    add(loops, _clear_gaps(rows, step - w.output_width))
                    add(loops, _clear(m, -(rows * step) % 4))
            lines, quads = (1, -(-rows * step // 4)) if flat else (rows, step // 4)
            if is_fast:
                add(loops, _sums(w, flat, rows, step))
                continue
            name, calls = ("taps.small", 3 if m.lanes == 1 else 1) if small else ("taps.tap", w.taps)
            add(loops, {name: calls, f"{name}_row": calls * lines, f"{name}_quad": calls * lines * quads})
        return loops

    loops: Loops = {
        "depthwise_grad_weight.call": 1,
        "depthwise_grad_weight.channel": w.channels,
        "depthwise_grad_weight.tap": w.channels * w.taps,
    }
    planes = w.batch * w.channels
    if _is_in_place(m, w) and (w.width <= 8 or w.width == 16) and not w.bias_or_norm and block >= w.height:
        rows = 3 * w.height - 2  # of three lines of taps: rows of gy that meet the image
        add(loops, {"taps.plane": 1, "taps.plane_row": rows, "taps.plane_pixel": rows * w.width}, planes)
        return loops
    add(loops, _planes(m, s, planes, plane(False), plane(True), block >= w.output_height))
    return loops
