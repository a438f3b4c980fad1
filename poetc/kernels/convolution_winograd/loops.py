"""convolution_winograd.c."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.convolution_winograd.selection import (
    MOST_SUMS,
    MOST_TILES,
    PIECE,
    STRIP_FLOATS,
    TERMS,
    WIDTH,
    WinogradConvolution,
    plan_products,
    plan_sums,
    round_up,
    shape_of,
    sum_columns,
)
from poetc.kernels.gemm.loops_packed import parts, run
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts
from poetc.kernels.operators.loops import normalized


@dataclass(frozen=True, slots=True)
class _Tiled:
    """An image that is read in tiles, `top` and `left` pixels before it."""

    height: int
    width: int
    top: int
    left: int
    rows: int
    columns: int

    @property
    def tiles(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class _Rectangle:
    row: int
    column: int
    rows: int
    columns: int


def _rectangles(t: _Tiled, begin: int, end: int) -> Iterator[tuple[_Rectangle, int]]:
    """Each with the number of its equals: whole images are all cut alike."""
    head = min(end, -(-begin // t.tiles) * t.tiles)
    images, rest = divmod(end - head, t.tiles)
    for first, last, times in ((begin, head, 1), (0, t.tiles if images else 0, images), (0, rest, 1)):
        for r in _cut(t, first, last):
            yield r, times


def _cut(t: _Tiled, tile: int, end: int) -> Iterator[_Rectangle]:
    while tile < end:
        row, column = divmod(tile % t.tiles, t.columns)
        left = end - tile
        if column > 0 or left < t.columns or t.columns > MOST_TILES:
            r = _Rectangle(row, column, 1, min(t.columns - column, left, MOST_TILES))
        else:
            fit = STRIP_FLOATS // (2 * WIDTH * (2 * t.columns + 2)) - 1
            r = _Rectangle(row, 0, min(t.rows - row, left // t.columns, fit), t.columns)
        yield r
        tile += r.rows * r.columns


def _turned(m: Machine, rows: int, columns: int, is_whole: bool, name: str) -> Loops:
    """Pixels of an image, turned in or out: together if their rows are whole."""
    times, count = (1, rows * columns) if is_whole else (rows, columns)
    if m.lanes > 1 and count >= m.lanes:
        return {f"winograd.{name}_block": times * -(-count // m.lanes), f"winograd.{name}": times}
    return {f"winograd.{name}_single": times * count, f"winograd.{name}": times}


@lru_cache(maxsize=1024)
def _one_group(m: Machine, t: _Tiled, begin: int, end: int, reach: int) -> tuple[tuple[tuple[str, int], ...], int]:
    """transform_tiles of one vector of channels, and the floats that are cleared for all of them."""
    loops: Loops = {}
    cleared, kind = 0, "tile" if reach == 4 else "gradient"
    for r, times in _rectangles(t, begin, end):
        rows, columns = 2 * (r.rows - 1) + reach, 2 * (r.columns - 1) + reach
        y, x = 2 * r.row - t.top, 2 * r.column - t.left
        high = max(0, min(t.height, y + rows) - max(0, y))
        wide = max(0, min(t.width, x + columns) - max(0, x))
        if high * wide < rows * columns:
            cleared += rows * columns * m.lanes * times
        add(loops, {"winograd.strip": 1, f"winograd.{kind}_row": r.rows, f"winograd.{kind}": r.rows * r.columns}, times)
        add(loops, _turned(m, high, wide, wide == t.width, "turn_in"), times)
    return tuple(loops.items()), cleared


def _tiles(m: Machine, t: _Tiled, begin: int, end: int, channels: int, reach: int) -> Loops:
    one, cleared = _one_group(m, t, begin % t.tiles, begin % t.tiles + end - begin, reach)
    return {**{name: n * -(-channels // m.lanes) for name, n in one}, "winograd.clear": cleared // max(4, m.lanes)}


@lru_cache(maxsize=1024)
def _output(m: Machine, t: _Tiled, begin: int, end: int, height: int, width: int) -> tuple[tuple[str, int], ...]:
    loops: Loops = {}
    for r, times in _rectangles(t, begin, end):
        high, wide = min(2 * r.rows, height - 2 * r.row), min(2 * r.columns, width - 2 * r.column)
        add(loops, {"winograd.product_row": r.rows, "winograd.product": r.rows * r.columns}, times)
        add(loops, _turned(m, high, wide, wide == width, "turn_out"), times)
    return tuple(loops.items())


def _unit(m: Machine) -> int:
    return m.lanes if m.vectors == 2 else m.columns


def _chunks(total: int, at_once: int, period: int) -> Iterator[tuple[int, int, int]]:
    """Tiles are taken `at_once`: begin and end of a chunk, and the number of chunks that begin as far into an image.

    The first is apart. So is the last if it is smaller.
    """
    whole = total // at_once
    yield 0, min(total, at_once), 1
    cycle = period // gcd(at_once, period)
    for number in range(1, min(cycle + 1, whole)):
        yield number * at_once, (number + 1) * at_once, -(-(whole - number) // cycle)
    if whole and total % at_once:
        yield whole * at_once, total, 1


@counts("conv_winograd", "conv_grad_input_winograd")
def convolution(kernel: Kernel, m: Machine) -> Loops:
    p, name = kernel.parameters_as(WinogradConvolution), kernel.symbol.removeprefix("poetc_op_")
    w, size, block = p.convolution, p.workspace_floats, p.block
    shape = shape_of(w, name.removesuffix("_winograd"))
    turned = name.startswith("conv_grad_input")
    height, width = (w.height, w.width) if turned else (w.output_height, w.output_width)
    t = _gradient_tiles(w) if turned else _image_tiles(w)
    at_once, keeps = plan_products(size, shape, block)
    piece = PIECE if m.lanes > 1 else TERMS
    loops: Loops = {f"{name}.call": 1}
    for begin, end, alike in _chunks(shape.tiles, at_once, t.tiles):
        add(loops, _tiles(m, t, begin, end, shape.depth, 4), alike)
        for here, many in parts(shape.outputs, block):
            groups = -(-here // m.lanes)
            for number, (terms, times) in enumerate(parts(shape.depth, piece)):
                if begin == 0 or not keeps:
                    weights = round_up(here, _unit(m)) // m.lanes * terms
                    add(loops, {"winograd.weight": weights, "winograd.piece": 1}, many * times * alike)
                for accumulate, runs in ((False, 1 if number == 0 else 0), (True, times - (number == 0))):
                    product = run(m, end - begin, terms, 0, round_up(here, _unit(m)), block, "", accumulate, TERMS)
                    add(loops, dict(product), 16 * many * runs * alike)
            first = begin % t.tiles
            add(loops, dict(_output(m, t, first, first + end - begin, height, width)), groups * many * alike)
    return loops


def _image_tiles(w: Convolution) -> _Tiled:
    rows, columns = -(-w.output_height // 2), -(-w.output_width // 2)
    return _Tiled(w.height, w.width, w.pad_top, w.pad_left, rows, columns)


def _gradient_tiles(w: Convolution) -> _Tiled:
    """gy, of which the gradient of the input is a convolution."""
    rows, columns = -(-w.height // 2), -(-w.width // 2)
    return _Tiled(w.output_height, w.output_width, 2 - w.pad_top, 2 - w.pad_left, rows, columns)


@counts(*(f"conv_grad_weight{sgd}{norm}_winograd" for sgd in ("", "_sgd") for norm in ("", "_norm")), without="_norm")
def grad_weight(kernel: Kernel, m: Machine) -> Loops:
    p, name = kernel.parameters_as(WinogradConvolution), kernel.symbol.removeprefix("poetc_op_").replace("_norm", "")
    w, size, block = p.convolution, p.workspace_floats, p.block
    shape = shape_of(w, "conv_grad_weight")
    t = _image_tiles(w)
    gy = _Tiled(w.output_height, w.output_width, 0, 0, t.rows, t.columns)
    columns = sum_columns(shape)
    at_once = plan_sums(size, shape, block, MOST_SUMS if m.lanes > 1 else TERMS)
    loops: Loops = {f"{name}.call": 1}
    for taken, pieces in parts(shape.depth, columns):
        for begin, end, alike in _chunks(shape.tiles, at_once, t.tiles):
            again = (-(-shape.outputs // block) if at_once < shape.tiles else 1) * pieces * alike
            add(loops, _tiles(m, t, begin, end, taken, 4), again)
            if "norm" in kernel.symbol:
                add(loops, normalized(m, -(-taken // m.lanes) * 4 * (end - begin)), again)
            for here, many in parts(shape.outputs, block):
                add(loops, _tiles(m, gy, begin, end, here, 2), many * pieces * alike)
                product = run(
                    m, here, end - begin, 0, round_up(taken, _unit(m)), columns, "contiguous", begin > 0, TERMS
                )
                add(loops, dict(product), 16 * many * pieces * alike)
        groups = -(-taken // m.lanes)
        add(loops, {"winograd.sum": groups, "winograd.sum_row": 1}, shape.outputs * pieces)
        moved = {"descend.wide": taken * 9 // m.lanes, "descend.single": taken * 9 % m.lanes}
        add(loops, moved if "sgd" in name else {"winograd.sum_float": taken * 9}, shape.outputs * pieces)
    return loops
