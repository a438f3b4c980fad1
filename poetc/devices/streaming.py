"""Streamed alternatives of operators: operands that pass through windows, in blocks, from the store and back to it.

All numbers follow from the cuts that a kind declares (`poetc.ops`): windows, transfers, and the costs of the kernel's
blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from poetc.devices.ahead import Transfers, pipelined_ns, rows_of
from poetc.devices.blocks import (
    Blocks,
    CutOperator,
    Stream,
    fills_of,
    is_even,
    passing_bytes,
    thirds,
)
from poetc.devices.cost import Cost, CostModel
from poetc.devices.features import features_of
from poetc.devices.growth import LITTLE_BYTES, forms_of_operator
from poetc.devices.profile import DeviceProfile
from poetc.devices.rows import longest_rows_ns, moved_rows, read_rows, sample_rows, touched_blocks
from poetc.devices.tables import row_tables, summed_tables, trained_tables
from poetc.devices.threads import Prices, is_split
from poetc.graph import Graph, Operator, Role
from poetc.ops import INDICES, Bound, Cut, Kernel, bind, spec, view_roots
from poetc.runtime.layout import align, page_bytes
from poetc.scheduling.problem import InPlace, OperatorSpec, Paging, Problem, TensorSpec

FIRST_FINER = 1000  # the number of the first alternative in finer blocks


class Form(NamedTuple):
    """How an operator is cut into blocks. Alternatives with the same streamed operands have different ones."""

    cut: str
    block: int
    inner_block: int
    kernel: str
    overlaps: bool

    @classmethod
    def of(cls, op: OperatorSpec) -> Form:
        return cls(op.cut, op.block, op.inner_block, op.kernel, op.overlaps)


def _form(blocks: Blocks) -> Form:
    inner = blocks.units[1] if len(blocks.units) > 1 else 0
    return Form(blocks.cut.title, blocks.units[0], inner, blocks.name, blocks.overlaps)


def may_stream(problem: Problem) -> bool:
    """Whether the main processor reads and writes a store, and RAM is in one piece."""
    return problem.paging is not Paging.NONE and not problem.banks


class StreamedAlternatives:
    """The streamed alternatives of the operators of a training step, or of a model, on a device."""

    def __init__(
        self,
        graph: Graph,
        profile: DeviceProfile,
        problem: Problem,
        *,
        moves_state: bool = True,
        longest_ns: int | None = None,
        prices: Prices | None = None,
        tables: Collection[str] | None = None,
    ) -> None:
        """`moves_state`: state that is in RAM may be placed on the store, so that it can be streamed.

        `longest_ns`: no block takes longer. `prices`: of kernels in threads, where `problem` has such. `tables`: those
        whose rows have checksums on the store; None: all that could have them.
        """
        self.threads = prices
        self.graph, self.problem, self.moves_state, self.longest_ns = graph, problem, moves_state, longest_ns
        self.costs = CostModel(profile)
        self.roots = view_roots(graph)
        self.tensors = {t.name: i for i, t in enumerate(problem.tensors)}
        self.operators = {op.name: op for op in graph.operators}
        self.store = profile.stores[profile.default_store] if profile.default_store else None
        self.block_bytes = 0 if self.store is None else int(self.store.block_bytes.value)
        if tables is None:
            tables = () if self.store is None else summed_tables(graph, problem, self.block_bytes)
        self.summed = {self.tensors[name] for name in tables if name in self.tensors}
        trained = () if self.store is None else trained_tables(graph, problem, self.block_bytes)
        # Of trained tables whose rows may move alone: the operator that moves them.
        self.mover = {self.tensors[t.name]: t.operator for t in trained}
        self.summed |= {self.tensors[n] for t in trained for n in (t.name, t.version)}
        self._found: dict[tuple[int, frozenset[int], int], OperatorSpec] = {}
        # Numbers stand for the keys of equal operators, whose types and attributes take long to hash.
        self._numbers: dict[tuple[object, ...], int] = {}
        self._forms: dict[int | None, list[Blocks]] = {None: []}
        self._aligned: dict[int | None, int] = {None: 0}  # how many of those come before the finer ones
        self._little: set[int | None] = set()  # of those, in blocks that are for the longest piece alone
        self._titles: dict[int | None, list[Form]] = {}
        self._workspaces: dict[int | None, list[int]] = {}
        self._form_of: dict[tuple[int, frozenset[int]], int | None] = {}
        self._prices: dict[tuple[int | None, int], tuple[Cost, int, int]] = {}  # by form and number, as `_cost` says
        self._alike: dict[int, int] = {}
        self._widened: dict[tuple[object, ...], int | None] = {}  # the alternative, by operators that are alike
        self.readers: dict[int, list[int]] = {}
        self.maker: dict[int, int] = {}
        for index, op in enumerate(problem.operators):
            for t in op.inputs:
                self.readers.setdefault(t, []).append(index)
            self.maker |= dict.fromkeys(op.outputs, index)
        self.results = {self.tensors[self.roots[t]] for t in graph.outputs if self.roots[t] in self.tensors}
        pairs = {(p.input, p.output) for op in problem.operators for p in op.in_place if p.required}
        self.replaced = replaced_again = {i for i, _ in pairs}
        # Sums of gradients that several operators add to, each of its versions with all of them.
        self.sums: dict[int, frozenset[int]] = {}
        for first in sorted(replaced_again - {o for _, o in pairs}):
            if not problem.tensors[first].initial:
                chain, successor = [first], dict(pairs)
                while chain[-1] in successor:
                    chain.append(successor[chain[-1]])
                self.sums |= dict.fromkeys(chain, frozenset(chain))
        # State that one operator replaces, and sums, whose versions have places of their own on the store.
        once = {(i, o) for i, o in pairs if problem.tensors[i].initial and o not in replaced_again}
        self.replaceable = once | {(i, o) for i, o in pairs if i in self.sums}

    @property
    def is_possible(self) -> bool:
        return self.store is not None and may_stream(self.problem)

    def operands_of(self, index: int) -> tuple[str, ...]:
        """The storages of its operands, inputs first."""
        op = self.operators[self.problem.operators[index].name]
        return tuple(self.roots[t] for t in (*op.inputs, *op.outputs))

    def alike(self, index: int) -> int:
        """Equal for operators whose alternatives differ in names alone, as those of a network's equal blocks do."""
        if index not in self._alike:
            plain = self.problem.operators[index]
            op, roots = self.operators[plain.name], self.operands_of(index)
            bound = bind(op, self.graph.tensors)
            places = {self.tensors.get(root): n for n, root in reversed(list(enumerate(roots)))}
            names = (*plain.inputs, *plain.outputs)
            operands = [
                (places[t], self.problem.tensors[t].size_bytes, self.is_state(t), t in self.summed) for t in names
            ]
            pairs = [
                (places[p.input], places[p.output], (p.input, p.output) in self.replaceable)
                for p in plain.in_place
                if p.required
            ]
            key = (
                (op.kind, tuple(sorted(op.attributes.items())), bound.inputs, bound.outputs),
                tuple(roots.index(root) for root in roots),
                (plain.workspace_bytes, *(v.workspace_bytes for v in plain.low_workspace)),
                tuple(operands),
                tuple(pairs),
            )
            self._alike[index] = self._number(key)
        return self._alike[index]

    def _number(self, key: tuple[object, ...]) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def is_state(self, t: int) -> bool:
        """Whether it is there when the step begins and could lie on the store: state, or an input of the step."""
        tensor = self.problem.tensors[t]
        is_given = self.graph.tensors[tensor.name].role in (Role.INPUT, Role.TARGET)
        if tensor.initial != "store" and not self.moves_state and not is_given:
            return False
        return tensor.initial != "" and self.can_leave(t)

    def can_leave(self, t: int) -> bool:
        """Whether it may be on the store; also where a transfer of all of it in one piece takes too long."""
        tensor = self.problem.tensors[t]
        transfer_ns = max(tensor.page_in_ns, tensor.page_out_ns)
        return tensor.pageable or (self.longest_ns is not None and transfer_ns > self.longest_ns)

    def alternatives(self, index: int, streamed: frozenset[int]) -> tuple[OperatorSpec, ...]:
        """The operator with these tensors streamed, its windows larger and larger. Empty where that cannot be done.

        Versions of state that it replaces are among `streamed` together. Time and energy are 0, since prices of all
        blocks take longer than the blocks themselves: `priced` has those of one.
        """
        return tuple(self.alternative(index, streamed, n) for n in range(len(self._blocks(index, streamed))))

    def forms(self, index: int, streamed: frozenset[int]) -> list[Form]:
        """The cut and the blocks of each alternative."""
        blocks = self._blocks(index, streamed)
        key = self._form_of[index, streamed]
        if key not in self._titles:
            self._titles[key] = [_form(b) for b in blocks]
        return self._titles[key]

    def numbers(self, index: int, streamed: frozenset[int]) -> list[int]:
        """The number of each alternative, by which files name it. Finer blocks leave those of the others alone."""
        count = len(self._blocks(index, streamed))
        aligned = self._aligned[self._form_of[index, streamed]]
        return [*range(aligned), *range(FIRST_FINER, FIRST_FINER + count - aligned)]

    def workspaces(self, index: int, streamed: frozenset[int]) -> list[int]:
        """The workspace of each alternative, bytes. They differ in it alone as far as RAM is concerned."""
        blocks = self._blocks(index, streamed)
        key = self._form_of[index, streamed]
        if key not in self._workspaces:
            self._workspaces[key] = [align(b.workspace_bytes) for b in blocks]
        return self._workspaces[key]

    def alternative(self, index: int, streamed: frozenset[int], number: int) -> OperatorSpec:
        """That one of the alternatives."""
        key = index, streamed, number
        if key not in self._found:
            plain, blocks = self.problem.operators[index], self._blocks(index, streamed)[number]
            self._found[key] = self._operator(plain, self.operands_of(index), blocks)
        return self._found[key]

    def priced(self, index: int, streamed: frozenset[int], number: int) -> OperatorSpec:
        """The same with its time and energy."""
        alternative, blocks = self.alternative(index, streamed, number), self._blocks(index, streamed)
        key = self._form_of[index, streamed], number
        if key not in self._prices:
            op = self.operators[self.problem.operators[index].name]
            self._prices[key] = self._cost(op, bind(op, self.graph.tensors), blocks[number], self.threads)
        return _with_price(alternative, *self._prices[key])

    def widened(self, index: int, op: OperatorSpec, room_bytes: int) -> OperatorSpec:
        """`op`, or the cheapest alternative with the same operands streamed, with no more workspace than the room.

        Rows of a trained table are read and moved alone by the same operators.
        """
        streamed = frozenset({*op.reads_store, *op.writes_store})
        moves_rows = bool(self.tables_of(index) & self.mover.keys())
        forms = self.forms(index, streamed)
        key = self._form_of[index, streamed], self.alike(index), forms.index(Form.of(op)), room_bytes, moves_rows
        if key not in self._widened:
            sizes = self.workspaces(index, streamed)
            fitting = [n for n, size in enumerate(sizes) if size <= room_bytes]
            if moves_rows:
                fitting = [n for n in fitting if (forms[n].cut == INDICES) == (op.cut == INDICES)]
            options = [(None, op), *((n, self.priced(index, streamed, n)) for n in fitting)]
            cost = self.problem.objective.cost
            self._widened[key] = min(options, key=lambda option: cost(option[1].energy_pj, option[1].time_ns))[0]
        number = self._widened[key]
        return op if number is None else self.priced(index, streamed, number)

    def in_pieces(self, index: int, longest_ns: int) -> OperatorSpec | None:
        """The operator with all operands in RAM, in the cheapest blocks that take no longer, or in the shortest."""
        plain = self.problem.operators[index]
        op = self.operators[plain.name]
        bound, roots = bind(op, self.graph.tensors), self.operands_of(index)
        candidates: list[OperatorSpec] = []
        for cut in spec(op.kind).cuts(bound):
            kernels = spec(op.kind).kernels(bound)
            of_cut = CutOperator(op.kind, bound, cut, kernels, roots)
            for units in _smaller_units(cut, of_cut.steps((), 1), plain.time_ns / longest_ns):
                by_kernel = of_cut.blocks((), units, self.block_bytes)
                if not by_kernel:
                    continue
                blocks = by_kernel[0]
                price = self._cost(op, bound, blocks, self.threads)
                candidates.append(_with_price(self._operator(plain, roots, blocks), *price))
                if candidates[-1].piece_ns <= longest_ns:
                    break
        cost = self.problem.objective.cost
        return min(
            candidates,
            key=lambda a: (max(a.piece_ns, longest_ns), cost(a.energy_pj, a.time_ns), a.workspace_bytes),
            default=None,
        )

    def is_little(self, index: int, streamed: frozenset[int]) -> bool:
        """Whether the alternatives have smaller blocks than others, since those would take longer than `longest_ns`."""
        self._blocks(index, streamed)
        return self._form_of[index, streamed] in self._little

    def _blocks(self, index: int, streamed: frozenset[int]) -> list[Blocks]:
        """Of each alternative."""
        if (index, streamed) not in self._form_of:
            self._form_of[index, streamed] = self._key(index, streamed)
        return self._forms[self._form_of[index, streamed]]

    def _key(self, index: int, streamed: frozenset[int]) -> int | None:
        """The key of its blocks in `_forms`, equal for equal operators; None where these cannot be streamed."""
        op = self.operators[self.problem.operators[index].name]
        bound, kind = bind(op, self.graph.tensors), spec(op.kind)
        roots = self.operands_of(index)
        numbers = frozenset(n for n, root in enumerate(roots) if self.tensors.get(root) in streamed)
        if len({roots[n] for n in numbers}) < len(streamed):
            return None
        replaced = {i: len(op.inputs) + o for i, o in kind.must_alias}
        if any((i in numbers) != (o in numbers) for i, o in replaced.items()):
            return None
        if replaced and any(n >= len(op.inputs) and n not in replaced.values() for n in numbers):
            return None
        streamed_pairs = ((self.tensors[roots[i]], self.tensors[roots[o]]) for i, o in replaced.items() if i in numbers)
        if any(pair not in self.replaceable for pair in streamed_pairs):
            return None
        alike = tuple(roots.index(root) for root in roots)
        fixed = frozenset(n for n in numbers if self.tensors[roots[n]] in self.summed)
        key = op.kind, tuple(sorted(op.attributes.items())), bound.inputs, bound.outputs, numbers, alike, fixed
        number = self._number(key)
        if number not in self._forms:
            forms = forms_of_operator(*key, self.block_bytes, False)
            finer = forms_of_operator(*key, self.block_bytes, False, finer=True)
            if self.problem.paging is Paging.DMA:  # last, so that the others keep their numbers
                forms += forms_of_operator(*key, self.block_bytes, True)
                finer += forms_of_operator(*key, self.block_bytes, True, finer=True)
            in_time = self._in_time(op, bound, forms)
            if forms and not in_time:
                forms, finer = (
                    forms_of_operator(*key, self.block_bytes, False, LITTLE_BYTES, finer=is_finer)
                    for is_finer in (False, True)
                )
                in_time = self._in_time(op, bound, forms)
                self._little.add(number)
            self._aligned[number] = len(in_time)
            self._forms[number] = in_time + self._in_time(op, bound, finer)
        return number

    def _in_time(self, op: Operator, bound: Bound, forms: Sequence[Blocks]) -> list[Blocks]:
        """Those of which no block takes too long on the main processor: of the same numbers in every way."""
        most_ns = self.longest_ns
        return [b for b in forms if most_ns is None or self._cost(op, bound, b, None)[2] <= most_ns]

    def tables_of(self, index: int) -> frozenset[int]:
        """The tensors of which an operator can read single rows from the store, together; none: it cannot."""
        op, roots = self.operators[self.problem.operators[index].name], self.operands_of(index)
        numbers = row_tables(self.graph, op)
        tables = frozenset(self.tensors.get(roots[n], -1) for n in numbers)
        read = {self.tensors.get(roots[n], -1) for n in numbers if n < len(op.inputs)}
        return tables if tables <= self.summed and all(map(self.is_state, read)) else frozenset()

    def _operator(self, plain: OperatorSpec, roots: Sequence[str], blocks: Blocks) -> OperatorSpec:
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
        if any(s.has_halo for s in blocks.streams):  # a block would read rows that the one before has replaced
            taken |= {p.output for p in plain.in_place if not p.required}
        return replace(
            plain,
            inputs=tuple(t for t in plain.inputs if t not in reads or not self.is_state(t)),
            in_place=tuple(p for p in plain.in_place if p.input not in taken and p.output not in taken),
            time_ns=0,
            energy_pj=0,
            workspace_bytes=align(blocks.workspace_bytes),
            low_workspace=(),
            elsewhere=(),  # blocks pass through the main processor, which has the store
            reads_store=reads,
            writes_store=writes,
            replaces=replaces,
            **_form(blocks)._asdict(),
        )

    def _cost(self, op: Operator, bound: Bound, blocks: Blocks, threads: Prices | None) -> tuple[Cost, int, int]:
        """The cost of kernels and transfers, the bytes of blocks that are written twice, and the longest block's time.

        All blocks have the same share of the transfers, but for rows of tables (`longest_rows_ns`).
        """
        time_ns = energy_pj = more_bytes = piece_ns = 0
        kernels_ns = list[int]()
        parts = [thirds(axis.extent, n) for axis, n in zip(blocks.cut.axes, blocks.units, strict=True)]
        for kernel, chosen in zip(blocks.kernels, itertools.product(*parts), strict=True):
            times = math.prod(n for _, n in chosen)
            kernels_ns.append(0)
            if times:
                block = spec(op.kind).block(bound, blocks.cut, [r for r, _ in chosen])
                cost = self._of_block(op, block, kernel, threads)
                time_ns, energy_pj = time_ns + times * cost.time_ns, energy_pj + times * cost.energy_pj
                piece_ns = max(piece_ns, cost.time_ns)
                kernels_ns[-1] = cost.time_ns
        shared_ns = -time_ns
        if blocks.overlaps:
            cost, more_bytes = self._overlapped(blocks, Cost(time_ns, energy_pj), kernels_ns, threads)
            return cost, more_bytes, min(cost.time_ns, piece_ns + cost.time_ns // math.prod(blocks.counts))
        for stream in blocks.streams:
            cost, more = self._transfer(stream, blocks)
            if threads is not None:
                cost = Cost(cost.time_ns, threads.transfer_pj(cost.time_ns, cost.energy_pj))
            time_ns, energy_pj, more_bytes = time_ns + cost.time_ns, energy_pj + cost.energy_pj, more_bytes + more
            shared_ns -= cost.time_ns if stream.is_table else 0
        piece_ns += -(-(time_ns + shared_ns) // math.prod(blocks.counts))
        tables = [s for s in blocks.streams if s.is_table]
        if self.store is not None and tables:
            piece_ns = longest_rows_ns(self.costs, self.store, tables, blocks.units[0], piece_ns, self.block_bytes)
        return Cost(time_ns, energy_pj), more_bytes, min(time_ns, piece_ns)

    def _overlapped(
        self, blocks: Blocks, kernels: Cost, kernels_ns: Sequence[int], threads: Prices | None
    ) -> tuple[Cost, int]:
        """Of all blocks where their transfers overlap their kernels, and the bytes that are written twice.

        Copies within RAM are the processor's, as kernels are. It waits for the rest of the time.
        """
        assert self.store is not None
        count, more_bytes, busy_ns, energy_pj = math.prod(blocks.counts), 0, kernels.time_ns, kernels.energy_pj
        sums = {"read": 0, "read_in_rows": 0, "read_once": 0, "written": 0, "written_once": 0, "finish": 0}
        copied_ns = 0
        for stream in blocks.streams:
            cost, more = self._transfer(stream, blocks, waits=False)
            energy_pj, more_bytes = energy_pj + cost.energy_pj, more_bytes + more
            if stream.in_ram:
                busy_ns, copied_ns = busy_ns + cost.time_ns, copied_ns + -(-cost.time_ns // count)
                continue
            trailer_ns = self.costs.stream(self.store, self.block_bytes, 0, 1, write=stream.writes).time_ns
            fills = fills_of(stream.axes, blocks.counts)
            often = "_once" if fills == 1 else "_in_rows" if fills < count else ""
            sums[("written" if stream.writes else "read") + often] += -(-(cost.time_ns - trailer_ns) // fills)
            sums["finish"] += trailer_ns
        parts = [thirds(axis.extent, n) for axis, n in zip(blocks.cut.axes, blocks.units, strict=True)]
        times = [[n for _, n in part] for part in parts]
        time_ns = pipelined_ns(*rows_of([n + copied_ns for n in kernels_ns], times), Transfers(**sums))
        waited_ns = max(0, time_ns - busy_ns)
        waiting_uw = self.costs.waiting_uw(self.store) + (0 if threads is None else threads.waiting_uw)
        return Cost(time_ns, energy_pj + -(-waited_ns * waiting_uw // 1000)), more_bytes

    def _of_block(self, op: Operator, block: Bound, kernel: Kernel, threads: Prices | None) -> Cost:
        names = (*op.inputs, *op.outputs)
        types = (*block.inputs, *block.outputs)
        tensors = {
            n: SimpleNamespace(type=t, shape=t.shape, dtype=t.dtype, size_bytes=t.size_bytes)
            for n, t in zip(names, types, strict=True)
        }
        of_block = replace(op, attributes=block.attributes)
        features = features_of(of_block, tensors, self.costs.machine, kernel=kernel)
        cost = self.costs.operator(features)
        if threads is None:
            return cost
        split = is_split(features.macs, max((t.size_bytes // 4 for t in types), default=0))
        return Cost(*threads.kernel(cost.time_ns, cost.energy_pj, split=split))

    def _transfer(self, stream: Stream, blocks: Blocks, *, waits: bool = True) -> tuple[Cost, int]:
        """Of one stream, for all blocks; and the bytes that it writes beyond the page's.

        `waits`: the processor waits for them, and draws power meanwhile.
        """
        if stream.in_ram:
            return self.costs.move(passing_bytes(stream, blocks)), 0
        assert self.store is not None
        size, more_bytes = self.block_bytes, 0
        extents = [axis.extent for axis in blocks.cut.axes]
        page = page_bytes(stream.size_bytes, size)
        if stream.is_table and stream.writes:
            return moved_rows(self.costs, self.store, stream, size)
        if stream.is_table:
            return read_rows(self.costs, self.store, stream, extents[0], size), 0
        axes = sorted(stream.axes)
        passes = blocks.counts[0] if axes == [1] and not stream.writes else 1
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
            samples = sample_rows(rows, size, stream.pitch)
            touched = sum(
                (first + k * stream.pitch + piece + size - 1) // size - (first + k * stream.pitch) // size
                for k in samples
            )
            moved += times * round(touched * rows / len(samples)) * size
            data, pieces = data + times * rows * piece, pieces + times * rows
        moved, data, pieces = moved * passes, data * passes, pieces * passes
        if not stream.has_edges(blocks.units, blocks.counts, size):
            moved, pieces = passes * page, pieces + passes * (1 + bool(stream.size_bytes % size))
        has_edges = stream.writes and stream.has_edges(blocks.units, blocks.counts, size)
        if has_edges:
            moved = self._written_bytes(stream, blocks)
            more_bytes = moved + size - page
        cost = self.costs.stream(self.store, moved + size, data, pieces + 1, write=stream.writes, waits=waits)
        if has_edges:
            # Edges are read.
            again = self.costs.stream(self.store, 2 * size * pieces, 0, 2 * pieces, write=False, waits=waits)
            cost = Cost(cost.time_ns + again.time_ns, cost.energy_pj + again.energy_pj)
        return cost, more_bytes

    def _written_bytes(self, stream: Stream, blocks: Blocks) -> int:
        """In whole blocks of the store, one for each piece at least, without the trailer's.

        All blocks between the first and the last one are alike along an axis, and begin at equal distances.
        """
        size, block_count = self.block_bytes, 0
        extents = [axis.extent for axis in blocks.cut.axes]
        axes = sorted(stream.axes)
        parts = [thirds(extents[a], blocks.units[a]) for a in axes]
        for chosen in itertools.product(*parts):
            if not all(times for _, times in chosen):
                continue
            ranges = [(0, n) for n in blocks.units]
            for a, (r, _) in zip(axes, chosen, strict=True):
                ranges[a] = r
            rows, piece, first = stream.pieces(ranges, extents)
            begins = np.array([first], np.int64)
            for a, ((begin, end), times) in zip(axes, chosen, strict=True):
                if times > 1:
                    after = list(ranges)
                    after[a] = begin + blocks.units[a], end + blocks.units[a]
                    distance = stream.pieces(after, extents)[2] - first
                    begins = (begins[:, None] + distance * np.arange(times)).ravel()
            for place, times in zip(*np.unique(begins % size, return_counts=True), strict=True):
                block_count += int(times) * touched_blocks(rows, piece, int(place), stream.pitch, size)
        return block_count * size


def _with_price(op: OperatorSpec, cost: Cost, rewritten_bytes: int, piece_ns: int) -> OperatorSpec:
    return replace(
        op, time_ns=cost.time_ns, energy_pj=cost.energy_pj, rewritten_bytes=rewritten_bytes, piece_ns=piece_ns
    )


def _smaller_units(cut: Cut, steps: Sequence[int], parts: float) -> Iterator[tuple[int, ...]]:
    """Units of blocks that become smaller and smaller, from `parts` blocks on: along the outer axis, then the inner."""
    extents = [axis.extent for axis in cut.axes]
    units = [max(s, -(-e // s) * s) for e, s in zip(extents, steps, strict=True)]
    count = max(2.0, math.ceil(parts))
    for axis, step in enumerate(steps):
        while units[axis] > step:
            n = max(step, math.ceil(extents[axis] / count) // step * step)
            count *= 1.5
            if n >= extents[axis] or n == units[axis]:
                if n == step:
                    break
                continue
            units[axis] = n
            if is_even(cut.axes[axis], n):
                yield tuple(min(u, e) for u, e in zip(units, extents, strict=True))
        count = 2.0


def streamed_problem(problem: Problem, streamed: dict[int, OperatorSpec]) -> Problem:
    """`problem` with streamed operators in place of some of its own, by their index.

    State that they read from the store, or write there, lives there between steps. Tensors that they write have no
    place in RAM.
    """
    operators = tuple(streamed.get(k, op) for k, op in enumerate(problem.operators))
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
