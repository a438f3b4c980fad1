"""Parameters of matmul_coded.c."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetc.kernels.kernel import Block, Kernel, Parameters


@dataclass(frozen=True, slots=True)
class CodedProduct(Parameters):
    """x [rows, depth] times the decoded matrix, which lies as [columns, depth] if it is `turned`."""

    rows: int
    columns: int
    depth: int
    has_bias: bool
    turned: bool
    bits: int  # 17: bfloat16
    block: int
    has_zeros: int  # 2: floats
    tile_floats: int
    panel_floats: int
    terms: int

    def in_block(self, kernel: Kernel, axis: str, block: Block) -> Kernel | None:
        """The kernel that computes a block of columns, or of rows, of the result."""
        own = replace(self, rows=block.units) if axis == "rows" else replace(self, columns=block.units)
        return replace(kernel, parameters=own)
