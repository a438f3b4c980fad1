"""Choose the depthwise convolutions that are made from strips with zeros around them (runtime/kernels/depthwise/)."""

from __future__ import annotations

from dataclasses import dataclass

from poetc.kernels.convolution_shape import Convolution, ConvolutionParameters
from poetc.kernels.kernel import Kernel

STRIP_FLOATS = 2048  # About the part of the workspace that the strip takes.


@dataclass(frozen=True, slots=True)
class Depthwise(ConvolutionParameters):
    """Rows of a strip have `phases` parts of `phase_floats`, in which columns a stride apart lie side by side.

    `block_rows` rows of the result are made of a strip.
    """

    phases: int
    phase_floats: int
    row_floats: int
    block_rows: int
    strip_floats: int


def forward(plain: Kernel, c: Convolution) -> Kernel:
    """The kernel that goes through strips of the image, where it suits the convolution; otherwise `plain`."""
    return _of_image(plain, c, False)


def grad_weight(plain: Kernel, c: Convolution) -> Kernel:
    """The same for the gradient of the weight. Its strips hold rows of the gradient of the output too."""
    return _of_image(plain, c, True)


def grad_input(plain: Kernel, c: Convolution) -> Kernel:
    """The same for the gradient of the input. Pads must be no larger than the window's reach."""
    reach = ((c.kernel_h - 1) * c.dilation_h, (c.kernel_w - 1) * c.dilation_w)
    left, image = reach[1] - c.pad_left, (c.output_width - 1) * c.stride_w + 1
    right = max(0, c.width + reach[1] - left - image)
    return _in_strips(plain, c, image, (left, right), (1, 1), (reach[0] + 1, reach[1]), (c.height, c.width), False)


def _of_image(plain: Kernel, c: Convolution, gradient: bool) -> Kernel:
    reach = (c.kernel_w - 1) * c.dilation_w
    if c.pad_left > reach:  # windows of nothing but padding: a strip ends with zeros for less
        return plain
    pads = (c.pad_left, max(0, (c.output_width - 1) * c.stride_w + reach + 1 - c.pad_left - c.width))
    over, size = ((c.kernel_h - 1) * c.dilation_h + 1, reach), (c.output_height, c.output_width)
    return _in_strips(plain, c, c.width, pads, (c.stride_h, c.stride_w), over, size, gradient)


def _in_strips(
    plain: Kernel,
    c: Convolution,
    image: int,
    pads: tuple[int, int],
    stride: tuple[int, int],
    reach: tuple[int, int],
    size: tuple[int, int],
    gradient: bool,
) -> Kernel:
    """Return the kernel that goes over strips of a plane, in place of `plain`.

    A row has `image` floats with zeros before and after. A window that reaches over `reach` (rows, columns) makes a
    result of `size`. Rows that follow each other share the zeros between them, unless columns a stride apart lie side
    by side. With `gradient`, rows of the result's size are held too.
    """
    if stride[1] == 1:
        row = phase = max(image + max(pads), size[1])
    else:
        phase = -(-(pads[0] + image + pads[1]) // stride[1]) + 4
        row = stride[1] * phase
    slack = (reach[1] + 15) // 4 * 4  # beyond the last row, for whole vectors
    held = 0
    if gradient:
        held = row if stride == (1, 1) else -(-size[1] // 4) * 4
    rows = max(1, min(size[0], (STRIP_FLOATS - reach[0] * row) // (stride[0] * row + held)))
    taken = ((rows - 1) * stride[0] + reach[0]) * row + slack
    workspace = taken + (-(-rows * held // 4) * 4)
    parameters = Depthwise(c, stride[1], phase, row, rows, taken)
    return Kernel(plain.symbol.replace("conv", "depthwise"), parameters, (), 4 * workspace)
