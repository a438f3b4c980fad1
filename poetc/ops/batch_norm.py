"""Batch normalisation of [N, C, ...] in three parts: statistics, application, running statistics; and its gradients.

With `training` the mean and variance are functions of x, and the gradient of BatchNormApply in x is that of the whole.
It is gx = scale · rstd · (gy - mean(gy) - x̂ · mean(gy · x̂)), means over N and the pixels (Ioffe and Szegedy 2015,
section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements, Planes
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, on_axis
from poetc.ops._registry import Gradients, OpSpec, register


def _channels(x: TensorType) -> int:
    if len(x.shape) < 2:
        raise ValueError(f"batch normalisation works on [N, C, ...], not on shape {x.shape}")
    return x.shape[1]


def _check_channels(x: TensorType, vectors: Sequence[TensorType]) -> None:
    for v in vectors:
        if v.shape != (_channels(x),):
            raise ValueError(f"a vector of the batch norm has shape {v.shape}, not {(_channels(x),)}")


def planes_of(x: TensorType) -> Planes:
    n, c = x.shape[:2]
    return Planes(n, c, x.elements // max(1, n * c))


def _axes(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _wide(v: Any, x: Any) -> Any:
    """A vector [C] shaped to broadcast over x."""
    return v.reshape(1, -1, *(1,) * (x.ndim - 2))


def _rstd(var: Any, epsilon: float) -> Any:
    return 1 / np.sqrt(var + var.dtype.type(epsilon))


class OfChannels(OpSpec):
    """An operator on images [N, C, ...] and vectors [C]: each channel is computed by itself."""

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By channels, each of which is normalised by itself."""
        return on_axis(op, "channels", [0 if len(t.shape) == 1 else 1 for t in (*op.inputs, *op.outputs)])


@register
class BatchNormStats(OfChannels):
    summary = "Mean and biased variance of x[N,C,...] per channel → mean[C], var[C]"
    flops = 4

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x = op.inputs[0]
        vector = TensorType((_channels(x),), x.dtype)
        return vector, vector

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x = inputs[0]
        mean = x.mean(axis=_axes(x))
        return mean, np.square(x - _wide(mean, x)).mean(axis=_axes(x))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_batch_norm_stats", planes_of(op.inputs[0]))


@register
class BatchNormApply(OfChannels):
    summary = "scale · (x - mean) / sqrt(var + epsilon) + bias; epsilon, training (mean, var are the batch's), momentum"
    aliases = ((0, 0),)
    flops = 3

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_channels(op.inputs[0], op.inputs[1:])
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, mean, var, scale, bias = inputs
        factor = scale * _rstd(var, op.get_float("epsilon"))
        return ((x - _wide(mean, x)) * _wide(factor, x) + _wide(bias, x),)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy = grads[0]
        if gy is None:
            return [None] * 5
        x, mean, var, scale, bias = op.inputs
        epsilon = {"epsilon": op.attributes["epsilon"]}
        training = bool(op.attributes.get("training", False))
        gx = gscale = gbias = None
        if needed[3] or needed[4] or (needed[0] and training):
            names = [b.fresh(f"{scale}.grad"), b.fresh(f"{bias}.grad")]
            gscale, gbias = b.emit("BatchNormGradParams", [x, mean, var, gy], epsilon, outputs=names)
            if needed[0] and training:
                inputs = [x, mean, var, scale, gscale, gbias, gy]
                gx = b.emit1("BatchNormGradInput", inputs, epsilon, hint=f"{x}.grad")
        if needed[0] and not training:
            gx = b.emit1("BatchNormGradInputFrozen", [var, scale, gy], epsilon, hint=f"{x}.grad")
        return [gx, None, None, gscale if needed[3] else None, gbias if needed[4] else None]

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_batch_norm_apply", planes_of(op.inputs[0]), (op.get_float("epsilon"),))


@register
class BatchNormGradParams(OfChannels):
    summary = "Gradients of the batch norm's scale and bias from (x, mean, var, gy); epsilon"
    macs = 1
    flops = 2

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_channels(op.inputs[0], op.inputs[1:3])
        return op.inputs[1], op.inputs[1]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, mean, var, gy = inputs
        gscale = (gy * (x - _wide(mean, x))).sum(axis=_axes(x)) * _rstd(var, op.get_float("epsilon"))
        return gscale, gy.sum(axis=_axes(x))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_batch_norm_grad_params", planes_of(op.inputs[0]), (op.get_float("epsilon"),))


@register
class BatchNormGradInput(OfChannels):
    summary = (
        "Gradient of the batch norm in x (batch statistics) from (x, mean, var, scale, gscale, gbias, gy); epsilon"
    )
    aliases = ((6, 0), (0, 0))
    flops = 5

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_channels(op.inputs[0], op.inputs[1:6])
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, mean, var, scale, gscale, gbias, gy = inputs
        rstd = _rstd(var, op.get_float("epsilon"))
        count = x.dtype.type(x.size // x.shape[1])
        slope = _wide(rstd * gscale / count, x)
        centred = gy - _wide(gbias / count, x) - (x - _wide(mean, x)) * slope
        return (_wide(scale * rstd, x) * centred,)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_batch_norm_grad_input", planes_of(op.inputs[0]), (op.get_float("epsilon"),))


@register
class BatchNormGradInputFrozen(OfChannels):
    summary = (
        "Gradient of the batch norm in x, statistics constant: gy · scale / sqrt(var + epsilon), from (var, scale, gy)"
    )
    aliases = ((2, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_channels(op.inputs[2], op.inputs[:2])
        return (op.inputs[2],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        var, scale, gy = inputs
        return (gy * _wide(scale * _rstd(var, op.get_float("epsilon")), gy),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_batch_norm_grad_input_frozen", planes_of(op.inputs[2]), (op.get_float("epsilon"),))


@register
class BatchNormUpdate(OpSpec):
    """ONNX's convention: running = running · momentum + batch · (1 - momentum), with the biased variance."""

    summary = "Running statistics in place from (running_mean, running_var, mean, var); momentum"
    recomputable = False
    must_alias = ((0, 0), (1, 1))
    flops = 6

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if any(t.shape != op.inputs[0].shape for t in op.inputs):
            raise ValueError(f"the statistics' shapes differ: {[t.shape for t in op.inputs]}")
        return op.inputs[:2]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        momentum = op.get_float("momentum")
        old, new = inputs[0].dtype.type(momentum), inputs[0].dtype.type(1 - momentum)
        return inputs[0] * old + inputs[2] * new, inputs[1] * old + inputs[3] * new

    def kernel(self, op: Bound) -> Kernel:
        momentum = op.get_float("momentum")
        return Kernel("poetc_op_batch_norm_update", Elements(op.inputs[0].elements), (momentum, 1 - momentum))
