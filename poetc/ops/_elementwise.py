"""Base of element-wise functions of one tensor, each with its gradient kind `<Kind>Grad(saved, gy)`.

`saved` is the output wherever the derivative can be written in it, so that the input need not be kept. Such are y' = y
(1 - y) for Sigmoid, and y' = [y > 0] for Relu. Where it cannot (Gelu, Silu, ...) it is the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.machine import counts
from poetc.kernels.operators.loops import elementwise
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, flat
from poetc.ops._registry import OpSpec, Work, register


def snake(kind: str) -> str:
    """The name of a kind in C: HardSwish → hard_swish."""
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(kind))


class Elementwise(OpSpec):
    """Inputs and output of one shape, f32.

    `parameters` are float attributes with their defaults, passed on to the kernel.
    """

    parameters: ClassVar[tuple[tuple[str, float], ...]] = ()
    flops: ClassVar[int] = 1  # an element
    arity: ClassVar[int] = 1

    def values(self, op: Bound) -> tuple[float, ...]:
        return tuple(op.get_float(name, default) for name, default in self.parameters)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != self.arity:
            raise ValueError(f"{self.kind} takes {self.arity} inputs, not {len(op.inputs)}")
        for x in op.inputs:
            if x.dtype is not DType.F32 or x.shape != op.inputs[0].shape:
                raise ValueError(f"{self.kind} needs f32 inputs of one shape, not {op.inputs}")
        return (op.inputs[0],)

    def work(self, op: Bound) -> Work:
        return Work(flops=self.flops * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel(f"poetc_op_{snake(self.kind)}", Elements(op.outputs[0].elements), self.values(op))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """One cut, along all elements as one axis: each is computed from its own operands."""
        return (flat(op, self.arity, binds=True),)

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return tuple((i, 0) for i in range(self.arity))


class Unary(Elementwise):
    """y = function(x), which takes the values of `parameters`, too."""

    function: ClassVar[Callable[..., Any]]

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            return (np.asarray(self.function(x, *self.values(op)), x.dtype),)


class Differentiable(Unary):
    """gx = derivative(saved) * gy, by the kind `<Kind>Grad`."""

    variants: ClassVar[tuple[str, ...]] = ()  # other kernels of the kind, by their names in C
    derivative: ClassVar[Callable[..., Any]]
    saves_output: ClassVar[bool] = True
    gradient_flops: ClassVar[int] = 2

    def saves(self, op: Operator) -> str:
        return op.outputs[0] if self.saves_output else op.inputs[0]

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1(f"{self.kind}Grad", [self.saves(op), gy], op.attributes)


class Gradient(Elementwise):
    """Gradient of a `Differentiable` kind: gx = derivative(saved) * gy, where `saved` is its input or output."""

    arity = 2
    forward: ClassVar[Differentiable]

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        saved, gy = inputs
        with np.errstate(all="ignore"):
            return (np.asarray(self.forward.derivative(saved, *self.forward.values(op)) * gy, saved.dtype),)

    def values(self, op: Bound) -> tuple[float, ...]:
        return self.forward.values(op)

    def kernel(self, op: Bound) -> Kernel:
        forward = self.forward.kernel(op)
        return Kernel(f"{forward.symbol}_grad", forward.parameters, forward.floats)


D = TypeVar("D", bound=type[Differentiable])


def register_with_gradient(cls: D) -> D:
    """Register the kind, `<Kind>Grad` made from its `derivative`, and the loops of the kernels of both."""
    register(cls)
    for name in (snake(cls.kind), *cls.variants):
        counts(name, f"{name}_grad")(elementwise)
    kind = f"{cls.kind}Grad"
    saved = "output" if cls.saves_output else "input"
    attributes = {
        "summary": f"Gradient of {cls.kind} from its {saved}.",
        "forward": cls(),
        "flops": cls.gradient_flops,
        "__doc__": f"(saved {saved}, gy) -> gx of {cls.kind}.",
        "__module__": cls.__module__,
    }
    register(type(kind, (Gradient,), attributes))
    return cls


def erf(x: Array) -> Any:
    """The error function in the dtype of x, computed in float64."""
    flat = [math.erf(v) for v in np.asarray(x, np.float64).ravel().tolist()]
    return np.asarray(flat, x.dtype).reshape(x.shape)


def sigmoid(x: Array) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def softplus(x: Array) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
