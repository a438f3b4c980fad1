"""The blocks of a streamed operator as the runtime takes them: windows, strides of operands, pieces of pages."""

from __future__ import annotations

from collections.abc import Mapping

from poetc.devices.blocks import Blocks as Cuts
from poetc.devices.blocks import CutOperator
from poetc.graph import DType, Operator, TensorType
from poetc.kernels.blocks import begin_of
from poetc.ops import Bound, spec, whole
from poetc.program._ir import Blocks, Call, Operand, Page, PageSource, Space, Stream
from poetc.runtime.layout import changed_bytes, page_bytes, sums_bytes
from poetc.scheduling import OperatorSpec, Problem


def blocks_in(
    op: Operator, bound: Bound, wanted: OperatorSpec, problem: Problem, roots: Mapping[str, str], store_block: int
) -> Cuts | None:
    """The blocks that `wanted` names; None where the operator has no such cut or no such kernel."""
    names = tuple(roots[t] for t in (*op.inputs, *op.outputs))
    streamed = {problem.tensors[t].name for t in (*wanted.reads_store, *wanted.writes_store)}
    numbers = frozenset(n for n, name in enumerate(names) if name in streamed)
    kind = spec(op.kind)
    cut = next((c for c in (*kind.cuts(bound), whole(bound)) if c.title == wanted.cut), None)
    kernel = next((k for k in kind.kernels(bound) if k.name == wanted.kernel), None)
    units = (wanted.block, wanted.inner_block) if wanted.inner_block else (wanted.block,)
    if cut is None or kernel is None or len(units) != len(cut.axes):
        return None
    of_cut = CutOperator(op.kind, bound, cut, [kernel], names)
    blocks = of_cut.blocks(numbers, units, store_block, overlaps=wanted.overlaps)
    return next(iter(blocks), None)


def sums_page(table: Page, rows: int, block_bytes: int) -> Page:
    """The page behind that of a table, for the checksums of its pieces; and the numbers of `rows` that a step moves."""
    size_bytes = sums_bytes(table.size_bytes) + (changed_bytes(rows) if rows else 0)
    count = page_bytes(size_bytes, block_bytes) // block_bytes
    first = table.first_block + table.block_count * table.slots
    return Page(first, count, size_bytes, table.tensor, table.slots, image=True, is_sums=True)


def _strides(bound: Bound, blocks: Cuts) -> tuple[tuple[int, ...], ...]:
    """The bytes by which each operand moves from one block to the next: 0 in a window, or where it is not cut."""
    windows = {s.operand for s in blocks.streams}
    types = (*bound.inputs, *bound.outputs)
    return tuple(
        tuple(
            0
            if part is None or number in windows or units >= axis.extent
            else units * part.inner * type.dtype.size_bytes
            for number, (type, part) in enumerate(zip(types, axis.parts, strict=True))
        )
        for axis, units in zip(blocks.cut.axes, blocks.units, strict=True)
    )


def call_in_blocks(
    op: Operator,
    bound: Bound,
    blocks: Cuts,
    workspace: Operand,
    places: Mapping[int, Operand],
    pages: Mapping[str, int],
    rewritten_bytes: int,
    sources: Mapping[str, PageSource],
) -> Call:
    """The call. `places`: of the operands in RAM. `pages`, `sources`: by tensor, of those on the store."""
    begin = workspace.offset_bytes
    types = (*bound.inputs, *bound.outputs)
    streams = []
    for s, at, second in zip(blocks.streams, blocks.windows, blocks.seconds, strict=True):
        window = Operand(Space.STORE, begin + at, types[s.operand], s.tensor)
        source = None if s.writes or s.in_ram else sources[s.tensor]
        streams.append(Stream(s.operand, None if s.in_ram else pages[s.tensor], source, window, s, second))
    stored = {s.operand: s.window for s in streams if s.page is not None}
    operands = [places[n] if n in places else stored[n] for n in range(len(types))]
    own = blocks.own_bytes
    return Call(
        operator=op.name,
        kind=op.kind,
        attributes=op.attributes,
        inputs=tuple(operands[: len(op.inputs)]),
        outputs=tuple(operands[len(op.inputs) :]),
        symbol=blocks.kernels[-1].symbol,
        ints=blocks.kernels[-1].ints,
        floats=blocks.kernels[-1].floats,
        workspace=workspace,
        node=op.source,
        blocks=Blocks(
            counts=blocks.counts,
            units=blocks.units,
            extents=tuple(axis.extent for axis in blocks.cut.axes),
            strides=_strides(bound, blocks),
            windows=tuple(streams),
            ints=tuple(k.ints for k in blocks.kernels),
            begin=begin_of(blocks.kernels[-1]),
            own=Operand(Space.ARENA, begin, TensorType((own,), DType.U8), "") if own else None,
            buffer=Operand(Space.ARENA, begin + blocks.buffer, TensorType((blocks.buffer_bytes,), DType.U8), ""),
            rewritten_bytes=rewritten_bytes,
        ),
    )
