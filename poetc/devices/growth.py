"""How large the blocks of an operator can be for a window: they grow until it is full."""

from __future__ import annotations

from collections.abc import Sequence

from poetc.devices.blocks import Stream, are_made_once, is_even, unit_steps
from poetc.ops import WHOLE, Bound, Cut


class Growth:
    """The blocks of one cut of an operator, for window after window: all that is the same for them is found once.

    `streams`: the operands that pass through windows. `numbers`: of those that are on the store. `store_block`: pieces
    in sequence are whole blocks of the store; 1 where they may begin and end within them.
    """

    def __init__(
        self,
        bound: Bound,
        cut: Cut,
        streams: Sequence[Stream],
        numbers: frozenset[int],
        roots: Sequence[str],
        store_block: int,
    ) -> None:
        self.cut, self.extents = cut, [axis.extent for axis in cut.axes]
        self.streams = streams
        self.least: list[int] | None = None
        self._possible: dict[tuple[int, int], bool] = {}
        self._taken: dict[tuple[int, ...], int] = {}  # windows of all sizes grow along the same path
        if cut.name == WHOLE:
            return
        self.steps = unit_steps(bound, cut, numbers, roots, store_block)
        if any(s >= e for s, e in zip(self.steps, self.extents, strict=True)):
            return
        if not are_made_once(streams, cut, self.steps):
            return
        least = [self._least(axis, step) for axis, step in enumerate(self.steps)]
        self.least = None if None in least else [n for n in least if n is not None]

    def units(self, most_bytes: int) -> tuple[tuple[int, ...] | None, bool]:
        """Of the largest blocks whose windows take at most so much, or the least blocks; and whether these fit.

        None where there are no blocks. Along two axes blocks grow in turn: both decide on bytes that are read again.
        """
        if self.cut.name == WHOLE:
            return (1,), True
        if self.least is None:
            return None, False
        units, grows = list(self.least), True
        least_fits = self._window_bytes(units) <= most_bytes
        while grows:
            grows = False
            for axis, step in enumerate(self.steps):
                halves = (units[axis] >> n for n in range(units[axis].bit_length()))
                for more in (n // step * step for n in halves if n >= step):
                    wanted = [*units[:axis], units[axis] + more, *units[axis + 1 :]]
                    if self._is_possible(axis, wanted[axis]) and self._window_bytes(wanted) <= most_bytes:
                        units, grows = wanted, True
                        break
        return tuple(units), least_fits

    def _least(self, axis: int, step: int) -> int | None:
        tried = range(step, min(self.extents[axis], 9 * step), step)
        return next((n for n in tried if self._is_possible(axis, n)), None)

    def _is_possible(self, axis: int, n: int) -> bool:
        if (axis, n) not in self._possible:
            self._possible[axis, n] = n < self.extents[axis] and is_even(self.cut.axes[axis], n)
        return self._possible[axis, n]

    def _window_bytes(self, units: Sequence[int]) -> int:
        """Bytes of the windows of all streams for a block that is neither the first nor the last."""
        key = tuple(units)
        if key not in self._taken:
            self._taken[key] = self._bytes_of(key)
        return self._taken[key]

    def _bytes_of(self, units: tuple[int, ...]) -> int:
        ranges = [(max(0, min(n, e - n)), min(e, 2 * n)) for n, e in zip(units, self.extents, strict=True)]
        taken = 0
        for stream in self.streams:
            if stream.pair is None:
                rows, size, _ = stream.pieces(ranges, self.extents)
                taken += stream.window_bytes(rows, size)
        return taken
