"""Element-wise mathematics of one tensor and its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._elementwise import Differentiable, Unary, erf, register_with_gradient
from poetc.ops._registry import OpSpec, Work, register

# --- smooth functions whose derivative is simple in the output


@register_with_gradient
class Exp(Differentiable):
    summary = "exp(x)"
    flops = 10
    function = np.exp
    derivative = staticmethod(lambda saved: saved)


@register_with_gradient
class Sqrt(Differentiable):
    summary = "square root of x; its slope at 0 counts as 0"
    flops = 10
    gradient_flops = 3
    function = np.sqrt
    # The slope of a distance between equal points, as PyTorch's cdist has it.
    derivative = staticmethod(
        lambda saved: np.where(saved == 0, saved, 0.5 / np.where(saved == 0, 1, saved).astype(saved.dtype))
    )


@register_with_gradient
class Reciprocal(Differentiable):
    summary = "1 / x"
    gradient_flops = 3
    function = staticmethod(lambda x: 1 / x)
    derivative = staticmethod(lambda saved: -saved * saved)


# --- functions whose derivative needs the input


@register_with_gradient
class Log(Differentiable):
    summary = "natural logarithm of x"
    saves_output = False
    flops = 10
    function = np.log
    derivative = staticmethod(lambda saved: 1 / saved)


@register_with_gradient
class Abs(Differentiable):
    summary = "|x|"
    saves_output = False
    function = np.abs
    derivative = np.sign


@register_with_gradient
class Erf(Differentiable):
    summary = "the error function"
    saves_output = False
    flops = 15
    gradient_flops = 13
    function = staticmethod(erf)
    derivative = staticmethod(lambda saved: 2 / math.sqrt(math.pi) * np.exp(-saved * saved))


@register_with_gradient
class Sin(Differentiable):
    summary = "sine of x"
    saves_output = False
    flops = 10
    gradient_flops = 11
    function = np.sin
    derivative = np.cos


@register_with_gradient
class Cos(Differentiable):
    summary = "cosine of x"
    saves_output = False
    flops = 10
    gradient_flops = 11
    function = np.cos
    derivative = staticmethod(lambda saved: -np.sin(saved))


@register_with_gradient
class Atan(Differentiable):
    summary = "arc tangent of x"
    saves_output = False
    flops = 15
    gradient_flops = 4
    cost_like = "Sin"
    function = np.arctan
    derivative = staticmethod(lambda saved: 1 / (1 + saved * saved))


def power(x: Array, exponent: float) -> Any:
    """x ** exponent by multiplication, division and square root where these do it, as the kernel."""
    cheap: dict[float, Callable[[Array], Array]] = {
        -2.0: lambda v: 1 / (v * v),
        -1.0: lambda v: 1 / v,
        -0.5: lambda v: 1 / np.sqrt(v),
        0.0: np.ones_like,
        0.5: np.sqrt,
        1.0: lambda v: v,
        2.0: lambda v: v * v,
        3.0: lambda v: v * v * v,
    }
    if exponent in cheap:
        return cheap[exponent](x)
    return np.power(x, x.dtype.type(exponent))


@register_with_gradient
class Power(Differentiable):
    summary = "x to the power `exponent`, a constant"
    saves_output = False
    parameters = (("exponent", 1.0),)
    flops = 20
    gradient_flops = 22
    function = staticmethod(power)
    derivative = staticmethod(lambda saved, exponent: saved.dtype.type(exponent) * power(saved, exponent - 1))

    def work(self, op: Bound) -> Work:
        cheap = self.values(op)[0] in (-2, -1, -0.5, 0, 0.5, 1, 2, 3)
        return Work(flops=(2 if cheap else self.flops) * op.outputs[0].elements)


@register
class Affine(Unary):
    summary = "`alpha` x + `beta`, constants"
    parameters = (
        ("alpha", 1.0),
        ("beta", 0.0),
    )
    flops = 2
    function = staticmethod(lambda x, alpha, beta: x * x.dtype.type(alpha) + x.dtype.type(beta))

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        alpha = op.attributes.get("alpha", 1.0)
        return gy if alpha == 1 else b.emit1("Affine", [gy], {"alpha": alpha, "beta": 0.0})


@register
class Neg(Unary):
    summary = "-x"
    function = np.negative

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1("Neg", [gy])


@register
class Sign(Unary):
    summary = "-1, 0 or 1; no gradient"
    function = np.sign


@register
class Floor(Unary):
    summary = "largest integer not above x; no gradient"
    function = np.floor


@register
class Ceil(Unary):
    summary = "smallest integer not below x; no gradient"
    function = np.ceil


@register
class Round(Unary):
    summary = "nearest integer, halves to even; no gradient"
    function = staticmethod(np.round)


@register
class Not(OpSpec):
    summary = "1 where x is 0, else 0 (u8)"
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 1 or op.inputs[0].dtype is not DType.U8:
            raise ValueError(f"Not needs one u8 input, not {op.inputs}")
        return (op.inputs[0],)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return ((inputs[0] == 0).astype(np.uint8),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_not", Elements(op.outputs[0].elements))
