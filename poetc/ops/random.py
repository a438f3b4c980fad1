"""Counter-based random numbers, and dropout by them: each is a function of (seed, step, element).

So a recomputation, the gradient and the C kernel draw the same mask, and nothing need be saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.kernel import Window
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, flat
from poetc.ops._registry import Gradients, OpSpec, Work, register, spec

ROUNDS = 10
_WORDS = 2  # that a counter gives


def philox(count: int, seed: int, step: int, begin: int = 0) -> Array:
    """`count` 32-bit words: Philox2x32-10 (Salmon et al. 2011) with counters (i // 2, step) and key `seed`.

    `begin`: the first i, which is even.
    """
    word = np.uint64(0xFFFFFFFF)
    pairs = (count + 1) // 2
    left = np.arange(begin // 2, begin // 2 + pairs, dtype=np.uint64)
    right = np.full(pairs, step & 0xFFFFFFFF, np.uint64)
    key = seed & 0xFFFFFFFF
    for _ in range(ROUNDS):
        product = left * np.uint64(0xD256D193)
        left, right = (product >> np.uint64(32)) ^ np.uint64(key) ^ right, product & word
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return np.stack([left, right], 1).ravel()[:count].astype(np.uint32)


def signed_word(word: int) -> int:
    """The 32 bits of a word as C's int32_t."""
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)


def threshold(ratio: float) -> int:
    """An element is dropped if its word is below."""
    return round(ratio * 2**32)


class _Masked(OpSpec):
    """(values, step) -> values / (1 - ratio) where the mask keeps them, else 0."""

    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        fits = len(op.inputs) == 2 and op.inputs[0].dtype is DType.F32 and op.inputs[1].dtype is DType.I32
        if not fits or op.inputs[1].elements != 1:
            raise ValueError(f"{self.kind} needs an f32 tensor and one i32, not {op.inputs}")
        if not 0 <= op.get_float("ratio") < 1:
            raise ValueError(f"{self.kind}: ratio must be in [0, 1), not {op.get_float('ratio')}")
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return self._masked(op, inputs, 0)

    def evaluate_block(self, block: Bound, cut: Cut, begin: int, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return self._masked(block, inputs, begin)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return (replace(flat(op, 1, binds=True), step=_WORDS),)

    def _masked(self, op: Bound, inputs: Sequence[Array], begin: int) -> tuple[Array, ...]:
        x, step = inputs
        ratio = op.get_float("ratio")
        kept = philox(x.size, op.get_int("seed"), int(step.reshape(())), begin).reshape(x.shape) >= threshold(ratio)
        return (np.where(kept, x * x.dtype.type(1 / (1 - ratio)), x.dtype.type(0)),)

    def work(self, op: Bound) -> Work:
        return Work(flops=20 * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        ratio = op.get_float("ratio")
        signed = (signed_word(op.get_int("seed")), signed_word(threshold(ratio)))
        return Kernel("poetc_op_dropout", _Dropout(op.outputs[0].elements, *signed), (1 / (1 - ratio),))


@dataclass(frozen=True, slots=True)
class _Dropout(Window):
    count: int
    seed: int
    threshold: int
    begin: int = 0  # the number of the first element among all

    def beginning(self, unit: int) -> _Dropout:
        return replace(self, begin=unit)


@register
class Dropout(_Masked):
    summary = "(x, step): x / (1 - `ratio`), or 0 with probability `ratio`; the same mask for the same `seed` and step"

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1("DropoutGrad", [gy, op.inputs[1]], op.attributes)


@register
class DropoutGrad(_Masked):
    summary = "(gy, step): gy / (1 - `ratio`) where Dropout kept the element, else 0"


@dataclass(frozen=True, slots=True)
class _Uniform(Elements):
    seed: int


@register
class RandomUniform(OpSpec):
    summary = (
        "(step): numbers between 0 and 1, neither included, in `shape`; the same ones for the same `seed` and step"
    )

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 1 or op.inputs[0].dtype is not DType.I32 or op.inputs[0].elements != 1:
            raise ValueError(f"{self.kind} needs one i32, not {op.inputs}")
        return (TensorType(op.get_ints("shape")),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        y = op.outputs[0] if op.outputs else self.infer(op)[0]
        random_bits = philox(y.elements, op.get_int("seed"), int(inputs[0].reshape(())))
        # The upper 23 bits and a half: exact in a float, and never 0 or 1.
        half = np.float32(0.5)
        return (((random_bits >> np.uint32(9)).astype(np.float32) + half).reshape(y.shape) * np.float32(2.0**-23),)

    def work(self, op: Bound) -> Work:
        return Work(flops=20 * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_random_uniform", _Uniform(op.outputs[0].elements, signed_word(op.get_int("seed"))))


@register
class RandomSite(OpSpec):
    """Outside of training each number is the mean. Building the training step puts random numbers in its place."""

    summary = "(x): `mean` in the shape of x; in training random numbers, normal of `deviation` or uniform of `width`"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.F32 or not (op.get_float("deviation") >= 0 and op.get_float("width") >= 0):
            raise ValueError(f"{self.kind} needs an f32 tensor, and a deviation or width of at least 0")
        return (x,)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return spec("Affine").evaluate(self._mean(op), inputs)

    @staticmethod
    def _mean(op: Bound) -> Bound:
        return replace(op, attributes={"alpha": 0.0, "beta": op.get_float("mean")})

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        return [None]

    def work(self, op: Bound) -> Work:
        return spec("Affine").work(self._mean(op))

    def kernel(self, op: Bound) -> Kernel:
        return spec("Affine").kernel(self._mean(op))
