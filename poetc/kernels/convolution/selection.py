"""Choose the kernels of a convolution and its gradients, with their parameters.

The shape alone decides, so that all targets compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from poetc.kernels.convolution_shape import Convolution, ConvolutionParameters
from poetc.kernels.convolution_turned import selection as turned
from poetc.kernels.convolution_winograd import selection as winograd
from poetc.kernels.depthwise import selection as depthwise
from poetc.kernels.gemm.packing import (
    COLUMNS,
    LONG_STRIP,
    SHAPES,
    THREAD_FLOATS,
    WIDE_SHARE,
    choose,
    panel_columns,
    workspace_floats,
)
from poetc.kernels.kernel import Kernel

FEW_OUTPUTS = 4  # with fewer output channels of a group packing does not pay

# Of gradients of the input with so few pixels, that read weights where they are: channels at once.
STREAM_PIXELS, STREAM_CHANNELS = 24, 128

NORM_KERNELS = ("_winograd", "_packed", "poetc_op_depthwise_grad_weight")  # that make x again


@dataclass(frozen=True, slots=True)
class PackedConvolution(ConvolutionParameters):
    """A block of a sum has `terms` terms."""

    workspace_floats: int
    terms: int


@dataclass(frozen=True, slots=True)
class PackedGradInput(PackedConvolution):
    """Products are made for `block_channels` channels and `block_rows` rows of the output at a time.

    They stand in a buffer of `held_floats`, which is empty where the products are the result.
    """

    held_floats: int
    block_rows: int
    block_channels: int


@dataclass(frozen=True, slots=True)
class PackedGradWeight(PackedConvolution):
    """`strip_floats` of the workspace hold rows of an image with zeros around them; with 0 the kernel decides."""

    strip_floats: int


@dataclass(frozen=True, slots=True)
class PackedGradWeightSgd(PackedGradWeight):
    """`total_floats` is the workspace with the strip of sums that moves the weights."""

    total_floats: int


def conv_kernel(c: Convolution, operand_bytes: int) -> Kernel:
    """Choose the kernel of Conv."""
    plain = Kernel("poetc_op_conv", ConvolutionParameters(c))
    if c.is_depthwise:
        return depthwise.forward(plain, c)
    if c.outputs // c.group < FEW_OUTPUTS:
        return plain
    if plan := winograd.choose(c, "conv", operand_bytes):
        return _winograd(plain.symbol, plan)
    packing = choose(c.batch * c.pixels, c.channels // c.group * c.taps, operand_bytes)
    if packing is None:
        return plain
    parameters = PackedConvolution(c, packing.workspace_floats, packing.terms)
    return Kernel("poetc_op_conv_packed", parameters, (), packing.workspace_bytes)


def grad_input_kernel(c: Convolution, operand_bytes: int) -> Kernel:
    """Choose the kernel of ConvGradInput and ConvTranspose."""
    if plan := winograd.choose(c, "conv_grad_input", operand_bytes):
        return _winograd("poetc_op_conv_grad_input", plan)
    plain = Kernel("poetc_op_conv_grad_input", ConvolutionParameters(c))
    reach = ((c.kernel_h - 1) * c.dilation_h, (c.kernel_w - 1) * c.dilation_w)
    if c.is_depthwise and c.pad_top <= reach[0] and c.pad_left <= reach[1]:
        return depthwise.grad_input(plain, c)
    if c.outputs // c.group < FEW_OUTPUTS:
        return plain
    packed = _packed_grad_input(c, operand_bytes)
    return Kernel("poetc_op_conv_grad_input_packed", packed, (), 4 * packed.workspace_floats) if packed else plain


def _packed_grad_input(c: Convolution, operand_bytes: int) -> PackedGradInput | None:
    """Choose how many channels and rows of the output are made at a time; None if packing does not pay.

    Their products stand in a buffer of about 20 KB, unless the convolution is pointwise and they are the result.
    """
    channels, outputs, rows = c.channels // c.group, c.outputs // c.group, c.batch * c.output_height
    taps, width = c.taps, c.output_width
    plane = (c.height, c.width) == (c.output_height, c.output_width)
    if plane and (taps, c.stride_h, c.stride_w) == (1, 1, 1):
        packing = choose(rows * width, outputs, operand_bytes, pack_rows=True)
        if packing is None:
            return None
        return PackedGradInput(c, packing.workspace_floats, packing.terms, 0, rows, channels)
    terms = min(outputs, SHAPES[0][1])
    for columns in (256, 128):
        # beside large operands all that is packed of the gradient stays, for many columns that share packed weights
        block_rows = min(rows, max(1, columns // width))
        block = min(channels, max(1, 72 // taps))
        block -= block % 4 if block > 4 else 0
        held = block * taps * block_rows * width
        panels = -(-outputs // terms) * -(-block_rows * width // COLUMNS)
        floats = held + workspace_floats(panels * COLUMNS, terms, panels, True)
        streamed = 16 + 3 * rows * width * taps * min(channels, STREAM_CHANNELS)
        if streamed > floats and rows * width <= STREAM_PIXELS and 4 * streamed * WIDE_SHARE <= operand_bytes:
            floats = streamed
        if floats <= THREAD_FLOATS and 4 * floats * WIDE_SHARE <= operand_bytes:
            return PackedGradInput(c, floats, terms, held, block_rows, block)
    most = min(5120, operand_bytes // 16)
    block_rows = min(rows, -(-64 // width))
    if taps * block_rows * width > most:
        block_rows = min(rows, -(-32 // width))
    block = min(channels, max(1, most // (taps * block_rows * width)))
    block -= block % 4 if block > 4 else 0  # 4 channels of 3 x 3 taps are 3 register blocks
    held = block * taps * block_rows * width
    packing = choose(block_rows * width, outputs, operand_bytes, pack_rows=True, held=held)
    if packing is None:
        return None
    return PackedGradInput(c, packing.workspace_floats, packing.terms, held, block_rows, block)


def grad_weight_kernel(c: Convolution, operand_bytes: int) -> Kernel:
    """Choose the kernel of ConvGradWeight."""
    plain = Kernel("poetc_op_conv_grad_weight", ConvolutionParameters(c))
    if c.is_depthwise:
        return depthwise.grad_weight(plain, c)
    if c.outputs // c.group < FEW_OUTPUTS:
        return plain
    if plan := winograd.choose(c, "conv_grad_weight", operand_bytes):
        return _winograd(plain.symbol, plan)
    if chosen := turned.choose(c, operand_bytes):
        return Kernel("poetc_op_conv_grad_weight_turned", chosen, (), 4 * chosen.workspace_floats)
    columns = c.channels // c.group * c.taps
    packing = choose(columns, c.pixels, operand_bytes, sums=c.batch, strip=True)
    if packing is None:
        return plain
    parameters = PackedGradWeight(c, packing.workspace_floats, packing.terms, packing.strip_floats)
    return Kernel("poetc_op_conv_grad_weight_packed", parameters, (), packing.workspace_bytes)


def makes_norm(kernel: Kernel) -> bool:
    """Whether a kernel of a gradient of weights can make its x, a batch norm's result, while it reads pixels."""
    return kernel.symbol.endswith(NORM_KERNELS)


def with_norm(kernel: Kernel, number: int, floats: tuple[float, ...]) -> Kernel:
    """Return the kernel that makes x itself, from the input of the batch norm before it.

    `number` is the activation's (poetc_norm.h); `floats` are the constants of both.
    """
    parameters = kernel.parameters_as(ConvolutionParameters)
    workspace_bytes = kernel.workspace_bytes
    if isinstance(parameters, PackedGradWeight):
        c, strip = parameters.convolution, parameters.strip_floats
        more = max(strip, window_strip(c, parameters.terms))
        size = parameters.workspace_floats + more - strip + norm_table_floats(c.channels)
        parameters, workspace_bytes = replace(parameters, workspace_floats=size, strip_floats=more), 4 * size
    parameters = parameters.with_convolution(bias_or_norm=1 + number)
    return Kernel(kernel.symbol.replace("grad_weight", "grad_weight_norm"), parameters, floats, workspace_bytes)


def norm_table_floats(channels: int) -> int:
    """Return the floats of the table that the packing kernel makes of a batch norm, one row for each channel.

    A panel's columns more are there, and PROLOGUE_FLOATS of convolution_packed_grad_weight.c.
    """
    return 16 + 3 * (-(-channels // COLUMNS) * COLUMNS + COLUMNS)


def window_strip(c: Convolution, terms: int) -> int:
    """Return the floats of a strip of an image for the windows of a block of terms (poetc_windows.h).

    It covers as many channels as four taps reach. A pointwise convolution, whose rows are planes, has none.
    """
    if c.is_pointwise:
        return 0
    rows = min(c.output_height, (terms - 2) // c.output_width + 2)
    slots = min((c.taps + 2) // c.taps + 1, c.channels // c.group)
    height = (rows - 1) * c.stride_h + (c.kernel_h - 1) * c.dilation_h + 1
    floats = slots * height * ((c.output_width - 1) * c.stride_w + (c.kernel_w - 1) * c.dilation_w + 1)
    return -(-floats // 4) * 4 + 4  # Whole vectors: pointers come behind it.


def _winograd(symbol: str, plan: winograd.WinogradConvolution) -> Kernel:
    return Kernel(f"{symbol}_winograd", plan, (), 4 * plan.workspace_floats)


def descending(kernel: Kernel, fewer: Callable[[int, Callable[[int], int]], int]) -> Kernel:
    """Return the kernel that moves the weights by the gradient that `kernel` makes, which must have a workspace.

    `fewer` is that of `matmul.sgd_kernel`.
    """
    symbol, parameters = kernel.symbol.replace("grad_weight", "grad_weight_sgd"), kernel.parameters
    if not isinstance(parameters, PackedGradWeight):
        return replace(kernel, symbol=symbol)
    c, floats, terms, strip = (
        parameters.convolution,
        parameters.workspace_floats,
        parameters.terms,
        parameters.strip_floats,  # there is one where workspace is next to nothing beside the operands
    )
    blocks = c.batch if c.pixels <= terms else -(-c.pixels // terms)
    table = norm_table_floats(c.channels) if c.bias_or_norm else 0
    outputs = c.outputs // c.group
    columns = panel_columns(c.channels // c.group * c.taps, blocks, floats - strip - table, terms)
    if strip and blocks == 1:
        columns = min(columns, LONG_STRIP)
    if not strip:
        columns = fewer(columns, lambda count: floats + outputs * count)
    total = floats + outputs * columns
    return Kernel(symbol, PackedGradWeightSgd(c, floats, terms, strip, total), kernel.floats, 4 * total)
