"""Products with coded weights, and rows of coded tables: numbers are decoded where they are read, a tile at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from poetc.graph import DType, TensorType
from poetc.graph._coded import BF16, BITS, decode
from poetc.kernels import Kernel, Parameters
from poetc.kernels.gemm.coded import CodedProduct
from poetc.kernels.gemm.packing import Packing, choose, workspace_floats
from poetc.kernels.kernel import Block, Window
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, along, crossed, on_axis
from poetc.ops._indices import Indices, Use
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops.gather import by_indices, wrapped

_PANELS = (4, 2, 1)
_TERMS = 64
_WORTH = 8


@dataclass(frozen=True, slots=True)
class CodedRows(Parameters):
    """`count` rows of a table of `rows` rows are decoded."""

    rows: int
    columns: int
    bits: int
    block: int
    has_zeros: int  # 2: floats
    count: int

    def in_block(self, kernel: Kernel, axis: str, block: Block) -> Kernel | None:
        """The kernel for a block of the table's rows, or of the indices."""
        if axis == "indices":
            return replace(kernel, parameters=replace(self, count=block.units))
        codes = (self.bits, self.block, self.has_zeros, self.count)
        parameters = CodedWindow(self.rows, self.columns, block.units, 0, *codes)
        return replace(kernel, symbol=f"{kernel.symbol}_rows", parameters=parameters)


@dataclass(frozen=True, slots=True)
class CodedWindow(Window):
    """The same of the `here` rows from row `begin` on."""

    rows: int
    columns: int
    here: int
    begin: int
    bits: int
    block: int
    has_zeros: int
    count: int

    def beginning(self, unit: int) -> CodedWindow:
        return replace(self, begin=unit)


@dataclass(frozen=True, slots=True)
class Codes:
    """The attributes of a coded operand. Its tensors are codes, then scales and zero points where it has them.

    `has_zeros`: 1 where they have the bits of the codes, 2 where they are floats.
    """

    form: str
    rows: int
    depth: int
    block: int
    has_zeros: int

    @classmethod
    def of(cls, op: Bound) -> Codes:
        zeros = int(op.get_int("has_zeros"))
        return cls(op.get_str("form"), op.get_int("rows"), op.get_int("depth"), op.get_int("block"), zeros)

    @property
    def bits(self) -> int:
        """As C has them."""
        return 17 if self.form == BF16 else BITS[self.form]

    @property
    def operands(self) -> int:
        return 1 + (self.bits <= 8) + bool(self.has_zeros)

    def check(self, operands: Sequence[TensorType]) -> None:
        blocks = -(-self.depth // self.block) if self.block else 0
        wanted = [TensorType((self.rows, -(-self.depth * BITS[self.form] // 8)), DType.U8)]
        if self.bits <= 8:
            wanted.append(TensorType((self.rows, blocks)))
        if self.has_zeros == 2:
            wanted.append(TensorType((self.rows, blocks)))
        elif self.has_zeros:
            wanted.append(TensorType((self.rows, -(-blocks * self.bits // 8)), DType.U8))
        if list(operands) != wanted:
            raise ValueError(f"codes of {self.rows} x {self.depth} numbers are {wanted}, not {list(operands)}")

    def decoded(self, arrays: Sequence[Any], dtype: Any) -> Any:
        scales = arrays[1] if self.bits <= 8 else None
        zeros = arrays[2] if self.has_zeros else None
        return decode(self.form, self.block, self.depth, arrays[0], scales, zeros).astype(dtype)


def coded_product(codes: Codes, rows: int, turned: bool, has_bias: bool, packing: Packing) -> tuple[CodedProduct, int]:
    """The parameters and the floats of workspace of a product with `rows` rows."""
    columns, depth = (codes.rows, codes.depth) if turned else (codes.depth, codes.rows)
    floats = packing.workspace_floats
    tile = max(16, -(-(floats - 16) // 4) * 4)
    sizes = (rows, columns, depth, has_bias, turned, codes.bits, codes.block, codes.has_zeros)
    return CodedProduct(*sizes, tile, floats, packing.terms), tile + floats


def packings(op: Bound, rows: int) -> Iterator[Packing]:
    """How the decoded operand of a product may be packed: the fastest way first, then ways with smaller workspaces."""
    codes, turned = Codes.of(op), bool(op.get_int("trans_b"))
    columns, depth = (codes.rows, codes.depth) if turned else (codes.depth, codes.rows)
    operand_bytes = 4 * (rows * (columns + depth) + columns * depth)
    if "small_ram" in op.attributes:
        operand_bytes = min(operand_bytes, op.get_int("small_ram"))
    first = choose(columns, depth, operand_bytes, product=True)
    if first is None:
        first = Packing(workspace_floats(columns, min(depth, _TERMS), 1, False), min(depth, _TERMS))
    yield first
    least = first.workspace_floats
    for panels in _PANELS:
        floats = workspace_floats(columns, first.terms, panels, False)
        if _WORTH * floats <= (_WORTH - 1) * least:
            least = floats
            yield Packing(floats, first.terms)


@register
class MatMulCoded(OpSpec):
    summary = (
        "alpha · x op(w) + bias from (x, codes, [scales], [zeros], [bias]). Tiles of w are decoded; trans_b, alpha,"
        " form (int4, int8, f16, bf16), rows, depth, block, has_zeros"
    )
    cost_like = "MatMul"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        codes, x = Codes.of(op), op.inputs[0]
        first = 1 + codes.operands
        codes.check(op.inputs[1:first])
        depth, columns = (codes.depth, codes.rows) if op.get_int("trans_b") else (codes.rows, codes.depth)
        if not x.shape or x.shape[-1] != depth or x.dtype is not DType.F32:
            raise ValueError(f"MatMulCoded: {codes.rows} x {codes.depth} codes do not fit x {x}")
        if len(op.inputs) > first and op.inputs[first].shape != (columns,):
            raise ValueError(f"MatMulCoded: the bias has shape {op.inputs[first].shape}, not {(columns,)}")
        return (TensorType((*x.shape[:-1], columns), x.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        codes, x = Codes.of(op), inputs[0]
        w = codes.decoded(inputs[1:], x.dtype)
        y = x @ (w.T if op.get_int("trans_b") else w)
        alpha = op.get_float("alpha", 1.0)
        if alpha != 1.0:
            y = y * y.dtype.type(alpha)
        return (y + inputs[-1] if len(inputs) > 1 + codes.operands else y,)

    def work(self, op: Bound) -> Work:
        x, y = op.inputs[0], op.outputs[0]
        numbers = x.shape[-1] * y.shape[-1]
        return Work(macs=math.prod(x.shape[:-1]) * numbers, flops=2 * numbers)

    def kernel(self, op: Bound) -> Kernel:
        return self.kernels(op)[0]

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        codes, rows = Codes.of(op), math.prod(op.inputs[0].shape[:-1])
        turned, has_bias = bool(op.get_int("trans_b")), len(op.inputs) > 1 + codes.operands
        offered = []
        for k, packing in enumerate(packings(op, rows)):
            parameters, floats = coded_product(codes, rows, turned, has_bias, packing)
            offered.append(
                Kernel("poetc_op_matmul_coded", parameters, (op.get_float("alpha", 1.0),), 4 * floats, alternative=k)
            )
        return tuple(offered)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By rows of the result, and by its columns where they are rows of codes."""
        codes, (y,) = Codes.of(op), op.outputs
        rank = len(y.shape)
        of_rows = [(0, rank - 2), *(None for _ in op.inputs[1:]), (0, rank - 2)] if rank > 1 else []
        rows = on_axis(op, "rows", of_rows, binds=False) if of_rows else ()
        if not op.get_int("trans_b") or codes.rows < 2:
            return rows
        of_weight = (along(t, 0) for t in op.inputs[1:])  # and of the bias
        columns = Cut("columns", codes.rows, (None, *of_weight, along(y, rank - 1)))
        return crossed(op, columns, rows[0]) if rows else (columns,)


@register
class GatherCoded(OpSpec):
    summary = "(codes, [scales], [zeros], indices): decoded rows of a table; form, rows, depth, block, has_zeros"
    cost_like = "Gather"
    reads_rows = True

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        codes, indices = Codes.of(op), op.inputs[-1]
        codes.check(op.inputs[:-1])
        if indices.dtype is not DType.I32:
            raise ValueError(f"GatherCoded needs i32 indices, not {indices}")
        return (TensorType((*indices.shape, codes.depth)),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        codes = Codes.of(op)
        dtype = inputs[1].dtype if codes.bits <= 8 else "float32"
        return (codes.decoded(inputs[:-1], dtype)[wrapped(inputs[-1], codes.rows)],)

    def indices(self, use: Use) -> Indices | None:
        rows = use.integer("rows", 1)
        return Indices(use.inputs[-1], -rows, rows - 1)

    def work(self, op: Bound) -> Work:
        y, rows = op.outputs[0], op.inputs[0].shape[0]
        read = op.inputs[-1].elements * sum(t.size_bytes for t in op.inputs[:-1]) // rows
        return Work(flops=2 * y.elements, bytes_moved=y.size_bytes + read + op.inputs[-1].size_bytes)

    def kernel(self, op: Bound) -> Kernel:
        codes = Codes.of(op)
        sizes = (codes.rows, codes.depth, codes.bits, codes.block, codes.has_zeros, op.inputs[-1].elements)
        return Kernel("poetc_op_gather_coded", CodedRows(*sizes))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By rows of the table: a block fills the rows of y whose indices lie in it. By indices: as `Gather`."""
        rows, indices = Codes.of(op).rows, len(op.inputs) - 1
        by_table = Cut("table", rows, (*(along(t, 0) for t in op.inputs[:-1]), None, None), fills=True)
        return (by_table, *by_indices(op, tuple(range(indices)), indices))
