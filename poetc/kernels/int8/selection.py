"""Parameters of the products in 8 bits: how many rows, columns and terms a kernel packs at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.kernel import Kernel, Parameters

SPARE = 4  # numbers behind a packed plane
UNIT = 16  # terms of a packed row are a multiple of it, the rest zeros
ROWS, COLUMNS, TERMS = 4, 4, 256  # at once: multiples of rows and columns of the inner loop, and terms of a long sum
PACKED_BYTES = 24 << 10  # of rows, and of columns, in the fastest kernel
WORTH = 8  # a kernel with less workspace saves at least this part of it


@dataclass(frozen=True, slots=True)
class IntegerProduct(Parameters):
    """A product of rows and columns, `groups` times over, whose sums are held whole or made twice.

    Conv has a row an output channel and a column a pixel. The gradient of its weights has a column an input channel
    and tap, and a term a pixel. The gradient of its input has the pixels of each place within a stride apart, and
    `terms` are the most of a pixel.
    """

    convolution: Convolution
    groups: int
    rows: int
    columns: int
    terms: int
    rows_at_once: int
    columns_at_once: int
    terms_at_once: int
    holds_sums: bool
    is_stochastic: bool
    adapts: bool

    @property
    def workspace_bytes(self) -> int:
        """Sums of 32 bits, of all columns or of those at once; packed rows and columns of 16 bits."""
        return 4 * sums_of(self) + 2 * self.terms_at_once * (self.rows_at_once + self.columns_at_once)

    @property
    def passes(self) -> int:
        """How often the products are made at most: again where their sums are not held.

        A history that clips too many values is found out by a first time.
        """
        return 1 if self.holds_sums else 3 if self.adapts else 2


@dataclass(frozen=True, slots=True)
class IntegerDepthwise(IntegerProduct):
    """A plane at a time: a row a channel, a column a pixel or a tap, and `terms_at_once` numbers of packed planes."""

    @property
    def workspace_bytes(self) -> int:
        return 4 * sums_of(self) + 2 * self.terms_at_once


@dataclass(frozen=True, slots=True)
class IntegerLongProduct(IntegerProduct):
    """One with more terms than a sum of 32 bits holds: parts of a sum have 32 bits, and its total has 64."""

    @property
    def workspace_bytes(self) -> int:
        packed = 2 * self.terms_at_once * (self.rows_at_once + self.columns_at_once)
        return 8 * sums_of(self) + 4 * self.rows * self.columns_at_once + packed


def long_kernels(symbol: str, p: IntegerProduct) -> tuple[Kernel, ...]:
    """Kernels of a product with long sums: those that hold their totals, and those that make them twice."""
    longer = IntegerLongProduct(*(getattr(p, field.name) for field in fields(p)))
    return tuple(worth_offering(Kernel(symbol, c, (), c.workspace_bytes) for c in _candidates(longer)))


def sums_of(p: IntegerProduct) -> int:
    """Sums in its workspace: all, or those of the columns at once."""
    return p.groups * p.rows * p.columns if p.holds_sums else p.rows * p.columns_at_once


def has_planes(shape: Convolution) -> bool:
    """Whether it can go plane by plane: depthwise, with taps side by side."""
    return shape.is_depthwise and shape.dilation_h == shape.dilation_w == 1


def plane_numbers(shape: Convolution, *, is_backward: bool = False) -> int:
    """Numbers of a packed plane and its taps: of the image, or `is_backward` of the errors that reach the image."""
    taps = shape.kernel_h * _up(shape.kernel_w, 2)
    if is_backward:
        return taps + (shape.height + shape.kernel_h - 1) * _up(shape.width + shape.kernel_w, 2) + SPARE
    return taps + _image_lines(shape) * _line(shape) + SPARE


def plane_pair_numbers(shape: Convolution) -> int:
    """Numbers of a packed plane of the image, and of one of errors with lines as long."""
    return (_image_lines(shape) + shape.output_height) * _line(shape, 4) + 2 * SPARE


def _image_lines(shape: Convolution) -> int:
    return (shape.output_height - 1) * shape.stride_h + shape.kernel_h


def _line(shape: Convolution, unit: int = 2) -> int:
    return _up((shape.output_width - 1) * shape.stride_w + shape.kernel_w + 1, unit)


def product_of(
    convolution: Convolution,
    sizes: tuple[int, int, int],
    line: int,
    *,
    is_stochastic: bool,
    adapts: bool,
    phases: int = 1,
) -> IntegerProduct:
    """The fastest kernel for (rows, columns, terms) of a group.

    A sum may be made of parts of its terms: of whole lines of so many, so that all rows are packed for a part. Columns
    are packed in so many `phases` at least.
    """
    rows, columns, terms = sizes
    parts = PACKED_BYTES // (2 * _up(rows, ROWS)) // line * line
    depth = _up(min(terms, TERMS if line == 1 else max(parts, line)), UNIT)
    return IntegerProduct(
        convolution=convolution,
        groups=convolution.group,
        rows=rows,
        columns=columns,
        terms=terms,
        rows_at_once=_at_once(rows, ROWS, depth),
        columns_at_once=_at_once(-(-columns // phases), COLUMNS, depth),
        terms_at_once=depth,
        holds_sums=True,
        is_stochastic=is_stochastic,
        adapts=adapts,
    )


def product_kernels(symbol: str, product: IntegerProduct, numbers: int, columns: int) -> tuple[Kernel, ...]:
    """The fastest kernel, and those with less and less workspace: fewer columns, sums made twice, fewer rows.

    A depthwise convolution goes plane by plane, with so many `numbers` of packed planes and `columns` of each.
    """
    kernels = [Kernel(symbol, p, (), p.workspace_bytes) for p in _candidates(product)]
    if has_planes(product.convolution):
        symbol = symbol.replace("conv", "depthwise")
        by_plane = [depthwise_of(product, numbers, columns, holds_sums) for holds_sums in (True, False)]
        kernels = [*(Kernel(symbol, p, (), p.workspace_bytes) for p in by_plane), kernels[-1]]
    return tuple(worth_offering(kernels))


def depthwise_of(p: IntegerProduct, numbers: int, columns: int, holds_sums: bool) -> IntegerDepthwise:
    """The product of a depthwise convolution, made plane by plane."""
    return IntegerDepthwise(
        p.convolution, p.groups, p.rows, p.columns, p.terms, 1, columns, numbers, holds_sums, p.is_stochastic, p.adapts
    )


def _candidates(p: IntegerProduct) -> Iterator[IntegerProduct]:
    narrow = replace(p, columns_at_once=COLUMNS)
    yield p
    yield narrow
    yield replace(p, holds_sums=False)
    yield replace(narrow, holds_sums=False)
    yield replace(narrow, rows_at_once=ROWS, holds_sums=False)


def worth_offering(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """Those kernels, the fastest first, that save enough workspace over the one before."""
    least, number = 0, 0
    for kernel in kernels:
        if number and WORTH * kernel.workspace_bytes > (WORTH - 1) * least:
            continue
        repeats = kernel.parameters_as(IntegerProduct).passes
        yield replace(kernel, alternative=number, repeats=repeats)
        least, number = kernel.workspace_bytes, number + 1


def _at_once(count: int, unit: int, depth: int) -> int:
    return max(unit, min(_up(count, unit), PACKED_BYTES // (2 * depth) // unit * unit))


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@dataclass(frozen=True, slots=True)
class LayerParameters(Parameters):
    """The integers of a quantised layer, in the order of int8_linear_sgd.c. Updates alone use the last three."""

    convolution: Convolution
    zero_x: int = 0
    is_stochastic: bool = False
    seed: int = 0
