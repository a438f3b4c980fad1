"""How large the blocks of an operator can be for a window: they grow until it is full."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from poetc.devices.blocks import Blocks, CutOperator, Stream, are_made_once
from poetc.graph import Attribute, TensorType
from poetc.ops import WHOLE, Bound, spec, whole

WINDOW_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)  # of all windows of an operator, at most
LITTLE_BYTES = (1, 256, 1 << 10)  # where larger blocks take too long; 1: the least blocks


class Growth:
    """The blocks of one cut of an operator, for window after window: all that is the same for them is found once.

    `streams`: the operands that pass through windows. `steps`: units along each axis are multiples of these.
    """

    def __init__(self, op: CutOperator, streams: Sequence[Stream], steps: Sequence[int]) -> None:
        self.op, self.cut, self.extents = op, op.cut, op.extents
        self.least: list[int] | None = None
        # Windows of all sizes grow along the same path. Windows that grow along the same axes are summed once.
        self._taken: dict[tuple[int, ...], int] = {}
        self._alike: dict[tuple[int, ...], tuple[list[Stream], dict[tuple[int, ...], int]]] = {}
        for stream in streams:
            if stream.pair is None:
                self._alike.setdefault(op.axes[stream.operand], ([], {}))[0].append(stream)
        if self.cut.name == WHOLE:
            return
        self.steps = steps
        if any(s >= e for s, e in zip(self.steps, self.extents, strict=True)):
            return
        if not are_made_once(streams, self.cut, self.steps):
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
        least_fits = self.fits(most_bytes)
        while grows:
            grows = False
            for axis, step in enumerate(self.steps):
                before = half = units[axis]
                while half >= step:
                    units[axis] = before + half // step * step
                    if self._is_possible(axis, units[axis]) and self._window_bytes(units) <= most_bytes:
                        grows = True
                        break
                    half >>= 1
                else:
                    units[axis] = before
        return tuple(units), least_fits

    def fits(self, most_bytes: int) -> bool:
        """Whether the least blocks take no more than so much."""
        if self.cut.name == WHOLE:
            return True
        return self.least is not None and self._window_bytes(self.least) <= most_bytes

    def _least(self, axis: int, step: int) -> int | None:
        tried = range(step, min(self.extents[axis], 9 * step), step)
        return next((n for n in tried if self._is_possible(axis, n)), None)

    def _is_possible(self, axis: int, n: int) -> bool:
        return n < self.extents[axis] and self.op.is_even(axis, n)

    def _window_bytes(self, units: Sequence[int]) -> int:
        """Bytes of the windows of all streams for a block that is neither the first nor the last."""
        key = tuple(units)
        if key not in self._taken:
            self._taken[key] = 0
            for axes, (streams, sums) in self._alike.items():
                own = tuple([units[a] for a in axes])
                if own not in sums:
                    sums[own] = sum([self.op.window_bytes(stream, key) for stream in streams])
                self._taken[key] += sums[own]
        return self._taken[key]


@functools.lru_cache(maxsize=1 << 9)  # sets of operands of one operator follow each other
def _cuts_of(
    kind: str,
    attributes: tuple[tuple[str, Attribute], ...],
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    alike: tuple[int, ...],
) -> tuple[CutOperator, ...]:
    """An operator along each of its cuts, and whole."""
    bound, roots = Bound(dict(attributes), inputs, outputs), [str(n) for n in alike]
    kernels = spec(kind).kernels(bound)
    return tuple(CutOperator(kind, bound, cut, kernels, roots) for cut in (*spec(kind).cuts(bound), whole(bound)))


@functools.lru_cache(maxsize=1 << 14)  # the steps of several options, priced in one command, have most in common
def forms_of_operator(
    kind: str,
    attributes: tuple[tuple[str, Attribute], ...],
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    numbers: frozenset[int],
    alike: tuple[int, ...],
    fixed: frozenset[int],
    block_bytes: int,
    overlaps: bool,
    windows_bytes: tuple[int, ...] = WINDOW_BYTES,
    finer: bool = False,
) -> tuple[Blocks, ...]:
    """Equal operators have the same. `numbers`: of the streamed operands. `fixed`: of those with checksums of rows.

    `alike`: of each operand the first with the same storage. A stream's tensor has that number for its name.
    `overlaps`: those with two windows instead, in which a block takes half as much. `finer`: those instead that begin
    anywhere in operands in RAM, which then pass through windows too; where no others fit.
    """
    forms: list[Blocks] = []
    for op in _cuts_of(kind, attributes, inputs, outputs, alike):
        cut = op.cut
        if not fixed.issuperset(cut.tables):
            continue
        passing = op.passing(numbers)
        if passing is None:
            continue
        seen = set[tuple[tuple[int, ...], str]]()
        fitting: dict[tuple[int, ...], list[Blocks]] = {}
        aligned = dict.fromkeys(op.steps(numbers, size) for size in (block_bytes, 1))  # often the same
        growths = [Growth(op, passing, steps) for steps in aligned]
        rooms_bytes = [most // 2 if overlaps else most for most in windows_bytes]
        finest: Growth | None = None
        if finer:
            if all(any(growth.fits(room) for growth in growths) for room in rooms_bytes):
                continue
            least = tuple(axis.step for axis in cut.axes)
            fine = op.passing(numbers, least)
            if fine is None or len(fine) == len(passing):
                continue
            finest = Growth(op, fine, least)
        for most, room_bytes in zip(windows_bytes, rooms_bytes, strict=True):
            if finest is None:
                choices = (growth.units(room_bytes) for growth in growths)
                units = next((u for u, fits in choices if fits), None) or growths[-1].units(room_bytes)[0]
            else:
                is_aligned = any(growth.fits(room_bytes) for growth in growths)
                units = None if is_aligned else finest.units(room_bytes)[0]
            if units is None:
                continue
            if units not in fitting:
                fitting[units] = op.blocks(numbers, units, block_bytes, overlaps=overlaps)
            if fitting[units]:
                room = max(most, min(b.windows[0] for b in fitting[units]))
                chosen = next(b for b in fitting[units] if b.windows[0] <= room)  # by the kernel's own workspace
                if (units, chosen.name) not in seen:
                    seen.add((units, chosen.name))
                    forms.append(chosen)
    return tuple(forms)
