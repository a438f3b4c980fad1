"""Padding: by a constant, or by the tensor's own elements near (or across) its border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.kernels.operators.parameters import Ints
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, Range, block_with_shape, untouched
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops._strides import contiguous_strides
from poetc.ops.movement import scatter

MODES = ("constant", "edge", "reflect", "wrap")  # the last three numbered from 1 in the kernel


def split_pads(kind: str, op: Bound, shape: Ints) -> tuple[Ints, Ints]:
    """Befores and afters, checked against the unpadded shape."""
    pads, mode = op.get_ints("pads"), op.get_str("mode", "constant")
    if mode not in MODES:
        raise ValueError(f"{kind}: mode {mode!r} is none of {', '.join(MODES)}")
    if len(pads) != 2 * len(shape) or min(pads, default=0) < 0:
        raise ValueError(f"{kind}: pads {pads} must hold a before and an after, not negative, a dimension of {shape}")
    before, after = pads[: len(shape)], pads[len(shape) :]
    room = {"constant": None, "edge": None, "reflect": 1, "wrap": 0}[mode]
    for n, *sides in zip(shape, before, after, strict=True):
        if (room is not None and max(sides) > n - room) or (mode != "constant" and n == 0):
            raise ValueError(f"{kind}: {mode} cannot pad {n} elements by {max(sides)}")
    return before, after


def sources(op: Bound, shape: Ints) -> tuple[Array, ...]:
    """For each dimension, which element of x each one of y repeats (all modes but constant)."""
    before, after = split_pads("Pad", op, shape)
    result = []
    for n, first, last in zip(shape, before, after, strict=True):
        at = np.arange(-first, n + last)
        match op.get_str("mode"):
            case "edge":
                at = np.clip(at, 0, n - 1)
            case "reflect":
                at = (n - 1) - np.abs((n - 1) - np.abs(at))
            case "wrap":
                at = at % n
        result.append(at)
    return tuple(result)


def unpadded(op: Bound) -> list[int]:
    """The axes without padding."""
    pads = op.get_ints("pads")
    rank = len(pads) // 2
    return [a for a in range(rank) if pads[a] == pads[rank + a] == 0]


@dataclass(frozen=True, slots=True)
class _Padding(Parameters):
    """x's sizes, the elements put before, and y's sizes; dimensions without padding are merged.

    C reads the rank from the first of them.
    """

    mode: int
    sizes: Ints
    before: Ints
    padded: Ints

    def ints(self) -> Ints:
        return (self.mode, len(self.sizes), *self.sizes, *self.before, *self.padded)


def mapped_kernel(symbol: str, op: Bound, shape: Ints) -> Kernel:
    before, after = split_pads("Pad", op, shape)
    merged: list[tuple[int, int, int]] = []
    for n, first, last in zip(shape, before, after, strict=True):
        if merged and first == last == 0 and merged[-1][1] == 0 and merged[-1][2] == 0:
            merged[-1] = (merged[-1][0] * n, 0, 0)
        else:
            merged.append((n, first, last))
    sizes = tuple(n for n, _, _ in merged)
    befores = tuple(first for _, first, _ in merged)
    padded = tuple(n + first + last for n, first, last in merged)
    return Kernel(symbol, _Padding(MODES.index(op.get_str("mode")), sizes, befores, padded))


@register
class Pad(OpSpec):
    summary = "x with `pads` (befores, then afters); `mode`: constant (`value`), edge, reflect or wrap"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.F32:
            raise ValueError(f"Pad needs an f32 input, not {x.dtype}")
        before, after = split_pads(self.kind, op, x.shape)
        return (TensorType(tuple(n + i + j for n, i, j in zip(x.shape, before, after, strict=True))),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        if op.get_str("mode", "constant") != "constant":
            return (x[np.ix_(*sources(op, x.shape))] if x.ndim else x,)
        before, after = split_pads(self.kind, op, x.shape)
        value = x.dtype.type(op.get_float("value"))
        return (np.pad(x, list(zip(before, after, strict=True)), constant_values=value) if x.ndim else x,)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        shape, pads = b.type(op.inputs[0]).shape, op.attributes["pads"]
        assert isinstance(pads, tuple)
        if op.attributes.get("mode", "constant") != "constant":
            return b.emit1("PadGrad", [gy], {"pads": pads, "mode": op.attributes["mode"], "shape": shape})
        return b.emit1("Slice", [gy], {"starts": pads[: len(shape)], "sizes": shape})

    def work(self, op: Bound) -> Work:
        return Work()

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along an axis without padding."""
        return untouched(op, unpadded(op))

    def kernel(self, op: Bound) -> Kernel:
        shape = op.inputs[0].shape
        if op.get_str("mode", "constant") != "constant":
            return mapped_kernel("poetc_op_pad", op, shape)
        strides = contiguous_strides(op.outputs[0].shape)
        before, _ = split_pads(self.kind, op, shape)
        start = sum(n * s for n, s in zip(before, strides, strict=True))
        return scatter(op, start, strides, op.get_float("value"))


@register
class PadGrad(OpSpec):
    summary = "(gy): sum, in an x of `shape`, of the elements that Pad (edge, reflect, wrap) repeated"
    flops = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (gy,), shape = op.inputs, op.get_ints("shape")
        before, after = split_pads(self.kind, op, shape)
        padded = tuple(n + i + j for n, i, j in zip(shape, before, after, strict=True))
        if gy.shape != padded or gy.dtype is not DType.F32 or op.get_str("mode") == "constant":
            raise ValueError(f"PadGrad: f32 of shape {padded} expected, not {gy}")
        return (TensorType(shape),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        gx = np.zeros(op.get_ints("shape"), inputs[0].dtype)
        np.add.at(gx, np.ix_(*sources(op, gx.shape)), inputs[0])
        return (gx,)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along an axis without padding."""
        return untouched(op, unpadded(op))

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """Its result has a shape of its own."""
        return block_with_shape(op, cut, ranges)

    def kernel(self, op: Bound) -> Kernel:
        return mapped_kernel("poetc_op_pad_grad", op, op.get_ints("shape"))
