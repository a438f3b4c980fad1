"""Max and average pooling over [N, C, H, W]. Max pooling keeps, per output, the tap that was largest (a byte)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import Operator, TensorType
from poetc.kernels import Kernel
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, on_axis
from poetc.ops._pools import (
    at_maxima,
    average_parameters,
    divisors_of,
    grad_attributes,
    input_shape,
    max_parameters,
    maximum,
    maximum_types,
    output_shape,
    windows_of,
)
from poetc.ops._registry import OpSpec, Work, register


class _OfPlanes(OpSpec):
    """Windows slide over planes of [N, C, H, W]."""

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By channels."""
        return on_axis(op, "channels", [1] * (len(op.inputs) + len(op.outputs)))


@register
class MaxPool(_OfPlanes):
    summary = "Maximum over windows → y, where (tap of the maximum); kernel, strides, pads, dilations, ceil_mode"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        return maximum_types(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return maximum(op, inputs[0], -np.inf)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        inputs = [op.outputs[1], gy]
        return b.emit1("MaxPoolGrad", inputs, grad_attributes(b, op), hint=f"{op.inputs[0]}.grad")

    def work(self, op: Bound) -> Work:
        return Work(flops=op.outputs[0].elements * windows_of(op).taps)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_max_pool", max_parameters(op, op.inputs[0], *op.outputs))


@register
class MaxPoolGrad(_OfPlanes):
    summary = "Gradient of MaxPool from (where, gy); its attributes and input_size (h, w)"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        where, gy = op.inputs
        if where.shape != gy.shape:
            raise ValueError(f"where has shape {where.shape}, gy {gy.shape}")
        return (TensorType(input_shape(op, gy), gy.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (at_maxima(op, *inputs),)

    def work(self, op: Bound) -> Work:
        return Work(flops=op.inputs[1].elements + op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        where, gy = op.inputs
        return Kernel("poetc_op_max_pool_grad", max_parameters(op, op.outputs[0], gy, where))


@register
class AveragePool(_OfPlanes):
    summary = "Mean over windows; kernel, strides, pads, dilations, ceil_mode, count_include_pad"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        return (TensorType(output_shape(op), op.inputs[0].dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x = inputs[0]
        *_, oh, ow = output_shape(op)
        total = windows_of(op).view(x, (oh, ow)).sum(axis=(2, 3))
        return (total / divisors_of(op, x.shape[2:], (oh, ow), x.dtype),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1("AveragePoolGrad", [gy], grad_attributes(b, op), hint=f"{op.inputs[0]}.grad")

    def work(self, op: Bound) -> Work:
        return Work(flops=op.outputs[0].elements * (windows_of(op).taps + 1))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_average_pool", average_parameters(op, op.inputs[0], op.outputs[0]))


@register
class AveragePoolGrad(_OfPlanes):
    summary = "Gradient of AveragePool from gy; its attributes and input_size (h, w)"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy = op.inputs[0]
        return (TensorType(input_shape(op, gy), gy.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy, windows, size = inputs[0], windows_of(op), op.get_ints("input_size")
        share = gy / divisors_of(op, size, gy.shape[2:], gy.dtype)
        shape = (*gy.shape[:2], *windows.kernel, *gy.shape[2:])
        return (windows.fold(np.broadcast_to(share[:, :, None, None], shape), size),)

    def work(self, op: Bound) -> Work:
        return Work(flops=op.inputs[0].elements * (windows_of(op).taps + 1))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_average_pool_grad", average_parameters(op, op.outputs[0], op.inputs[0]))
