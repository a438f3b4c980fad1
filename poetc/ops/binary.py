"""Element-wise functions of two or three tensors with numpy broadcasting, comparisons, and their gradients."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.ops._bound import Bound
from poetc.ops._broadcast import broadcast_shapes, reduce_to
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, broadcast, flat
from poetc.ops._elementwise import snake
from poetc.ops._registry import Gradients, OpSpec, Work, register
from poetc.ops._strides import broadcast_strides, walk

F32, I32, U8 = DType.F32, DType.I32, DType.U8


class Broadcast(OpSpec):
    """An element-wise operator whose inputs broadcast as in numpy.

    `reads`: the dtypes of its inputs, a tuple for each combination that it takes. `writes`: the dtype of its output;
    None: that of the last input.
    """

    function: ClassVar[Callable[..., Any]]  # of its inputs
    reads: ClassVar[tuple[tuple[DType, ...], ...]] = ((F32, F32),)
    writes: ClassVar[DType | None] = None
    flops: ClassVar[int] = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if tuple(x.dtype for x in op.inputs) not in self.reads:
            wanted = " or ".join("(" + ", ".join(r) + ")" for r in self.reads)
            raise ValueError(f"{self.kind} needs inputs {wanted}, not ({', '.join(x.dtype for x in op.inputs)})")
        shape = broadcast_shapes(self.kind, [x.shape for x in op.inputs])
        return (TensorType(shape, self.writes or op.inputs[-1].dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            y = self.function(*inputs)
        dtype = self.writes.numpy if self.writes else inputs[-1].dtype
        return (np.asarray(y, dtype),)

    def work(self, op: Bound) -> Work:
        return Work(flops=self.flops * op.outputs[0].elements)

    def symbol(self, op: Bound) -> str:
        return f"poetc_op_{snake(self.kind)}"

    def kernel(self, op: Bound) -> Kernel:
        shape = op.outputs[0].shape
        return Kernel(self.symbol(op), walk(shape, *(broadcast_strides(x.shape, shape) for x in op.inputs)))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Each element by itself; with operands of several shapes, by axes."""
        shape = op.outputs[0].shape
        if all(x.shape == shape for x in op.inputs):
            return (flat(op, len(op.inputs), binds=True),)
        return broadcast(op)

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return tuple((i, 0) for i, x in enumerate(op.inputs) if x == op.outputs[0])


def wanted(grads: Gradients, needed: Sequence[bool]) -> str | None:
    """The gradient that arrives, if there is one and something asks for it."""
    return grads[0] if any(needed) else None


class _ByOperand(Broadcast):
    """A kind whose gradient for an operand has the shape of the output, and is then added up over broadcast axes."""

    def of_operand(self, b: Builder, op: Operator, gy: str, i: int) -> str:
        """Emit the gradient of operand `i` before it is added up."""
        raise NotImplementedError

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy = wanted(grads, needed)
        if gy is None:
            return [None] * len(op.inputs)
        return [
            reduce_to(b, self.of_operand(b, op, gy, i), b.type(x).shape) if need else None
            for i, (x, need) in enumerate(zip(op.inputs, needed, strict=True))
        ]


# --- arithmetic


class _Arithmetic(_ByOperand):
    """Arithmetic of floats, or of 32-bit integers (which wrap around)."""

    reads: ClassVar[tuple[tuple[DType, ...], ...]] = ((F32, F32), (I32, I32))

    def symbol(self, op: Bound) -> str:
        suffix = "" if op.inputs[0].dtype is F32 else f"_{op.inputs[0].dtype}"
        return f"poetc_op_{snake(self.kind)}{suffix}"


@register
class Add(_Arithmetic):
    summary = "a + b"
    function = operator.add

    def of_operand(self, b: Builder, op: Operator, gy: str, i: int) -> str:
        return gy


@register
class Sub(_Arithmetic):
    summary = "a - b"
    function = operator.sub

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy = wanted(grads, needed)
        result: list[str | None] = [None, None]
        if gy is not None and needed[0]:
            result[0] = reduce_to(b, gy, b.type(op.inputs[0]).shape)
        if gy is not None and needed[1]:
            result[1] = b.emit1("Neg", [reduce_to(b, gy, b.type(op.inputs[1]).shape)])
        return result


@register
class Mul(_Arithmetic):
    summary = "a b"
    function = operator.mul

    def of_operand(self, b: Builder, op: Operator, gy: str, i: int) -> str:
        return b.emit1("Mul", [gy, op.inputs[1 - i]])


@register
class Div(Broadcast):
    summary = "a / b"
    function = operator.truediv

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy = wanted(grads, needed)
        result: list[str | None] = [None, None]
        if gy is None:
            return result
        quotient = b.emit1("Div", [gy, op.inputs[1]])  # gy / b; and d(a / b)/db = -y / b needs no a
        if needed[0]:
            result[0] = reduce_to(b, quotient, b.type(op.inputs[0]).shape)
        if needed[1]:
            product = b.emit1("Mul", [quotient, op.outputs[0]])
            result[1] = b.emit1("Neg", [reduce_to(b, product, b.type(op.inputs[1]).shape)])
        return result


@register
class DivOrZero(Broadcast):
    summary = "a / b, and 0 where b is 0; for gradients"
    function = staticmethod(lambda a, b: np.where(b == 0, 0, a / b))


@register
class Pow(_ByOperand):
    summary = "a to the power b, both tensors"
    flops = 20
    function = np.power

    def of_operand(self, b: Builder, op: Operator, gy: str, i: int) -> str:
        base, exponent = op.inputs
        if i == 0:
            return b.emit1("PowGradBase", [base, exponent, gy])
        return b.emit1("PowGradExponent", [base, op.outputs[0], gy])


@register
class PowGradBase(Broadcast):
    summary = "(a, b, gy): gy b a^(b - 1), 0 where b is 0"
    reads = ((F32, F32, F32),)
    flops = 23
    function = staticmethod(lambda a, b, gy: np.where(b == 0, 0, gy * b * np.power(a, b - 1)))


@register
class PowGradExponent(Broadcast):
    summary = "(a, y, gy): gy y log(a), 0 where a is 0"
    reads = ((F32, F32, F32),)
    flops = 12
    function = staticmethod(lambda a, y, gy: np.where(a == 0, 0, gy * y * np.log(a)))


class _Extremum(_Arithmetic):
    """The larger or the smaller; where both are equal each gets half of the gradient."""

    def of_operand(self, b: Builder, op: Operator, gy: str, i: int) -> str:
        winner = i if self.kind == "Maximum" else 1 - i
        return b.emit1("MaximumGrad", [op.inputs[winner], op.inputs[1 - winner], gy])


@register
class Maximum(_Extremum):
    summary = "the larger of a and b"
    function = staticmethod(lambda a, b: np.where(a > b, a, b))


@register
class Minimum(_Extremum):
    summary = "the smaller of a and b"
    function = staticmethod(lambda a, b: np.where(a < b, a, b))


@register
class MaximumGrad(Broadcast):
    summary = "(a, b, gy): gy where a > b, gy / 2 where a = b, else 0"
    reads = ((F32, F32, F32),)
    function = staticmethod(lambda a, b, gy: np.where(a > b, gy, np.where(a == b, gy * gy.dtype.type(0.5), 0)))


@register
class PRelu(_ByOperand):
    summary = "x if x > 0, else slope x, with a trained slope"
    function = staticmethod(lambda x, slope: np.where(x > 0, x, x * slope))

    def of_operand(self, b: Builder, op: Operator, gy: str, i: int) -> str:
        x, slope = op.inputs
        return b.emit1("PReluGradInput", [x, slope, gy]) if i == 0 else b.emit1("PReluGradSlope", [x, gy])


@register
class PReluGradInput(Broadcast):
    summary = "(x, slope, gy): gy where x > 0, else slope gy"
    reads = ((F32, F32, F32),)
    function = staticmethod(lambda x, slope, gy: np.where(x > 0, gy, slope * gy))


@register
class PReluGradSlope(Broadcast):
    summary = "(x, gy): 0 where x > 0, else x gy"
    function = staticmethod(lambda x, gy: np.where(x > 0, 0, x * gy))


# --- choosing


@register
class Where(Broadcast):
    summary = "x where the u8 condition is not 0, else y"
    reads = ((U8, F32, F32), (U8, I32, I32), (U8, U8, U8))
    function = staticmethod(lambda condition, x, y: np.where(condition != 0, x, y))

    def symbol(self, op: Bound) -> str:
        return f"poetc_op_where_{op.inputs[1].dtype}"

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy = wanted(grads, needed)
        result: list[str | None] = [None, None, None]
        for i, kind in ((1, "Mask"), (2, "MaskNot")):
            if gy is not None and needed[i]:
                result[i] = reduce_to(b, b.emit1(kind, [op.inputs[0], gy]), b.type(op.inputs[i]).shape)
        return result


@register
class Mask(Broadcast):
    summary = "(condition, g): g where the u8 condition is not 0, else 0"
    reads = ((U8, F32),)
    function = staticmethod(lambda condition, g: np.where(condition != 0, g, 0))


@register
class MaskNot(Broadcast):
    summary = "(condition, g): g where the u8 condition is 0, else 0"
    reads = ((U8, F32),)
    function = staticmethod(lambda condition, g: np.where(condition == 0, g, 0))


@register
class Mod(Broadcast):
    summary = "the remainder of a / b (i32), with the sign of b, or with `fmod` that of a; 0 where b is 0"
    reads = ((I32, I32),)
    writes = I32

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (np.fmod(*inputs) if op.get_int("fmod", 0) else np.mod(*inputs),)

    def symbol(self, op: Bound) -> str:
        return f"poetc_op_{'remainder' if op.get_int('fmod', 0) else 'mod'}_i32"


class _Comparison(Broadcast):
    reads: ClassVar[tuple[tuple[DType, ...], ...]] = ((F32, F32), (I32, I32))
    writes = U8

    def symbol(self, op: Bound) -> str:
        return f"poetc_op_{snake(self.kind)}_{op.inputs[0].dtype}"


@register
class Equal(_Comparison):
    summary = "1 where a = b, else 0 (u8)"
    reads = ((F32, F32), (I32, I32), (U8, U8))
    function = operator.eq


@register
class Less(_Comparison):
    summary = "1 where a < b, else 0 (u8)"
    function = operator.lt


@register
class LessOrEqual(_Comparison):
    summary = "1 where a <= b, else 0 (u8)"
    function = operator.le


@register
class Greater(_Comparison):
    summary = "1 where a > b, else 0 (u8)"
    function = operator.gt


@register
class GreaterOrEqual(_Comparison):
    summary = "1 where a >= b, else 0 (u8)"
    function = operator.ge


class _Logical(Broadcast):
    reads = ((U8, U8),)


@register
class And(_Logical):
    summary = "1 where neither a nor b is 0, else 0 (u8)"
    function = staticmethod(lambda a, b: (a != 0) & (b != 0))


@register
class Or(_Logical):
    summary = "0 where both a and b are 0, else 1 (u8)"
    function = staticmethod(lambda a, b: (a != 0) | (b != 0))


@register
class Xor(_Logical):
    summary = "1 where exactly one of a and b is 0, else 0 (u8)"
    function = staticmethod(lambda a, b: (a != 0) ^ (b != 0))
