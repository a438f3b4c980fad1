"""Choose the gradients of weights that are made with lanes along the channels, and their workspace.

The kernel is runtime/kernels/convolution/convolution_turned.c.
The shape alone decides, so that all targets compute the same bits. Tensors must be larger than a microcontroller's
memory, and pixels of a window's tap lie apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from poetc.kernels.convolution_shape import Convolution, ConvolutionParameters

# As in the kernel: keep them in step.
TERMS, CHANNELS, OUTPUTS, SLACK = 64, 32, 12, 1100

LEAST_BYTES = 512 << 10  # of the operands: no microcontroller trains larger ones
SHARE = 8  # the workspace is at most this part of them


@dataclass(frozen=True, slots=True)
class TurnedGradWeight(ConvolutionParameters):
    workspace_floats: int


def floats_of(c: Convolution) -> tuple[int, int]:
    """Return the floats of an image, and those that are needed besides images and sums."""
    return CHANNELS * c.height * c.width + c.taps * c.pixels, SLACK + 2 * OUTPUTS * c.taps * CHANNELS


def sum_floats(c: Convolution) -> int:
    """Return the floats of the sums, where the images do not fit all at once."""
    return c.outputs // c.group * c.taps * CHANNELS


def images_at_once(size: int, c: Convolution) -> int:
    """Return how many images are turned at a time, with `size` floats."""
    each, least = floats_of(c)
    if least + c.batch * each <= size:
        return c.batch
    return max(0, size - least - sum_floats(c)) // each


def choose(c: Convolution, operand_bytes: int) -> TurnedGradWeight | None:
    """Choose the workspace for lanes along channels; None if they do not pay or fit."""
    channels, outputs = c.channels // c.group, c.outputs // c.group
    if c.stride_w < 2 or channels % CHANNELS or outputs < OUTPUTS or operand_bytes < LEAST_BYTES:
        return None
    # With single taps, most pixels would be turned in vain.
    if c.pixels < TERMS or c.batch * c.pixels == TERMS or c.taps == 1:
        return None
    each, least = floats_of(c)
    for floats in (least + c.batch * each, least + sum_floats(c) + each):
        if 4 * floats * SHARE <= operand_bytes:
            return TurnedGradWeight(c, floats)
    return None
