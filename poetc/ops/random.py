"""Dropout with counter-based random numbers: the mask is a function of (seed, step, element).

So a recomputation, the gradient and the C kernel draw the same mask, and nothing need be saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops.kernels import Kernel
from poetc.ops.kernels.rows import Elements

ROUNDS = 10


def philox(count: int, seed: int, step: int) -> Array:
    """`count` 32-bit words: Philox2x32-10 (Salmon et al. 2011) with counters (i // 2, step) and key `seed`."""
    word = np.uint64(0xFFFFFFFF)
    pairs = (count + 1) // 2
    left = np.arange(pairs, dtype=np.uint64)
    right = np.full(pairs, step & 0xFFFFFFFF, np.uint64)
    key = seed & 0xFFFFFFFF
    for _ in range(ROUNDS):
        product = left * np.uint64(0xD256D193)
        left, right = (product >> np.uint64(32)) ^ np.uint64(key) ^ right, product & word
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return np.stack([left, right], 1).ravel()[:count].astype(np.uint32)


def threshold(ratio: float) -> int:
    """An element is dropped if its word is below."""
    return round(ratio * 2**32)


class _Masked(OpSpec):
    """(values, step) -> values / (1 - ratio) where the mask keeps them, else 0."""

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        fits = len(op.inputs) == 2 and op.inputs[0].dtype is DType.F32 and op.inputs[1].dtype is DType.I32
        if not fits or op.inputs[1].elements != 1:
            raise ValueError(f"{self.kind} needs an f32 tensor and one i32, not {op.inputs}")
        if not 0 <= op.get_float("ratio") < 1:
            raise ValueError(f"{self.kind}: ratio must be in [0, 1), not {op.get_float('ratio')}")
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, step = inputs
        ratio = op.get_float("ratio")
        kept = philox(x.size, op.get_int("seed"), int(step.reshape(()))).reshape(x.shape) >= threshold(ratio)
        return (np.where(kept, x * x.dtype.type(1 / (1 - ratio)), x.dtype.type(0)),)

    def work(self, op: Bound) -> Work:
        return Work(flops=20 * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        ratio = op.get_float("ratio")
        words = (op.get_int("seed"), threshold(ratio))
        signed = tuple((w & 0xFFFFFFFF) - ((w & 0x80000000) << 1) for w in words)
        return Kernel("poetc_op_dropout", _Dropout(op.outputs[0].elements, *signed), (1 / (1 - ratio),))

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)


@dataclass(frozen=True, slots=True)
class _Dropout(Elements):
    seed: int
    threshold: int


@register
class Dropout(_Masked):
    kind = "Dropout"
    summary = "(x, step): x / (1 - `ratio`), or 0 with probability `ratio`; the same mask for the same `seed` and step"

    def gradient(
        self, b: Builder, op: Operator, grads: Sequence[str | None], needed: Sequence[bool]
    ) -> Sequence[str | None]:
        if grads[0] is None or not needed[0]:
            return [None, None]
        return [b.emit1("DropoutGrad", [grads[0], op.inputs[1]], op.attributes), None]


@register
class DropoutGrad(_Masked):
    kind = "DropoutGrad"
    summary = "(gy, step): gy / (1 - `ratio`) where Dropout kept the element, else 0"
