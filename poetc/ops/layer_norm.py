"""Normalisations within a sample: layer norm and RMS norm over the last axes, group norm over channel groups.

All three see x as rows that are normalised on their own. With x̂ the normalised row and ĝ = gy · scale, gx = rstd · (ĝ
- mean(ĝ) - x̂ · mean(ĝ · x̂)). RMS norm has no mean and lacks the middle term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from poetc.graph import Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import BiasedRows, Groups, Rows
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import WHOLE, Cut, Part, Range, on_axis
from poetc.ops._registry import Gradients, OpSpec, register


def _rows(op: Bound) -> tuple[int, int]:
    """(rows, length of a row) of x normalised over the axes from `axis` on."""
    x, axis = op.inputs[0], op.get_int("axis", -1) % len(op.inputs[0].shape)
    return math.prod(x.shape[:axis]), math.prod(x.shape[axis:])


def _statistic(op: Bound) -> TensorType:
    x = op.inputs[0]
    axis = op.get_int("axis", -1) % len(x.shape)
    return TensorType((*x.shape[:axis], *(1,) * (len(x.shape) - axis)), x.dtype)


def _check_scale(op: Bound, scales: Sequence[TensorType]) -> None:
    shape = _scale_type(op).shape
    for s in scales:
        if s.shape != shape:
            raise ValueError(f"scale or bias has shape {s.shape}, not that of the normalised axes, {shape}")


def _scale_type(op: Bound) -> TensorType:
    x = op.inputs[0]
    return TensorType(x.shape[op.get_int("axis", -1) % len(x.shape) :], x.dtype)


def _normalise(rows: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """rows [R, L] → normalised rows, mean [R, 1], rstd [R, 1]."""
    mean = rows.mean(axis=1, keepdims=True)
    centred = rows - mean
    rstd = 1 / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + rows.dtype.type(epsilon))
    return centred * rstd, mean, rstd


def _grad_rows(xhat: Any, g: Any, rstd: Any) -> Any:
    return rstd * (g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True))


class _OfRows(OpSpec):
    """Rows are normalised, each by itself. Operands with numbers for each row have x's axes before `axis`."""

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By rows."""
        x = op.inputs[0].shape
        rows = x[: op.get_int("axis", -1) % len(x)]
        if math.prod(rows) < 2:
            return ()
        run = (0, len(rows) - 1)
        types = (*op.inputs, *op.outputs)
        return on_axis(
            op, "rows", [run if len(t.shape) == len(x) and t.shape[: len(rows)] == rows else None for t in types]
        )


@register
class LayerNorm(_OfRows):
    summary = "Layer norm of x over the axes from axis on, scale, optional bias → y, mean, rstd; axis, epsilon"
    flops = 7
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_scale(op, op.inputs[1:])
        return op.inputs[0], _statistic(op), _statistic(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, scale = inputs[:2]
        xhat, mean, rstd = _normalise(x.reshape(_rows(op)), op.get_float("epsilon"))
        y = xhat.reshape(x.shape) * scale
        statistic = _statistic(op).shape
        return y + inputs[2] if len(inputs) > 2 else y, mean.reshape(statistic), rstd.reshape(statistic)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy, result = grads[0], [None] * len(op.inputs)
        if gy is None:
            return result
        return _gradients(b, op, gy, needed, "LayerNorm", {"axis": op.attributes["axis"]})

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_layer_norm", BiasedRows(*_rows(op), len(op.inputs) > 2), (op.get_float("epsilon"),))


def _gradients(
    b: Builder, op: Operator, gy: str, needed: Sequence[bool], stem: str, attributes: dict[str, Any]
) -> list[str | None]:
    """Gradients of a norm with outputs (y, mean, rstd) and inputs (x, scale, [bias])."""
    x, scale = op.inputs[:2]
    _, mean, rstd = op.outputs
    result: list[str | None] = [None] * len(op.inputs)
    if any(needed[1:]):
        bias = op.inputs[2] if len(op.inputs) > 2 else f"{scale}.shift"
        names = [b.fresh(f"{scale}.grad"), b.fresh(f"{bias}.grad")]
        result[1:] = b.emit(f"{stem}GradParams", [x, mean, rstd, gy], attributes, outputs=names)[: len(result) - 1]
    if needed[0]:
        result[0] = b.emit1(f"{stem}GradInput", [x, mean, rstd, scale, gy], attributes, hint=f"{x}.grad")
    return [name if wanted else None for name, wanted in zip(result, needed, strict=True)]


@register
class LayerNormGradInput(_OfRows):
    summary = "Gradient of LayerNorm in x from (x, mean, rstd, scale, gy); axis"
    flops = 10
    aliases = ((4, 0), (0, 0))

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_scale(op, op.inputs[3:4])
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, mean, rstd, scale, gy = inputs
        shape = _rows(op)
        mean, rstd = mean.reshape(-1, 1), rstd.reshape(-1, 1)
        xhat = (x.reshape(shape) - mean) * rstd
        return (_grad_rows(xhat, (gy * scale).reshape(shape), rstd).reshape(x.shape),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_layer_norm_grad_input", Rows(*_rows(op)))


class _OfColumns(OpSpec):
    """A result for each column of the rows: the last operand before the results has x's shape, as x has."""

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By columns."""
        rows, length = _rows(op)
        part, of_results = Part(rows, 1), [Part(1, 1)] * len(op.outputs)
        parts = [part, *[None] * (len(op.inputs) - 2), part, *of_results]
        return (Cut("columns", length, tuple(parts)),) if length > 1 else ()

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """Of rows that are shorter."""
        bound = super().block(op, cut, ranges)
        if cut.name == WHOLE:
            return bound
        (rows, _), ((begin, end),) = _rows(op), ranges
        x, *others, gy = bound.inputs
        x, gy = (TensorType((rows, end - begin), t.dtype) for t in (x, gy))
        return Bound({**op.attributes, "axis": 1}, (x, *others, gy), bound.outputs)


@register
class LayerNormGradParams(_OfColumns):
    summary = "Gradients of LayerNorm in scale and bias from (x, mean, rstd, gy); axis"
    macs = 1
    flops = 3

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        return _scale_type(op), _scale_type(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, mean, rstd, gy = inputs
        shape = _rows(op)
        gy, xhat = gy.reshape(shape), (x.reshape(shape) - mean.reshape(-1, 1)) * rstd.reshape(-1, 1)
        scale = _scale_type(op).shape
        return (gy * xhat).sum(axis=0).reshape(scale), gy.sum(axis=0).reshape(scale)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_layer_norm_grad_params", Rows(*_rows(op)))


@register
class RmsNorm(_OfRows):
    summary = "scale · x / sqrt(mean(x²) + epsilon) over the axes from axis on → y, rstd; axis, epsilon"
    flops = 4
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_scale(op, op.inputs[1:])
        return op.inputs[0], _statistic(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, scale = inputs
        rows = x.reshape(_rows(op))
        rstd = 1 / np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + x.dtype.type(op.get_float("epsilon")))
        return (rows * rstd).reshape(x.shape) * scale, rstd.reshape(_statistic(op).shape)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy, (x, scale), rstd = grads[0], op.inputs, op.outputs[1]
        if gy is None:
            return [None, None]
        attributes = {"axis": op.attributes["axis"]}
        gscale = b.emit1("RmsNormGradScale", [x, rstd, gy], attributes, hint=f"{scale}.grad") if needed[1] else None
        gx = b.emit1("RmsNormGradInput", [x, rstd, scale, gy], attributes, hint=f"{x}.grad") if needed[0] else None
        return [gx, gscale]

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_rms_norm", Rows(*_rows(op)), (op.get_float("epsilon"),))


@register
class RmsNormGradInput(_OfRows):
    summary = "Gradient of RmsNorm in x from (x, rstd, scale, gy); axis"
    flops = 8
    aliases = ((3, 0), (0, 0))

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_scale(op, op.inputs[2:3])
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, rstd, scale, gy = inputs
        rstd = rstd.reshape(-1, 1)
        xhat, g = x.reshape(_rows(op)) * rstd, (gy * scale).reshape(_rows(op))
        return ((rstd * (g - xhat * (g * xhat).mean(axis=1, keepdims=True))).reshape(x.shape),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_rms_norm_grad_input", Rows(*_rows(op)))


@register
class RmsNormGradScale(_OfColumns):
    summary = "Gradient of RmsNorm in scale from (x, rstd, gy); axis"
    macs = 1
    flops = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        return (_scale_type(op),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, rstd, gy = inputs
        xhat = x.reshape(_rows(op)) * rstd.reshape(-1, 1)
        return ((gy.reshape(_rows(op)) * xhat).sum(axis=0).reshape(_scale_type(op).shape),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_rms_norm_grad_scale", Rows(*_rows(op)))


def _groups(op: Bound) -> tuple[int, int, int, int]:
    """(N, groups, channels of a group, pixels)."""
    x, groups = op.inputs[0], op.get_int("groups")
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"x of shape {x.shape} does not divide into {groups} channel groups")
    return x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:])


def _group_rows(op: Bound) -> tuple[int, int]:
    n, groups, channels, pixels = _groups(op)
    return n * groups, channels * pixels


def _per_channel(v: Any, x: Any) -> Any:
    return v.reshape(1, -1, *(1,) * (x.ndim - 2))


def _check_channels(op: Bound, vectors: Sequence[TensorType]) -> None:
    for v in vectors:
        if v.shape != (op.inputs[0].shape[1],):
            raise ValueError(f"scale or bias has shape {v.shape}, not {(op.inputs[0].shape[1],)}")


class _OfGroups(OpSpec):
    """Operands of x's rank have a plane for each channel, matrices a number for each group, vectors one a channel."""

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By groups."""
        n, groups, channels, pixels = _groups(op)
        sizes = {1: (1, channels), 2: (n, 1)}
        parts = (
            Part(n, channels * pixels) if t.shape == op.inputs[0].shape else Part(*sizes[len(t.shape)])
            for t in (*op.inputs, *op.outputs)
        )
        return (Cut("groups", groups, tuple(parts)),) if groups > 1 else ()

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """Of fewer groups."""
        bound = super().block(op, cut, ranges)
        if cut.name == WHOLE:
            return bound
        (n, _, channels, pixels), ((begin, end),), x = _groups(op), ranges, op.inputs[0]
        groups = end - begin
        shapes = {1: (groups * channels,), 2: (n, groups)}
        types = [
            TensorType((n, groups * channels, pixels) if t.shape == x.shape else shapes[len(t.shape)], t.dtype)
            for t in (*op.inputs, *op.outputs)
        ]
        count = len(op.inputs)
        return Bound({**op.attributes, "groups": groups}, tuple(types[:count]), tuple(types[count:]))


@register
class GroupNorm(_OfGroups):
    summary = (
        "Group norm of x[N,C,...], scale[C], bias[C] → y, mean[N,groups], rstd; groups (= C: instance norm), epsilon"
    )
    flops = 7
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        n, groups, _, _ = _groups(op)
        _check_channels(op, op.inputs[1:])
        statistic = TensorType((n, groups), op.inputs[0].dtype)
        return op.inputs[0], statistic, statistic

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, scale, bias = inputs
        n, groups, _, _ = _groups(op)
        xhat, mean, rstd = _normalise(x.reshape(_group_rows(op)), op.get_float("epsilon"))
        y = xhat.reshape(x.shape) * _per_channel(scale, x) + _per_channel(bias, x)
        return y, mean.reshape(n, groups), rstd.reshape(n, groups)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        if grads[0] is None:
            return [None, None, None]
        return _gradients(b, op, grads[0], needed, "GroupNorm", {"groups": op.attributes["groups"]})

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_group_norm", Groups(*_groups(op)), (op.get_float("epsilon"),))


@register
class GroupNormGradInput(_OfGroups):
    summary = "Gradient of GroupNorm in x from (x, mean, rstd, scale, gy); groups"
    flops = 10
    aliases = ((4, 0), (0, 0))

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _check_channels(op, op.inputs[3:4])
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, mean, rstd, scale, gy = inputs
        shape = _group_rows(op)
        mean, rstd = mean.reshape(-1, 1), rstd.reshape(-1, 1)
        xhat = (x.reshape(shape) - mean) * rstd
        return (_grad_rows(xhat, (gy * _per_channel(scale, x)).reshape(shape), rstd).reshape(x.shape),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_group_norm_grad_input", Groups(*_groups(op)))


@register
class GroupNormGradParams(_OfGroups):
    summary = "Gradients of GroupNorm in scale and bias from (x, mean, rstd, gy); groups"
    macs = 1
    flops = 3

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        _, groups, channels, _ = _groups(op)
        vector = TensorType((groups * channels,), op.inputs[0].dtype)
        return vector, vector

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, mean, rstd, gy = inputs
        n, groups, channels, pixels = _groups(op)
        xhat = (x.reshape(_group_rows(op)) - mean.reshape(-1, 1)) * rstd.reshape(-1, 1)
        shape = (n, groups * channels, pixels)
        gy, xhat = gy.reshape(shape), xhat.reshape(shape)
        return (gy * xhat).sum(axis=(0, 2)), gy.sum(axis=(0, 2))

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_group_norm_grad_params", Groups(*_groups(op)))
