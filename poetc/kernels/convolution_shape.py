"""The shape of a convolution, with which the parameters of all its kernels begin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from poetc.kernels.kernel import Parameters


@dataclass(frozen=True, slots=True)
class Convolution(Parameters):
    """A convolution as its kernels see it: `convolution` of poetc_convolution.h.

    The image is Conv's x (ConvTranspose's y), the outputs are Conv's y (ConvTranspose's x). `bias_or_norm` is 1 with a
    bias. Of a gradient of weights it is 1 + the number of the activation that follows a batch norm of x, or 0.
    """

    batch: int
    channels: int
    height: int
    width: int
    outputs: int
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
    group: int
    bias_or_norm: int

    @property
    def pixels(self) -> int:
        """Pixels of one plane of the output."""
        return self.output_height * self.output_width

    @property
    def taps(self) -> int:
        return self.kernel_h * self.kernel_w

    @property
    def is_pointwise(self) -> bool:
        return self.taps == 1 == self.stride_h == self.stride_w and self.pixels == self.height * self.width

    @property
    def is_depthwise(self) -> bool:
        return self.group > 1 and self.channels == self.outputs == self.group


@dataclass(frozen=True, slots=True)
class ConvolutionParameters(Parameters):
    """Parameters of a convolution kernel without workspace. Those of kernels with workspace add fields."""

    convolution: Convolution

    def with_convolution(self, **changes: int) -> Self:
        """Return the same parameters for another shape."""
        return replace(self, convolution=replace(self.convolution, **changes))
