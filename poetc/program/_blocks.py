"""The blocks of a streamed operator as the runtime takes them: windows, steps of operands, pieces of pages."""

from __future__ import annotations

from collections.abc import Mapping

from poetc.devices.streaming import Blocks, blocks_of
from poetc.graph import Operator
from poetc.ops import Bound, spec
from poetc.scheduling import OperatorSpec, Problem


def blocks_in(
    op: Operator, bound: Bound, wanted: OperatorSpec, problem: Problem, roots: Mapping[str, str], store_block: int
) -> Blocks | None:
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


def block_steps(bound: Bound, blocks: Blocks) -> tuple[int, ...]:
    """The bytes by which each operand moves from one block to the next: 0 in a window, or where it is not cut."""
    streamed = {s.operand for s in blocks.streams}
    types = (*bound.inputs, *bound.outputs)
    return tuple(
        0 if part is None or number in streamed else blocks.units * part.inner * type.dtype.size_bytes
        for number, (type, part) in enumerate(zip(types, blocks.cut.parts, strict=True))
    )
