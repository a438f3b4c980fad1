"""The kernel of a block of an operator: the C function of the whole one with the sizes of the block, or one for blocks.

Blocks of terms stay as they are, so a result has the same sum. The rules are those of low-workspace kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poetc.kernels.convolution.selection import (
    PackedConvolution,
    PackedGradInput,
    PackedGradWeight,
    PackedGradWeightSgd,
    norm_table_floats,
    window_strip,
)
from poetc.kernels.convolution_shape import ConvolutionParameters
from poetc.kernels.convolution_turned import selection as turned
from poetc.kernels.convolution_winograd import selection as winograd
from poetc.kernels.depthwise.selection import Depthwise
from poetc.kernels.gemm.packing import panel_columns
from poetc.kernels.gemm.selection import PackedProduct, PackedSgdProduct, Product, SgdProduct
from poetc.kernels.kernel import Block, Kernel, Parameters, Window
from poetc.kernels.operators.parameters import DescendingSlices, Elements, Groups, Rows, Slices, TableRows

Sized = tuple[Parameters, int]  # and floats of workspace


def block_kernel(kernel: Kernel, cut: str, block: Block) -> Kernel | None:
    """The kernel of a block along the axis `cut`; None where this kernel cannot be cut."""
    own = kernel.parameters.in_block(kernel, cut, block)
    if own is not None:
        return own
    banded = _BANDS.get((cut, type(kernel.parameters)))
    if banded is not None and kernel.repeats == 1:
        return replace(kernel, parameters=banded(kernel, block))
    rule = _RULES.get((cut, type(kernel.parameters)))
    if rule is None and cut == "elements" and isinstance(kernel.parameters, Elements):
        rule = _elements
    if rule is None or kernel.repeats != 1:
        return None
    parameters, floats = rule(kernel, block.units)
    symbol = f"{kernel.symbol}_rows" if isinstance(parameters, TableRows) else kernel.symbol
    return replace(kernel, symbol=symbol, parameters=parameters, workspace_bytes=4 * floats)


def begin_of(kernel: Kernel) -> int:
    """Which of the kernel's numbers is the first unit of the block; -1: none."""
    return kernel.parameters.BEGIN if isinstance(kernel.parameters, Window) else -1


def beginning(kernel: Kernel, unit: int) -> Kernel:
    """The kernel of the block that begins with that unit."""
    p = kernel.parameters
    return replace(kernel, parameters=p.beginning(unit)) if isinstance(p, Window) else kernel


def _elements(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(Elements), count=units), kernel.workspace_bytes // 4


def _outputs(kernel: Kernel, units: int) -> Sized:
    return kernel.parameters_as(ConvolutionParameters).with_convolution(outputs=units), kernel.workspace_bytes // 4


def _outputs_of_descent(kernel: Kernel, units: int) -> Sized:
    p = kernel.parameters_as(PackedGradWeightSgd).with_convolution(outputs=units)
    c = p.convolution
    blocks = c.batch if c.pixels <= p.terms else -(-c.pixels // p.terms)
    table = norm_table_floats(c.channels) if c.bias_or_norm else 0
    strip = p.strip_floats or (window_strip(c, p.terms) if c.bias_or_norm else 0)
    columns = panel_columns(c.channels * c.taps, blocks, p.workspace_floats - strip - table, p.terms)
    whole = kernel.parameters_as(PackedGradWeightSgd)
    held = whole.total_floats - whole.workspace_floats  # of the strip of sums, for all outputs
    columns = min(columns, held // whole.convolution.outputs) if held else columns
    total = p.workspace_floats + units * columns
    return replace(p, total_floats=total), total


def _channels(kernel: Kernel, units: int) -> Sized:
    return kernel.parameters_as(ConvolutionParameters).with_convolution(channels=units), kernel.workspace_bytes // 4


def _planes(kernel: Kernel, units: int) -> Sized:
    p = kernel.parameters_as(ConvolutionParameters)
    return p.with_convolution(channels=units, outputs=units, group=units), kernel.workspace_bytes // 4


def _whole_groups(kernel: Kernel, units: int) -> Sized:
    """Of a convolution in groups, by output channels."""
    p = kernel.parameters_as(ConvolutionParameters)
    c = p.convolution
    channels, group = (units * n // c.outputs for n in (c.channels, c.group))
    return p.with_convolution(channels=channels, outputs=units, group=group), kernel.workspace_bytes // 4


def _output_rows(kernel: Kernel, block: Block) -> Parameters:
    """Of Conv. The kernel of a plain pointwise convolution has an image of one long row."""
    p = kernel.parameters_as(ConvolutionParameters)
    c = p.convolution
    if c.output_height == 1 and c.output_width == block.extent:
        left = block.first - (block.begin * c.stride_w - c.pad_left)
        return p.with_convolution(width=block.rows, output_width=block.units, pad_left=left)
    if c.output_height != block.extent:
        pixels = block.units * (c.output_width // block.extent)
        return p.with_convolution(width=pixels, output_width=pixels)
    top = block.first - (block.begin * c.stride_h - c.pad_top)
    return p.with_convolution(height=block.rows, output_height=block.units, pad_top=top)


def _image_rows(kernel: Kernel, block: Block) -> Parameters:
    """Of ConvGradInput."""
    p = kernel.parameters_as(ConvolutionParameters)
    c = p.convolution
    if c.height == 1 and c.width == block.extent:
        left = c.pad_left + block.begin - block.first * c.stride_w
        return p.with_convolution(width=block.units, output_width=block.rows, pad_left=left)
    if c.height != block.extent:
        pixels = block.units * (c.width // block.extent)
        return p.with_convolution(width=pixels, output_width=pixels)
    top = c.pad_top + block.begin - block.first * c.stride_h
    return p.with_convolution(height=block.units, output_height=block.rows, pad_top=top)


def _summed_channels(kernel: Kernel, block: Block) -> Parameters:
    """Of Conv. Blocks behind the first one go on with the sums: GOES_ON of convolution.c."""
    p = kernel.parameters_as(ConvolutionParameters)
    return p.with_convolution(channels=block.units, bias_or_norm=p.convolution.bias_or_norm | _goes_on(block))


def _summed_outputs(kernel: Kernel, block: Block) -> Parameters:
    """Of ConvGradInput."""
    return kernel.parameters_as(ConvolutionParameters).with_convolution(
        outputs=block.units, bias_or_norm=_goes_on(block)
    )


def _goes_on(block: Block) -> int:
    return 2 if block.begin else 0


def _packed_channels(kernel: Kernel, units: int) -> Sized:
    p = kernel.parameters_as(PackedGradInput).with_convolution(channels=units)
    return replace(p, block_channels=min(p.block_channels, units)), kernel.workspace_bytes // 4


def _columns(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(Product), columns=units), kernel.workspace_bytes // 4


def _packed_columns(kernel: Kernel, units: int) -> Sized:
    p = kernel.parameters_as(PackedProduct)
    b_term = 1 if p.strides.b_term == 1 else units  # not by b_column: of one term both steps are 1
    batch = tuple((extent, a, b, y * units // p.columns) for extent, a, b, y in p.batch)
    strides = replace(p.strides, b_term=b_term, y_row=units)
    return replace(p, columns=units, strides=strides, batch=batch), kernel.workspace_bytes // 4


def _indices(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(Slices), count=units), kernel.workspace_bytes // 4


def _rows(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(SgdProduct), rows=units), kernel.workspace_bytes // 4


def _moved_rows(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(PackedSgdProduct), rows=units, a_step=units), kernel.workspace_bytes // 4


def _moved_columns(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(SgdProduct), columns=units), kernel.workspace_bytes // 4


def _product_rows(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(Product), rows=units), kernel.workspace_bytes // 4


def _matrices(kernel: Kernel, block: Block) -> Parameters:
    """Of products of a batch: the outermost loop is shorter, or the rows that the batch has joined are fewer."""
    p = kernel.parameters
    assert isinstance(p, Product | PackedProduct)
    if not p.batch:
        return replace(p, rows=p.rows * block.units // block.extent)
    (extent, *steps), *inner = p.batch
    return replace(p, batch=((extent * block.units // block.extent, *steps), *inner))


def _packed_rows(kernel: Kernel, units: int) -> Sized:
    p = kernel.parameters_as(PackedProduct)
    a_term = 1 if p.strides.a_term == 1 else units  # not by a_row: of one term both steps are 1
    return replace(p, rows=units, strides=replace(p.strides, a_term=a_term)), kernel.workspace_bytes // 4


def _groups(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(Groups), groups=units), kernel.workspace_bytes // 4


def _norm_columns(kernel: Kernel, units: int) -> Sized:
    return replace(kernel.parameters_as(Rows), length=units), kernel.workspace_bytes // 4


def _table(kernel: Kernel, units: int) -> Sized:
    p = kernel.parameters
    assert isinstance(p, Slices | DescendingSlices)
    return TableRows(p.length, p.size, p.count, 0, units), kernel.workspace_bytes // 4


def _named_rows(kernel: Kernel, units: int) -> Sized:
    """The table is then one of the rows that indices name, and they say which of these rows each of them names."""
    p = kernel.parameters_as(DescendingSlices)
    return TableRows(p.count, p.size, p.count, 0, units), kernel.workspace_bytes // 4


_BANDS: dict[tuple[str, type[Parameters]], Callable[[Kernel, Block], Parameters]] = {
    ("output_rows", ConvolutionParameters): _output_rows,
    ("output_rows", PackedConvolution): _output_rows,
    ("image_rows", ConvolutionParameters): _image_rows,
    ("image_rows", PackedGradInput): _image_rows,
    ("summed_channels", ConvolutionParameters): _summed_channels,
    ("summed_outputs", ConvolutionParameters): _summed_outputs,
    ("matrices", Product): _matrices,
    ("matrices", PackedProduct): _matrices,
}

_RULES: dict[tuple[str, type[Parameters]], Callable[[Kernel, int], Sized]] = {
    ("outputs", ConvolutionParameters): _outputs,
    ("outputs", PackedConvolution): _outputs,
    ("outputs", PackedGradWeight): _outputs,
    ("outputs", PackedGradWeightSgd): _outputs_of_descent,
    ("outputs", turned.TurnedGradWeight): _outputs,
    ("outputs", winograd.WinogradConvolution): _outputs,
    ("planes", ConvolutionParameters): _planes,
    ("planes", Depthwise): _planes,
    ("groups", ConvolutionParameters): _whole_groups,
    ("groups", PackedConvolution): _whole_groups,
    ("groups", PackedGradInput): _whole_groups,
    ("groups", PackedGradWeight): _whole_groups,
    ("channels", ConvolutionParameters): _channels,
    ("channels", PackedGradWeight): _channels,
    ("channels", PackedGradWeightSgd): _channels,
    ("channels", PackedGradInput): _packed_channels,
    ("channels", winograd.WinogradConvolution): _channels,
    ("columns", Product): _columns,
    ("columns", PackedProduct): _packed_columns,
    ("rows", Product): _product_rows,
    ("rows", PackedProduct): _packed_rows,
    ("rows", SgdProduct): _rows,
    ("rows", PackedSgdProduct): _moved_rows,
    ("columns", SgdProduct): _moved_columns,
    ("columns", PackedSgdProduct): _moved_columns,
    ("columns", Rows): _norm_columns,
    ("groups", Groups): _groups,
    ("table", Slices): _table,
    ("indices", Slices): _indices,
    ("table", DescendingSlices): _table,
    ("indices", DescendingSlices): _named_rows,
}
