"""Choose the kernel of a matrix product, and of the descent on one, with its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poetc.kernels.gemm.packing import (
    COLUMNS,
    PRODUCT_BYTES,
    PRODUCT_SHARE,
    SHAPES,
    THREAD_FLOATS,
    WIDE_SHARE,
    Packing,
    choose,
    workspace_floats,
)
from poetc.kernels.kernel import Kernel, Parameters

FEW = 8  # with so few rows of a (or terms, where a is transposed) packing b costs more than it saves
STRIP_ROWS = 48  # of a strip of sums that moves weights: runtime/kernels, sgd_of.c

Loop = tuple[int, ...]  # along a batch axis: its extent, then a step in elements for each operand


@dataclass(frozen=True, slots=True)
class Product(Parameters):
    """The kernel makes y = alpha · op(a) op(b) + bias. Loops of `batch` have steps in a and b; C reads how many."""

    rows: int
    columns: int
    depth: int
    trans_a: bool
    trans_b: bool
    has_bias: bool
    batch: tuple[Loop, ...]

    def ints(self) -> tuple[int, ...]:
        flags = (int(self.trans_a), int(self.trans_b), int(self.has_bias))
        return (self.rows, self.columns, self.depth, *flags, len(self.batch), *(n for loop in self.batch for n in loop))


@dataclass(frozen=True, slots=True)
class Strides(Parameters):
    """Where the operands a, b and y of a packed product lie, in elements.

    `*_start`: the place of the first element; the others: from one element to the next along that axis.
    """

    a_row: int
    a_term: int
    b_term: int
    b_column: int
    y_row: int
    a_start: int = 0
    b_start: int = 0


@dataclass(frozen=True, slots=True)
class PackedProduct(Parameters):
    """Loops of `batch` have steps in a, b and y; C reads their number first. A block of a sum has `terms` terms."""

    rows: int
    columns: int
    depth: int
    has_bias: bool
    strides: Strides
    batch: tuple[Loop, ...]
    workspace_floats: int
    terms: int

    @property
    def matrices(self) -> int:
        """Matrices of the batch."""
        return math.prod(loop[0] for loop in self.batch)

    def ints(self) -> tuple[int, ...]:
        sizes = (self.rows, self.columns, self.depth, int(self.has_bias))
        loops = (len(self.batch), *(n for loop in self.batch for n in loop))
        return (*sizes, *self.strides.ints(), *loops, self.workspace_floats, self.terms)


@dataclass(frozen=True, slots=True)
class SgdProduct(Parameters):
    """The kernel makes w -= lr · a' b, without packing."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, slots=True)
class PackedSgdProduct(SgdProduct):
    """The kernel packs blocks of `terms` terms, each of `block_floats` floats, for so many columns at once.

    Terms of a lie `a_step` floats apart: that is the number of rows, but for a block of them.
    """

    block_floats: int
    terms: int
    columns_at_once: int
    a_step: int

    @property
    def workspace_floats(self) -> int:
        return sgd_floats(self.depth, self.terms, self.columns_at_once)


def product_kernel(
    sizes: tuple[int, int, int],
    trans_a: bool,
    trans_b: bool,
    has_bias: bool,
    loops: Sequence[Loop],
    alpha: float,
    operand_bytes: int,
) -> Kernel:
    """Choose the kernel of MatMul. `sizes` are M, N, K; `loops` have extents and steps in a and b, in matrices."""
    m, n, k = sizes
    if len(loops) == 1 and loops[0][1:] == (1, 0) and not trans_a:
        m, loops = m * loops[0][0], []  # one b for all: the batch joins the rows
    steps = [(extent, a * m * k, b * n * k) for extent, a, b in loops]
    plain = Kernel("poetc_op_matmul", Product(m, n, k, trans_a, trans_b, has_bias, tuple(steps)), (alpha,))
    if (k if trans_a else m) <= FEW:
        return plain
    packing = choose(n, k, operand_bytes, pack_rows=trans_a, product=True)
    if packing is None:
        return plain
    rest = [math.prod(extent for extent, *_ in loops[i + 1 :]) for i in range(len(loops))]
    batch = tuple((*loop, inner * m * n) for loop, inner in zip(steps, rest, strict=True))
    a, b = (1, m) if trans_a else (k, 1), (1, k) if trans_b else (n, 1)
    return _packed((m, n, k), has_bias, Strides(*a, *b, n), batch, alpha, packing)


def views_kernel(
    sizes: tuple[int, int, int],
    has_bias: bool,
    strides: Strides,
    loops: Sequence[Loop],
    terms: int,
    alpha: float,
    operand_bytes: int,
) -> Kernel:
    """Choose the kernel of MatMulOfViews, packed in blocks of `terms` terms. `loops` have steps in a, b and y."""
    (m, n, k), packs_rows = sizes, strides.a_term != 1
    packing = choose(n, k, operand_bytes, pack_rows=packs_rows, product=True)
    if packing is None or packing.terms != terms:
        packing = Packing(workspace_floats(n, terms, SHAPES[0][0], packs_rows), terms)
    batch = [loop for loop in loops if loop[0] > 1]
    if batch and batch[-1][1:] == (m * strides.a_row, 0, m * strides.y_row):
        m *= batch.pop()[0]  # one b for all: the batch joins the rows
    return _packed((m, n, k), has_bias, strides, tuple(batch), alpha, packing)


def _packed(
    sizes: tuple[int, int, int],
    has_bias: bool,
    strides: Strides,
    batch: tuple[Loop, ...],
    alpha: float,
    packing: Packing,
) -> Kernel:
    parameters = PackedProduct(*sizes, has_bias, strides, batch, packing.workspace_floats, packing.terms)
    return Kernel("poetc_op_matmul_packed", parameters, (alpha,), packing.workspace_bytes)


def sgd_block_floats(terms: int, columns: int) -> int:
    """Return the floats of one block of terms of a descending product, with so many columns at once."""
    return workspace_floats(columns, terms, columns // COLUMNS, True)


def sgd_floats(depth: int, terms: int, columns: int) -> int:
    """Return the floats of the whole workspace of a descending product."""
    return -(-depth // terms) * sgd_block_floats(terms, columns) + STRIP_ROWS * columns


def sgd_kernel(
    sizes: tuple[int, int, int],
    terms: int | None,
    operand_bytes: int,
    fewer: Callable[[int, Callable[[int], int]], int],
) -> Kernel:
    """Choose the kernel of MatMulSgd, whose gradient is packed in blocks of `terms` terms; None if it is not packed.

    `fewer(columns, floats)` says how many of at most so many columns at once need no more RAM; `floats` gives the
    workspace of a number of columns.
    """
    m, n, k = sizes
    if terms is None:
        return Kernel("poetc_op_matmul_sgd", SgdProduct(m, n, k))
    share = PRODUCT_SHARE if operand_bytes >= PRODUCT_BYTES else WIDE_SHARE
    for panels in (16, 8, 4):  # only where that is next to nothing beside the operands
        columns = min(panels, -(-n // COLUMNS)) * COLUMNS
        total = sgd_floats(k, terms, columns)
        if total <= THREAD_FLOATS and 4 * total * share <= operand_bytes:
            break
    else:
        columns = min(SHAPES[0][0], -(-n // COLUMNS)) * COLUMNS
        columns = fewer(columns, lambda count: sgd_floats(k, terms, count))
    parameters = PackedSgdProduct(m, n, k, sgd_block_floats(terms, columns), terms, columns, m)
    return Kernel("poetc_op_matmul_sgd_packed", parameters, (), 4 * parameters.workspace_floats)
