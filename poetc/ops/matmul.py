"""Matrix products with broadcast batch axes: y = alpha · op(a) op(b) + bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from poetc.graph import Attribute, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.gemm.selection import Strides, product_kernel, views_kernel
from poetc.ops._bound import Bound, operand_bytes_of
from poetc.ops._broadcast import reduce_to
from poetc.ops._builder import Builder
from poetc.ops._cuts import WHOLE, Cut, Part, Range, along, crossed, in_window, on_axis, runs, within_steps
from poetc.ops._registry import Gradients, OpSpec, Work, register
from poetc.ops._strides import collapse, strided_view


def _dims(op: Bound) -> tuple[int, int, int, bool, bool]:
    """(M, N, K, trans_a, trans_b)."""
    a, b = op.inputs[:2]
    trans_a, trans_b = bool(op.get_int("trans_a")), bool(op.get_int("trans_b"))
    m, k = a.shape[-2:][:: -1 if trans_a else 1]
    k2, n = b.shape[-2:][:: -1 if trans_b else 1]
    if k != k2:
        raise ValueError(f"a matrix product of {a.shape} and {b.shape}: inner sizes {k} and {k2} differ")
    return m, n, k, trans_a, trans_b


def _batch_loops(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Broadcast batch axes as loops (extent, step in a, step in b), steps in matrices; neighbours merged."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    loops: list[tuple[int, int, int]] = []
    step_a = step_b = 1
    for extent_a, extent_b in zip(reversed(a), reversed(b), strict=True):
        extent = max(extent_a, extent_b)
        if extent > 1:
            loop = (extent, step_a if extent_a > 1 else 0, step_b if extent_b > 1 else 0)
            if loops and all(loop[i] == loops[-1][0] * loops[-1][i] for i in (1, 2)):
                loops[-1] = (loops[-1][0] * extent, *loops[-1][1:])
            else:
                loops.append(loop)
        step_a, step_b = step_a * extent_a, step_b * extent_b
    return loops[::-1]


@register
class MatMul(OpSpec):
    summary = "Matrix product alpha · op(a) op(b) + bias[N]; trans_a, trans_b, alpha; batch axes broadcast as in numpy"
    evaluates_blocks = True

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        a, b = op.inputs[:2]
        if len(a.shape) < 2 or len(b.shape) < 2:
            raise ValueError(f"a matrix product needs at least rank 2 on both sides, not {a.shape} and {b.shape}")
        m, n, _, _, _ = _dims(op)
        if len(op.inputs) > 2 and op.inputs[2].shape != (n,):
            raise ValueError(f"the bias has shape {op.inputs[2].shape}, not {(n,)}")
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return (TensorType((*batch, m, n), a.dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        a, b = inputs[:2]
        _, _, _, trans_a, trans_b = _dims(op)
        y = np.matmul(a.swapaxes(-1, -2) if trans_a else a, b.swapaxes(-1, -2) if trans_b else b)
        alpha = op.get_float("alpha", 1.0)
        if alpha != 1.0:
            y = y * y.dtype.type(alpha)
        return (y + inputs[2] if len(inputs) > 2 else y,)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gy = grads[0]
        result: list[str | None] = [None] * len(op.inputs)
        if gy is None:
            return result
        left, right = op.inputs[:2]
        trans_a, trans_b = bool(op.attributes.get("trans_a", False)), bool(op.attributes.get("trans_b", False))
        alpha = op.attributes.get("alpha", 1.0)

        def product(x: str, y: str, trans_x: bool, trans_y: bool, wanted: str) -> str:
            attributes: dict[str, Attribute] = {"trans_a": trans_x, "trans_b": trans_y, "alpha": alpha}
            gradient = b.emit1("MatMul", [x, y], attributes, hint=f"{wanted}.grad")
            shape = b.type(wanted).shape
            if b.type(gradient).elements == b.type(wanted).elements:
                return gradient if b.type(gradient).shape == shape else b.emit1("Reshape", [gradient], {"shape": shape})
            return reduce_to(b, gradient, shape)

        if needed[0]:
            if trans_a:
                result[0] = product(right, gy, trans_b, True, left)
            else:
                result[0] = product(gy, right, False, not trans_b, left)
        if needed[1]:
            a, g = left, gy
            # One weight matrix under a batch: the batch joins the rows, so that the product itself sums over it.
            shared = math.prod(b.type(right).shape[:-2]) == 1 and math.prod(b.type(left).shape[:-2]) > 1
            if shared and not trans_a:
                a, g = (b.emit1("Reshape", [t], {"shape": _as_rows(b.type(t))}, hint=f"{t}.rows") for t in (left, gy))
            if trans_b:
                result[1] = product(g, a, True, trans_a, right)
            else:
                result[1] = product(a, g, not trans_a, False, right)
        if len(op.inputs) > 2 and needed[2]:
            result[2] = _sum_of_rows(b, gy, f"{op.inputs[2]}.grad")
        return result

    def work(self, op: Bound) -> Work:
        y = op.outputs[0].elements
        return Work(macs=y * _dims(op)[2], flops=y if len(op.inputs) > 2 else 0)

    def kernel(self, op: Bound) -> Kernel:
        m, n, k, trans_a, trans_b = _dims(op)
        loops = _batch_loops(op.inputs[0].shape[:-2], op.inputs[1].shape[:-2])
        alpha, operand_bytes = op.get_float("alpha", 1.0), operand_bytes_of(op)
        return product_kernel((m, n, k), trans_a, trans_b, len(op.inputs) > 2, loops, alpha, operand_bytes)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By matrices of the batch, by columns where b is one matrix, and by rows where a is one."""
        a, b, *bias = op.inputs
        m, n, _, trans_a, trans_b = _dims(op)
        (y,) = op.outputs
        matrices = _by_matrices(op)
        if math.prod(b.shape[:-2]) != 1:
            return matrices
        of_b, of_y = along(b, len(b.shape) - (2 if trans_b else 1)), along(y, len(y.shape) - 1)
        columns = Cut("columns", n, (None, of_b, *(along(t, 0) for t in bias), of_y))
        if matrices:
            return crossed(op, matrices[0], columns)
        of_a, of_y = along(a, len(a.shape) - (1 if trans_a else 2)), along(y, len(y.shape) - 2)
        return crossed(op, columns, Cut("rows", m, (of_a, None, *(None for _ in bias), of_y)))


def _by_matrices(op: Bound) -> tuple[Cut, ...]:
    """Along the first run of axes of the batch."""
    batch = op.outputs[0].shape[:-2]
    operands = [x.shape[:-2] for x in op.inputs[:2]]
    padded = [(1,) * (len(batch) - len(x)) + x for x in operands]
    spans = runs(batch, [tuple(x[axis] > 1 for x in padded) for axis in range(len(batch))])
    if not spans:
        return ()
    first, last = spans[0]
    lead = [len(batch) - len(x) for x in operands]
    axes = [(first - k, last - k) if x[first] > 1 else None for k, x in zip(lead, padded, strict=True)]
    return on_axis(op, "matrices", [*axes, *(None for _ in op.inputs[2:]), (first, last)], binds=False)


@register
class MatMulOfViews(OpSpec):
    """The movement pass's form of a product whose operands, or result, would be moved by operators of their own."""

    summary = (
        "MatMul of matrices within larger tensors, `sizes` (batch..., M, N, K). `a`, `b`, `y`: first element, steps "
        "along the batch, then rows and columns. y has `shape`; alpha; `terms` of a block of a sum"
    )
    cost_like: ClassVar[str] = "MatMul"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        sizes, shape = op.get_ints("sizes"), op.get_ints("shape")
        *batch, m, n, k = sizes
        for name, extents, elements in (
            ("a", (*batch, m, k), op.inputs[0].elements),
            ("b", (*batch, k, n), op.inputs[1].elements),
            ("y", (*batch, m, n), math.prod(shape)),
        ):
            start, *steps = op.get_ints(name)
            reach = [step * (extent - 1) for step, extent in zip(steps, extents, strict=True)]
            low, high = start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0)
            if low < 0 or high >= elements:
                raise ValueError(f"MatMulOfViews: {name} reaches from {low} to {high} of {elements} elements")
        if math.prod((*batch, m, n)) != math.prod(shape) or not _covers((*batch, m, n), op.get_ints("y")[1:]):
            raise ValueError(f"MatMulOfViews: y does not reach every element of {shape} once")
        if len(op.inputs) > 2 and op.inputs[2].shape != (n,):
            raise ValueError(f"the bias has shape {op.inputs[2].shape}, not {(n,)}")
        if not fits_views(*(op.get_ints(name) for name in "aby")):
            raise ValueError("MatMulOfViews: neither rows nor columns lie together")
        return (TensorType(shape, op.inputs[0].dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        *batch, m, n, k = op.get_ints("sizes")
        a = strided_view(inputs[0], op.get_ints("a"), (*batch, m, k))
        y = np.matmul(a, strided_view(inputs[1], op.get_ints("b"), (*batch, k, n)))
        alpha = op.get_float("alpha", 1.0)
        if alpha != 1.0:
            y = y * y.dtype.type(alpha)
        result = np.empty(op.get_ints("shape"), y.dtype)
        strided_view(result, op.get_ints("y"), (*batch, m, n))[...] = y + inputs[2] if len(inputs) > 2 else y
        return (result,)

    def work(self, op: Bound) -> Work:
        *batch, m, n, k = op.get_ints("sizes")
        y = op.outputs[0].elements
        read = 4 * math.prod(batch) * k * (m + n) + sum(t.size_bytes for t in op.inputs[2:])
        return Work(y * k, y if len(op.inputs) > 2 else 0, read + op.outputs[0].size_bytes)

    def kernel(self, op: Bound) -> Kernel:
        *batch, m, n, k = op.get_ints("sizes")
        (a_start, *a), (b_start, *b), (_, *y) = (op.get_ints(name) for name in "aby")
        rank = len(batch)
        extents, steps = collapse(tuple(batch), tuple(a[:rank]), tuple(b[:rank]), tuple(y[:rank]))
        operand_bytes = 4 * math.prod(batch) * (m * k + k * n + m * n)
        strides = Strides(a[-2], a[-1], b[-2], b[-1], y[-2], a_start, b_start)
        loops, alpha = list(zip(extents, *steps, strict=True)), op.get_float("alpha", 1.0)
        has_bias, terms = len(op.inputs) > 2, op.get_int("terms")
        return views_kernel((m, n, k), has_bias, strides, loops, terms, alpha, operand_bytes)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By matrices along the longest axis of the batch, by rows, by columns: as far as views see parts of tensors.

        A block of a sum has `terms` terms in every kernel.
        """
        cuts: list[Cut] = []
        sizes, types = op.get_ints("sizes"), (*op.inputs[:2], *op.outputs)
        for name, axis in _view_axes(sizes):
            parts: list[Part | None] = []
            try:
                for view, type in zip("aby", types, strict=True):
                    loop = _loop(view, axis, len(sizes))
                    start, *steps = op.get_ints(view)
                    extents = [sizes[n] for n in _view_sizes(view, len(sizes))]
                    parts.append(None if loop is None else within_steps(type.elements, start, steps, extents, loop))
            except ValueError:
                continue
            bias = [along(t, 0) if name == "columns" else None for t in op.inputs[2:]]
            cuts.append(Cut(name, sizes[axis], (*parts[:2], *bias, parts[2]), binds=True))
        return tuple(cuts)

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """With its own sizes, and steps within windows."""
        bound = super().block(op, cut, ranges)
        if cut.name == WHOLE:
            return bound
        sizes, ((begin, end),) = [*op.get_ints("sizes")], ranges
        axis = dict(_view_axes(sizes))[cut.name]
        attributes: dict[str, Attribute] = {**op.attributes, "shape": bound.outputs[0].shape}
        for view, part in zip("aby", (*cut.parts[:2], cut.parts[-1]), strict=True):
            loop = _loop(view, axis, len(sizes))
            if part is not None and loop is not None:
                attributes[view] = in_window(op.get_ints(view), part, cut.extent, (begin, end))
        sizes[axis] = end - begin
        return Bound({**attributes, "sizes": tuple(sizes)}, bound.inputs, bound.outputs)


def _view_axes(sizes: Sequence[int]) -> list[tuple[str, int]]:
    """The names of cuts, and the axis of `sizes` that each divides."""
    *batch, m, n, _ = sizes
    rank = len(batch)
    axes = [("matrices", max(range(rank), key=batch.__getitem__))] if max(batch, default=1) > 1 else []
    return [*axes, *(("rows", rank) for _ in range(m > 1)), *(("columns", rank + 1) for _ in range(n > 1))]


def _view_sizes(view: str, count: int) -> list[int]:
    """The axes of `sizes` along which a view of MatMulOfViews has steps."""
    m, n, k = range(count - 3, count)
    return [*range(count - 3), *{"a": (m, k), "b": (k, n), "y": (m, n)}[view]]


def _loop(view: str, axis: int, count: int) -> int | None:
    axes = _view_sizes(view, count)
    return axes.index(axis) if axis in axes else None


def fits_views(a: Sequence[int], b: Sequence[int], y: Sequence[int]) -> bool:
    """Whether the kernel takes such views (attributes of MatMulOfViews): elements of one vector lie together."""
    return (a[-1] == 1 or a[-2] == 1) and (b[-1] == 1 or b[-2] == 1) and y[-1] == 1


def _covers(sizes: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether every element is reached once."""
    next_step = 1
    for step, size in sorted(zip(steps, sizes, strict=True)):
        if size > 1:
            if step != next_step:
                return False
            next_step *= size
    return True


def _sum_of_rows(b: Builder, tensor: str, hint: str) -> str:
    """Over all axes but the last; a view where there is one row."""
    shape = b.type(tensor).shape
    if math.prod(shape[:-1]) == 1:
        return b.emit1("Reshape", [tensor], {"shape": shape[-1:]}, hint=hint)
    return b.emit1("ReduceSum", [tensor], {"axes": tuple(range(len(shape) - 1)), "keepdims": False}, hint=hint)


def _as_rows(type: TensorType) -> tuple[int, int]:
    return math.prod(type.shape[:-1]), type.shape[-1]
