"""What the kernels of convolution are bound with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.ops import Kernel


@dataclass(frozen=True, slots=True)
class Window:
    """The ints that all kernels of convolution begin with."""

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
    has_bias: int

    @property
    def pixels(self) -> int:
        return self.output_height * self.output_width

    @property
    def taps(self) -> int:
        return self.kernel_h * self.kernel_w

    @property
    def is_pointwise(self) -> bool:
        return self.taps == 1 == self.stride_h == self.stride_w and self.pixels == self.height * self.width


def window(kernel: Kernel) -> Window:
    return Window(*kernel.ints[:17])


def output_range(offset: Any, stride: int, size: int, outputs: int) -> tuple[Any, Any]:
    """[low, high): the outputs whose tap lies on the image."""
    low = np.maximum(0, -(np.asarray(offset) // stride))
    high = np.minimum(outputs, (size - 1 - np.asarray(offset)) // stride + 1)
    return low, np.maximum(low, high)


def share_inside(kernel: Kernel) -> float:
    """Of the products of a convolution or its gradients: those whose tap lies on the image."""
    w, share = window(kernel), 1.0
    for taps, dilation, pad, stride, size, outputs in (
        (w.kernel_h, w.dilation_h, w.pad_top, w.stride_h, w.height, w.output_height),
        (w.kernel_w, w.dilation_w, w.pad_left, w.stride_w, w.width, w.output_width),
    ):
        low, high = output_range(np.arange(taps) * dilation - pad, stride, size, outputs)
        share *= float((high - low).sum()) / max(1, taps * outputs)
    return share
