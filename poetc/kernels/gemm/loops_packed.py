"""Products of packed operands: poetc_gemm.c, and matmul_packed.c on top of it."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from poetc.kernels.gemm.packing import most_blocks
from poetc.kernels.gemm.selection import PackedProduct
from poetc.kernels.kernel import Kernel
from poetc.kernels.machine import Loops, Machine, add, counts

_PACKING_PAYS = 32  # columns: poetc_gemm_block.h
_MOST_RUNS = 512  # more runs of one shape are taken from as many


@lru_cache(maxsize=4096)
def row_blocks(m: Machine, rows: int) -> tuple[tuple[int, int], ...]:
    """(rows of a block, how many of them)."""
    result: dict[int, int] = {}
    while rows > 0:
        if m.lanes == 1:
            size = 4 if rows >= 4 and rows != 6 else min(rows, 3)
        else:
            size = 8 if m.lanes == 16 and rows == 16 else next(s for s in m.blocks if s <= rows)
        many = max(1, (rows - 16) // size) if rows > 28 else 1
        result[size] = result.get(size, 0) + many
        rows -= size * many
    return tuple(result.items())


@lru_cache(maxsize=65536)
def _columns(
    m: Machine, column: int, columns: int, segment: int, has_singles: bool
) -> tuple[int, int, int, int, int, int, int]:
    """Loops of one block of rows.

    They are calls, whole panels, narrow panels, calls with a tile, and floats and pieces of tiles. There are panels of
    one column where they have loops.
    """
    calls = panels = narrow = tiles = floats = pieces = singles = 0
    at = 0
    while at < columns:
        left, place = columns - at, column + at
        width, within = min(m.columns, left), place % segment
        room = min(left, segment - within)
        is_narrow = bool(m.half) and width <= m.half
        calls += 1
        if has_singles and width == 1:
            singles += 1
            break
        step = 1
        if room >= m.columns:
            step = room // m.columns
        elif not (is_narrow and room == m.half):
            tiles += 1
            floats += width
            pieces += 1 if width <= room else 1 + -(-(width - room) // segment)
        if is_narrow:
            narrow += step
        else:
            panels += step
        at += step * m.columns
    return calls, panels, narrow, tiles, floats, pieces, singles


@lru_cache(maxsize=65536)
def run(
    m: Machine,
    rows: int,
    depth: int,
    column: int,
    columns: int,
    segment: int,
    packed: str,
    accumulate: bool,
    terms: int | None = None,
) -> tuple[tuple[str, int], ...]:
    """poetc_gemm_run. `packed`: "" if a is read in place, "contiguous" or "strided" as its rows lie when packed.
    `terms` of a block, unless there is one.
    """
    blocks = -(-depth // terms) if terms else 1
    loops: Loops = {"gemm.run": 1}
    in_runs = (
        not packed and m.has_fours and columns >= _PACKING_PAYS
    )  # four rows that lie in place are packed all the same
    for size, many in row_blocks(m, rows):
        counts = _columns(m, column, columns, segment, m.has_fours and size == 4)
        calls, panels, narrow, tiles, floats, pieces, singles = counts
        kind = "packed" if packed or (in_runs and size == 4) else "terms"
        block: Loops = {
            "gemm.rows": 1,
            "gemm.call": calls,
            f"gemm.{kind}_{size}": panels * depth,
            f"gemm.narrow_{kind}_{size}": narrow * depth,
            f"gemm.block_{size}": (panels + narrow) * blocks,
            "gemm.single": singles * blocks,
            f"gemm.single_{kind}": singles * depth,
            "gemm.accumulate": (panels + narrow) * size * (blocks if accumulate else blocks - 1),
            "gemm.tile": tiles * (2 if accumulate else 1),
            "gemm.tile_row": pieces * size * (2 if accumulate else 1),
            "gemm.tile_float": floats * size * (2 if accumulate else 1),
        }
        if packed == "contiguous" and size == 12 and m.lanes == 16:
            block["gemm.pack_twelve"] = depth
        elif packed == "contiguous" and size % 4 == 0 and (m.lanes > 1 or size == 4):
            block["gemm.pack_quad"] = depth * size // 4
            block["gemm.pack_quads"] = depth
        elif packed:
            block["gemm.pack_term"] = depth
            block["gemm.pack_float"] = depth * size
        elif kind == "packed":
            block |= {"gemm.pack_fours": depth // 4, "gemm.pack_last": depth % 4}
        elif m.lanes >= 8 and blocks == 1:
            block["gemm.prefetch"] = size * -(-depth // 16)
        add(loops, block, many)
    return tuple(loops.items())


def carve(m: Machine, size: int, terms: int, blocks: int, columns: int, pack_rows: bool) -> tuple[int, int]:
    """poetc_gemm_carve: columns and terms that are packed at once."""
    size, depth, rows = size - 16, terms, m.rows if pack_rows or m.has_fours else 0
    if m.lanes > 1 and not pack_rows:
        most = min(max(1, 128 // m.columns), -(-columns // m.columns))
        fit = size // (terms * most * m.columns)
        if fit > 1:
            depth *= min(fit, most_blocks(columns, blocks, terms, m.columns))
    return max(m.columns, (size - rows * depth) // (depth * m.columns) * m.columns), depth


def parts(total: int, most: int) -> list[tuple[int, int]]:
    """(size, how many) of the parts that `total` falls into."""
    return [(most, total // most)] * (total >= most) + [(total % most, 1)] * (total % most > 0)


def runs_of_columns(total: int, most: int, segment: int) -> list[tuple[int, int, float, int]]:
    """The runs over `total` columns in segments: (first column, columns, how many like it, how often there are such).

    The first column is that within a segment. Runs that begin alike are one: a batch has the same ones for each image.
    """
    whole = total // most
    taken = min(whole, _MOST_RUNS)
    times = Counter(at * most % segment for at in range(taken))
    result = [(first, most, whole / taken, count) for first, count in times.items()]
    if total % most:
        result.append((whole * most % segment, total % most, 1.0, 1))
    return result


def put(m: Machine, lane: int, count: int, step: int) -> Loops:
    """poetc_gemm_put of `count` columns (`step` 0: zeros) that begin in `lane` of a panel."""
    return dict(_put(m, lane % m.columns, count, step))


@lru_cache(maxsize=65536)
def _put(m: Machine, lane: int, count: int, step: int) -> tuple[tuple[str, int], ...]:
    loops: Loops = {"put.call": 1}
    if m.lanes == 1 and lane == 0 and step == 1:
        loops["put.quad"] = count // 4
        count %= 4
    pieces = singles = wides = quads = 0
    while count > 0:
        piece = min(count, m.columns - lane)
        pieces += 1
        if step == 1 and m.lanes > 1:
            wides += piece // m.lanes
            rest = piece % m.lanes
            quads += rest // 4 if m.lanes > 4 else 0
            singles += rest % 4 if m.lanes > 4 else rest
        else:
            singles += piece
        count -= piece
        lane = 0
    loops["put.piece"] = pieces
    loops["put.wide"] = wides
    loops["put.four"] = quads
    loops[f"put.{'zero' if step == 0 else 'single' if step == 1 else 'strided'}"] = singles
    return tuple(loops.items())


def pack(m: Machine, depth: int, columns: int) -> Loops:
    """poetc_gemm_pack."""
    if m.lanes >= 8 and columns % m.columns == 0:
        return {"put.wide": depth * columns // m.lanes}
    loops: Loops = {}
    add(loops, put(m, 0, columns, 1), depth)
    add(loops, put_end(m, depth, columns))
    return loops


def put_end(m: Machine, depth: int, columns: int) -> Loops:
    """poetc_gemm_put_end."""
    loops: Loops = {}
    if left := -columns % m.columns:
        add(loops, put(m, columns, left, 0), depth)
    return loops


def pack_transposed(m: Machine, depth: int, columns: int) -> Loops:
    """poetc_gemm_pack_transposed."""
    fours, singles = columns // 4, columns % 4
    loops: Loops = {"transpose.call": 1, "transpose.four": fours, "transpose.column": singles}
    if m.has_fours:
        loops |= {"transpose.sixteen": fours * (depth // 4), "transpose.quad": fours * (depth % 4)}
    elif m.lanes == 1:
        loops["transpose.quad"] = fours * depth
    else:
        blocks = columns // m.lanes if m.lanes >= 8 else 0
        whole = depth - depth % m.lanes if blocks else 0
        loops["transpose.block"] = blocks * (whole // m.lanes)
        squares, rest = divmod(depth - whole, 4)
        in_blocks = blocks * m.lanes // 4
        loops["transpose.square"] = (fours - in_blocks) * (depth // 4) + in_blocks * squares
        loops["transpose.rest"] = (fours - in_blocks) * (depth % 4) + in_blocks * rest
    loops["transpose.single"] = singles * depth
    add(loops, put_end(m, depth, columns))
    return loops


@counts("matmul_packed")
def matmul_packed(kernel: Kernel, m: Machine) -> Loops:
    p = kernel.parameters_as(PackedProduct)
    rows, columns, k, depth = p.rows, p.columns, p.depth, p.terms
    packed = "" if p.strides.a_term == 1 else "contiguous" if p.strides.a_row == 1 else "strided"
    most, at_once = carve(m, p.workspace_floats, depth, -(-k // depth), columns, bool(packed))
    one: Loops = {"matmul_packed.call": 0, "matmul_packed.batch": 1}
    scaled = kernel.floats[0] != 1.0
    for width, many in parts(columns, most):
        part: Loops = {}
        for number, (terms, times) in enumerate(parts(k, at_once)):
            first = 1 if number == 0 else 0
            packing: Loops = {}
            if p.strides.b_column != 1:
                add(packing, pack_transposed(m, terms, width))
            else:
                add(packing, pack(m, terms, width))
            add(part, packing, times)
            add(part, dict(run(m, rows, terms, 0, width, columns, packed, False, depth)), first)
            add(part, dict(run(m, rows, terms, 0, width, columns, packed, True, depth)), times - first)
        if scaled and (p.has_bias or m.lanes < 8):
            add(part, {"matmul_packed.row": rows, f"matmul_packed.{'affine' if p.has_bias else 'scale'}": rows * width})
        add(one, part, many)
    loops: Loops = {"matmul_packed.call": 1}
    add(loops, one, p.matrices)
    return loops
