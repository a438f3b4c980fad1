"""Local response norm across channels (Krizhevsky 2012): y = x / s^beta, s = bias + alpha/size · Σ_window x²."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Planes
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, untouched
from poetc.ops._registry import OpSpec, Work, register


def _reach(op: Bound) -> tuple[int, int]:
    """Channels of the window before and after its own, as ONNX places it."""
    size = op.get_int("size")
    return (size - 1) // 2, size // 2


def _window_sum(x: Any, before: int, after: int) -> Any:
    """Σ of x over channels c - before … c + after."""
    total = np.zeros_like(x)
    channels = x.shape[1]
    for shift in range(-before, after + 1):
        low, high = max(0, -shift), min(channels, channels - shift)
        if low < high:
            total[:, low:high] += x[:, low + shift : high + shift]
    return total


def _scale(op: Bound, x: Any) -> Any:
    alpha = x.dtype.type(op.get_float("alpha") / op.get_int("size"))
    return x.dtype.type(op.get_float("bias")) + alpha * _window_sum(np.square(x), *_reach(op))


@dataclass(frozen=True, slots=True)
class _Reach(Planes):
    """How far a window reaches among the channels."""

    before: int
    after: int


def _kernel(op: Bound, symbol: str, columns: int) -> Kernel:
    """`columns`: workspace, in columns of C floats."""
    x = op.inputs[0]
    n, c = x.shape[:2]
    before, after = _reach(op)
    floats = (op.get_float("alpha") / op.get_int("size"), op.get_float("beta"), op.get_float("bias"))
    return Kernel(symbol, _Reach(n, c, x.elements // max(1, n * c), before, after), floats, 4 * c * columns)


@register
class Lrn(OpSpec):
    summary = "Local response norm of x[N,C,...] across channels; size, alpha, beta, bias"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs[0].shape) < 2 or op.get_int("size") < 1:
            raise ValueError(f"local response norm of size {op.get_int('size')} on shape {op.inputs[0].shape}")
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x = inputs[0]
        return (x * _scale(op, x) ** x.dtype.type(-op.get_float("beta")),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1("LrnGrad", [op.inputs[0], gy], op.attributes, hint=f"{op.inputs[0]}.grad")

    def work(self, op: Bound) -> Work:
        return Work(macs=op.inputs[0].elements * op.get_int("size"), flops=22 * op.inputs[0].elements)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By samples, or by rows of their planes."""
        return untouched(op, (0, *range(2, len(op.inputs[0].shape))))

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, "poetc_op_lrn", 0)


@register
class LrnGrad(OpSpec):
    summary = "Gradient of Lrn from (x, gy); its attributes"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, gy = inputs
        real = x.dtype.type
        s, beta = _scale(op, x), op.get_float("beta")
        power = s ** real(-beta)
        before, after = _reach(op)
        spread = _window_sum(gy * x * power / s, after, before)
        return (gy * power - real(2 * beta * op.get_float("alpha") / op.get_int("size")) * x * spread,)

    def work(self, op: Bound) -> Work:
        return Work(macs=2 * op.inputs[0].elements * op.get_int("size"), flops=26 * op.inputs[0].elements)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By samples, or by rows of their planes."""
        return untouched(op, (0, *range(2, len(op.inputs[0].shape))))

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, "poetc_op_lrn_grad", 2)
