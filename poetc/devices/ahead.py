"""How long an operator in blocks takes whose transfers overlap its kernels, through two windows for each operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfers:
    """The transfers of blocks, ns. Those of an outer axis are at the first block of each row of inner blocks."""

    read: int = 0  # at every block
    read_in_rows: int = 0  # at the first block of a row besides
    read_once: int = 0  # at the first block of all besides
    written: int = 0  # behind every block
    written_once: int = 0  # behind the last one besides
    finish: int = 0  # once all is written: trailers


def pipelined_ns(outer: Sequence[tuple[int, Sequence[int]]], inner_times: Sequence[int], transfers: Transfers) -> int:
    """The time of all blocks, where the kernel of one runs beside the read of the next and the write of the one before.

    `outer`: how often there is a row of this kind, and the time of the kernel for each kind of block in it, ns. There
    are three kinds of either: a first one, those in between, and the last one. One that is alone is a last one.
    `inner_times`: how many blocks of each kind a row has.
    """
    t = transfers
    total, before = t.read + t.read_in_rows + t.read_once, 0  # written beside the next kernel
    for row, (rows, kernels) in enumerate(outer):
        for place, (times, kernel_ns) in enumerate(zip(inner_times, kernels, strict=True)):
            if rows * times == 0:
                continue
            ends_row = place == len(inner_times) - 1
            is_last = ends_row and row == len(outer) - 1
            after = 0 if is_last else t.read + (t.read_in_rows if ends_row else 0)
            total += rows * times * max(kernel_ns, before + after)
            before = t.written
    return total + t.written + t.written_once + t.finish


def rows_of(
    kernels: Sequence[int], times: Sequence[Sequence[int]]
) -> tuple[list[tuple[int, Sequence[int]]], Sequence[int]]:
    """Rows of blocks and blocks of a row, as `pipelined_ns` takes them.

    `kernels`: their times, ns, by kinds along the outer axis, then the inner one. `times`: by axis, how many blocks of
    each kind there are.
    """
    if len(times) == 1:
        return [(0, kernels), (0, kernels), (1, kernels)], times[0]
    each = len(times[1])
    return [(n, kernels[k * each : (k + 1) * each]) for k, n in enumerate(times[0])], times[1]
