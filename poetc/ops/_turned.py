"""Which gradients of weights are made with lanes along the channels (runtime/kernels/convolution_turned.c), and with
how large a workspace.

Chosen by shape alone, so that all targets compute the same bits: where the tensors are larger than what a
microcontroller holds, and pixels of a window's tap lie apart.
"""

from __future__ import annotations

from poetc.ops._registry import Kernel

# As in the kernel: keep them in step.
TERMS, CHANNELS, OUTPUTS, SLACK = 64, 32, 12, 1100

LEAST_BYTES = 512 << 10  # of the operands: no microcontroller trains what is larger
SHARE = 8  # the workspace is at most this part of them


def floats_of(ints: tuple[int, ...]) -> tuple[int, int]:
    _, _, height, width, _, oh, ow, kh, kw = ints[:9]
    return CHANNELS * height * width + kh * kw * oh * ow, SLACK + 2 * OUTPUTS * kh * kw * CHANNELS


def images_at_once(size: int, ints: tuple[int, ...]) -> int:
    """How many images are turned at a time, with `size` floats."""
    batch, _, _, _, outputs, _, _, kh, kw = ints[:9]
    each, least = floats_of(ints)
    if least + batch * each <= size:
        return batch
    return max(0, size - least - outputs // ints[15] * kh * kw * CHANNELS) // each


def choose(lean: Kernel, other: Kernel, operand_bytes: int) -> Kernel:
    """A kernel in place of `other`, for the gradient of the weights of `lean`, or `other` itself."""
    batch, channels, _, _, outputs, oh, ow, kh, kw = lean.ints[:9]
    group, pixels = lean.ints[15], oh * ow
    if lean.ints[10] < 2 or channels // group % CHANNELS or outputs // group < OUTPUTS or operand_bytes < LEAST_BYTES:
        return other
    if pixels < TERMS or batch * pixels == TERMS or kh * kw == 1:  # of single taps most pixels would be turned in vain
        return other
    each, least = floats_of(lean.ints)
    for floats in (least + batch * each, least + outputs // group * kh * kw * CHANNELS + each):
        if 4 * floats * SHARE <= operand_bytes:
            return Kernel(f"{lean.symbol}_turned", (*lean.ints, floats), (), 4 * floats)
    return other
