"""Costs of single rows of a table on the store, and of pieces that lie on its blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from poetc.devices.blocks import Stream
from poetc.devices.cost import Cost, CostModel
from poetc.devices.profile import Store
from poetc.runtime.layout import SUMMED_BYTES, changed_bytes, page_bytes, parts_of_row, sums_bytes


def read_rows(costs: CostModel, store: Store, table: Stream, rows: int, block_bytes: int) -> Cost:
    """Of so many rows of a table at the mean of all places, in pieces with a checksum, and of all checksums."""
    assert table.inner is not None
    pieces = _mean_blocks(table, rows, SUMMED_BYTES)
    behind = sums_bytes(table.pitch) + (changed_bytes(table.changed) if table.changed else 0)
    moved = pieces * SUMMED_BYTES + page_bytes(behind, block_bytes) + block_bytes
    return costs.stream(store, moved, moved, pieces + 3, write=False)


def moved_rows(costs: CostModel, store: Store, table: Stream, block_bytes: int) -> tuple[Cost, int]:
    """Of the rows that a step writes to a table's other slot, and the bytes that it writes beyond the table's.

    These are less than none. The rows that the step before moved are copied there first. The page with the numbers of
    rows and the checksums is written twice.
    """
    assert table.inner is not None
    row, rows = table.inner.unit, table.changed
    of_rows = _mean_blocks(table, rows, block_bytes) * block_bytes
    behind = page_bytes(sums_bytes(table.pitch) + changed_bytes(rows), block_bytes)
    written = 2 * of_rows + 2 * behind + block_bytes
    edges = 0 if row % block_bytes == 0 else 2 * rows  # blocks that have parts of other rows
    out = costs.stream(store, written, 2 * rows * row + 2 * behind, 2 * rows + 5, write=True)
    back = costs.stream(store, of_rows + (edges + 3) * block_bytes, 0, rows + edges + 3, write=False)
    cost = Cost(out.time_ns + back.time_ns, out.energy_pj + back.energy_pj)
    return cost, written - page_bytes(table.pitch, block_bytes)


def longest_rows_ns(
    costs: CostModel, store: Store, tables: Sequence[Stream], rows: int, others_ns: int, block_bytes: int
) -> int:
    """The longest piece of an operator that reads, or moves, `rows` rows of each table a block.

    `others_ns`: the kernel and other transfers of a block. The rows of the run before are copied a row at a time, or a
    piece with a checksum where any may differ. Reading their list is a piece, and so is the list of this run with the
    last of the rows. The checksums come with the last block.
    """

    def ns(size_bytes: int, transfers: int, *, write: bool) -> int:
        return costs.stream(store, size_bytes, size_bytes, transfers, write=write).time_ns

    block_ns, begin_ns, end_ns = others_ns, 0, 0
    for table in tables:
        assert table.inner is not None
        row, moves = table.inner.unit, table.changed
        behind = page_bytes(sums_bytes(table.pitch) + (changed_bytes(moves) if moves else 0), block_bytes)
        blocks = (row + block_bytes - 2) // block_bytes + 1  # on which a row lies, at most
        if not table.writes:
            parts = rows * parts_of_row(row)
            block_ns += ns(parts * SUMMED_BYTES, parts, write=False)
            begin_ns = max(begin_ns, ns(2 * behind + block_bytes, 5, write=False))
            end_ns += 0 if moves else ns(behind, 2, write=False)
            continue
        block_ns += rows * (ns(blocks * block_bytes, 1, write=True) + ns(2 * block_bytes, 2, write=False))
        copied = max(SUMMED_BYTES, blocks * block_bytes)
        copy_ns = ns(copied, 1, write=False) + ns(copied, 1, write=True)
        begin_ns = max(begin_ns, copy_ns + ns(behind, 2, write=True))
        end_ns += ns(behind + block_bytes, 3, write=True) + ns(2 * block_bytes, 2, write=False)
    return max(block_ns + end_ns, begin_ns)


def _mean_blocks(table: Stream, rows: int, size_bytes: int) -> int:
    """So many rows lie on so many blocks of a size, one by one, at the mean of all places."""
    assert table.inner is not None
    row = table.inner.unit
    return math.ceil(rows * touched_blocks(table.pitch // row, row, 0, row, size_bytes) * row / table.pitch)


@functools.lru_cache(maxsize=1 << 16)
def touched_blocks(rows: int, piece_bytes: int, first: int, pitch_bytes: int, block_bytes: int) -> int:
    """Blocks of the store on which pieces lie, one counted for each piece; the places within blocks repeat."""
    period = len(sample_rows(rows, block_bytes, pitch_bytes))
    begins = first + pitch_bytes * np.arange(period, dtype=np.int64)
    each = (begins + piece_bytes + block_bytes - 1) // block_bytes - begins // block_bytes
    return rows // period * int(each.sum()) + int(each[: rows % period].sum())


@functools.lru_cache(maxsize=1024)
def sample_rows(rows: int, block_bytes: int, row_bytes: int) -> range:
    """So many rows that their places within blocks of the store repeat after them."""
    period = block_bytes // math.gcd(block_bytes, row_bytes)
    return range(min(rows, period))
