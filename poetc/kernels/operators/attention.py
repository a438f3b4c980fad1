"""Parameters of attention.c."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poetc.kernels.kernel import Block, Kernel, Parameters

LOOPS = {"samples": 0, "heads": 1}  # the names of cuts, and the axis of `sizes` that each divides


@dataclass(frozen=True, slots=True)
class Sizes(Parameters):
    """`groups` heads of keys and values a sample, each of which serves `times` heads of queries in a row."""

    batch: int
    groups: int
    times: int
    queries: int
    keys: int
    size: int  # of a query and of a key
    width: int  # of a value

    @property
    def heads(self) -> int:
        """Of queries, of all samples."""
        return self.batch * self.groups * self.times


@dataclass(frozen=True, slots=True)
class AttentionRows(Parameters):
    """`rows` queries at a time, over the keys that one of them sees, from a multiple of `align` on.

    The backward pass makes the scores of `part` of them at a time.

    Query i sees key j if `low` <= j - i <= `high`. `mask`: 0 none, 1 floats that are added, 2 bytes of which 0 hides.
    Steps are in elements: of a mask along sizes and keys, of the others along sizes. `terms`: of a block of the sums of
    scores, results, then of the gradients of shares, queries, values and keys.
    """

    sizes: Sizes
    rows: int
    part: int
    align: int
    low: int
    high: int
    mask: int
    capped: bool
    mask_steps: tuple[int, ...]
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    y: tuple[int, ...]
    terms: tuple[int, ...]
    product_floats: int
    wants: tuple[int, ...]

    @property
    def is_backward(self) -> bool:
        """Whether it makes gradients."""
        return bool(self.wants)

    def strips(self) -> Iterator[tuple[int, int, int]]:
        """For each part of the strips of a head: rows of queries, columns of keys, and scores that the mask leaves."""
        for strip in range(0, self.sizes.queries, self.rows):
            begin = max(0, strip + self.low) // self.align * self.align
            last = min(strip + self.rows, self.sizes.queries)
            for first in range(strip, last, self.part):
                rows = range(first, min(first + self.part, last))
                keys = max(0, self._end(rows[-1]) - begin)
                yield len(rows), keys, sum(max(0, self._end(i) - begin) for i in rows)

    def sums(self) -> Iterator[tuple[int, int]]:
        """(keys, queries) of each product of a head that adds up over queries, for the gradients of keys and values."""
        for strip in range(0, self.sizes.queries, self.rows):
            begin = max(0, strip + self.low) // self.align * self.align
            rows = min(self.rows, self.sizes.queries - strip)
            count, first = max(0, self._end(strip + rows - 1) - begin), 0
            every = strip + self.high + 1 - begin
            while first < count:
                start = max(0, first + begin - self.high - strip)
                start = start // self.terms[4] * self.terms[4] if rows > self.terms[4] else start
                width = min(count - first, every - first if first < every else self.part)
                yield width, rows - start
                first += width

    def in_block(self, kernel: Kernel, axis: str, block: Block) -> Kernel | None:
        """Of some samples, or of some heads of keys. Blocks of sums and strips stay as they are."""
        loop, units = LOOPS[axis], block.units
        sizes = replace(self.sizes, batch=units) if loop == 0 else replace(self.sizes, groups=units)
        q, k, v, y, mask = (
            steps_in_window(steps, loop, block.extent, units)
            for steps in (self.q, self.k, self.v, self.y, self.mask_steps)
        )
        return replace(kernel, parameters=replace(self, sizes=sizes, q=q, k=k, v=v, y=y, mask_steps=mask))

    def _end(self, query: int) -> int:
        """The key behind the last one that a query sees."""
        return min(self.sizes.keys, query + self.high + 1)


def steps_in_window(steps: Sequence[int], loop: int, extent: int, units: int) -> tuple[int, ...]:
    """The steps in a window that has `units` of all units along a loop, where these are all of the operand."""
    return tuple(s * units // extent if s > steps[loop] > 0 else s for s in steps)
