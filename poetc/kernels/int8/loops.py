"""int8/*.c: products of integers of 8 bits, and pools. Elementwise kinds have counts by their work alone.

Products are packed in blocks, added up, scanned for their largest bits, and rounded. Windows at the edge of an image
are counted along each axis apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.int8.selection import IntegerProduct
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts
from poetc.kernels.operators.parameters import Pool

_SMALL_TERMS = 32768


@dataclass(frozen=True, slots=True)
class _Axis:
    """Pixels of a phase along an axis: pixel i reads the places i * move + origin + k * tap, for `taps` k."""

    count: int
    move: int
    origin: int
    tap: int
    taps: int

    def inside(self, size: int) -> list[list[bool]]:
        """By pixel and tap: whether the place is within the plane."""
        return [
            [0 <= i * self.move + self.origin + k * self.tap < size for k in range(self.taps)]
            for i in range(self.count)
        ]


def _every(first: int, stride: int, size: int, pad: int, dilation: int, kernel: int) -> _Axis:
    """`every` of int8_convolution.c: the pixels of the image from `first` on, `stride` apart."""
    count = -(-(size - first) // stride) if first < size else 0
    tap = next((k for k in range(kernel) if (first + pad - k * dilation) % stride == 0), kernel)
    if tap == kernel:
        return _Axis(count, 1, 0, 0, 0)
    step = stride // math.gcd(stride, dilation)
    origin = (first + pad - tap * dilation) // stride
    return _Axis(count, 1, origin, -(step * dilation // stride), -(-(kernel - tap) // step))


def _parts_of(name: str, times: int, count: int, sizes: tuple[int, ...]) -> Loops:
    """`times` loops over `count` numbers: vectors of each size, largest first, then single numbers."""
    loops: Loops = {}
    for size in sizes:
        add(loops, {f"{name}_{size}": times * (count // size)})
        count %= size
    add(loops, {f"{name}_one": times * count})
    return loops


def _values(m: Machine, p: IntegerProduct, values: int, runs: int, terms: int, *, is_apart: bool = False) -> Loops:
    """Sums to values: of `runs` that follow each other, or lie apart."""
    way = "long" if terms > _SMALL_TERMS else "stochastic" if p.is_stochastic else "nearest"
    if m.has_helium and way != "long":
        return {"int8_values.run": runs, f"int8_values.{way}_four": max(runs, -(-values // 4))}
    if not m.is_neon or way == "long":
        return {"int8_values.run": runs, f"int8_values.{way}": values}
    loops: Loops = {"int8_values.run": runs}
    if is_apart:
        return loops | {f"int8_values.{way}_apart": values}
    add(loops, _parts_of(f"int8_values.{way}", runs, values // runs, (16, 4)))
    return loops


def _scan(m: Machine, rows: int, columns: int) -> Loops:
    """poetc_see of rows of sums."""
    if m.has_helium:
        return {"int8_scan.row": rows, "int8_scan.four": rows * -(-columns // 4)}
    if m.is_neon:
        return {"int8_scan.row": rows, **_parts_of("int8_scan.sum", rows, columns, (16, 4))}
    return {
        "int8_scan.row": rows,
        "int8_scan.four": rows * (columns // 4),
        "int8_scan.one": rows * (columns % 4),
    }


def _start(m: Machine, rows: int, columns: int) -> Loops:
    """The loops of `start_sums`, which fills the sums of a block."""
    if m.has_helium:
        return {"int8_start.chunk": 1, "int8_start.row": rows, "int8_start.four": rows * -(-columns // 4)}
    if m.is_neon:
        return {"int8_start.chunk": 1, "int8_start.row": rows, **_parts_of("int8_start.sum", rows, columns, (8, 4))}
    return {
        "int8_start.chunk": 1,
        "int8_start.row": rows,
        "int8_start.four": rows * (columns // 4),
        "int8_start.one": rows * (columns % 4),
    }


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _parts(total: int, most: int) -> list[tuple[int, int]]:
    """(size, how many)."""
    return [(size, n) for size, n in ((most, total // most), (total % most, 1)) if size and n]


def _products(m: Machine, rows: int, columns: int, depth: int) -> Loops:
    """add_products of packed rows and columns."""
    step = m.integer_columns
    whole, rest = divmod(columns, step)
    full, odd = rows // m.integer_rows, int(rows % m.integer_rows > 0)
    blocks = whole * full
    apart = whole * odd + (full + odd if rest else 0)  # blocks whose sums are not all wanted
    unit = m.integer_terms
    loops: Loops = {
        "int8_product.call": 1,
        "int8_product.column": whole + (1 if rest else 0),
        "int8_product.block": blocks + apart,
        "int8_product.apart": apart,
    }
    if m.is_neon:
        filled = _up(columns, step) - columns + _up(rows, m.integer_rows) - rows
        loops["int8_product.filled"] = filled * depth
    if unit == 4:  # a loop of sixteen terms, and one of four
        many = (blocks + apart) * (depth // 16)
        return loops | {"int8_product.sixteen": many, "int8_product.four": (blocks + apart) * (depth % 16 // 4)}
    return loops | {"int8_product.terms": (blocks + apart) * (depth // (16 if m.has_helium else m.integer_lanes))}


# --- convolutions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Windows:
    """Columns of windows of `planes` planes of a size, and rows of as many taps of weights."""

    down: _Axis
    right: _Axis
    height: int
    width: int
    planes: int
    batch: int

    @property
    def terms(self) -> int:
        return self.down.taps * self.right.taps * self.planes

    @property
    def columns(self) -> int:
        return self.batch * self.down.count * self.right.count


def _pack_windows(w: _Windows, p: IntegerProduct, m: Machine, chunks: int, most_terms: int) -> Loops:
    """columns_of_windows of all columns of a group. `chunks`: how many times a run of columns begins."""
    right = w.right
    shared = right.move // right.tap if right.tap and right.move % right.tap == 0 else right.taps
    fresh = min(abs(shared), right.taps) if shared else right.taps  # taps that the window before lacks
    inside_down = sum(map(sum, w.down.inside(w.height)))
    lines, lines_in = w.down.count * w.down.taps, inside_down
    across = right.inside(w.width)
    # The first window of a row, and of a run of columns, has no window before.
    begins = min(right.count, 1 + max(0.0, chunks - w.batch * w.down.count) / max(1, w.batch * w.down.count))
    new_in = new_out = copied = 0.0
    for j, taps in enumerate(across):
        own = 1.0 if j == 0 else (begins - 1) / max(1, right.count - 1)
        partly = taps[-fresh:] if shared > 0 else taps[:fresh]
        new_in += own * sum(taps) + (1 - own) * sum(partly)
        new_out += own * (len(taps) - sum(taps)) + (1 - own) * (len(partly) - sum(partly))
        copied += (1 - own) * (right.taps - len(partly))
    sets = w.batch * lines_in
    gathers, padded = round(sets * new_in), round(sets * new_out)
    copies = round(sets * ((1 - begins / right.count) * right.count)) if fresh < right.taps else 0
    numbers = round(sets * copied) * w.planes
    splits = -(-w.terms // most_terms)
    depth = _up(w.terms, m.integer_terms)
    outside = w.batch * (lines - lines_in) * right.count * right.taps * w.planes
    if m.has_helium:
        copied_each = _up(numbers // copies, 16) // 16 if copies else 0
        filled = padded + w.batch * (lines - lines_in) * right.count + w.columns * splits * (depth > w.terms)
        return {
            "int8_windows.line": sets * right.count,
            "int8_windows.tap": gathers,
            "int8_windows.fill": filled,
            "int8_windows.copy": copies,
            "int8_windows.copied_sixteen": copies * copied_each,
            "int8_gather.eight": gathers * -(-w.planes // 8),
        }
    runs = w.batch * (lines - lines_in) * right.count + w.columns * splits * (depth > w.terms)  # of memset, with SDOT
    return {
        "int8_windows.window": w.columns * splits,
        "int8_windows.line": w.batch * lines * right.count,
        "int8_windows.tap": gathers,
        "int8_windows.pad": padded + (runs if m.has_dot else 0),
        "int8_windows.copy": copies,
        "int8_windows.copied_eight": numbers // 8,
        "int8_gather.four": gathers * (w.planes // 4),
        "int8_gather.one": gathers * (w.planes % 4),
        "int8_windows.zero": outside + padded * w.planes + w.columns * (depth - w.terms),
    }


def _pack_weights(w: _Windows, p: IntegerProduct, m: Machine, times: int, splits: int, *, is_apart: bool) -> Loops:
    """The loops of `rows_of_weights` for all rows, done `times` times.

    `is_apart`: the planes of a tap do not lie together.
    """
    taps = w.down.taps * w.right.taps
    rows = p.rows * times
    loops: Loops = {"int8_weights.row": rows * splits, "int8_weights.tap": rows * taps}
    add(loops, _widen(m, rows * taps, w.planes, is_apart=is_apart or not m.is_neon))
    if not m.has_helium:
        add(loops, {"int8_weights.line": rows * w.down.taps})
        zeros = _up(w.terms, m.integer_terms) - w.terms
        add(loops, {"int8_windows.zero": rows * zeros, "int8_windows.pad": rows * splits * (zeros > 0 and m.has_dot)})
    return loops


def _phase(w: _Windows, p: IntegerProduct, m: Machine, *, is_apart: bool) -> Loops:
    """make_sums for one phase of all groups, once. `is_apart`: of weights, as in _pack_weights."""
    loops: Loops = {}
    chunks = _parts(w.columns, p.columns_at_once)
    if not w.terms:  # zeros go to their places, which costs about as much as a start of sums
        return {name: p.groups * times for name, times in _start(m, p.rows, w.columns).items()}
    line = w.right.taps * w.planes
    unit = p.terms_at_once // line * line
    count = sum(n for _, n in chunks)
    is_packed = w.terms <= unit and p.rows <= p.rows_at_once
    splits = -(-w.terms // unit)
    # Where sums are held, all columns have the rows that are packed once (add_terms of poetc_int8_product.h).
    for columns, n in [(w.columns, 1)] if p.holds_sums else chunks:
        add(loops, _start(m, p.rows, columns), n)
        add(loops, _scan(m, p.rows, columns), n)
    for columns, n in chunks:
        for terms, times in _parts(w.terms, unit):
            for rows, many in _parts(p.rows, p.rows_at_once):
                add(loops, _products(m, rows, columns, _up(terms, m.integer_terms)), n * times * many)
    again = -(-p.rows // p.rows_at_once) if p.holds_sums and count > 1 else 1
    add(loops, _pack_windows(w, p, m, count, unit), again)
    add(loops, _pack_weights(w, p, m, 1 if is_packed or p.holds_sums else count, splits, is_apart=is_apart))
    return {name: p.groups * times for name, times in loops.items()}


def _whole(
    kernel: Kernel,
    m: Machine,
    p: IntegerProduct,
    sums: Loops,
    runs: int,
    terms: int,
    *,
    zeros: int = 0,
    is_apart: bool = False,
) -> Loops:
    """A product whose sums are made once or twice, scanned once, and rounded once, but for columns of `zeros`."""
    name = kernel.symbol.removeprefix("poetc_op_").removesuffix("_long")
    loops: Loops = {f"{name}.call": 1}
    add(loops, {k: n for k, n in sums.items() if not k.startswith("int8_scan.")}, p.passes)
    add(loops, {k: n for k, n in sums.items() if k.startswith("int8_scan.")})
    add(loops, _values(m, p, p.groups * p.rows * (p.columns - zeros), runs, terms, is_apart=is_apart))
    if p.adapts:
        add(loops, {"int8_values.looked_at": p.groups * p.rows * p.columns})
    return loops


@counts("int8_conv")
def conv(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(IntegerProduct)
    c = p.convolution
    down = _Axis(c.output_height, c.stride_h, -c.pad_top, c.dilation_h, c.kernel_h)
    right = _Axis(c.output_width, c.stride_w, -c.pad_left, c.dilation_w, c.kernel_w)
    w = _Windows(down, right, c.height, c.width, c.channels // c.group, c.batch)
    chunks = 1 if p.holds_sums else -(-w.columns // p.columns_at_once)
    runs = p.groups * p.rows * max(c.batch, chunks)
    sums = _phase(w, p, m, is_apart=c.kernel_h * c.kernel_w > 1)
    return _whole(kernel, m, p, sums, runs, w.terms)


@counts("int8_conv_grad_input")
def conv_grad_input(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(IntegerProduct)
    c = p.convolution
    loops: Loops = {}
    runs = most = zeros = 0
    for down_first in range(c.stride_h):
        down = _every(down_first, c.stride_h, c.height, c.pad_top, c.dilation_h, c.kernel_h)
        for right_first in range(c.stride_w):
            right = _every(right_first, c.stride_w, c.width, c.pad_left, c.dilation_w, c.kernel_w)
            if not down.count or not right.count:
                continue
            w = _Windows(down, right, c.output_height, c.output_width, c.outputs // c.group, c.batch)
            most = max(most, w.terms)
            add(loops, _phase(w, p, m, is_apart=True))
            if not w.terms:
                zeros += w.columns
                continue
            is_whole = down.count * right.count == c.height * c.width
            lines = c.batch * (1 if is_whole else down.count)
            chunks = 1 if p.holds_sums else -(-w.columns // p.columns_at_once)
            runs += p.groups * p.rows * max(lines, chunks)
    return _whole(kernel, m, p, loops, runs, most, zeros=zeros, is_apart=c.stride_w > 1)


@counts("int8_conv_grad_weight", "int8_conv_grad_weight_long")
def conv_grad_weight(kernel: Kernel, m: Machine) -> Loops:
    """Long sums are priced as short ones: adding up their parts is one addition for thousands of products."""
    p = kernel.parameters_as(IntegerProduct)
    c, chunks = p.convolution, _parts(p.columns, p.columns_at_once)
    depth, width = p.terms_at_once, c.output_width
    splits = -(-p.terms // depth)
    is_packed = splits == 1 and p.rows <= p.rows_at_once
    loops: Loops = {}
    for columns, n in chunks:
        add(loops, _start(m, p.rows, columns), n)
        add(loops, _scan(m, p.rows, columns), n)
        for terms, times in _parts(p.terms, depth):
            for rows, many in _parts(p.rows, p.rows_at_once):
                add(loops, _products(m, rows, columns, _up(terms, m.integer_terms)), n * times * many)
    again = p.rows * (1 if is_packed else sum(n for _, n in chunks))
    images = -(-p.terms // c.pixels) + splits - -(-p.terms // math.lcm(c.pixels, depth))
    add(loops, {"int8_errors.row": again * splits, "int8_errors.piece": again * images})
    add(loops, _widen(m, again * images, p.terms / images))
    pieces = -(-p.terms // width) + splits - -(-p.terms // math.lcm(width, depth))
    inputs = c.channels // c.group
    rows_in = [
        sum(0 <= i * c.stride_h - c.pad_top + k * c.dilation_h < c.height for i in range(c.output_height))
        for k in range(c.kernel_h)
    ]
    columns_in = [
        sum(0 <= j * c.stride_w - c.pad_left + k * c.dilation_w < c.width for j in range(width))
        for k in range(c.kernel_w)
    ]
    stretch = pieces / (c.batch * c.output_height)
    lines = c.batch * sum(rows_in) * inputs
    sums: Loops = {
        "int8_pixels.column": p.columns * splits,
        "int8_pixels.piece": p.columns * pieces,
        "int8_pixels.read": round(lines * c.kernel_w * stretch),
        "int8_pixels.zero": p.columns * p.terms - lines * sum(columns_in),
    }
    for n in columns_in:
        add(sums, _widen(m, lines * stretch, n / stretch, is_apart=c.stride_w > 1))
    add(loops, sums)
    loops = {name: p.groups * n for name, n in loops.items()}
    runs = p.groups * p.rows * (1 if p.holds_sums else sum(n for _, n in chunks))
    return _whole(kernel, m, p, loops, runs, p.terms)


def _widen(m: Machine, times: float, count: float, *, is_apart: bool = False) -> Loops:
    """`widen` of so many numbers at a time, or `gather` where they lie apart."""
    if m.has_helium:
        name, unit = ("gather.eight", 8) if is_apart else ("widen.sixteen", 16)
        return {f"int8_{name}": round(times * math.ceil(count / unit))}
    loops: Loops = {}
    if m.is_neon and not is_apart:
        unit = 16 if m.has_dot else 8
        loops["int8_widen.sixteen" if m.has_dot else "int8_widen.eight"] = round(times * (count // unit))
        count %= unit
    name = "int8_widen" if m.integer_terms == 4 and not is_apart else "int8_gather"
    return loops | {f"{name}.four": round(times * (count // 4)), f"{name}.one": round(times * (count % 4))}


@counts("int8_bias_grad")
def bias_grad(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(IntegerProduct)
    c = p.convolution
    planes, pixels = c.batch * c.channels, c.height * c.width
    name = "int8_bias_grad"
    numbers = _parts_of(f"{name}.number", planes, pixels, (16,)) if m.is_neon else {f"{name}.number": planes * pixels}
    return {f"{name}.call": 1, f"{name}.channel": c.channels, f"{name}.plane": planes, **numbers}


# --- depthwise convolutions -------------------------------------------------------------------------------------------


def _plane(m: Machine, lines: int, line: int, rows: int, width: int, is_apart: bool) -> Loops:
    """pack_plane."""
    if m.has_helium:
        counts = {"int8_plane.call": 1, "int8_plane.row": rows, "int8_plane.sixteen": _up(lines * line, 16) // 16}
        add(counts, {"int8_plane.apart": rows * width} if is_apart else {"int8_plane.sixteen": rows * -(-width // 16)})
        return counts
    loops: Loops = {"int8_plane.call": 1, "int8_plane.number": lines * line, "int8_plane.row": rows}
    if is_apart:
        return loops | {"int8_plane.apart": rows * width}
    if m.is_neon:
        return loops | {"int8_plane.eight": rows * (width // 8), "int8_plane.rest": rows * (width % 8 > 0)}
    return loops | {"int8_plane.four": rows * (width // 4), "int8_plane.one": rows * (width % 4)}


def _lines(m: Machine, c: Convolution, lines: int, count: int, stride: int) -> Loops:
    """add_line, and the taps before."""
    is_nine = c.kernel_h == c.kernel_w == 3
    loops: Loops = {"int8_lines.taps": c.taps, "int8_lines.line": lines}
    if m.has_helium and is_nine and stride == 1 and lines >= 4:  # four lines at a time
        return loops | {"int8_lines.nine": -(-lines // 4), "int8_lines.nine_column": -(-lines // 4) * count}
    if m.has_helium:
        three = lines * c.kernel_h * -(-c.kernel_w // 3)
        four = "four" if stride == 1 else "apart_four"
        return loops | {"int8_lines.three": three, f"int8_lines.{four}": three * -(-count // 4)}
    blocks = -(-count // 8)
    if m.is_neon and stride <= 2:  # poetc_int8_depthwise_neon.h; 3 x 3 goes two lines at a time
        if is_nine and stride == 1 and lines > 1:
            return loops | {"int8_lines.nine_pair": -(-lines // 2) * blocks}
        if is_nine and stride == 2:
            return loops | {"int8_lines.nine_apart": lines * blocks}
        rows = lines * blocks * c.kernel_h
        return loops | {
            "int8_lines.any": lines * blocks,
            "int8_lines.any_row": rows,
            "int8_lines.any_tap": rows * c.kernel_w,
        }
    if m.integer_terms == 4 and is_nine and stride == 1:
        del loops["int8_lines.line"]
        return loops | {"int8_lines.nine": lines, "int8_lines.nine_two": lines * -(-count // 2)}
    if is_nine:
        return loops | {"int8_lines.sum_nine": lines * count}
    pairs = (c.kernel_w + 1) // 2
    return loops | {
        "int8_lines.sum": lines * count,
        "int8_lines.tap_line": lines * count * c.kernel_h,
        "int8_lines.pair": lines * count * c.kernel_h * pairs,
    }


def _depthwise(kernel: Kernel, m: Machine, p: IntegerProduct, one: Loops, columns: int) -> Loops:
    """Of all channels and images: `one` is of a channel and an image, whose sums are `columns`."""
    loops: Loops = {}
    times = p.groups * -(-p.columns // columns)
    add(loops, one, times)
    add(loops, _start(m, 1, columns), times)
    add(loops, _scan(m, 1, columns), times)
    return _whole(kernel, m, p, loops, times, p.terms)


@counts("int8_depthwise")
def depthwise(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(IntegerProduct)
    c = p.convolution
    lines = (c.output_height - 1) * c.stride_h + c.kernel_h
    line = _up((c.output_width - 1) * c.stride_w + c.kernel_w + 1, 2)
    one = _plane(m, lines, line, c.height, c.width, False)
    add(one, _lines(m, c, c.output_height, c.output_width, c.stride_w))
    return _depthwise(kernel, m, p, one, c.pixels)


@counts("int8_depthwise_grad_input")
def depthwise_grad_input(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(IntegerProduct)
    c = p.convolution
    line = _up(c.width + c.kernel_w, 2)
    one = _plane(m, c.height + c.kernel_h - 1, line, c.output_height, c.output_width, c.stride_w > 1)
    add(one, _lines(m, c, c.height, c.width, 1))
    return _depthwise(kernel, m, p, one, c.height * c.width)


@counts("int8_depthwise_grad_weight")
def depthwise_grad_weight(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(IntegerProduct)
    c = p.convolution
    lines = (c.output_height - 1) * c.stride_h + c.kernel_h
    line = _up((c.output_width - 1) * c.stride_w + c.kernel_w + 1, 4)
    runs = 1 if c.stride_h == 1 else c.output_height
    run = c.output_height * line if runs == 1 else line
    one: Loops = {}
    add(one, _plane(m, lines, line, c.height, c.width, False), c.batch)
    add(one, _plane(m, c.output_height, line, c.output_height, c.output_width, c.stride_w > 1), c.batch)
    times, taps = c.batch * runs * c.kernel_h, c.kernel_w
    if m.has_helium:
        times *= -(-taps // 3)
        add(one, {"int8_taps.three": times, "int8_taps.sixteen": times * -(-run // 16)})
        return _depthwise(kernel, m, p, one, c.taps)
    if m.is_neon and c.kernel_h == c.kernel_w == 3:
        add(one, {"int8_taps.nine": c.batch * runs, "int8_taps.nine_eight": c.batch * runs * -(-run // 8)})
        return _depthwise(kernel, m, p, one, c.taps)
    if m.is_neon:
        add(one, {"int8_taps.tap": times * taps, "int8_taps.eight": times * taps * -(-run // 8)})
        return _depthwise(kernel, m, p, one, c.taps)
    if m.integer_terms == 4 and taps >= 3:
        add(one, {"int8_taps.three": times, "int8_taps.three_four": times * (run // 4)})
        taps -= 3
    add(one, {"int8_taps.tap": times * taps, "int8_taps.pair": times * taps * (run // 2)})
    return _depthwise(kernel, m, p, one, c.taps)


# --- pools ------------------------------------------------------------------------------------------------------------


@counts("int8_max_pool", "int8_max_pool_grad", "int8_average_pool", "int8_average_pool_grad")
def pool(kernel: Kernel, m: Machine) -> Loops:
    name = kernel.symbol.removeprefix("poetc_op_")
    w = kernel.parameters_as(Pool).windows
    outputs = w.planes * w.output_height * w.output_width
    passes = 1 if name == "int8_max_pool" else 2
    loops: Loops = {f"{name}.call": 1, f"{name}.plane": w.planes, f"{name}.output": outputs}
    is_average = name in ("int8_average_pool", "int8_average_pool_grad")
    if is_average and m.is_neon and w.dilation_h == w.dilation_w == 1:  # runs of pixels
        is_whole = w.kernel_w >= w.width
        lines, run = (1, w.kernel_h * w.width) if is_whole else (w.kernel_h, w.kernel_w)
        add(loops, {f"{name}.row": passes * outputs * lines})
        add(loops, _parts_of(f"{name}.tap", passes * outputs * lines, run, (4,) if name.endswith("_grad") else (16, 8)))
    elif name != "int8_max_pool_grad":
        taps = outputs * w.kernel_h * w.kernel_w * passes
        loops |= {f"{name}.tap": taps, f"{name}.row": outputs * w.kernel_h}
    if is_average:
        loops[f"{name}.reach"] = passes * outputs * (w.kernel_h + w.kernel_w)
    if name.endswith("_grad"):
        loops[f"{name}.pixel"] = w.planes * w.height * w.width
    return loops
