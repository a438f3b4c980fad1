"""Floats rounded to few bits, as published algorithms of training in mixed precision do in front of their products.

A magnitude is S · g · e. S is one scale for the tensor, g one for a group of elements (1 without groups). The element e
is a number of a grid: mantissa bits below its leading bit, but never finer than 2^(low - mantissa), up to `largest`. So
an integer of b bits is the grid of low 0, mantissa b - 1, largest 1 - 2^(1-b). A float has a `low` below 0.

Every step is one operation of 32 bits, so the C has the same bits. Gradients pass straight through: the pass
`poetc.passes._mixed` puts these operators into a finished training step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._integers import ROUNDINGS
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops.adapted_bits import STATE
from poetc.ops.random import philox, signed_word

SCALES = ("fixed", "nearest-power", "power", "real", "adapted")
LEAST_LOW, MOST_MANTISSA = -62, 23
MOST_POWER = 60  # of a scale; tensors below 2^-60 count as 2^-60
_LARGEST = np.float32(2.0**MOST_POWER)
_ROOT = np.float32(math.sqrt(0.5))


@dataclass(frozen=True, slots=True)
class FewBitsOf(Elements):
    groups: int  # 0: none
    scale: int  # place in SCALES
    power: int  # of a fixed scale
    low: int
    mantissa: int
    is_stochastic: bool
    seed: int
    is_narrow: bool  # the result is of bf16


def rounded(a: Any, low: int, mantissa: int, largest: float, random_bits: Any = None) -> Any:
    """Magnitudes on the grid, in f32; halves go to the even number. `random_bits`: random ones of 32 bits, or None."""
    a = np.minimum(a, _LARGEST)
    _, exponent = np.frexp(a)
    k = np.maximum(exponent - 1, low)
    v = np.minimum(np.ldexp(a, mantissa - k), np.float32(2.0**24))
    whole = np.floor(v)
    rest = v - whole
    if random_bits is None:
        up = (rest > np.float32(0.5)) | ((rest == np.float32(0.5)) & (np.fmod(whole, 2) == 1))
    else:
        up = (random_bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24) < rest
    rounded = np.ldexp((whole + up).astype(np.float32), k - mantissa)
    return np.minimum(rounded, np.float32(largest))


def _scale(op: Bound, largest: Any) -> Any:
    """S of a tensor whose largest magnitude is given, times the attribute `range`."""
    rule = op.get_str("scale", "fixed")
    if rule == "fixed":
        return np.float32(2.0 ** op.get_int("power"))
    if largest == 0:
        return np.float32(1)
    top = np.float32(op.get_float("top", 1.0))
    largest = np.clip(largest * np.float32(op.get_float("range", 1.0)), 1 / _LARGEST, _LARGEST)
    if rule == "real":
        return np.float32(largest / top)
    m, e = np.frexp(largest)
    if rule == "nearest-power":
        k = e if m >= _ROOT else e - 1
    else:
        k = e - 1 if m + m <= top else e if m <= top else e + 1
    return np.float32(np.ldexp(np.float32(1), int(k)))


def _group_scale(largest: Any) -> Any:
    """The least number of 1 or 1.5 times a power of two that is no smaller; 1 for 0."""
    m, e = np.frexp(np.maximum(largest, 1 / _LARGEST))
    factor = np.where(m == 0.5, 0.5, np.where(m <= 0.75, 0.75, 1.0)).astype(np.float32)
    return np.where(largest == 0, np.float32(1), np.ldexp(factor, e)).astype(np.float32)


def groups_of(shape: tuple[int, ...]) -> int:
    """Planes of an image or filter; rows of a matrix."""
    return math.prod(shape[:2]) if len(shape) > 2 else shape[0] if len(shape) == 2 else 1


@register
class FewBits(OpSpec):
    summary = (
        "x on the grid `low`, `mantissa`, `largest`, times its `scale` (fixed: 2^`power`; nearest-power, power, real: "
        "by the largest magnitude times `range`, which becomes `top`). `groups`: planes have a scale of their own. "
        "`rounding`: nearest, or stochastic by `seed` and the second input, the step. `unit` above 0 stands for the "
        "scale. An adapted scale has the bits and the power of the last input, the state of `AdaptBits`. A real scale "
        "is the second result and stays out of the first; `dtype`: f32 or bf16"
    )
    cost_like = "Relu"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, *step = op.inputs
        if x.dtype is not DType.F32:
            raise ValueError(f"{self.kind} needs an f32 tensor, not {x}")
        scale, rounding, dtype = op.get_str("scale", "fixed"), op.get_str("rounding", "nearest"), op.get_str("dtype")
        if scale not in SCALES or rounding not in ROUNDINGS or dtype not in ("", "f32", "bf16"):
            raise ValueError(f"{self.kind}: scale {scale!r}, rounding {rounding!r} or dtype {dtype!r} is unknown")
        wanted = [TensorType((1,), DType.I32)] if rounding == "stochastic" else []
        wanted += [STATE] if scale == "adapted" else []
        if [TensorType((t.elements,), t.dtype) for t in step] != wanted:
            raise ValueError(f"{self.kind}: scale {scale} and rounding {rounding} take x and {wanted}, not {step}")
        low, mantissa, power = (op.get_int(name) for name in ("low", "mantissa", "power"))
        if not (LEAST_LOW <= low <= 0 and 0 <= mantissa <= MOST_MANTISSA and abs(power) <= MOST_POWER):
            raise ValueError(f"{self.kind}: low {low}, mantissa {mantissa} or power {power} is beyond its range")
        y = TensorType(x.shape, DType.BF16 if dtype == "bf16" else DType.F32)
        return (y, TensorType((1,))) if scale == "real" else (y,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x = inputs[0].astype(np.float32)
        largest = np.abs(x).max(initial=np.float32(0))
        if not np.isfinite(largest):
            raise ValueError("an input is not a finite number")
        grid = op.get_int("low"), op.get_int("mantissa"), op.get_float("largest")
        if op.get_str("scale", "fixed") == "adapted":
            bits, power = int(inputs[-1][0]), int(inputs[-1][1])
            scale, grid = np.float32(2.0 ** (power + bits - 1)), (0, bits - 1, 1 - 2.0 ** (1 - bits))
        else:
            scale = _scale(op, largest)
        with np.errstate(over="ignore"):
            a = np.abs(x) * np.float32(1 / scale)
        group = np.float32(1)
        if op.get_int("groups"):
            count = groups_of(x.shape)
            group = _group_scale(np.abs(a).reshape(count, -1).max(axis=1, initial=np.float32(0)))
            group = group.repeat(x.size // max(count, 1)).reshape(x.shape)
            a = a / group
        random_bits = None
        if op.get_str("rounding", "nearest") == "stochastic":
            random_bits = philox(x.size, op.get_int("seed"), int(inputs[1].reshape(()))).reshape(x.shape)
        y = rounded(a, *grid, random_bits)
        is_real, unit = op.get_str("scale", "fixed") == "real", op.get_float("unit")
        y = y * group * np.float32(unit or (1 if is_real else scale))
        y = np.where(x < 0, -y, y).astype(np.float32)
        if op.get_str("dtype") == "bf16":
            y = (np.ascontiguousarray(y).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return (y, np.array([scale], np.float32)) if is_real else (y,)

    def work(self, op: Bound) -> Work:
        elements = op.inputs[0].elements
        return Work(flops=elements * (30 if op.get_str("rounding", "nearest") == "stochastic" else 10))

    def kernel(self, op: Bound) -> Kernel:
        x, scale = op.inputs[0], SCALES.index(op.get_str("scale", "fixed"))
        parameters = FewBitsOf(
            x.elements,
            groups_of(x.shape) if op.get_int("groups") else 0,
            scale,
            op.get_int("power"),
            op.get_int("low"),
            op.get_int("mantissa"),
            op.get_str("rounding", "nearest") == "stochastic",
            signed_word(op.get_int("seed")),
            op.get_str("dtype") == "bf16",
        )
        floats = (op.get_float("largest"), op.get_float("top", 1.0), op.get_float("range", 1.0), op.get_float("unit"))
        return Kernel("poetc_op_few_bits", parameters, floats)

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return () if op.get_str("dtype") == "bf16" else ((0, 0),)


@register
class StoredFewBits(FewBits):
    summary = "FewBits of state, in place"
    cost_like = "FewBits"
    recomputable = False
    must_alias = ((0, 0),)

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return ()
