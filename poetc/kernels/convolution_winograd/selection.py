"""Choose the convolutions that are made by Winograd's minimal filters, and their workspace.

The kernel is runtime/kernels/convolution/convolution_winograd.c.
The shape alone decides, so that all targets compute the same bits. Tensors must be larger than a microcontroller's
memory, and 16 instead of 36 multiplications for four results must outweigh the transforms.
"""

from __future__ import annotations

from dataclasses import dataclass

from poetc.kernels.convolution_shape import Convolution, ConvolutionParameters

# As in the kernel: keep them in step.
STRIP_FLOATS = 8448
SCRATCH_FLOATS = STRIP_FLOATS + 3072
MOST_TILES = 62  # of a row at once
WIDTH, GAP, TERMS, KEEPS_FROM = 16, 16, 64, 24
PIECE = 128  # channels whose transformed weights, or sums of gradients, are there at once
MOST_SUMS = 256  # tiles whose products are added at once
FIXED = SCRATCH_FLOATS + 3 * 16 * GAP + 16
OUTPUTS = 32  # at a time: a register block's columns

LEAST_BYTES = 512 << 10  # of the operands: no microcontroller trains larger ones
SHARE = 1  # of the operands' bytes, at most, is workspace

# Costs of transforms in the time of a multiply-add (AVX-512). They are those of a tile's channel, in or out; of a
# weight, from memory or once more; and of its gradient. The last is that of a multiply-add of the direct kernels.
TILE, WEIGHT, AGAIN, SUM, DIRECT = 215, 400, 100, 280, 1.15


def round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


@dataclass(frozen=True, slots=True)
class WinogradConvolution(ConvolutionParameters):
    """`block` channels of the result are made at a time."""

    workspace_floats: int
    block: int


@dataclass(frozen=True, slots=True)
class Shape:
    """`depth` channels are read, `outputs` made, in `tiles`; of the gradient of the weights: both are read."""

    tiles: int
    depth: int
    outputs: int


def shape_of(c: Convolution, kind: str) -> Shape:
    """`kind` is conv, conv_grad_input or conv_grad_weight."""
    if kind == "conv_grad_input":
        return Shape(c.batch * ((c.height + 1) // 2) * ((c.width + 1) // 2), c.outputs, c.channels)
    return Shape(c.batch * ((c.output_height + 1) // 2) * ((c.output_width + 1) // 2), c.channels, c.outputs)


def plan_products(size: int, shape: Shape, block: int) -> tuple[int, bool]:
    """Tiles at a time, and whether the transformed weights are kept for further ones, with `size` floats."""
    depth = round_up(shape.depth, WIDTH)
    each, weights = 16 * (depth + block), 16 * (block * min(depth, PIECE) + GAP)
    size -= FIXED
    tiles, keeps = (size - weights) // each, False
    if tiles < shape.tiles:
        kept = -(-shape.outputs // block) * 16 * (block * depth + GAP)
        if size - kept >= KEEPS_FROM * each:
            tiles, keeps = (size - kept) // each, True
    if tiles >= 12:
        tiles -= tiles % 12
    return min(tiles, shape.tiles), keeps


def sum_columns(shape: Shape) -> int:
    """Channels at a time of the gradient of the weights."""
    return min(round_up(shape.depth, 2 * WIDTH), PIECE)


def plan_sums(size: int, shape: Shape, block: int, most: int = MOST_SUMS) -> int:
    """Tiles at a time of the gradient of the weights; At `most`, of the target."""
    columns = sum_columns(shape)
    fit = min((size - FIXED - 16 * (block * columns + GAP)) // (16 * (columns + block)), most)
    return shape.tiles if fit >= shape.tiles else fit // TERMS * TERMS


def product_floats(shape: Shape, block: int, tiles: int) -> int:
    """The floats of a workspace for so many tiles at a time, whose weights are transformed again for others."""
    depth = round_up(shape.depth, WIDTH)
    return FIXED + 16 * (block * min(depth, PIECE) + GAP) + tiles * 16 * (depth + block)


def _product_plans(shape: Shape) -> list[tuple[int, int, int]]:
    """Candidates for the workspace of a convolution: (cost, floats of workspace, outputs at once).

    The first ones transform the weights again for each part of the tiles; the last one keeps them transformed.
    """
    depth = round_up(shape.depth, WIDTH)
    each = 16 * (depth + OUTPUTS)
    of_tiles = shape.tiles * (16 * shape.depth * shape.outputs + TILE * (shape.depth + shape.outputs))
    of_weights, again = (n * shape.depth * shape.outputs for n in (WEIGHT, AGAIN))
    plans = []
    for parts in range(1, 9):  # weights are transformed again for each part of the tiles
        tiles = round_up(-(-shape.tiles // parts), 12) if parts > 1 else shape.tiles
        plans.append((of_tiles + of_weights + (parts - 1) * again, product_floats(shape, OUTPUTS, tiles), OUTPUTS))
    kept = -(-shape.outputs // OUTPUTS) * 16 * (OUTPUTS * depth + GAP)
    if shape.tiles > 48:
        plans.append((of_tiles + of_weights, FIXED + kept + 48 * each, OUTPUTS))
    return plans


def sum_plans(shape: Shape) -> list[tuple[int, int, int]]:
    """The same for the gradient of the weights."""
    columns, plans = sum_columns(shape), []
    pieces = -(-shape.depth // columns)
    of_weights = SUM * shape.depth * shape.outputs
    for block in (16, 32, 64, 128):
        for most in (64, 128, 256):
            tiles = min(shape.tiles, most)
            again = 1 if tiles == shape.tiles else -(-shape.outputs // block)
            in_tiles = 16 * shape.depth * shape.outputs + TILE * (again * shape.depth + pieces * shape.outputs)
            floats = FIXED + 16 * (block * columns + GAP) + 16 * tiles * (columns + block)
            if block - 16 < shape.outputs:
                plans.append((shape.tiles * in_tiles + of_weights, floats, block))
    return plans


def choose(c: Convolution, kind: str, operand_bytes: int) -> WinogradConvolution | None:
    """Choose the workspace for minimal filters; None if they do not pay or fit. `kind` is that of `shape_of`."""
    window = (c.kernel_h, c.kernel_w, c.stride_h, c.stride_w, c.dilation_h, c.dilation_w, c.group)
    if window != (3, 3, 1, 1, 1, 1, 1) or max(c.pad_top, c.pad_left) > 2 or operand_bytes < LEAST_BYTES:
        return None
    shape = shape_of(c, kind)
    plans = sum_plans(shape) if kind == "conv_grad_weight" else _product_plans(shape)
    allowed = [p for p in plans if 4 * p[1] <= SHARE * operand_bytes]
    direct = DIRECT * 9 * c.batch * c.pixels * c.channels * c.outputs
    if not allowed or min(allowed)[0] >= direct:
        return None
    best = min(allowed)[0]
    _, floats, block = min((p for p in allowed if p[0] <= 1.05 * best), key=lambda p: p[1])
    return WinogradConvolution(c, floats, block)
