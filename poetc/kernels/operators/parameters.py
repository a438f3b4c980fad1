"""Parameters of the kernels that go over elements: element-wise ones, norms, pools, reductions, copies and gathers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetc.kernels.kernel import Block, Kernel, Parameters, Window

Ints = tuple[int, ...]
KEPT = "kept"  # the cut of a reduction


@dataclass(frozen=True, slots=True)
class Elements(Parameters):
    count: int


@dataclass(frozen=True, slots=True)
class Walk(Parameters):
    """A walk over tensors has sizes and, for each operand, as many strides in elements. C reads the rank first."""

    sizes: Ints
    strides: tuple[Ints, ...]

    @property
    def inner(self) -> int:
        """Elements along the last dimension."""
        return self.sizes[-1]

    @property
    def inner_stride(self) -> int:
        """The stride of the first operand, along the last dimension."""
        return self.strides[0][-1]

    def ints(self) -> Ints:
        return (len(self.sizes), *self.sizes, *(step for steps in self.strides for step in steps))


@dataclass(frozen=True, slots=True)
class Reduction(Parameters):
    """Two walks over x cross the dimensions that are kept, and those that are reduced."""

    kept: Walk
    reduced: Walk

    def in_block(self, kernel: Kernel, axis: str, block: Block) -> Kernel | None:
        """Of some of the outermost dimension that is kept: the sums keep their loops, and so their bits."""
        (extent, *sizes), ((step, *steps),) = self.kept.sizes, self.kept.strides
        if axis != KEPT or extent != block.extent:
            return None
        before = tuple(s * block.units // extent if s > step else s for s in self.reduced.strides[0])
        kept = Walk((block.units, *sizes), ((step, *steps),))
        parameters = Reduction(kept, Walk(self.reduced.sizes, (before,)))
        return replace(kernel, parameters=parameters)


@dataclass(frozen=True, slots=True)
class StridedCopy(Parameters):
    """The kernel fills y in row-major order, each element from x at `start` + index · strides."""

    start: int
    walk: Walk


@dataclass(frozen=True, slots=True)
class Scatter(Parameters):
    """The kernel fills `filled` elements of y, then puts x, in order, to `start` + index · strides."""

    filled: int
    start: int
    walk: Walk


@dataclass(frozen=True, slots=True)
class Pieces(Parameters):
    """Pieces of so many bytes lie one behind the other, `times` over. C reads their number first."""

    times: int
    sizes_bytes: Ints

    def ints(self) -> Ints:
        return (self.times, len(self.sizes_bytes), *self.sizes_bytes)


@dataclass(frozen=True, slots=True)
class PoolWindows(Parameters):
    """Windows slide over the planes of an image."""

    planes: int
    height: int
    width: int
    output_height: int
    output_width: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    pad_top: int
    pad_left: int
    dilation_h: int
    dilation_w: int


@dataclass(frozen=True, slots=True)
class Pool(Parameters):
    windows: PoolWindows


@dataclass(frozen=True, slots=True)
class MaxPool(Pool):
    is_wide: bool  # the place of a maximum takes 32 bits rather than 8


@dataclass(frozen=True, slots=True)
class AveragePool(Pool):
    """The image that counts reaches `counted` (top, left, bottom, right) beyond the real one."""

    counted: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Planes(Parameters):
    """A batch norm goes over these planes."""

    batch: int
    channels: int
    pixels: int


@dataclass(frozen=True, slots=True)
class SummedPlanes(Planes):
    has_other: bool  # another tensor is added to the normalised one


@dataclass(frozen=True, slots=True)
class Rows(Parameters):
    """A layer norm goes over these rows."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class BiasedRows(Rows):
    has_bias: bool


@dataclass(frozen=True, slots=True)
class Groups(Parameters):
    """A group norm goes over these groups, each of `channels` channels."""

    batch: int
    groups: int
    channels: int
    pixels: int


@dataclass(frozen=True, slots=True)
class Axis(Parameters):
    """An axis has so many elements before, along and after it."""

    before: int
    along: int
    after: int


@dataclass(frozen=True, slots=True)
class Resize(Parameters):
    """`places` say where rows and columns come from: the lower pixel, for linear then the higher."""

    images: int
    height: int
    width: int
    rows: int
    columns: int
    places: Ints


@dataclass(frozen=True, slots=True)
class Slices(Parameters):
    """`count` slices of `size` elements (bytes, for the gather itself) are read along an axis of `length`."""

    outer: int
    length: int
    size: int
    count: int


@dataclass(frozen=True, slots=True)
class TableRows(Window):
    """Rows `begin` to `begin + here` of a table are in a window; the runtime sets `begin` for each block."""

    length: int
    size: int
    count: int
    begin: int
    here: int

    def beginning(self, unit: int) -> TableRows:
        return replace(self, begin=unit)


@dataclass(frozen=True, slots=True)
class DescendingSlices(Parameters):
    """`count` slices of one table of `length` slices move."""

    length: int
    size: int
    count: int


@dataclass(frozen=True, slots=True)
class Cell(Parameters):
    """Sizes of one time step of an LSTM or GRU."""

    batch: int
    hidden: int


@dataclass(frozen=True, slots=True)
class LstmCell(Cell):
    has_before: bool  # a cell state from before


@dataclass(frozen=True, slots=True)
class LstmCellGrad(LstmCell):
    gradients: int  # of h that arrive
    cell_gradients: int


@dataclass(frozen=True, slots=True)
class GruCellGrad(Cell):
    gradients: int  # of h that arrive
