"""Operators in blocks: windows of operands, pieces of tensors, kernels of blocks. Numbers follow from the cuts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from poetc.graph import TensorType
from poetc.ops import Bound, Cut, Kernel, Range, Span, kernels_of_blocks, spec
from poetc.runtime.layout import ALIGNMENT_BYTES, SUMMED_BYTES, align, changed_bytes, parts_of_row, sums_bytes

MOST_STREAMS, MOST_OPERANDS = 12, 16  # of an operator: POETC_STREAMS of poetc.h, MOST_REFS of poetc_stream.c


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of an operand that is cut: by axis `axis` of the cut, in rows of `unit` bytes (`Span` says which)."""

    axis: int
    span: Span
    unit: int


@dataclass(frozen=True, slots=True)
class Stream:
    """An operand that passes through a window, a block at a time. `operand`: its number, inputs before outputs.

    It lies in rows of `pitch` bytes: `rows` of them, for each index of the axis `outer` if there is one. A block is the
    same piece of each row, along the axis `inner`, or whole rows. `in_ram`: it lies in RAM, where the bytes of a block
    are not contiguous; otherwise on the store. `writes`: the window is written back. `pair`: the input whose bytes and
    window an output takes over.

    `indices`: for a table, the operand with the numbers of the rows that a block reads. `inner` counts rows in the
    window then, behind which are the checksums of the table's pieces. `changed`: how many rows an update of the table
    replaces, 0 where it is only read. Behind the checksums are the numbers and checksums of these rows.
    """

    operand: int
    tensor: str  # the root of views
    rows: int
    pitch: int
    outer: Dimension | None = None
    inner: Dimension | None = None
    writes: bool = False
    pair: int | None = None
    in_ram: bool = False
    indices: int = -1
    changed: int = 0

    @property
    def is_table(self) -> bool:
        """Whether indices name the rows of its blocks."""
        return self.indices >= 0

    def window_bytes(self, rows: int, piece_bytes: int) -> int:
        """Of a window for so many pieces."""
        taken = align(rows * piece_bytes)
        if self.is_table:
            taken += align(sums_bytes(self.pitch) + (changed_bytes(self.changed) if self.changed else 0))
        if self.is_table and self.changed and self.inner is not None:
            taken += align(4 * self.changed * parts_of_row(self.inner.unit))
        return taken

    @property
    def axes(self) -> set[int]:
        """The axes of the cut on which its blocks depend."""
        return {d.axis for d in (self.outer, self.inner) if d is not None}

    @property
    def has_halo(self) -> bool:
        """Whether blocks have rows in common."""
        return any(d is not None and d.span.has_halo for d in (self.outer, self.inner))

    @property
    def is_sequence(self) -> bool:
        """Whether its blocks follow each other in one piece."""
        return self.outer is None and self.rows == 1

    def has_edges(self, units: Sequence[int], counts: Sequence[int], store_block: int) -> bool:
        """Whether pieces, but for the end of the last one, begin or end within blocks of the store."""
        if self.inner is None or self.is_table or (self.is_sequence and counts[self.inner.axis] == 1):
            return False
        if not self.is_sequence or self.inner.span.has_halo:
            return True
        return self.inner.unit * units[self.inner.axis] % store_block != 0

    def buffer_bytes(self, piece_bytes: int, has_edges: bool, store_block: int) -> int:
        """For the blocks of the store on which a piece of so many bytes lies, or the last one."""
        if self.is_table:
            return SUMMED_BYTES
        return align(piece_bytes + store_block - 1, store_block) if has_edges else store_block

    @property
    def size_bytes(self) -> int:
        return self.rows * self.pitch * (self.outer.span.limit if self.outer is not None else 1)

    def pieces(self, ranges: Sequence[Range], extents: Sequence[int]) -> tuple[int, int, int]:
        """Of a block with these units along each axis: the pieces, the bytes of each, where the first one begins."""
        rows, first = self.rows, 0
        if self.outer is not None:
            d = self.outer
            low, high = d.span.of(*ranges[d.axis], extents[d.axis])
            rows, first = rows * (high - low), low * self.rows * self.pitch
        if self.inner is None:
            return rows, self.pitch, first
        d = self.inner
        low, high = d.span.of(*ranges[d.axis], extents[d.axis])
        return rows, (high - low) * d.unit, first + low * d.unit


@dataclass(frozen=True, slots=True)
class Blocks:
    """An operator that runs block by block: `units` along each axis of its cut, fewer in the last block.

    Its workspace has three parts: the kernel's own workspace, the windows, and a buffer for pieces that are no whole
    blocks of the store. Offsets are within the workspace, in bytes. `kernels`: of the first, a middle and the last
    block along each axis, the outer axis first. `seconds`: for each stream the distance to its second window, which
    blocks use in turn; 0 without one.
    """

    name: str  # of the whole operator's kernel
    cut: Cut
    units: tuple[int, ...]
    kernels: tuple[Kernel, ...]
    streams: tuple[Stream, ...]
    windows: tuple[int, ...]  # the offset of each stream's window
    buffer: int
    buffer_bytes: int
    seconds: tuple[int, ...]

    @property
    def overlaps(self) -> bool:
        """Whether transfers of a block can overlap the kernel of another one."""
        return any(self.seconds)

    @property
    def counts(self) -> tuple[int, ...]:
        """Of blocks along each axis."""
        return tuple(-(-axis.extent // n) for axis, n in zip(self.cut.axes, self.units, strict=True))

    @property
    def own_bytes(self) -> int:
        """Of the kernels' own workspace."""
        return max(k.workspace_bytes for k in self.kernels)

    @property
    def workspace_bytes(self) -> int:
        return self.buffer + self.buffer_bytes


def thirds(extent: int, units: int) -> tuple[tuple[Range, int], ...]:
    """Ranges of the first, a middle and the last block, each with the number of such blocks."""
    count = -(-extent // units)
    last = ((count - 1) * units, extent)
    if count == 1:
        return ((last, 0), (last, 0), (last, 1))
    first = (0, units)
    return ((first, 1), ((units, 2 * units) if count > 2 else first, count - 2), (last, 1))


def is_even(axis: Cut, units: int) -> bool:
    """Whether there may be such blocks, all but the first and the last one alike, bands and their halos too."""
    count = -(-axis.extent // units)
    if not axis.allows(units):
        return False
    if count <= 3:
        return True
    return all(_is_even(span, axis.extent, units, count) for span in _spans(axis))


def has_bands(axis: Cut, units: int) -> bool:
    """Whether each block has rows of every operand: the last of an image may lie behind all windows."""
    ranges = [r for r, _ in thirds(axis.extent, units)]
    bands = (span.of(*r, axis.extent) for span in _spans(axis) for r in ranges)
    return all(first < end for first, end in bands)


def _spans(axis: Cut) -> set[Span]:
    return {part.span for part in axis.parts if part is not None and part.span is not None}


def _is_even(span: Span, extent: int, units: int, count: int) -> bool:
    def piece_of(block: int) -> tuple[int, int]:
        begin = block * units
        first, last = span.of(begin, begin + units, extent)
        return last - first, begin * span.mul + span.low - first * span.div

    second = piece_of(1)
    if second != piece_of(count - 2):
        return False
    # Rows grow by as many from block to block, unless an end of the operand is met, which the block at that end tells.
    if units * span.mul % span.div == 0:
        return True
    return all(piece_of(k) == second for k in range(2, count - 2))


def _stream(number: int, type: TensorType, cut: Cut, root: str, writes: bool, pair: int | None) -> Stream | None:
    """An operand as the cut goes through it; None where a block has no such form."""
    axes = cut.axes
    if number in cut.tables:
        rows = Dimension(0, Span(cut.extent), type.size_bytes // type.shape[0])
        return Stream(number, root, 1, type.size_bytes, None, rows, writes, pair, indices=cut.indices)
    parts = [(k, part) for k, axis in enumerate(axes) if (part := axis.parts[number]) is not None]
    item = type.dtype.size_bytes
    if not parts:
        return Stream(number, root, 1, type.size_bytes, writes=writes, pair=pair)
    parts.sort(key=lambda f: f[1].axis or 0)
    k, part = parts[-1]
    span = axes[k].span(number)
    inner = Dimension(k, span, part.inner * item)
    pitch = span.limit * inner.unit
    if len(parts) == 1:
        return Stream(number, root, part.rows, pitch, None, inner, writes, pair)
    o, above = parts[0]
    if above.axis is None or part.axis is None or above.rows != 1 or above.span is not None or part.span is not None:
        return None
    between = math.prod(type.shape[above.axis + 1 : part.axis if part.first is None else part.first])
    outer = Dimension(o, axes[o].span(number), between * pitch)
    return Stream(number, root, between, pitch, outer, inner, writes, pair)


class CutOperator:
    """An operator along one of its cuts. All that sets of streamed operands have in common is found once.

    `roots`: the storages of all operands, inputs first.
    """

    def __init__(self, kind: str, bound: Bound, cut: Cut, kernels: Sequence[Kernel], roots: Sequence[str]) -> None:
        self.kind, self.bound, self.cut, self.kernels = kind, bound, cut, kernels
        self.extents = [axis.extent for axis in cut.axes]
        count = len(bound.inputs)
        pairs = {count + o: i for i, o in spec(kind).must_alias}
        self.streams: list[Stream | None] = []
        for number, type in enumerate((*bound.inputs, *bound.outputs)):
            self.streams.append(_stream(number, type, cut, roots[number], number >= count, pairs.get(number)))
        if any(s is not None and s.is_table and s.writes for s in self.streams):
            self.streams = [replace(s, changed=cut.extent) if s and s.is_table else s for s in self.streams]
        self.axes = [() if s is None else tuple(sorted(s.axes)) for s in self.streams]
        self._in_ram: dict[int, Stream] = {}
        self._even: dict[tuple[int, int], bool] = {}
        self._banded: dict[tuple[int, int], bool] = {}
        self._windows: dict[tuple[int, ...], int] = {}  # by an operand's number and the units of its axes
        self._kernels: dict[tuple[tuple[Range, ...], ...], dict[str, tuple[Kernel, ...]]] = {}

    def is_even(self, axis: int, units: int) -> bool:
        """Whether there may be such blocks along that axis: `is_even`."""
        if (axis, units) not in self._even:
            self._even[axis, units] = is_even(self.cut.axes[axis], units)
        return self._even[axis, units]

    def has_bands(self, axis: int, units: int) -> bool:
        """Whether each of them has rows of every operand: `has_bands`."""
        if (axis, units) not in self._banded:
            self._banded[axis, units] = has_bands(self.cut.axes[axis], units)
        return self._banded[axis, units]

    def kernels_of(self, different: tuple[tuple[Range, ...], ...]) -> dict[str, tuple[Kernel, ...]]:
        """The kernels of such blocks by the name of the whole operator's."""
        if different not in self._kernels:
            self._kernels[different] = kernels_of_blocks(self.kind, self.bound, self.cut, self.kernels, different)
        return self._kernels[different]

    def window_bytes(self, stream: Stream, units: Sequence[int]) -> int:
        """Of the window of one of its streams, for a block that is neither the first nor the last."""
        key = (stream.operand, *[units[a] for a in self.axes[stream.operand]])
        if key not in self._windows:
            rows, size = stream.rows, stream.pitch
            if stream.outer is not None:
                rows *= self._rows_between(stream.outer, units)
            if stream.inner is not None:
                size = self._rows_between(stream.inner, units) * stream.inner.unit
            self._windows[key] = stream.window_bytes(rows, size)
        return self._windows[key]

    def _rows_between(self, dimension: Dimension, units: Sequence[int]) -> int:
        """The rows of a block that is neither the first nor the last."""
        n, extent = units[dimension.axis], self.extents[dimension.axis]
        first, end = dimension.span.of(max(0, min(n, extent - n)), min(extent, 2 * n), extent)
        return end - first

    def passing(self, streamed: Collection[int], units: Sequence[int] | None = None) -> list[Stream] | None:
        """The operands that pass through windows: those of `streamed`, and others that kernels cannot have in place.

        Those are operands in RAM whose blocks do not lie together, or do not begin where kernels want it. None where
        there are no such blocks, or they read nothing that is to be streamed. `units`: of a block; None: multiples of
        `steps`, for all of which the answer is the same.
        """
        chosen: list[Stream] = []
        on_store = 0
        for number, stream in enumerate(self.streams):
            if stream is None:
                return None
            if number in streamed:
                on_store += 1
                chosen.append(stream)
            elif stream.is_table:
                return None
            elif number == self.cut.indices or not _is_in_place(stream, self.cut, units):
                if number not in self._in_ram:
                    self._in_ram[number] = replace(stream, in_ram=True)
                chosen.append(self._in_ram[number])
        if len(self.streams) >= MOST_OPERANDS:
            return None
        return chosen if (on_store or not streamed) and len(chosen) <= MOST_STREAMS else None

    def steps(self, streamed: Collection[int], store_block: int) -> tuple[int, ...]:
        """Units of a block are multiples of these, so that blocks begin where kernels and the store want it.

        `store_block`: of pieces in sequence; 1 where they may begin and end within blocks of the store.
        """
        steps = [axis.step for axis in self.cut.axes]
        for number, stream in enumerate(self.streams):
            if stream is None or stream.inner is None or stream.is_table:
                continue
            if not stream.is_sequence or stream.inner.span.has_halo:
                continue
            wanted = ALIGNMENT_BYTES if number not in streamed else store_block
            axis = stream.inner.axis
            steps[axis] = math.lcm(steps[axis], wanted // math.gcd(wanted, stream.inner.unit))
        return tuple(steps)

    def blocks(
        self, streamed: Collection[int], units: tuple[int, ...], store_block: int, *, overlaps: bool = False
    ) -> list[Blocks]:
        """The operator in blocks of `units`, the operands of `streamed` through windows, for each kernel that is cut.

        `overlaps`: operands on the store have two windows where there is more than one block; none are found where they
        cannot have them.
        """
        cut, extents = self.cut, self.extents
        if not all(self.is_even(axis, n) and self.has_bands(axis, n) for axis, n in enumerate(units)):
            return []
        ranges = [[r for r, _ in thirds(e, n)] for e, n in zip(extents, units, strict=True)]
        corners = list(itertools.product(*ranges))
        different = tuple(dict.fromkeys(corners))  # along an axis with one block or two some are the same
        streams = self.passing(streamed, units)
        if streams is None or not are_made_once(streams, cut, units):
            return []
        if overlaps and not can_overlap(streams, cut, units):
            return []
        counts = [-(-e // n) for e, n in zip(extents, units, strict=True)]
        offsets, place, pieces = list[int](), dict[int, int](), [store_block if streamed else ALIGNMENT_BYTES]
        seconds, of_input = list[int](), dict[int, int]()
        end = 0
        for stream in streams:
            boxes = {stream.pieces(r, extents)[:2] for r in different}
            if not stream.in_ram:
                has_edges = stream.has_edges(units, counts, store_block)
                pieces += [stream.buffer_bytes(size, has_edges, store_block) for _, size in boxes]
            if stream.pair is not None and stream.pair in place:
                offsets.append(place[stream.pair])
                seconds.append(of_input[stream.pair])
                continue
            place[stream.operand] = end
            offsets.append(end)
            window = max(stream.window_bytes(rows, size) for rows, size in boxes)
            second = window if overlaps and not stream.in_ram and fills_of(stream.axes, counts) > 1 else 0
            of_input[stream.operand] = second
            seconds.append(second)
            end += window + second
        blocks: list[Blocks] = []
        for name, cut_kernels in self.kernels_of(different).items():
            if len({k.symbol for k in cut_kernels}) == 1:
                at = align(max(k.workspace_bytes for k in cut_kernels))
                of_corners = tuple(cut_kernels[different.index(r)] for r in corners)
                windows = tuple(at + offset for offset in offsets)
                blocks.append(
                    Blocks(name, cut, units, of_corners, tuple(streams), windows, at + end, max(pieces), tuple(seconds))
                )
        return blocks


def fills_of(axes: set[int], counts: Sequence[int]) -> int:
    """How often the window of an operand is filled whose blocks depend on these axes of the cut."""
    return math.prod(counts) if len(counts) - 1 in axes else counts[0] if axes else 1


def can_overlap(streams: Sequence[Stream], cut: Cut, units: Sequence[int]) -> bool:
    """Whether transfers can run beside the blocks: an operand on the store then has two buffers in RAM.

    It needs several blocks, no rows chosen by indices, and results that are written after each block or at the end.
    """
    counts = [-(-axis.extent // n) for axis, n in zip(cut.axes, units, strict=True)]
    several = {a for a, n in enumerate(counts) if n > 1}
    if any(s.is_table or (s.writes and s.axes and several - s.axes) for s in streams):
        return False
    return any(not s.in_ram and fills_of(s.axes, counts) > 1 for s in streams)


def _is_in_place(stream: Stream, cut: Cut, units: Sequence[int] | None) -> bool:
    """Whether kernels can have the blocks of an operand in RAM where they are."""
    if stream.inner is None:
        return True
    if not stream.is_sequence or stream.has_halo:
        return False
    axis = stream.inner.axis
    if units is None or units[axis] >= cut.axes[axis].extent:
        return True
    return units[axis] * stream.inner.unit % ALIGNMENT_BYTES == 0


def passing_bytes(stream: Stream, blocks: Blocks) -> int:
    """All that goes through the window of an operand in RAM."""
    extents = [axis.extent for axis in blocks.cut.axes]
    axes = sorted(stream.axes)
    total_bytes = 0
    for chosen in itertools.product(*(thirds(extents[a], blocks.units[a]) for a in axes)):
        ranges = [(0, e) for e in extents]
        for a, (r, _) in zip(axes, chosen, strict=True):
            ranges[a] = r
        rows, piece, _ = stream.pieces(ranges, extents)
        total_bytes += math.prod(n for _, n in chosen) * rows * piece
    return total_bytes * (blocks.counts[0] if axes == [1] and not stream.writes else 1)


def are_made_once(streams: Sequence[Stream], cut: Cut, units: Sequence[int]) -> bool:
    """Whether blocks of `units` make each part of a result once, or add to it (`cut.fills`)."""
    if cut.fills:
        return True
    several = {a for a, (axis, n) in enumerate(zip(cut.axes, units, strict=True)) if axis.extent > n}
    return not any(several - stream.axes for stream in streams if stream.writes)
