"""How windows of a convolution lie on its image."""

from __future__ import annotations

from typing import Any

import numpy as np

from poetc.kernels.convolution_shape import Convolution, ConvolutionParameters
from poetc.kernels.kernel import Kernel


def window(kernel: Kernel) -> Convolution:
    """The shape that the kernel of a convolution is bound with."""
    return kernel.parameters_as(ConvolutionParameters).convolution


def output_range(offset: Any, stride: int, size: int, outputs: int) -> tuple[Any, Any]:
    """[low, high): the outputs whose tap lies on the image."""
    low = np.maximum(0, -(np.asarray(offset) // stride))
    high = np.minimum(outputs, (size - 1 - np.asarray(offset)) // stride + 1)
    return low, np.maximum(low, high)


def share_inside(kernel: Kernel) -> float:
    """The share of the products of a convolution or its gradients whose tap lies on the image."""
    w, share = window(kernel), 1.0
    for taps, dilation, pad, stride, size, outputs in (
        (w.kernel_h, w.dilation_h, w.pad_top, w.stride_h, w.height, w.output_height),
        (w.kernel_w, w.dilation_w, w.pad_left, w.stride_w, w.width, w.output_width),
    ):
        low, high = output_range(np.arange(taps) * dilation - pad, stride, size, outputs)
        share *= float((high - low).sum()) / max(1, taps * outputs)
    return share
