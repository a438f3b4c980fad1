"""Convolution in two dimensions (a 1-D one has H = 1), its gradients and the transposed convolution.

The kinds are:

    Conv             y[n,o,·]  = b[o] + Σ_{c,i,j} w[o,c,i,j] · x[n, c, ·]
    ConvGradInput    gx        = the adjoint of Conv in x, applied to gy
    ConvGradWeight   gw        = the adjoint of Conv in w, applied to gy
    ConvTranspose    y         = ConvGradInput(x, w) + b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from poetc.graph import Attribute, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.convolution.selection import (
    conv_kernel,
    grad_input_kernel,
    grad_weight_kernel,
    makes_norm,
    with_norm,
)
from poetc.ops._bound import Bound, operand_bytes_of
from poetc.ops._builder import Builder
from poetc.ops._convolutions import (
    check_rank,
    check_weight,
    columns_of,
    convolve,
    convolve_back,
    geometry_of,
    group_of,
    image_shape,
    is_depthwise,
    output_shape,
    shape_of,
    weight_shape,
)
from poetc.ops._cuts import Cut, Part, Span, along, crossed, summing
from poetc.ops._registry import Gradients, OpSpec, Work, register, spec
from poetc.ops._windows import Windows


def _bias_gradient(b: Builder, gy: str, bias: str) -> str:
    return b.emit1("ReduceSum", [gy], {"axes": (0, 2, 3), "keepdims": False}, hint=f"{bias}.grad")


def _by_groups(op: Bound, x: TensorType, y: TensorType, parts: Sequence[Part]) -> Cut:
    """The cut of a convolution in groups by output channels, those of a group together."""
    return Cut("groups", y.shape[1], tuple(parts), step=y.shape[1] // group_of(op))


def _of_group(op: Bound, x: TensorType, y: TensorType) -> Part:
    """The channels of x that output channels need, of which blocks have whole groups."""
    channels, outputs = (t.shape[1] // group_of(op) for t in (x, y))
    span = None if channels == outputs else Span(x.shape[1], mul=channels, div=outputs, high=channels - outputs)
    return along(x, 1, span=span)


def _row_axis(x: TensorType, y: TensorType) -> int:
    """The spatial axis whose bands are streamed: the width where images, and results, have one row."""
    return 3 if x.shape[2] == y.shape[2] == 1 else 2


def _along_rows(windows: Windows, axis: int) -> tuple[int, int, int]:
    """The stride, the reach of a window beyond its first tap, and the padding before, along a spatial axis."""
    return windows.strides[axis - 2], windows.extent[axis - 2] - 1, windows.pads[axis - 2]


@register
class Conv(OpSpec):
    summary = "Convolution x[N,C,H,W], w[O,C/group,kh,kw], optional b[O]; strides, pads, dilations, group"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, w = op.inputs[:2]
        return (TensorType(output_shape(op, x, w, op.inputs[2] if len(op.inputs) > 2 else None), x.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, w = inputs[:2]
        y = convolve(Windows.of(op, w.shape[2:]), x, w, group_of(op))
        return (y + inputs[2].reshape(1, -1, 1, 1) if len(inputs) > 2 else y,)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy, x, w = grads[0], op.inputs[0], op.inputs[1]
        result: list[str | None] = [None] * len(op.inputs)
        if gy is None:
            return result
        geometry = geometry_of(op)
        if needed[0]:
            size = b.type(x).shape[2:]
            result[0] = b.emit1("ConvGradInput", [gy, w], {**geometry, "input_size": size}, hint=f"{x}.grad")
        if needed[1]:
            kernel = b.type(w).shape[2:]
            result[1] = b.emit1("ConvGradWeight", [x, gy], {**geometry, "kernel": kernel}, hint=f"{w}.grad")
        if len(op.inputs) > 2 and needed[2]:
            result[2] = _bias_gradient(b, gy, op.inputs[2])
        return result

    def work(self, op: Bound) -> Work:
        y = op.outputs[0].elements
        return Work(macs=y * (op.inputs[1].elements // op.inputs[1].shape[0]), flops=y if len(op.inputs) > 2 else 0)

    def kernel(self, op: Bound) -> Kernel:
        windows = Windows.of(op, op.inputs[1].shape[2:])
        shape = shape_of(windows, group_of(op), op.inputs[0], op.outputs[0], len(op.inputs) > 2)
        return conv_kernel(shape, operand_bytes_of(op))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By output channels, each of which has sums of its own, by rows of the output, and by terms of the sums."""
        x, w, *bias = op.inputs
        (y,) = op.outputs
        if is_depthwise(op, x, y):
            parts = (along(x, 1), along(w, 0), *(along(b, 0) for b in bias), along(y, 1))
            return (Cut("planes", w.shape[0], parts),)
        windows, axis = Windows.of(op, w.shape[2:]), _row_axis(x, y)
        stride, reach, before = _along_rows(windows, axis)
        span = Span(x.shape[axis], mul=stride, low=-before, high=max(reach, stride - 1) - before)
        rows = Cut(
            "output_rows", y.shape[axis], (along(x, axis, span=span), None, *(None for _ in bias), along(y, axis))
        )
        if group_of(op) != 1:
            of_y = along(y, 1)
            return crossed(
                op, _by_groups(op, x, y, (_of_group(op, x, y), along(w, 0), *(along(b, 0) for b in bias), of_y)), rows
            )
        outputs = Cut("outputs", w.shape[0], (None, along(w, 0), *(along(b, 0) for b in bias), along(y, 1)))
        terms = Cut("summed_channels", w.shape[1], (along(x, 1), along(w, 1), *(None for _ in bias), None))
        return (*crossed(op, outputs, rows), *summing(outputs, terms))


@register
class ConvGradInput(OpSpec):
    summary = "Gradient of Conv in x from (gy, w); the convolution's attributes and input_size (h, w)"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy, w = op.inputs
        return (TensorType(image_shape(op, gy, w), gy.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy, w = inputs
        h, width = op.get_ints("input_size")
        return (convolve_back(Windows.of(op, w.shape[2:]), gy, w, group_of(op), (h, width)),)

    def work(self, op: Bound) -> Work:
        gy, w = op.inputs
        return Work(macs=gy.elements * (w.elements // w.shape[0]))

    def kernel(self, op: Bound) -> Kernel:
        windows = Windows.of(op, op.inputs[1].shape[2:])
        shape = shape_of(windows, group_of(op), op.outputs[0], op.inputs[0], False)
        return grad_input_kernel(shape, operand_bytes_of(op))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return _cuts_of_image(op)


def _cuts_of_image(op: Bound) -> tuple[Cut, ...]:
    """By channels and rows of the image, of (gy, w, [bias]).

    By terms of a sum over output channels only where the kernel adds those up first.
    """
    gy, w, *bias = op.inputs
    (gx,) = op.outputs
    of_bias = tuple(along(b, 0) for b in bias)
    if is_depthwise(op, gx, gy):
        return (Cut("planes", w.shape[0], (along(gy, 1), along(w, 0), *of_bias, along(gx, 1))),)
    windows, axis = Windows.of(op, w.shape[2:]), _row_axis(gx, gy)
    stride, reach, before = _along_rows(windows, axis)
    has_rows = reach >= stride - 1 or before % stride == 0
    channels = Cut("channels", w.shape[1], (None, along(w, 1), *of_bias, along(gx, 1)))
    if group_of(op) != 1:
        of_gx = _of_group(op, gx, gy)
        of_bias = tuple(replace(part, span=of_gx.span) for part in of_bias)
        channels = _by_groups(op, gx, gy, (along(gy, 1), along(w, 0), *of_bias, of_gx))
    terms = Cut("summed_outputs", w.shape[0], (along(gy, 1), along(w, 0), None))
    sums = summing(channels, terms) if group_of(op) == 1 and not bias else ()
    if not has_rows:
        return (channels, *sums)
    span = Span(gy.shape[axis], div=stride, low=before - reach + stride - 1, high=before)
    parts = (along(gy, axis, span=span), None, *(None for _ in bias), along(gx, axis))
    return (*crossed(op, channels, Cut("image_rows", gx.shape[axis], parts, step=stride)), *sums)


NORM_ACTIVATIONS = ("", "Relu", "LeakyRelu", "Clip", "HardSwish")  # by their numbers in kernels/operators/poetc_norm.h


@register
class ConvGradWeight(OpSpec):
    """With a batch norm's tensors and attributes, x is the input of that batch norm.

    The convolution's input, f(batch norm of x), is made again while pixels are read, and need not be kept. The fusion
    pass makes such.
    """

    summary = (
        "Gradient of Conv in w from (x, gy); the convolution's attributes and kernel (h, w). From (x, gy, mean, var, "
        "scale, bias): of Conv(f(BatchNormApply(x, mean, var, scale, bias))); epsilon, activation f (a kind, or none)"
    )

    def _pixels(self, op: Bound) -> Bound:
        """The operator without the operators on x before it."""
        return replace(op, inputs=op.inputs[:2])

    def _norm(self, op: Bound) -> Bound | None:
        """The operators on x before it: a BatchNormActivate."""
        if len(op.inputs) == 2:
            return None
        return Bound(op.attributes, (op.inputs[0], *op.inputs[2:]), (op.inputs[0],))

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, gy = op.inputs[:2]
        weight = TensorType(weight_shape(op, x, gy), x.dtype)
        norm = self._norm(op)
        if norm is not None:
            if len(norm.inputs) != 5 or op.get_str("activation") not in NORM_ACTIVATIONS:
                raise ValueError(f"{self.kind} takes (x, gy) or (x, gy, mean, var, scale, bias) and an activation")
            spec("BatchNormActivate").infer(norm)
        return (weight,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, gy = inputs[:2]
        norm = self._norm(op)
        if norm is not None:
            (x,) = spec("BatchNormActivate").evaluate(norm, [x, *inputs[2:]])
        group, kernel = group_of(op), op.get_ints("kernel")
        n, outputs, oh, ow = gy.shape
        columns = columns_of(Windows.of(op, kernel), x, (oh, ow), group)
        rows = gy.reshape(n, group, outputs // group, oh * ow)
        gw = np.matmul(rows, np.swapaxes(columns, 2, 3)).sum(axis=0)
        return (gw.reshape(outputs, x.shape[1] // group, *kernel),)

    def work(self, op: Bound) -> Work:
        w, norm = op.outputs[0], self._norm(op)
        flops = 0 if norm is None else spec("BatchNormActivate").work(norm).flops
        return Work(macs=op.inputs[1].elements * (w.elements // w.shape[0]), flops=flops)

    def kernel(self, op: Bound) -> Kernel:
        kernel, norm = self._kernel(self._pixels(op)), self._norm(op)
        if norm is None:
            return kernel
        number = NORM_ACTIVATIONS.index(op.get_str("activation"))
        return with_norm(kernel, number, spec("BatchNormActivate").kernel(norm).floats)

    def has_kernel(self, op: Bound) -> bool:
        """Whether the kernel for its RAM makes the norm that it has. Without one it has any kernel."""
        return self._norm(op) is None or makes_norm(self._kernel(self._pixels(op)))

    def takes_norm(self, op: Bound, activation: str) -> bool:
        """Whether there is a kernel that makes x, `activation` of a batch norm, again while it reads it."""
        return activation in NORM_ACTIVATIONS and makes_norm(self._kernel(op))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By output channels, and by channels of the image."""
        x, gy, *norm = op.inputs
        (w,) = op.outputs
        if is_depthwise(op, x, gy):
            return (Cut("planes", w.shape[0], (along(x, 1), along(gy, 1), *(along(t, 0) for t in norm), along(w, 0))),)
        if group_of(op) != 1:
            of_x = _of_group(op, x, gy)
            of_norm = (replace(along(t, 0), span=of_x.span) for t in norm)
            return (_by_groups(op, x, gy, (of_x, along(gy, 1), *of_norm, along(w, 0))),)
        outputs = Cut("outputs", gy.shape[1], (None, along(gy, 1), *(None for _ in norm), along(w, 0)))
        channels = (along(x, 1), None, *(along(t, 0) for t in norm), along(w, 1))
        return crossed(op, outputs, Cut("channels", x.shape[1], channels))

    def _kernel(self, op: Bound) -> Kernel:
        windows = Windows.of(op, op.get_ints("kernel"))
        shape = shape_of(windows, group_of(op), op.inputs[0], op.inputs[1], False)
        return grad_weight_kernel(shape, operand_bytes_of(op))


@register
class ConvTranspose(OpSpec):
    summary = "Transposed convolution x[N,C,H,W], w[C,O/group,kh,kw], optional b[O]; as Conv, and output_padding"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, w = op.inputs[:2]
        check_rank(x)
        outputs = w.shape[1] * group_of(op)
        check_weight(outputs, x.shape[1], w, group_of(op))
        if len(op.inputs) > 2 and op.inputs[2].shape != (outputs,):
            raise ValueError(f"the bias has shape {op.inputs[2].shape}, not {(outputs,)}")
        return (TensorType((x.shape[0], outputs, *self._size(op)), x.dtype),)

    def _size(self, op: Bound) -> tuple[int, int]:
        x, w = op.inputs[:2]
        windows = Windows.of(op, w.shape[2:])
        padding = op.get_ints("output_padding") if "output_padding" in op.attributes else (0, 0)
        if len(padding) != 2 or min(padding) < 0:
            raise ValueError(f"output_padding must be two numbers, none negative, not {padding}")
        size = windows.transposed_size(x.shape[2:], padding)
        if min(size) < 1:
            raise ValueError(f"the pads {windows.pads} leave nothing of the output")
        return size

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, w = inputs[:2]
        y = convolve_back(Windows.of(op, w.shape[2:]), x, w, group_of(op), self._size(op))
        return (y + inputs[2].reshape(1, -1, 1, 1) if len(inputs) > 2 else y,)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy, x, w = grads[0], op.inputs[0], op.inputs[1]
        result: list[str | None] = [None] * len(op.inputs)
        if gy is None:
            return result
        reached, geometry = self._reached(b, op, gy) if needed[0] or needed[1] else (gy, {})
        if needed[0]:  # the adjoint of the adjoint is the convolution itself
            result[0] = b.emit1("Conv", [reached, w], geometry, hint=f"{x}.grad")
        if needed[1]:
            kernel = b.type(w).shape[2:]
            result[1] = b.emit1("ConvGradWeight", [reached, x], {**geometry, "kernel": kernel}, hint=f"{w}.grad")
        if len(op.inputs) > 2 and needed[2]:
            result[2] = _bias_gradient(b, gy, op.inputs[2])
        return result

    def _reached(self, b: Builder, op: Operator, gy: str) -> tuple[str, dict[str, Attribute]]:
        """gy and the convolution's attributes for which it has as many positions as x.

        That is gy itself, unless output_padding holds whole strides. Then the part behind the last tap's reach goes:
        first the trailing pad, then the end of gy, which holds nothing but the bias.
        """
        geometry = geometry_of(op)
        x, w, y = (b.type(t).shape for t in (*op.inputs[:2], op.outputs[0]))
        windows = Windows.of(Bound(op.attributes, ()), w[2:])
        if windows.output_size(y[2:]) == x[2:]:
            return gy, geometry
        needed = [windows.strides[i] * (x[2 + i] - 1) + windows.extent[i] - windows.pads[i] for i in (0, 1)]
        after = tuple(max(0, needed[i] - y[2 + i]) for i in (0, 1))
        sizes = (*y[:2], *(min(y[2 + i], needed[i]) for i in (0, 1)))
        part = b.emit1("Slice", [gy], {"starts": (0,) * 4, "sizes": sizes, "steps": (1,) * 4}, hint=f"{gy}.reached")
        return part, {**geometry, "pads": (*windows.pads[:2], *after)}

    def work(self, op: Bound) -> Work:
        x, w = op.inputs[:2]
        return Work(
            macs=x.elements * (w.elements // w.shape[0]), flops=op.outputs[0].elements if len(op.inputs) > 2 else 0
        )

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return _cuts_of_image(op)

    def kernel(self, op: Bound) -> Kernel:
        windows = Windows.of(op, op.inputs[1].shape[2:])
        shape = shape_of(windows, group_of(op), op.outputs[0], op.inputs[0], len(op.inputs) > 2)
        return grad_input_kernel(shape, operand_bytes_of(op))
