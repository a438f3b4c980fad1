"""Bits and scale of a tensor that follow the error of rounding it: Adaptive Fixed-Point (Zhang et al., CVPR 2020).

A tensor is scanned when its interval is over. Its integers get 8 bits more while the mean magnitude changes too much by
rounding. The next interval is short where the scale moves, or where the error is large.

The state has five floats. They are the bits, the power of two that an integer counts, and the steps that are left.
The moving average of that power, and the scans so far, follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._registry import OpSpec, Work, register

STATE = TensorType((5,))
MORE_BITS, LEAST_BITS, MOST_BITS = 8, 2, 24
TOLERATED = 0.03  # of log2(1 + relative change of the mean magnitude)
ALPHA, BETA, GAMMA, DELTA = 0.04, 0.1, 2.0, 100.0
MOST_STEPS = 128  # of an interval
_POWERS = (-60.0, 60.0)
_PER_BIT = 1.4426950408889634  # 1 / ln 2


@dataclass(frozen=True, slots=True)
class Adapted(Elements):
    most: int  # bits


def _unit(largest: Any, bits: int) -> int:
    """The power k of the smallest unit 2^k with which integers of so many bits reach the largest magnitude."""
    top = np.float32(2 ** (bits - 1) - 1)
    m, e = np.frexp(np.float32(largest))
    m_top, e_top = np.frexp(top)
    return int(e) - int(e_top) + (1 if m > m_top else 0)


def error_of(before: float, after: float) -> float:
    """log2(1 + d) of the relative change d, by its series; a change above a quarter counts in proportion."""
    d = abs(before - after) / before
    if d > 0.25:
        return d * 1.2877123795494
    return (d - d * d / 2.0 + d * d * d / 3.0 - d * d * d * d / 4.0) * _PER_BIT


@register
class AdaptBits(OpSpec):
    summary = "The state of a tensor's bits for this step, in place from (state, x): bits from those there to `most`"
    recomputable = False
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        state, x = op.inputs
        if state != STATE or x.dtype is not DType.F32:
            raise ValueError(f"{self.kind} takes a state of five floats and an f32 tensor, not {op.inputs}")
        if not LEAST_BITS <= op.get_int("most") <= MOST_BITS:
            raise ValueError(f"{self.kind}: {op.get_int('most')} bits are beyond {LEAST_BITS} to {MOST_BITS}")
        return (state,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        state, x = (np.asarray(a, np.float32) for a in inputs)
        bits, power, left, mean, scans = (float(n) for n in state)
        largest = np.abs(x).max(initial=np.float32(0))
        if left > 0:
            mean = ALPHA * power + (1.0 - ALPHA) * mean
            return (np.array([bits, power, left - 1.0, mean, scans], np.float32),)
        if not np.isfinite(largest):
            raise ValueError("an input is not a finite number")
        if largest == 0:
            return (state,)
        largest = np.clip(largest, 2.0**-60, 2.0**60)
        a = np.abs(x).ravel().astype(np.float64)
        before = float(np.cumsum(a)[-1])
        while True:
            power = float(np.clip(_unit(largest, int(bits)), *_POWERS))
            top = 2.0 ** (bits - 1) - 1
            whole = np.minimum(np.rint(a * 2.0**-power), top)
            error = error_of(before, float(whole.sum()) * 2.0**power)
            if error <= TOLERATED or bits + MORE_BITS > op.get_int("most"):
                break
            bits, mean = bits + MORE_BITS, mean - MORE_BITS
        if scans == 0:
            mean = power
        moved = max(ALPHA * abs(power - mean), DELTA * error * error)
        steps = BETA / moved - GAMMA if moved > 0 else float(MOST_STEPS)
        steps = min(max(np.floor(steps + 0.5), 1.0), float(MOST_STEPS))
        mean = ALPHA * power + (1.0 - ALPHA) * mean
        return (np.array([bits, power, steps - 1.0, mean, min(scans + 1.0, 2.0**24)], np.float32),)

    def work(self, op: Bound) -> Work:
        return Work(flops=10 * op.inputs[1].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_adapt_bits", Adapted(op.inputs[1].elements, op.get_int("most")))
