"""Streamed alternatives of operators: operands that pass through windows, in blocks, from the store and back to it.

All numbers follow from the cuts that a kind declares (`poetc.ops`): windows, transfers, and the costs of the kernel's
blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

from poetc.devices.cost import Cost, CostModel
from poetc.devices.features import features_of
from poetc.devices.profile import DeviceProfile
from poetc.graph import Graph, Operator, Role
from poetc.ops import Bound, Cut, Kernel, bind, block_of, spec, view_roots
from poetc.ops.kernels.blocks import block_kernel
from poetc.runtime.layout import ALIGNMENT_BYTES, align, page_bytes
from poetc.scheduling.problem import InPlace, OperatorSpec, Paging, Problem, TensorSpec

WINDOW_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)  # of all windows of an operator, at most
MOST_STREAMS = 12  # of an operator: POETC_MOST_STREAMS


@dataclass(frozen=True, slots=True)
class Stream:
    """An operand, by its number among inputs and outputs, that passes through a window.

    A block is `rows` pieces of `unit_bytes` times the block's units, each `row_bytes` behind the one before. `writes`:
    to the store. `pair`: for an output that takes over an input's bytes, that input, whose window it shares.
    """

    operand: int
    tensor: str  # the root of views
    rows: int
    row_bytes: int
    unit_bytes: int
    writes: bool = False
    pair: int | None = None

    def block_bytes(self, units: int) -> int:
        """Of its window, for a block of so many units."""
        return self.rows * units * self.unit_bytes


@dataclass(frozen=True, slots=True)
class Blocks:
    """An operator in blocks: `units` in each of `count` blocks, and `last` in the last one.

    Its workspace holds the kernel's own workspace, then the windows, then a buffer for pieces of whole blocks of the
    store. Offsets are within it, in bytes.
    """

    name: str  # of the whole operator's kernel
    cut: Cut
    units: int
    kernel: Kernel
    tail: Kernel
    streams: tuple[Stream, ...]
    windows: tuple[int, ...]  # the offset of each stream's window
    buffer: int
    buffer_bytes: int

    @property
    def count(self) -> int:
        return -(-self.cut.extent // self.units)

    @property
    def last(self) -> int:
        return self.cut.extent - (self.count - 1) * self.units

    @property
    def workspace_bytes(self) -> int:
        return self.buffer + self.buffer_bytes

    @property
    def window_bytes(self) -> int:
        return self.buffer - (self.windows[0] if self.windows else self.buffer)


def blocks_of(
    op: Operator,
    bound: Bound,
    cut: Cut,
    kernel: Kernel,
    streamed: Collection[int],
    roots: Sequence[str],
    units: int,
    store_block: int,
) -> Blocks | None:
    """The operator in blocks of `units`, the operands of `streamed` through windows; None where that cannot be done.

    `roots`: the storages of all operands, inputs first.
    """
    whole, rest = block_kernel(kernel, cut.name, units), cut.extent % units
    tail = block_kernel(kernel, cut.name, rest) if rest and whole else whole
    if whole is None or tail is None:
        return None
    types, count = (*bound.inputs, *bound.outputs), len(bound.inputs)
    pairs = {count + o: i for i, o in spec(op.kind).must_alias}
    streams: list[Stream] = []
    for number, (type, part) in enumerate(zip(types, cut.parts, strict=True)):
        if number in streamed:
            if part is None:
                return None
            item = type.dtype.size_bytes
            streams.append(
                Stream(
                    number,
                    roots[number],
                    part.rows,
                    cut.extent * part.inner * item,
                    part.inner * item,
                    number >= count,
                    pairs.get(number),
                )
            )
        elif part is not None and part.rows != 1 and not part.is_strided:
            return None
    if not streams or len(streams) > MOST_STREAMS:
        return None
    own = align(max(whole.workspace_bytes, tail.workspace_bytes))
    at, windows, place = own, list[int](), dict[int, int]()
    for stream in streams:
        if stream.pair is not None and stream.pair in place:
            windows.append(place[stream.pair])
            continue
        place[stream.operand] = at
        windows.append(at)
        at += align(stream.block_bytes(min(units, cut.extent)))
    pieces = [s.unit_bytes * units for s in streams if s.rows > 1]
    buffer_bytes = max([store_block, *(align(p + store_block - 4, store_block) for p in pieces)])
    return Blocks(kernel.name, cut, units, whole, tail, tuple(streams), tuple(windows), at, buffer_bytes)


def unit_step(bound: Bound, cut: Cut, streamed: Collection[int], store_block: int) -> int | None:
    """Units of a block are a multiple of this, so that blocks begin where kernels and the store want it.

    None where an operand cannot be cut that way.
    """
    step, count = 1, len(bound.inputs)
    for number, (type, part) in enumerate(zip((*bound.inputs, *bound.outputs), cut.parts, strict=True)):
        if part is None:
            continue
        unit_bytes = part.inner * type.dtype.size_bytes
        if number not in streamed or part.rows > 1:
            if number in streamed and number >= count:
                return None  # pieces would be written that are no whole blocks of the store
            wanted = 1 if number in streamed else ALIGNMENT_BYTES
        else:
            wanted = store_block
        step = math.lcm(step, wanted // math.gcd(wanted, unit_bytes))
    return step


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
        self._found: dict[tuple[int, frozenset[int]], tuple[OperatorSpec, ...]] = {}
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
        """Whether it is there when the step begins and could lie on the store."""
        tensor = self.problem.tensors[t]
        role = self.graph.tensors[tensor.name].role
        if tensor.initial != "store" and not self.moves_state:
            return False
        return tensor.initial != "" and role not in (Role.INPUT, Role.TARGET) and tensor.pageable

    def alternatives(self, index: int, streamed: frozenset[int]) -> tuple[OperatorSpec, ...]:
        """The operator with these tensors streamed, its windows larger and larger. Empty where that cannot be done.

        Versions of state that it replaces are among `streamed` together.
        """
        key = index, streamed
        if key not in self._found:
            self._found[key] = tuple(self._alternatives(index, streamed))
        return self._found[key]

    def _alternatives(self, index: int, streamed: frozenset[int]) -> Iterator[OperatorSpec]:
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
        last: OperatorSpec | None = None
        for cut in kind.cuts(bound):
            step = unit_step(bound, cut, numbers, self.block_bytes)
            if step is None or step >= cut.extent:
                continue
            for most in WINDOW_BYTES:
                found = self._largest(op, bound, cut, kind.kernels(bound), numbers, roots, step, most)
                if found is not None and (last is None or found.workspace_bytes > last.workspace_bytes):
                    last = found
                    yield found

    def _largest(
        self,
        op: Operator,
        bound: Bound,
        cut: Cut,
        kernels: Sequence[Kernel],
        numbers: frozenset[int],
        roots: Sequence[str],
        step: int,
        most_bytes: int,
    ) -> OperatorSpec | None:
        """With the largest blocks whose windows take at most so much, or one step of units; and a kernel to match."""
        one = blocks_of(op, bound, cut, kernels[0], numbers, roots, step, self.block_bytes)
        if one is None:
            return None
        units = max(1, most_bytes // max(1, one.window_bytes)) * step
        units = min(units, align(cut.extent, step) - step if units >= cut.extent else units)
        made = [blocks_of(op, bound, cut, k, numbers, roots, units, self.block_bytes) for k in kernels]
        fitting = [b for b in made if b is not None]
        if not fitting:
            return None
        room = max(most_bytes, min(b.windows[0] for b in fitting))  # the kernel's own workspace is no larger
        return self._operator(op, bound, next(b for b in fitting if b.windows[0] <= room))

    def _operator(self, op: Operator, bound: Bound, blocks: Blocks) -> OperatorSpec:
        plain = next(o for o in self.problem.operators if o.name == op.name)
        indices = [self.tensors[s.tensor] for s in blocks.streams]
        reads = tuple(dict.fromkeys(t for t, s in zip(indices, blocks.streams, strict=True) if not s.writes))
        writes = tuple(t for t, s in zip(indices, blocks.streams, strict=True) if s.writes)
        of_input = {s.operand: t for t, s in zip(indices, blocks.streams, strict=True)}
        replaces = tuple(
            InPlace(input=of_input[s.pair], output=t, required=True)
            for t, s in zip(indices, blocks.streams, strict=True)
            if s.writes and s.pair is not None
        )
        cost = self._cost(op, bound, blocks)
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
            cut=blocks.cut.name,
            block=blocks.units,
        )

    def _cost(self, op: Operator, bound: Bound, blocks: Blocks) -> Cost:
        """The blocks' calls of the kernel, and the transfers in between."""
        time_ns = energy_pj = 0
        for units, kernel, times in (
            (blocks.units, blocks.kernel, blocks.count - 1),
            (blocks.last, blocks.tail, 1),
        ):
            if times:
                cost = self._of_block(op, block_of(bound, blocks.cut, units), kernel)
                time_ns, energy_pj = time_ns + times * cost.time_ns, energy_pj + times * cost.energy_pj
        for stream in blocks.streams:
            cost = self._transfer(stream, blocks)
            time_ns, energy_pj = time_ns + cost.time_ns, energy_pj + cost.energy_pj
        return Cost(time_ns, energy_pj)

    def _of_block(self, op: Operator, block: Bound, kernel: Kernel) -> Cost:
        names = (*op.inputs, *op.outputs)
        types = (*block.inputs, *block.outputs)
        tensors = {
            n: SimpleNamespace(type=t, shape=t.shape, dtype=t.dtype, size_bytes=t.size_bytes)
            for n, t in zip(names, types, strict=True)
        }
        return self.costs.operator(features_of(op, tensors, self.costs.machine, kernel=kernel))

    def _transfer(self, stream: Stream, blocks: Blocks) -> Cost:
        """Of one stream, for all blocks."""
        assert self.store is not None
        size, unit = self.block_bytes, stream.unit_bytes
        if stream.rows == 1:
            moved = [page_bytes(stream.row_bytes, size) // size]
            transfers = blocks.count + 1 + bool(stream.row_bytes % size)
        else:
            begins = range(0, blocks.cut.extent, blocks.units)
            ends = [min(b + blocks.units, blocks.cut.extent) for b in begins]
            moved = [
                (row * stream.row_bytes + e * unit + size - 1) // size - (row * stream.row_bytes + b * unit) // size
                for b, e in zip(begins, ends, strict=True)
                for row in _sample_rows(stream.rows, size, stream.row_bytes)
            ]
            share = stream.rows / len(_sample_rows(stream.rows, size, stream.row_bytes))
            moved = [round(sum(moved) * share)]
            transfers = stream.rows * blocks.count + 1
        return self.costs.stream(
            self.store, sum(moved) * size, stream.rows * stream.row_bytes, transfers, write=stream.writes
        )


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
