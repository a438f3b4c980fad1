"""The parts that convolutions of floats and of 8-bit integers share: shapes, and sums over windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from poetc.graph import Attribute, Operator, TensorType
from poetc.kernels.convolution_shape import Convolution
from poetc.ops._bound import Bound
from poetc.ops._windows import Windows


def group_of(op: Bound) -> int:
    """The number of groups of channels, 1 unless the operator says more."""
    return op.get_int("group", 1)


def is_depthwise(op: Bound, image: TensorType, output: TensorType) -> bool:
    """Whether each channel is convolved by itself, into one channel."""
    return group_of(op) > 1 and image.shape[1] == output.shape[1] == group_of(op)


def geometry_of(op: Operator) -> dict[str, Attribute]:
    """The attributes that a convolution hands to its gradients."""
    return {name: op.attributes[name] for name in ("strides", "pads", "dilations", "group") if name in op.attributes}


def check_weight(channels: int, outputs: int, weight: TensorType, group: int) -> None:
    """Raise ValueError unless the weight is [outputs, channels / group, kernel_h, kernel_w]."""
    if len(weight.shape) != 4:
        raise ValueError(f"the weight must have rank 4, not shape {weight.shape}")
    if group < 1 or channels % group or outputs % group:
        raise ValueError(f"{channels} input and {outputs} output channels do not divide into {group} groups")
    if weight.shape[:2] != (outputs, channels // group):
        expected = (outputs, channels // group)
        raise ValueError(
            f"the weight's shape {weight.shape} does not start with {expected}: {channels} channels, {group} groups"
        )


def check_rank(*types: TensorType) -> None:
    """Raise ValueError unless each is [N, C, H, W]."""
    for t in types:
        if len(t.shape) != 4:
            raise ValueError(f"a convolution works on [N, C, H, W], not on shape {t.shape}")


def shape_of(windows: Windows, group: int, image: TensorType, output: TensorType, has_bias: bool) -> Convolution:
    """As the kernels see it: a plain 1x1 convolution has an image of one long row."""
    (n, c, h, w), (_, o, oh, ow) = image.shape, output.shape
    if windows.kernel == (1, 1) and windows.strides == (1, 1) and not any(windows.pads):
        h, w, oh, ow = 1, h * w, 1, oh * ow
    (kh, kw), (sh, sw), (top, left, _, _), (dh, dw) = windows.kernel, windows.strides, windows.pads, windows.dilations
    return Convolution(n, c, h, w, o, oh, ow, kh, kw, sh, sw, top, left, dh, dw, group, int(has_bias))


def columns_of(windows: Windows, x: Any, output: tuple[int, int], group: int) -> Any:
    """x[N, C, H, W] → [N, group, C / group · taps, positions]."""
    view = windows.view(x, output)
    return view.reshape(x.shape[0], group, -1, output[0] * output[1])


def convolve(windows: Windows, x: Any, w: Any, group: int) -> Any:
    """The sums of products of Conv, without a bias."""
    output = windows.output_size(x.shape[2:])
    y = np.matmul(w.reshape(group, w.shape[0] // group, -1), columns_of(windows, x, output, group))
    return y.reshape(x.shape[0], w.shape[0], *output)


def convolve_back(windows: Windows, gy: Any, w: Any, group: int, size: tuple[int, int]) -> Any:
    """The adjoint of `convolve` in x, an image of `size`."""
    n, outputs, oh, ow = gy.shape
    taps = np.swapaxes(w.reshape(group, outputs // group, -1), 1, 2)
    columns = np.matmul(taps, gy.reshape(n, group, outputs // group, oh * ow))
    return windows.fold(columns.reshape(n, group * w.shape[1], *windows.kernel, oh, ow), size)


# --- shapes, with ValueError where operands do not fit ----------------------------------------------------------------


def output_shape(op: Bound, x: TensorType, w: TensorType, bias: TensorType | None) -> tuple[int, ...]:
    """The shape of a convolution's y."""
    check_rank(x)
    check_weight(x.shape[1], w.shape[0], w, group_of(op))
    if bias is not None and bias.shape != w.shape[:1]:
        raise ValueError(f"the bias has shape {bias.shape}, not {w.shape[:1]}")
    return (x.shape[0], w.shape[0], *Windows.of(op, w.shape[2:]).output_size(x.shape[2:]))


def image_shape(op: Bound, gy: TensorType, w: TensorType) -> tuple[int, ...]:
    """The shape of the gradient in x, whose size is the attribute `input_size`."""
    check_rank(gy)
    channels = w.shape[1] * group_of(op)
    check_weight(channels, gy.shape[1], w, group_of(op))
    h, width = op.get_ints("input_size")
    if Windows.of(op, w.shape[2:]).output_size((h, width)) != gy.shape[2:]:
        raise ValueError(f"gy of shape {gy.shape} does not belong to an input of size {(h, width)}")
    return (gy.shape[0], channels, h, width)


def weight_shape(op: Bound, x: TensorType, gy: TensorType) -> tuple[int, ...]:
    """The shape of the gradient in w, whose taps are the attribute `kernel`."""
    check_rank(x, gy)
    kernel, group = op.get_ints("kernel"), group_of(op)
    weight = TensorType((gy.shape[1], x.shape[1] // group, *kernel), x.dtype)
    check_weight(x.shape[1], gy.shape[1], weight, group)
    size = Windows.of(op, kernel).output_size(x.shape[2:])
    if gy.shape[:1] + gy.shape[2:] != (x.shape[0], *size):
        raise ValueError(f"gy of shape {gy.shape} does not belong to an input of shape {x.shape}")
    return weight.shape
