"""The blocks of a streamed operator as the runtime takes them: windows, steps of operands, pieces of pages."""

from __future__ import annotations

from collections.abc import Mapping

from poetc.devices.streaming import Blocks as Cuts
from poetc.devices.streaming import blocks_of
from poetc.graph import DType, Operator, TensorType
from poetc.ops import Bound, spec
from poetc.ops.kernels.blocks import begin_of
from poetc.program._ir import Blocks, Call, Operand, PageSource, Space, Stream
from poetc.scheduling import OperatorSpec, Problem


def blocks_in(
    op: Operator, bound: Bound, wanted: OperatorSpec, problem: Problem, roots: Mapping[str, str], store_block: int
) -> Cuts | None:
    """The blocks that `wanted` names; None where the operator has no such cut or no such kernel."""
    names = tuple(roots[t] for t in (*op.inputs, *op.outputs))
    streamed = {problem.tensors[t].name for t in (*wanted.reads_store, *wanted.writes_store)}
    numbers = frozenset(n for n, name in enumerate(names) if name in streamed)
    kind = spec(op.kind)
    cut = next((c for c in kind.cuts(bound) if c.name == wanted.cut), None)
    kernel = next((k for k in kind.kernels(bound) if k.name == wanted.kernel), None)
    if cut is None or kernel is None:
        return None
    return blocks_of(op, bound, cut, kernel, numbers, names, wanted.block, store_block)


def _steps(bound: Bound, blocks: Cuts) -> tuple[int, ...]:
    """The bytes by which each operand moves from one block to the next: 0 in a window, or where it is not cut."""
    streamed = {s.operand for s in blocks.streams}
    types = (*bound.inputs, *bound.outputs)
    return tuple(
        0 if part is None or number in streamed else blocks.units * part.inner * type.dtype.size_bytes
        for number, (type, part) in enumerate(zip(types, blocks.cut.parts, strict=True))
    )


def call_in_blocks(
    op: Operator,
    bound: Bound,
    blocks: Cuts,
    workspace: Operand,
    places: Mapping[int, Operand],
    pages: Mapping[str, int],
    sources: Mapping[str, PageSource],
) -> Call:
    """The call. `places`: of the operands that are not streamed. `pages`, `sources`: by tensor, of those that are."""
    begin = workspace.offset_bytes
    windows = {s.operand: begin + at for s, at in zip(blocks.streams, blocks.windows, strict=True)}
    tensors = {s.operand: s.tensor for s in blocks.streams}
    operands = [
        places[n] if n in places else Operand(Space.STORE, windows[n], type, tensors[n])
        for n, type in enumerate((*bound.inputs, *bound.outputs))
    ]
    streams = []
    for s in blocks.streams:
        sizes = s.unit_bytes * blocks.units, s.unit_bytes * (blocks.last if blocks.count > 1 else blocks.units)
        source = None if s.writes else sources[s.tensor]
        streams.append(Stream(s.operand, pages[s.tensor], source, s.rows, s.row_bytes, *sizes))
    own = blocks.kernel.workspace_bytes
    return Call(
        operator=op.name,
        kind=op.kind,
        attributes=op.attributes,
        inputs=tuple(operands[: len(op.inputs)]),
        outputs=tuple(operands[len(op.inputs) :]),
        symbol=blocks.kernel.symbol,
        ints=blocks.kernel.ints,
        floats=blocks.kernel.floats,
        workspace=workspace,
        node=op.source,
        blocks=Blocks(
            count=blocks.count,
            steps=_steps(bound, blocks),
            streams=tuple(streams),
            tail_ints=blocks.tail.ints,
            begin=begin_of(blocks.kernel),
            units=blocks.units,
            own=Operand(Space.ARENA, begin, TensorType((own,), DType.U8), "") if own else None,
            buffer=Operand(Space.ARENA, begin + blocks.buffer, TensorType((blocks.buffer_bytes,), DType.U8), ""),
        ),
    )
