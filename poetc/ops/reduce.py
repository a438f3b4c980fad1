"""Reductions over axes.

Sums are compensated in the kernels and made in float64 in numpy, so that both are good to 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.kernels.operators.parameters import KEPT, Ints
from poetc.kernels.operators.parameters import Reduction as Walks
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, on_axis, runs
from poetc.ops._elementwise import snake
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops._strides import contiguous_strides, normalize_axes, walk


def kept_shape(shape: Ints, axes: Ints) -> Ints:
    """`shape` with ones in place of the reduced axes."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def reduction_walks(shape: Ints, axes: Ints) -> Walks:
    """Over x, contiguous."""
    strides = contiguous_strides(shape)
    kept = [i for i in range(len(shape)) if i not in axes]
    return Walks(
        walk(tuple(shape[i] for i in kept), tuple(strides[i] for i in kept)),
        walk(tuple(shape[i] for i in axes), tuple(strides[i] for i in axes)),
    )


def as_kept(b: Builder, tensor: str, op: Operator) -> str:
    """A tensor shaped as the output of `op`, seen as with keepdims."""
    shape = b.type(op.inputs[0]).shape
    wanted = kept_shape(shape, axes_of(op, len(shape)))
    return tensor if b.type(tensor).shape == wanted else b.emit1("Reshape", [tensor], {"shape": wanted})


def axes_of(op: Operator | Bound, rank: int) -> Ints:
    axes = op.attributes.get("axes", tuple(range(rank)))
    assert isinstance(axes, tuple)
    return normalize_axes("reduction", [int(a) for a in axes], rank)


def expand(b: Builder, tensor: str, shape: Ints) -> str:
    return tensor if b.type(tensor).shape == shape else b.emit1("Expand", [tensor], {"shape": shape})


class Reduction(OpSpec):
    """Attributes: `axes` (default: all), `keepdims` (default: true)."""

    flops: ClassVar[int] = 1  # an element of x
    function: ClassVar[Callable[..., Any]]  # of x and the axes, with keepdims

    def backward(self, b: Builder, op: Operator, gy: str) -> str:
        """The gradient of x; gy is shaped as with keepdims."""
        raise NotImplementedError

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 1 or op.inputs[0].dtype is not DType.F32:
            raise ValueError(f"{self.kind} needs one f32 input, not {op.inputs}")
        shape = op.inputs[0].shape
        axes = axes_of(op, len(shape))
        if op.inputs[0].elements == 0:
            raise ValueError(f"{self.kind} of an empty tensor {shape}")
        if op.attributes.get("keepdims", True):
            return (TensorType(kept_shape(shape, axes)),)
        return (TensorType(tuple(n for i, n in enumerate(shape) if i not in axes)),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            y = self.function(x.astype(np.float64), axes_of(op, x.ndim))
        return (np.asarray(y, x.dtype).reshape(self.infer(op)[0].shape),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return self.backward(b, op, as_kept(b, gy, op))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along the first axes that stay. A block keeps the loops of the whole reduction."""
        shape = op.inputs[0].shape
        axes = axes_of(op, len(shape))
        spans = runs(shape, [None if a in axes and n > 1 else True for a, n in enumerate(shape)])
        if not spans:
            return ()
        first, last = spans[0]
        lost = [0 if op.attributes.get("keepdims", True) else sum(a < axis for a in axes) for axis in spans[0]]
        return on_axis(op, KEPT, [(first, last), (first - lost[0], last - lost[1])], binds=False)

    def kernel(self, op: Bound) -> Kernel:
        shape = op.inputs[0].shape
        return Kernel(f"poetc_op_{snake(self.kind)}", reduction_walks(shape, axes_of(op, len(shape))))


@register
class ReduceSum(Reduction):
    summary = "sum over `axes`"
    function = staticmethod(lambda x, axes: x.sum(axes, keepdims=True))

    def backward(self, b: Builder, op: Operator, gy: str) -> str:
        return expand(b, gy, b.type(op.inputs[0]).shape)

    def kernel(self, op: Bound) -> Kernel:
        """Rows in one piece, or columns side by side, have a kernel each."""
        kernel = super().kernel(op)
        walks = kernel.parameters_as(Walks)
        if walks.reduced.inner_stride == 1 and walks.reduced.inner >= 16:
            return replace(kernel, symbol=f"{kernel.symbol}_rows")
        if walks.kept.inner_stride == 1 and walks.kept.inner >= 4:
            return replace(kernel, symbol=f"{kernel.symbol}_columns")
        return kernel


@register
class ReduceMean(Reduction):
    summary = "mean over `axes`"
    function = staticmethod(lambda x, axes: x.mean(axes, keepdims=True))

    def backward(self, b: Builder, op: Operator, gy: str) -> str:
        x = b.type(op.inputs[0])
        share = b.type(gy).elements / x.elements
        return expand(b, b.emit1("Affine", [gy], {"alpha": share, "beta": 0.0}), x.shape)


@register
class ReduceL1(Reduction):
    summary = "sum of absolute values over `axes`"
    flops = 2
    function = staticmethod(lambda x, axes: np.abs(x).sum(axes, keepdims=True))

    def backward(self, b: Builder, op: Operator, gy: str) -> str:
        return b.emit1("Mul", [b.emit1("Sign", [op.inputs[0]]), gy])


@register
class ReduceL2(Reduction):
    summary = "square root of the sum of squares over `axes`; gradient 0 where that is 0"
    flops = 2
    function = staticmethod(lambda x, axes: np.sqrt((x * x).sum(axes, keepdims=True)))

    def backward(self, b: Builder, op: Operator, gy: str) -> str:
        scale = b.emit1("DivOrZero", [gy, as_kept(b, op.outputs[0], op)])
        return b.emit1("Mul", [op.inputs[0], scale])


@register
class ReduceLogSumExp(Reduction):
    summary = "log of the sum of exponentials over `axes`"
    flops = 12

    def function(self, x: Array, axes: Ints) -> Any:
        top = x.max(axes, keepdims=True)
        return top + np.log(np.exp(x - top).sum(axes, keepdims=True))

    def backward(self, b: Builder, op: Operator, gy: str) -> str:
        difference = b.emit1("Sub", [op.inputs[0], as_kept(b, op.outputs[0], op)])
        return b.emit1("Mul", [b.emit1("Exp", [difference]), gy])


class _Extremum(Reduction):
    """The gradient is shared evenly by the elements that attain the extremum."""

    def backward(self, b: Builder, op: Operator, gy: str) -> str:
        x = op.inputs[0]
        axes = axes_of(op, len(b.type(x).shape))
        return b.emit1("ReduceMaxGrad", [x, as_kept(b, op.outputs[0], op), gy], {"axes": axes})


@register
class ReduceMax(_Extremum):
    summary = "largest over `axes`"
    function = staticmethod(lambda x, axes: x.max(axes, keepdims=True))


@register
class ReduceMin(_Extremum):
    summary = "smallest over `axes`"
    function = staticmethod(lambda x, axes: x.min(axes, keepdims=True))


@register
class ReduceProd(Reduction):
    summary = "product over `axes`"
    function = staticmethod(lambda x, axes: x.prod(axes, keepdims=True))

    def backward(self, b: Builder, op: Operator, gy: str) -> str:
        axes = axes_of(op, len(b.type(op.inputs[0]).shape))
        return b.emit1("ReduceProdGrad", [op.inputs[0], gy], {"axes": axes})


class _ReductionGrad(OpSpec):
    """(x, small tensors shaped as with keepdims...) -> gx."""

    count: ClassVar[int]
    flops: ClassVar[int] = 3
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, *small = op.inputs
        shape = kept_shape(x.shape, axes_of(op, len(x.shape)))
        if len(op.inputs) != self.count or any(t.dtype is not DType.F32 for t in op.inputs):
            raise ValueError(f"{self.kind} needs {self.count} f32 inputs, not {op.inputs}")
        if any(t.shape != shape for t in small):
            raise ValueError(f"{self.kind}: {shape} expected beside {x.shape}, not {[t.shape for t in small]}")
        return (x,)

    def kernel(self, op: Bound) -> Kernel:
        shape = op.inputs[0].shape
        return Kernel(f"poetc_op_{snake(self.kind)}", reduction_walks(shape, axes_of(op, len(shape))))


@register
class ReduceMaxGrad(_ReductionGrad):
    summary = "(x, y, gy): gy, shared evenly by the elements over `axes` that equal y; for ReduceMin too"
    count = 3

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, y, gy = inputs
        hit = (x == y).astype(x.dtype)
        return (hit * (gy / np.maximum(hit.sum(axes_of(op, x.ndim), keepdims=True), 1)),)


@register
class ReduceProdGrad(_ReductionGrad):
    summary = "(x, gy): gy times the product of the other elements over `axes`, zeros allowed"
    count = 2
    flops = 4

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, gy = inputs
        axes = axes_of(op, x.ndim)
        zero = x == 0
        zeros = zero.sum(axes, keepdims=True)
        product = np.where(zero, 1, x).prod(axes, keepdims=True)
        others = np.where(zeros == 0, product / np.where(zero, 1, x), np.where((zeros == 1) & zero, product, 0))
        return (np.asarray(gy * others, x.dtype),)


class _ArgExtremum(OpSpec):
    """Attributes: `axis`, `keepdims` (default: true). The first of equals."""

    flops = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.F32 or x.elements == 0:
            raise ValueError(f"{self.kind} needs a non-empty f32 input, not {x}")
        (axis,) = normalize_axes(self.kind, [op.get_int("axis")], len(x.shape))
        one = (1,) if op.attributes.get("keepdims", True) else ()
        return (TensorType(x.shape[:axis] + one + x.shape[axis + 1 :], DType.I32),)

    def kernel(self, op: Bound) -> Kernel:
        shape = op.inputs[0].shape
        axes = normalize_axes(self.kind, [op.get_int("axis")], len(shape))
        return Kernel(f"poetc_op_{snake(self.kind)}", reduction_walks(shape, axes))


@register
class ArgMax(_ArgExtremum):
    summary = "where along `axis` the largest is (i32)"

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        keep = bool(op.attributes.get("keepdims", True))
        return (np.argmax(inputs[0], op.get_int("axis"), keepdims=keep).astype(np.int32),)


@register
class ArgMin(_ArgExtremum):
    summary = "where along `axis` the smallest is (i32)"

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        keep = bool(op.attributes.get("keepdims", True))
        return (np.argmin(inputs[0], op.get_int("axis"), keepdims=keep).astype(np.int32),)


@dataclass(frozen=True, slots=True)
class _TopK(Parameters):
    outer: int
    length: int
    inner: int
    count: int
    largest: bool


@register
class TopK(OpSpec):
    summary = "where along `axis` the `k` largest are (with `largest` false the smallest), in order (i32)"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        (axis,) = normalize_axes(self.kind, [op.get_int("axis")], len(x.shape))
        if x.dtype is not DType.F32:
            raise ValueError(f"TopK needs an f32 input, not {x.dtype}")
        if not 0 < op.get_int("k") <= x.shape[axis]:
            raise ValueError(f"TopK cannot take {op.get_int('k')} of {x.shape[axis]} elements")
        return (TensorType((*x.shape[:axis], op.get_int("k"), *x.shape[axis + 1 :]), DType.I32),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, axis = inputs[0], op.get_int("axis")
        order = np.argsort(-x if op.attributes.get("largest", True) else x, axis=axis, kind="stable")
        return (np.take(order, range(op.get_int("k")), axis=axis).astype(np.int32),)

    def work(self, op: Bound) -> Work:
        return Work(flops=2 * op.get_int("k") * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        shape = op.inputs[0].shape
        (axis,) = normalize_axes(self.kind, [op.get_int("axis")], len(shape))
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        largest = bool(op.attributes.get("largest", True))
        return Kernel("poetc_op_top_k", _TopK(outer, shape[axis], inner, op.get_int("k"), largest))
