"""Streamed alternatives of operators: operands that pass through windows, in blocks, from the store and back to it.

All numbers follow from the cuts that a kind declares (`poetc.ops`): windows, transfers, and the costs of the kernel's
blocks.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from poetc.devices.cost import Cost, CostModel
from poetc.devices.features import features_of
from poetc.devices.profile import DeviceProfile
from poetc.graph import Graph, Operator, Role, TensorType
from poetc.ops import (
    WHOLE,
    Bound,
    Cut,
    Kernel,
    Range,
    Span,
    bind,
    block_of,
    kernel_of_block,
    spec,
    view_roots,
    whole,
)
from poetc.runtime.layout import ALIGNMENT_BYTES, align, page_bytes
from poetc.scheduling.problem import InPlace, OperatorSpec, Paging, Problem, TensorSpec

WINDOW_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)  # of all windows of an operator, at most
MOST_STREAMS, MOST_OPERANDS = 12, 16  # of an operator, of poetc_stream.c: MOST_STREAMS, MOST_REFS


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of an operand that is cut: by axis `axis` of the cut, in rows of `unit` bytes (`Span` says which)."""

    axis: int
    span: Span
    unit: int


@dataclass(frozen=True, slots=True)
class Stream:
    """An operand, by its number among inputs and outputs, that passes through a window.

    Its bytes are rows of `pitch` bytes: `rows` of them, or as many for each of the rows that `outer` names. A block has
    of each row the piece that `inner` names, or all. `place`: "store"; or "ram", for an operand in RAM whose
    blocks do not lie together. `writes`: from the window. `pair`: for an output that takes over an input's bytes, that
    input, whose window it shares.
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

    @property
    def axes(self) -> set[int]:
        """The axes of the cut on which its blocks depend."""
        return {d.axis for d in (self.outer, self.inner) if d is not None}

    @property
    def is_sequence(self) -> bool:
        """Whether its blocks follow each other in one piece."""
        return self.outer is None and self.rows == 1

    def has_edges(self, units: Sequence[int], counts: Sequence[int], store_block: int) -> bool:
        """Whether pieces, but for the end of the last one, begin or end within blocks of the store."""
        if self.inner is None or (self.is_sequence and counts[self.inner.axis] == 1):
            return False
        if not self.is_sequence or self.inner.span.has_halo:
            return True
        return self.inner.unit * units[self.inner.axis] % store_block != 0

    def buffer_bytes(self, piece_bytes: int, has_edges: bool, store_block: int) -> int:
        """For the blocks of the store on which a piece of so many bytes lies, or the last one."""
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
    """An operator in blocks: so many units along each axis of its cut, fewer in the last ones.

    Its workspace holds the kernel's own workspace, then the windows, then a buffer for pieces that are no whole blocks
    of the store. Offsets are within it, in bytes. `kernels`: of a first block, one in between and a last one along
    each axis, in this order, of the outer axis first.
    """

    name: str  # of the whole operator's kernel
    cut: Cut
    units: tuple[int, ...]
    kernels: tuple[Kernel, ...]
    streams: tuple[Stream, ...]
    windows: tuple[int, ...]  # the offset of each stream's window
    buffer: int
    buffer_bytes: int

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

    @property
    def window_bytes(self) -> int:
        return self.buffer - (self.windows[0] if self.windows else self.buffer)


def thirds(extent: int, units: int) -> tuple[tuple[Range, int], ...]:
    """The first block, one in between, and the last one, and how many there are of each."""
    count = -(-extent // units)
    last = ((count - 1) * units, extent)
    if count == 1:
        return ((last, 0), (last, 0), (last, 1))
    first = (0, units)
    return ((first, 1), ((units, 2 * units) if count > 2 else first, count - 2), (last, 1))


def _is_even(axis: Cut, units: int) -> bool:
    """Whether all blocks but the first and the last are alike, bands and their halos too."""
    count = -(-axis.extent // units)
    spans = [axis.span(n) for n, part in enumerate(axis.parts) if part is not None and part.span is not None]

    def seen(block: int) -> list[tuple[int, int]]:
        begin, end = block * units, (block + 1) * units
        found = [span.of(begin, end, axis.extent) for span in spans]
        return [(b - a, begin * s.mul + s.low - a * s.div) for (a, b), s in zip(found, spans, strict=True)]

    return not spans or all(seen(k) == seen(1) for k in range(2, count - 1))


def _stream(number: int, type: TensorType, cut: Cut, root: str) -> Stream | None:
    """An operand as the cut goes through it; None where a block has no such form."""
    axes = cut.axes
    found = [(k, part) for k, axis in enumerate(axes) if (part := axis.parts[number]) is not None]
    item = type.dtype.size_bytes
    if not found:
        return Stream(number, root, 1, type.size_bytes)
    found.sort(key=lambda f: f[1].axis or 0)
    k, part = found[-1]
    span = axes[k].span(number)
    inner = Dimension(k, span, part.inner * item)
    pitch = span.limit * inner.unit
    if len(found) == 1:
        return Stream(number, root, part.rows, pitch, None, inner)
    o, above = found[0]
    if above.axis is None or part.axis is None or above.rows != 1 or above.span is not None or part.span is not None:
        return None
    between = math.prod(type.shape[above.axis + 1 : part.axis])
    return Stream(number, root, between, pitch, Dimension(o, axes[o].span(number), between * pitch), inner)


def blocks_of(
    kind: str,
    bound: Bound,
    cut: Cut,
    kernel: Kernel,
    streamed: Collection[int],
    roots: Sequence[str],
    units: tuple[int, ...],
    store_block: int,
) -> Blocks | None:
    """The operator in blocks of `units`, the operands of `streamed` through windows; None where that cannot be done.

    `roots`: the storages of all operands, inputs first.
    """
    if not all(_is_even(axis, n) for axis, n in zip(cut.axes, units, strict=True)):
        return None
    ranges = [[r for r, _ in thirds(axis.extent, n)] for axis, n in zip(cut.axes, units, strict=True)]
    made = [kernel_of_block(kind, bound, cut, kernel, list(r)) for r in itertools.product(*ranges)]
    kernels = tuple(k for k in made if k is not None)
    if len(kernels) < len(made) or len({k.symbol for k in kernels}) > 1:
        return None
    streams = streams_of(kind, bound, cut, streamed, roots, units)
    if streams is None:
        return None
    extents = [axis.extent for axis in cut.axes]
    counts = [-(-e // n) for e, n in zip(extents, units, strict=True)]
    at = align(max(k.workspace_bytes for k in kernels))
    windows, place, pieces = list[int](), dict[int, int](), [store_block]
    for stream in streams:
        boxes = [stream.pieces(r, extents) for r in itertools.product(*ranges)]
        if not stream.in_ram:
            has_edges = stream.has_edges(units, counts, store_block)
            pieces += [stream.buffer_bytes(size, has_edges, store_block) for _, size, _ in boxes]
        if stream.pair is not None and stream.pair in place:
            windows.append(place[stream.pair])
            continue
        place[stream.operand] = at
        windows.append(at)
        at += align(max(rows * size for rows, size, _ in boxes))
    return Blocks(kernel.name, cut, units, kernels, tuple(streams), tuple(windows), at, max(pieces))


def streams_of(
    kind: str, bound: Bound, cut: Cut, streamed: Collection[int], roots: Sequence[str], units: tuple[int, ...]
) -> list[Stream] | None:
    """The operands that pass through windows: those of `streamed`, and others whose blocks do not lie together."""
    count = len(bound.inputs)
    pairs = {count + o: i for i, o in spec(kind).must_alias}
    counts = [-(-axis.extent // n) for axis, n in zip(cut.axes, units, strict=True)]
    streams: list[Stream] = []
    for number, type in enumerate((*bound.inputs, *bound.outputs)):
        stream = _stream(number, type, cut, roots[number])
        if stream is None:
            return None
        stays = number not in streamed
        halo = any(d is not None and d.span.has_halo for d in (stream.outer, stream.inner))
        if stays and (not stream.axes or (stream.is_sequence and not halo)):
            continue
        writes = number >= count
        if writes and not cut.fills and {a for a, n in enumerate(counts) if n > 1} - stream.axes:
            return None  # a part of a result would be made more than once
        streams.append(replace(stream, writes=writes, pair=pairs.get(number), in_ram=stays))
    on_store = sum(not s.in_ram for s in streams)
    if count + len(bound.outputs) >= MOST_OPERANDS:
        return None
    return streams if on_store and len(streams) <= MOST_STREAMS else None


def unit_steps(
    bound: Bound, cut: Cut, streamed: Collection[int], roots: Sequence[str], store_block: int
) -> tuple[int, ...]:
    """Units of a block are multiples of these, so that blocks begin where kernels and the store want it.

    `store_block`: of pieces in sequence; 1 where they may begin and end within blocks of the store.
    """
    steps = [axis.step for axis in cut.axes]
    for number, type in enumerate((*bound.inputs, *bound.outputs)):
        stream = _stream(number, type, cut, roots[number])
        if stream is None or stream.inner is None or not stream.is_sequence or stream.inner.span.has_halo:
            continue
        wanted = ALIGNMENT_BYTES if number not in streamed else store_block
        axis = stream.inner.axis
        steps[axis] = math.lcm(steps[axis], wanted // math.gcd(wanted, stream.inner.unit))
    return tuple(steps)


class Streaming:
    """The streamed alternatives of the operators of a training step, or of a model, on a device."""

    def __init__(self, graph: Graph, profile: DeviceProfile, problem: Problem, *, moves_state: bool = True) -> None:
        """`moves_state`: state that is in RAM may be placed on the store, so that it can be streamed."""
        self.graph, self.problem, self.moves_state = graph, problem, moves_state
        self.costs = CostModel(profile)
        self.roots = view_roots(graph)
        self.tensors = {t.name: i for i, t in enumerate(problem.tensors)}
        self.operators = {op.name: op for op in graph.operators}
        self.store = profile.stores[profile.default_store] if profile.default_store else None
        self.block_bytes = 0 if self.store is None else int(self.store.block_bytes.value)
        self._found: dict[tuple[int, frozenset[int], bool], tuple[OperatorSpec, ...]] = {}
        self._forms: dict[tuple[object, ...], list[Blocks]] = {}
        self._prices: dict[tuple[object, int], tuple[Cost, int]] = {}  # by form and number; bytes that are rewritten
        self.readers: dict[int, list[int]] = {}
        self.maker: dict[int, int] = {}
        for index, op in enumerate(problem.operators):
            for t in op.inputs:
                self.readers.setdefault(t, []).append(index)
            self.maker |= dict.fromkeys(op.outputs, index)
        self.results = {self.tensors[self.roots[t]] for t in graph.outputs if self.roots[t] in self.tensors}
        pairs = {(p.input, p.output) for op in problem.operators for p in op.in_place if p.required}
        replaced_again = {i for i, _ in pairs}
        # State that one operator replaces. Sums that several operators add to stay in RAM between them.
        self.replaced_once = {(i, o) for i, o in pairs if problem.tensors[i].initial and o not in replaced_again}

    @property
    def is_possible(self) -> bool:
        """A store that the processor itself reads and writes, one processor, and RAM in one piece."""
        p = self.problem
        return self.store is not None and p.paging is Paging.SYNC and not p.processors and not p.banks

    def operands_of(self, index: int) -> tuple[str, ...]:
        """The storages of its operands, inputs first."""
        op = self.operators[self.problem.operators[index].name]
        return tuple(self.roots[t] for t in (*op.inputs, *op.outputs))

    def is_state(self, t: int) -> bool:
        """Whether it is there when the step begins and could lie on the store: state, or an input of the step."""
        tensor = self.problem.tensors[t]
        is_given = self.graph.tensors[tensor.name].role in (Role.INPUT, Role.TARGET)
        if tensor.initial != "store" and not self.moves_state and not is_given:
            return False
        return tensor.initial != "" and tensor.pageable

    def alternatives(self, index: int, streamed: frozenset[int], *, is_priced: bool = True) -> tuple[OperatorSpec, ...]:
        """The operator with these tensors streamed, its windows larger and larger. Empty where that cannot be done.

        Versions of state that it replaces are among `streamed` together. Without `is_priced` time and energy are 0:
        prices of all blocks take longer than the blocks themselves.
        """
        key = index, streamed, is_priced
        if key not in self._found:
            self._found[key] = tuple(self._alternatives(index, streamed, is_priced))
        return self._found[key]

    def _alternatives(self, index: int, streamed: frozenset[int], is_priced: bool) -> Iterator[OperatorSpec]:
        plain = self.problem.operators[index]
        op = self.operators[plain.name]
        bound, kind = bind(op, self.graph.tensors), spec(op.kind)
        roots = self.operands_of(index)
        numbers = frozenset(n for n, root in enumerate(roots) if self.tensors.get(root) in streamed)
        if len({roots[n] for n in numbers}) < len(streamed):
            return
        replaced = {i: len(op.inputs) + o for i, o in kind.must_alias}
        if any((i in numbers) != (o in numbers) for i, o in replaced.items()):
            return
        if replaced and any(n >= len(op.inputs) and n not in replaced.values() for n in numbers):
            return
        streamed_pairs = ((self.tensors[roots[i]], self.tensors[roots[o]]) for i, o in replaced.items() if i in numbers)
        if any(pair not in self.replaced_once for pair in streamed_pairs):
            return
        alike = tuple(roots.index(root) for root in roots)
        key = op.kind, tuple(sorted(op.attributes.items())), bound.inputs, bound.outputs, numbers, alike
        if key not in self._forms:
            self._forms[key] = list(self._forms_of(op, bound, numbers, roots))
        for number, blocks in enumerate(self._forms[key]):
            price = Cost(0, 0), 0
            if is_priced:
                if (key, number) not in self._prices:
                    self._prices[key, number] = self._cost(op, bound, blocks)
                price = self._prices[key, number]
            yield self._operator(plain, roots, blocks, *price)

    def _forms_of(self, op: Operator, bound: Bound, numbers: frozenset[int], roots: Sequence[str]) -> Iterator[Blocks]:
        """Equal operators have the same; the names of tensors are those of the first one."""
        kernels = spec(op.kind).kernels(bound)
        for cut in (*spec(op.kind).cuts(bound), whole(bound)):
            seen = set[tuple[int, ...]]()
            for most in WINDOW_BYTES:
                choices = (self._units(op, bound, cut, numbers, roots, size, most) for size in (self.block_bytes, 1))
                units = (
                    next((u for u, fits in choices if fits), None)
                    or self._units(op, bound, cut, numbers, roots, 1, most)[0]
                )
                if units is None or units in seen:
                    continue
                seen.add(units)
                made = [blocks_of(op.kind, bound, cut, k, numbers, roots, units, self.block_bytes) for k in kernels]
                fitting = [b for b in made if b is not None]
                if fitting:
                    room = max(most, min(b.windows[0] for b in fitting))  # the kernel's own workspace is no larger
                    yield next(b for b in fitting if b.windows[0] <= room)

    def _units(
        self,
        op: Operator,
        bound: Bound,
        cut: Cut,
        numbers: frozenset[int],
        roots: Sequence[str],
        store_block: int,
        most_bytes: int,
    ) -> tuple[tuple[int, ...] | None, bool]:
        """Of the largest blocks whose windows take at most so much, or the least blocks; and whether these fit.

        None where there are no blocks. Along two axes blocks grow in turn: both decide on bytes that are read again.
        """
        extents = [axis.extent for axis in cut.axes]
        if cut.name == WHOLE:
            return (1,), True
        steps = unit_steps(bound, cut, numbers, roots, store_block)
        streams = streams_of(op.kind, bound, cut, numbers, roots, steps)
        if streams is None or any(s >= e for s, e in zip(steps, extents, strict=True)):
            return None, False

        def fits(units: Sequence[int]) -> bool:
            ranges = [(max(0, min(n, e - n)), min(e, 2 * n)) for n, e in zip(units, extents, strict=True)]
            taken = 0
            for stream in streams:
                if stream.pair is None:
                    rows, size, _ = stream.pieces(ranges, extents)
                    taken += align(rows * size)
            return taken <= most_bytes

        def is_possible(axis: int, n: int) -> bool:
            return n < extents[axis] and _is_even(cut.axes[axis], n)

        units: list[int] = []
        for axis, step in enumerate(steps):
            least = next((n for n in range(step, min(extents[axis], 9 * step), step) if is_possible(axis, n)), None)
            if least is None:
                return None, False
            units.append(least)
        least_fits = fits(units)
        grows = True
        while grows:
            grows = False
            for axis in range(len(units)):
                halves = (units[axis] >> n for n in range(units[axis].bit_length()))
                for more in (n // steps[axis] * steps[axis] for n in halves if n >= steps[axis]):
                    wanted = [*units[:axis], units[axis] + more, *units[axis + 1 :]]
                    if is_possible(axis, wanted[axis]) and fits(wanted):
                        units, grows = wanted, True
                        break
        return tuple(units), least_fits

    def _operator(
        self, plain: OperatorSpec, roots: Sequence[str], blocks: Blocks, cost: Cost, rewritten_bytes: int
    ) -> OperatorSpec:
        streams = [s for s in blocks.streams if not s.in_ram]
        indices = [self.tensors[roots[s.operand]] for s in streams]
        reads = tuple(dict.fromkeys(t for t, s in zip(indices, streams, strict=True) if not s.writes))
        writes = tuple(t for t, s in zip(indices, streams, strict=True) if s.writes)
        of_input = {s.operand: t for t, s in zip(indices, streams, strict=True)}
        replaces = tuple(
            InPlace(input=of_input[s.pair], output=t, required=True)
            for t, s in zip(indices, streams, strict=True)
            if s.writes and s.pair is not None
        )
        taken = {*reads, *writes}
        return replace(
            plain,
            inputs=tuple(t for t in plain.inputs if t not in reads or not self.is_state(t)),
            in_place=tuple(p for p in plain.in_place if p.input not in taken and p.output not in taken),
            time_ns=cost.time_ns,
            energy_pj=cost.energy_pj,
            workspace_bytes=align(blocks.workspace_bytes),
            kernel=blocks.name,
            low_workspace=(),
            reads_store=reads,
            writes_store=writes,
            replaces=replaces,
            cut=blocks.cut.title,
            block=blocks.units[0],
            inner_block=blocks.units[1] if len(blocks.units) > 1 else 0,
            rewritten_bytes=rewritten_bytes,
        )

    def _cost(self, op: Operator, bound: Bound, blocks: Blocks) -> tuple[Cost, int]:
        """The blocks' calls of the kernel, and the transfers in between; and bytes of blocks that are written twice."""
        time_ns = energy_pj = more_bytes = 0
        parts = [thirds(axis.extent, n) for axis, n in zip(blocks.cut.axes, blocks.units, strict=True)]
        for kernel, chosen in zip(blocks.kernels, itertools.product(*parts), strict=True):
            times = math.prod(n for _, n in chosen)
            if times:
                cost = self._of_block(op, block_of(bound, blocks.cut, [r for r, _ in chosen]), kernel)
                time_ns, energy_pj = time_ns + times * cost.time_ns, energy_pj + times * cost.energy_pj
        for stream in blocks.streams:
            cost, more = self._transfer(stream, blocks)
            time_ns, energy_pj, more_bytes = time_ns + cost.time_ns, energy_pj + cost.energy_pj, more_bytes + more
        return Cost(time_ns, energy_pj), more_bytes

    def _of_block(self, op: Operator, block: Bound, kernel: Kernel) -> Cost:
        names = (*op.inputs, *op.outputs)
        types = (*block.inputs, *block.outputs)
        tensors = {
            n: SimpleNamespace(type=t, shape=t.shape, dtype=t.dtype, size_bytes=t.size_bytes)
            for n, t in zip(names, types, strict=True)
        }
        return self.costs.operator(features_of(op, tensors, self.costs.machine, kernel=kernel))

    def _transfer(self, stream: Stream, blocks: Blocks) -> tuple[Cost, int]:
        """Of one stream, for all blocks; and the bytes that it writes beyond the page's."""
        assert self.store is not None
        size, more_bytes = self.block_bytes, 0
        extents = [axis.extent for axis in blocks.cut.axes]
        page = page_bytes(stream.size_bytes, size)
        axes = sorted(stream.axes)
        passes = blocks.counts[0] if axes == [1] else 1
        parts = [thirds(axis.extent, n) for axis, n in zip(blocks.cut.axes, blocks.units, strict=True)]
        moved = data = pieces = 0
        for chosen in itertools.product(*(parts[a] for a in axes)):
            times = math.prod(n for _, n in chosen)
            if not times:
                continue
            ranges = [(0, e) for e in extents]
            for a, (r, _) in zip(axes, chosen, strict=True):
                ranges[a] = r
            rows, piece, first = stream.pieces(ranges, extents)
            if piece == stream.pitch:  # they follow each other
                rows, piece = 1, rows * piece
            samples = _sample_rows(rows, size, stream.pitch)
            touched = sum(
                (first + k * stream.pitch + piece + size - 1) // size - (first + k * stream.pitch) // size
                for k in samples
            )
            moved += times * round(touched * rows / len(samples)) * size
            data, pieces = data + times * rows * piece, pieces + times * rows
        moved, data, pieces = moved * passes, data * passes, pieces * passes
        if stream.in_ram:
            cost = self.costs.move(data)
            return cost, 0
        if not stream.has_edges(blocks.units, blocks.counts, size):
            moved, pieces = passes * page, pieces + passes * (1 + bool(stream.size_bytes % size))
        has_edges = stream.writes and stream.has_edges(blocks.units, blocks.counts, size)
        if has_edges:
            moved = self._written_bytes(stream, blocks)
            more_bytes = moved + size - page
        cost = self.costs.stream(self.store, moved + size, data, pieces + 1, write=stream.writes)
        if has_edges:
            again = self.costs.stream(self.store, 2 * size * pieces, 0, 2 * pieces, write=False)  # edges are read
            cost = Cost(cost.time_ns + again.time_ns, cost.energy_pj + again.energy_pj)
        return cost, more_bytes

    def _written_bytes(self, stream: Stream, blocks: Blocks) -> int:
        """In whole blocks of the store, one for each piece at least, without the trailer's."""
        size, found = self.block_bytes, 0
        extents = [axis.extent for axis in blocks.cut.axes]
        steps = [
            range(0, e, n) if a in stream.axes else (0,)
            for a, (e, n) in enumerate(zip(extents, blocks.units, strict=True))
        ]
        for begins in itertools.product(*steps):
            ranges = [(b, min(b + n, e)) for b, n, e in zip(begins, blocks.units, extents, strict=True)]
            rows, piece, first = stream.pieces(ranges, extents)
            begin = first + stream.pitch * np.arange(rows, dtype=np.int64)
            found += int(((begin + piece + size - 1) // size - begin // size).sum())
        return found * size


@functools.lru_cache(maxsize=1024)
def _sample_rows(rows: int, block_bytes: int, row_bytes: int) -> range:
    """So many rows that their places within blocks of the store repeat after them."""
    period = block_bytes // math.gcd(block_bytes, row_bytes)
    return range(min(rows, period))


def streamed_problem(problem: Problem, made: dict[int, OperatorSpec]) -> Problem:
    """`problem` with streamed operators in place of some of its own, by their index.

    State that they read from the store, or write there, lives there between steps. Tensors that they write have no
    place in RAM.
    """
    operators = tuple(made.get(k, op) for k, op in enumerate(problem.operators))
    tensors = list(problem.tensors)
    written = {t for op in operators for t in op.writes_store}
    successor = {p.input: p.output for op in operators for p in (*op.in_place, *op.replaces) if p.required}
    for t in sorted({t for op in operators for t in op.reads_store if tensors[t].initial}):
        chain = [t]
        while chain[-1] in successor:
            chain.append(successor[chain[-1]])
        tensors[t] = replace(tensors[t], initial="store")
        if tensors[chain[-1]].final == "ram":
            tensors[chain[-1]] = replace(tensors[chain[-1]], final="store")
    for t in written:
        tensors[t] = _on_store_alone(tensors[t])
    return replace(problem, operators=operators, tensors=tuple(tensors))


def _on_store_alone(tensor: TensorSpec) -> TensorSpec:
    return replace(
        tensor,
        size_bytes=0,
        store_bytes=tensor.footprint_bytes,
        pageable=False,
        page_out_ns=0,
        page_out_pj=0,
        page_in_ns=0,
        page_in_pj=0,
        move_ns=None,
        move_pj=0,
    )
