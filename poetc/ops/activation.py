"""Activation functions and their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from poetc.graph import Array, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._elementwise import Differentiable, erf, register_with_gradient, sigmoid, softplus

# The self-normalising constants of Klambauer et al. 2017 (eq. 14).
SELU_ALPHA = 1.6732632423543772
SELU_GAMMA = 1.0507009873554805


SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715


# --- rectifiers and their kin: the derivative in terms of the output


@register_with_gradient
class Relu(Differentiable):
    summary = "max(x, 0)"
    function = staticmethod(lambda x: np.where(x <= 0, 0, x))  # a NaN stays visible
    derivative = staticmethod(lambda saved: saved > 0)


@register_with_gradient
class LeakyRelu(Differentiable):
    summary = "x if x > 0, else `alpha` x"
    parameters = (("alpha", 0.01),)
    function = staticmethod(lambda x, alpha: np.where(x > 0, x, x * x.dtype.type(alpha)))
    derivative = staticmethod(lambda saved, alpha: np.where(saved > 0, 1, alpha).astype(saved.dtype))

    def saves(self, op: Operator) -> str:
        # The output tells the sign of the input unless alpha turns it round or wipes it out.
        alpha = op.attributes.get("alpha", 0.01)
        assert isinstance(alpha, (int, float))
        return op.outputs[0] if alpha >= 0 else op.inputs[0]


class _Exponential(Differentiable):
    """gamma (x if x > 0, else alpha (exp(x / scale) - 1)); for x <= 0 the derivative is (y + gamma alpha) / scale."""

    flops = 10

    def constants(self, *values: float) -> tuple[float, float, float]:
        """gamma, alpha, scale."""
        raise NotImplementedError

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if any(v <= 0 for v in self.values(op)):
            raise ValueError(
                f"{self.kind}: {', '.join(name for name, _ in self.parameters)} must be positive, not {self.values(op)}"
            )
        return super().infer(op)

    def function(self, x: Array, *values: float) -> Any:
        gamma, alpha, scale = (x.dtype.type(v) for v in self.constants(*values))
        return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / scale))

    def derivative(self, saved: Array, *values: float) -> Any:
        gamma, alpha, scale = (saved.dtype.type(v) for v in self.constants(*values))
        return np.where(saved > 0, gamma, (saved + gamma * alpha) / scale)


@register_with_gradient
class Elu(_Exponential):
    summary = "x if x > 0, else `alpha` (exp(x) - 1); alpha > 0"
    parameters = (("alpha", 1.0),)

    def constants(self, *values: float) -> tuple[float, float, float]:
        return 1.0, values[0], 1.0


@register_with_gradient
class Selu(_Exponential):
    summary = "`gamma` (x if x > 0, else `alpha` (exp(x) - 1)); both > 0"
    parameters = (
        ("alpha", SELU_ALPHA),
        ("gamma", SELU_GAMMA),
    )

    def constants(self, *values: float) -> tuple[float, float, float]:
        return values[1], values[0], 1.0


@register_with_gradient
class Celu(_Exponential):
    summary = "x if x > 0, else `alpha` (exp(x / alpha) - 1); alpha > 0"
    parameters = (("alpha", 1.0),)

    def constants(self, *values: float) -> tuple[float, float, float]:
        return 1.0, values[0], values[0]


@register_with_gradient
class Clip(Differentiable):
    summary = "x limited to [`min`, `max`]; the gradient passes where min < y < max"
    parameters = (
        ("min", -math.inf),
        ("max", math.inf),
    )
    function = staticmethod(lambda x, low, high: np.clip(x, x.dtype.type(low), x.dtype.type(high)))
    derivative = staticmethod(
        lambda saved, low, high: (saved > saved.dtype.type(low)) & (saved < saved.dtype.type(high))
    )


@register_with_gradient
class HardSigmoid(Differentiable):
    summary = "`alpha` x + `beta` limited to [0, 1]"
    parameters = (
        ("alpha", 0.2),
        ("beta", 0.5),
    )
    flops = 3
    function = staticmethod(lambda x, alpha, beta: np.clip(x * x.dtype.type(alpha) + x.dtype.type(beta), 0, 1))
    derivative = staticmethod(
        lambda saved, alpha, beta: np.where((saved > 0) & (saved < 1), alpha, 0).astype(saved.dtype)
    )


@register_with_gradient
class Sigmoid(Differentiable):
    summary = "1 / (1 + exp(-x))"
    flops = 12
    gradient_flops = 3
    function = staticmethod(sigmoid)
    derivative = staticmethod(lambda saved: saved * (1 - saved))


@register_with_gradient
class Tanh(Differentiable):
    summary = "(exp(x) - exp(-x)) / (exp(x) + exp(-x))"
    flops = 12
    gradient_flops = 4
    function = np.tanh
    derivative = staticmethod(lambda saved: (1 - saved) * (1 + saved))


@register_with_gradient
class Softplus(Differentiable):
    summary = "log(1 + exp(x))"
    flops = 20
    gradient_flops = 11
    function = staticmethod(softplus)
    derivative = staticmethod(lambda saved: -np.expm1(-saved))


@register_with_gradient
class Softsign(Differentiable):
    summary = "x / (1 + |x|)"
    flops = 3
    gradient_flops = 4
    function = staticmethod(lambda x: x / (1 + np.abs(x)))
    derivative = staticmethod(lambda saved: (1 - np.abs(saved)) ** 2)


@register_with_gradient
class Silu(Differentiable):
    summary = "x sigmoid(x)"
    saves_output = False
    flops = 13
    gradient_flops = 16
    function = staticmethod(lambda x: x * sigmoid(x))

    def derivative(self, saved: Array, *values: float) -> Any:
        s = sigmoid(saved)
        return s * (1 + saved * (1 - s))


@register_with_gradient
class HardSwish(Differentiable):
    summary = "x max(0, min(1, x / 6 + 1 / 2))"
    saves_output = False
    flops = 4
    gradient_flops = 4
    function = staticmethod(lambda x: x * np.clip(x / 6 + 0.5, 0, 1))
    derivative = staticmethod(lambda saved: np.where(saved <= -3, 0, np.where(saved >= 3, 1, saved / 3 + 0.5)))


@register_with_gradient
class Mish(Differentiable):
    summary = "x tanh(softplus(x))"
    saves_output = False
    flops = 33
    gradient_flops = 48
    function = staticmethod(lambda x: x * np.tanh(softplus(x)))

    def derivative(self, saved: Array, *values: float) -> Any:
        t = np.tanh(softplus(saved))
        return t + saved * (1 - t) * (1 + t) * sigmoid(saved)


@register_with_gradient
class Gelu(Differentiable):
    summary = "x Φ(x) (Hendrycks and Gimpel 2016); `approximate`: none (erf) or tanh (their eq. 2)"
    variants = ("gelu_tanh",)
    saves_output = False
    flops = 18
    gradient_flops = 32

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.get_str("approximate", "none") not in ("none", "tanh"):
            raise ValueError(f"Gelu: approximate must be none or tanh, not {op.attributes['approximate']!r}")
        return super().infer(op)

    def values(self, op: Bound) -> tuple[float, ...]:
        return (float(op.get_str("approximate", "none") == "tanh"),)

    def kernel(self, op: Bound) -> Kernel:
        suffix = "_tanh" if self.values(op)[0] else ""
        return Kernel(f"poetc_op_gelu{suffix}", Elements(op.outputs[0].elements))

    def function(self, x: Array, *values: float) -> Any:
        if values[0]:
            return 0.5 * x * (1 + np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x)))
        return 0.5 * x * (1 + erf(x * SQRT_HALF))

    def derivative(self, saved: Array, *values: float) -> Any:
        x = saved
        if values[0]:
            t = np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))
            return 0.5 * (1 + t) + 0.5 * x * (1 - t) * (1 + t) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x)
        return 0.5 * (1 + erf(x * SQRT_HALF)) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
