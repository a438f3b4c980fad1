"""Moving elements: transposing, slicing, joining, repeating.

Most are one strided copy, for elements of 1 or of 4 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Axis, Elements, Ints, Pieces, Scatter, StridedCopy
from poetc.ops._bound import Bound
from poetc.ops._broadcast import broadcast_shapes, reduce_to
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, broadcast, flat, on_runs, runs, untouched
from poetc.ops._registry import Gradients, OpSpec, Work, register
from poetc.ops._strides import broadcast_strides, contiguous_strides, normalize_axes, walk


class Movement(OpSpec):
    """No arithmetic; any dtype."""

    inputs: ClassVar[int] = 1

    def work(self, op: Bound) -> Work:
        return Work()

    def one(self, op: Bound) -> TensorType:
        if len(op.inputs) != 1:
            raise ValueError(f"{self.kind} takes one input, not {len(op.inputs)}")
        return op.inputs[0]

    def strided_copy(self, op: Bound, sizes: Ints, strides: Ints, start: int = 0) -> Kernel:
        """y in row-major order over `sizes`, each element from x at start + index · strides."""
        return Kernel(f"poetc_op_copy{op.inputs[0].dtype.size_bytes}", StridedCopy(start, walk(sizes, strides)))


@register
class Transpose(Movement):
    summary = "dimensions in the order `perm`"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, perm = self.one(op), op.get_ints("perm")
        if sorted(perm) != list(range(len(x.shape))):
            raise ValueError(f"Transpose: perm {perm} is no permutation of the dimensions of {x.shape}")
        return (TensorType(tuple(x.shape[p] for p in perm), x.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.ascontiguousarray(inputs[0].transpose(op.get_ints("perm"))).reshape(self.infer(op)[0].shape),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        perm = op.attributes["perm"]
        assert isinstance(perm, tuple)
        return b.emit1("Transpose", [gy], {"perm": tuple(perm.index(i) for i in range(len(perm)))})

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along the first two axes of the result; axes that are neighbours in x too count as one."""
        shape, perm = op.outputs[0].shape, op.get_ints("perm")
        declared: list[tuple[int, int]] = []
        for a, b in runs(shape, [p - axis for axis, p in enumerate(perm)])[:2]:
            lies_together = math.prod(shape[a : b + 1]) == math.prod(op.inputs[0].shape[perm[a] : perm[b] + 1])
            declared.append((a, b) if lies_together else (a, a))
        return on_runs(op, [[(perm[a], perm[b]), (a, b)] for a, b in declared])

    def kernel(self, op: Bound) -> Kernel:
        strides = contiguous_strides(op.inputs[0].shape)
        return self.strided_copy(op, op.outputs[0].shape, tuple(strides[p] for p in op.get_ints("perm")))


@register
class Slice(Movement):
    summary = "`sizes` elements from `starts` on in `steps` (not 0, may be negative), full rank"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x = self.one(op)
        check_slice(self.kind, op, x.shape)
        return (TensorType(op.get_ints("sizes"), x.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.ascontiguousarray(inputs[0][slice_index(op)]).reshape(op.get_ints("sizes")),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1("SliceGrad", [gy], {**op.attributes, "shape": b.type(op.inputs[0]).shape})

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along an axis that is taken whole."""
        return untouched(op, whole_axes(op))

    def kernel(self, op: Bound) -> Kernel:
        start, strides = slice_strides(op, op.inputs[0].shape)
        return self.strided_copy(op, op.outputs[0].shape, strides, start)


def slice_steps(op: Bound) -> Ints:
    return op.get_ints("steps") if "steps" in op.attributes else (1,) * len(op.get_ints("starts"))


def check_slice(kind: str, op: Bound, shape: Ints) -> None:
    starts, sizes, steps = op.get_ints("starts"), op.get_ints("sizes"), slice_steps(op)
    if not len(shape) == len(starts) == len(sizes) == len(steps):
        raise ValueError(f"{kind}: starts, sizes and steps need one entry a dimension of {shape}")
    for n, start, size, step in zip(shape, starts, sizes, steps, strict=True):
        last = start + (size - 1) * step
        if step == 0 or size < 0 or (size > 0 and not (0 <= start < n and 0 <= last < n)):
            raise ValueError(f"{kind}: {size} elements from {start} in steps of {step} are not within {n}")


def whole_axes(op: Bound) -> list[int]:
    """The axes along which a slice, or its gradient, has all there is."""
    taken = zip(op.inputs[0].shape, op.outputs[0].shape, slice_steps(op), strict=True)
    return [a for a, (n, m, step) in enumerate(taken) if n == m and step == 1]


def slice_index(op: Bound) -> tuple[Array, ...]:
    axes = zip(op.get_ints("starts"), op.get_ints("sizes"), slice_steps(op), strict=True)
    return tuple(np.ix_(*(start + step * np.arange(size) for start, size, step in axes)))


def slice_strides(op: Bound, shape: Ints) -> tuple[int, Ints]:
    """Offset of the first element, and strides, of the slice in a tensor of `shape`."""
    own = contiguous_strides(shape)
    start = sum(s * o for s, o in zip(op.get_ints("starts"), own, strict=True))
    return start, tuple(s * o for s, o in zip(slice_steps(op), own, strict=True))


@register
class SliceGrad(Movement):
    summary = "(gy): zeros of `shape`, with gy where Slice read"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        gy, shape = self.one(op), op.get_ints("shape")
        check_slice(self.kind, op, shape)
        if gy.shape != op.get_ints("sizes"):
            raise ValueError(f"SliceGrad: gy has shape {gy.shape}, not {op.get_ints('sizes')}")
        return (TensorType(shape, gy.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        gx = np.zeros(op.get_ints("shape"), inputs[0].dtype)
        gx[slice_index(op)] = inputs[0]
        return (gx,)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along an axis that is taken whole."""
        return untouched(op, whole_axes(op))

    def kernel(self, op: Bound) -> Kernel:
        start, strides = slice_strides(op, op.outputs[0].shape)
        return scatter(op, start, strides)


def scatter(op: Bound, start: int, strides: Ints, value: float = 0.0) -> Kernel:
    """y filled with `value`, then x, in order, at start + index · strides."""
    if op.inputs[0].dtype is not DType.F32:
        raise ValueError("only f32 can be scattered")
    parameters = Scatter(op.outputs[0].elements, start, walk(op.inputs[0].shape, strides))
    return Kernel("poetc_op_scatter", parameters, (value,))


@register
class Concat(Movement):
    summary = "inputs one behind the other along `axis`"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if not op.inputs:
            raise ValueError("Concat needs at least one input")
        first = op.inputs[0]
        (axis,) = normalize_axes(self.kind, [op.get_int("axis")], len(first.shape))
        for x in op.inputs:
            rest = x.shape[:axis] + x.shape[axis + 1 :]
            if x.dtype is not first.dtype or rest != first.shape[:axis] + first.shape[axis + 1 :]:
                raise ValueError(f"Concat along {axis}: {[(t.shape, str(t.dtype)) for t in op.inputs]} do not match")
        total = sum(x.shape[axis] for x in op.inputs)
        return (TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(inputs, op.get_int("axis")),)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy = grads[0]
        if gy is None:
            return [None] * len(op.inputs)
        types = [b.type(x) for x in op.inputs]
        axis = op.attributes["axis"]
        assert isinstance(axis, int)
        axis %= len(types[0].shape)
        result: list[str | None] = []
        start = 0
        for t, n in zip(types, needed, strict=True):
            starts = tuple(start if i == axis else 0 for i in range(len(t.shape)))
            result.append(b.emit1("Slice", [gy], {"starts": starts, "sizes": t.shape}) if n else None)
            start += t.shape[axis]
        return result

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along another axis."""
        rank = len(op.outputs[0].shape)
        return untouched(op, [a for a in range(rank) if a != op.get_int("axis") % rank])

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_concat", blocks(op, op.inputs, op.outputs[0]))


def blocks(op: Bound, pieces: Sequence[TensorType], whole: TensorType) -> Pieces:
    """The bytes of each piece that lie together."""
    axis = op.get_int("axis") % len(whole.shape)
    outer = int(np.prod(whole.shape[:axis], dtype=np.int64))
    return Pieces(outer, tuple(p.size_bytes // outer if outer else 0 for p in pieces))


@register
class Split(Movement):
    summary = "pieces of `sizes` along `axis`"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, sizes = self.one(op), op.get_ints("sizes")
        (axis,) = normalize_axes(self.kind, [op.get_int("axis")], len(x.shape))
        if sum(sizes) != x.shape[axis] or min(sizes, default=-1) < 0:
            raise ValueError(f"Split: sizes {sizes} do not add up to the {x.shape[axis]} along {axis}")
        return tuple(TensorType((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype) for n in sizes)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        ends = np.cumsum(op.get_ints("sizes"))[:-1]
        return tuple(np.ascontiguousarray(y) for y in np.split(inputs[0], ends, op.get_int("axis")))

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        if not needed[0] or all(g is None for g in grads):
            return [None]
        axis, shape = op.attributes["axis"], b.type(op.inputs[0]).shape
        assert isinstance(axis, int)
        axis %= len(shape)
        present = [g for g in grads if g is not None]
        if len(present) == len(grads):
            return [b.emit1("Concat", present, {"axis": axis})]
        total: str | None = None
        start = 0
        for name, gy in zip(op.outputs, grads, strict=True):
            sizes = b.type(name).shape
            if gy is not None:
                starts = tuple(start if i == axis else 0 for i in range(len(shape)))
                piece = b.emit1("SliceGrad", [gy], {"starts": starts, "sizes": sizes, "shape": shape})
                total = piece if total is None else b.emit1("Add", [total, piece])
            start += sizes[axis]
        return [total]

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along the axes other than the one that is summed, whose sums do not depend on each other."""
        rank = len(op.inputs[0].shape)
        return untouched(op, [a for a in range(rank) if a != op.get_int("axis") % rank])

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_split", blocks(op, op.outputs, op.inputs[0]))


@register
class Expand(Movement):
    summary = "x broadcast to `shape`"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, shape = self.one(op), op.get_ints("shape")
        if broadcast_shapes(self.kind, [x.shape, shape]) != shape:
            raise ValueError(f"Expand: {x.shape} does not broadcast to {shape}")
        return (TensorType(shape, x.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.broadcast_to(inputs[0], op.get_ints("shape")).copy(),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return reduce_to(b, gy, b.type(op.inputs[0]).shape)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along the axes of the result."""
        return broadcast(op)

    def kernel(self, op: Bound) -> Kernel:
        shape = op.outputs[0].shape
        return self.strided_copy(op, shape, broadcast_strides(op.inputs[0].shape, shape))


@register
class Tile(Movement):
    summary = "x `repeats` times along each dimension"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        x, repeats = self.one(op), op.get_ints("repeats")
        if len(repeats) != len(x.shape) or min(repeats, default=1) < 1:
            raise ValueError(f"Tile: repeats {repeats} must be positive, one a dimension of {x.shape}")
        return (TensorType(tuple(n * r for n, r in zip(x.shape, repeats, strict=True)), x.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.tile(inputs[0], op.get_ints("repeats")),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        shape, repeats = b.type(op.inputs[0]).shape, op.attributes["repeats"]
        assert isinstance(repeats, tuple)
        # (r0, n0, r1, n1, ...): the repetitions as dimensions of their own, to be summed over
        apart = tuple(int(v) for pair in zip(repeats, shape, strict=True) for v in pair)
        axes = tuple(2 * i for i, r in enumerate(repeats) if r != 1)
        if axes:
            gy = b.emit1("Reshape", [gy], {"shape": apart})
            gy = b.emit1("ReduceSum", [gy], {"axes": axes, "keepdims": 0})
            gy = b.emit1("Reshape", [gy], {"shape": shape})
        return gy

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along an axis that is not repeated."""
        return untouched(op, [a for a, times in enumerate(op.get_ints("repeats")) if times == 1])

    def kernel(self, op: Bound) -> Kernel:
        shape = op.inputs[0].shape
        own = contiguous_strides(shape)
        sizes = tuple(v for pair in zip(op.get_ints("repeats"), shape, strict=True) for v in pair)
        return self.strided_copy(op, sizes, tuple(v for s in own for v in (0, s)))


@register
class Cast(OpSpec):
    summary = "elements as `to`: f32, i32 (towards zero, saturating, NaN is 0) or u8 (1 where not 0)"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 1:
            raise ValueError(f"Cast takes one input, not {len(op.inputs)}")
        return (TensorType(op.inputs[0].shape, DType(op.get_str("to"))),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,), to = inputs, DType(op.get_str("to"))
        if to is DType.U8:
            return ((x != 0).astype(np.uint8),)
        if to is DType.I32 and x.dtype.kind == "f":
            low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
            return (np.clip(np.nan_to_num(x.astype(np.float64)), low, high).astype(np.int32),)
        if to is DType.F32 and x.dtype.kind == "f":
            return (x,)
        return (x.astype(to.numpy),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        floats = b.type(op.inputs[0]).dtype is b.type(op.outputs[0]).dtype is DType.F32
        return gy if floats else None

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Flat."""
        return (flat(op, 1, binds=True),)

    def kernel(self, op: Bound) -> Kernel:
        source, target = op.inputs[0].dtype, op.outputs[0].dtype
        return Kernel(f"poetc_op_cast_{source}_{target}", Elements(op.outputs[0].elements))

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return ((0, 0),) if op.inputs[0].dtype.size_bytes == op.outputs[0].dtype.size_bytes else ()


@dataclass(frozen=True, slots=True)
class _CumSum(Axis):
    is_exclusive: bool
    is_reverse: bool


@register
class CumSum(OpSpec):
    summary = "running sum along `axis`; `exclusive`: without the element itself; `reverse`: from the end"
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.F32:
            raise ValueError(f"CumSum needs an f32 input, not {x.dtype}")
        normalize_axes(self.kind, [op.get_int("axis")], len(x.shape))
        return (x,)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,), axis = inputs, op.get_int("axis")
        moved = np.moveaxis(x, axis, 0)
        if op.get_int("reverse"):
            moved = moved[::-1]
        y = np.cumsum(moved, 0, dtype=x.dtype)
        if op.get_int("exclusive"):
            y = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
        if op.get_int("reverse"):
            y = y[::-1]
        return (np.ascontiguousarray(np.moveaxis(y, 0, axis)),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1("CumSum", [gy], {**op.attributes, "reverse": int(not op.attributes.get("reverse"))})

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Along another axis."""
        rank = len(op.inputs[0].shape)
        return untouched(op, [a for a in range(rank) if a != op.get_int("axis") % rank])

    def kernel(self, op: Bound) -> Kernel:
        shape = op.inputs[0].shape
        axis = op.get_int("axis") % len(shape)
        outer, inner = (int(np.prod(s, dtype=np.int64)) for s in (shape[:axis], shape[axis + 1 :]))
        flags = bool(op.get_int("exclusive")), bool(op.get_int("reverse"))
        return Kernel("poetc_op_cum_sum", _CumSum(outer, shape[axis], inner, *flags))
