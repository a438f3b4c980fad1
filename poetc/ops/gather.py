"""Reading at computed places, and adding gradients back there. Indices are i32; negative ones count from the end.

An index outside the tensor is an IndexError here and POETC_ERANGE in the kernels. Gradients are added in the order of
the indices, so that their bits do not depend on anything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from poetc.graph import Array, DType, Operator, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.kernels.operators.parameters import Ints, Slices, Walk
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import INDICES, Cut, Part, along
from poetc.ops._indices import Indices, Use, places_of
from poetc.ops._registry import Gradients, OpSpec, Work, register, spec
from poetc.ops._strides import contiguous_strides, normalize_axes, walk


def wrapped(indices: Array, length: int) -> Array:
    """Indices from the front, checked."""
    if indices.size and (indices.min() < -length or indices.max() >= length):
        raise IndexError(f"indices from {indices.min()} to {indices.max()} into {length} elements")
    return np.where(indices < 0, indices + length, indices)


class _Gather(OpSpec):
    """(x, indices) -> y, and `<kind>Grad` (indices, gy; shape) -> gx."""

    def places(self, op: Bound, x: TensorType, indices: TensorType) -> Ints:
        """The shape of y. Raises ValueError."""
        raise NotImplementedError

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 2 or op.inputs[1].dtype is not DType.I32:
            raise ValueError(f"{self.kind} needs a tensor and i32 indices, not {op.inputs}")
        x, indices = op.inputs
        return (TensorType(self.places(op, x, indices), x.dtype),)

    def indices(self, use: Use) -> Indices | None:
        return places_of(use)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        attributes = {**op.attributes, "shape": b.type(op.inputs[0]).shape}
        return b.emit1(f"{self.kind}Grad", [op.inputs[1], gy], attributes)

    def work(self, op: Bound) -> Work:
        y = op.outputs[0]
        return Work(bytes_moved=2 * y.size_bytes + op.inputs[1].size_bytes)


class _GatherGrad(OpSpec):
    forward: _Gather

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 2 or op.inputs[0].dtype is not DType.I32 or op.inputs[1].dtype is not DType.F32:
            raise ValueError(f"{self.kind} needs i32 indices and an f32 gradient, not {op.inputs}")
        indices, gy = op.inputs
        x = TensorType(op.get_ints("shape"))
        if gy.shape != self.forward.places(op, x, indices):
            raise ValueError(f"{self.kind}: gy has shape {gy.shape}, not {self.forward.places(op, x, indices)}")
        return (x,)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        """Linear in gy: where it was added, the arriving gradient is read."""
        if grads[0] is None or not needed[1]:
            return [None, None]
        attributes = {name: value for name, value in op.attributes.items() if name != "shape"}
        return [None, b.emit1(self.forward.kind, [grads[0], op.inputs[0]], attributes)]

    def work(self, op: Bound) -> Work:
        return Work(flops=op.inputs[1].elements)


# --- Gather: whole slices along one axis


def gather_layout(op: Bound, x: TensorType, indices: TensorType) -> Slices:
    """How slices of x lie, in elements."""
    (axis,) = normalize_axes("Gather", [op.get_int("axis")], len(x.shape))
    return Slices(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]), indices.elements)


def by_indices(op: Bound, tables: tuple[int, ...], indices: int) -> tuple[Cut, ...]:
    """The cut whose blocks have some of the indices, and of each table the rows that these name; none of few rows."""
    count = op.inputs[indices].elements
    if not 1 < count < op.inputs[tables[0]].shape[0]:
        return ()
    parts = [None if n in tables else Part(1, 1) for n in range(len(op.inputs))]
    y = Part(1, op.outputs[0].elements // count)
    return (Cut(INDICES, count, (*parts, y), tables=tables, indices=indices),)


@register
class Gather(_Gather):
    summary = "(x, indices): the slices of x along `axis` that the indices name"
    reads_rows = True

    def places(self, op: Bound, x: TensorType, indices: TensorType) -> Ints:
        (axis,) = normalize_axes(self.kind, [op.get_int("axis")], len(x.shape))
        return x.shape[:axis] + indices.shape + x.shape[axis + 1 :]

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, indices = inputs
        axis = op.get_int("axis")
        return (np.take(x, wrapped(indices, x.shape[axis]), axis),)

    def kernel(self, op: Bound) -> Kernel:
        x = op.inputs[0]
        slices = gather_layout(op, x, op.inputs[1])
        return Kernel("poetc_op_gather", replace(slices, size=slices.size * x.dtype.size_bytes))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By rows of the table: a block fills the rows of y that it has. By indices: it reads rows that they name."""
        x = op.inputs[0]
        if op.get_int("axis") != 0:
            return ()
        by_table = Cut("table", x.shape[0], (along(x, 0), None, None), fills=True)
        return (by_table, *by_indices(op, (0,), 1))


@register
class GatherGrad(_GatherGrad):
    summary = "(indices, gy): zeros of `shape`, plus gy's slices where Gather read them"
    evaluates_blocks = True
    forward = Gather()

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        indices, gy = inputs
        shape = op.get_ints("shape")
        s = gather_layout(op, TensorType(shape), op.inputs[0])
        gx = np.zeros((s.outer, s.length, s.size), gy.dtype)
        index: tuple[Any, ...] = (slice(None), wrapped(indices, s.length).ravel())
        np.add.at(gx, index, gy.reshape(s.outer, s.count, s.size))
        return (gx.reshape(shape),)

    def evaluate_block(self, block: Bound, cut: Cut, begin: int, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Rows of the table from `begin`: slices of other rows are left out."""
        indices, gy = inputs
        (x,), rows = block.outputs, block.outputs[0].shape[0]
        own = wrapped(indices, cut.extent).ravel() - begin
        is_here = (own >= 0) & (own < rows)
        gx = np.zeros((rows, x.elements // rows), gy.dtype)
        np.add.at(gx, own[is_here], gy.reshape(own.size, -1)[is_here])
        return (gx.reshape(x.shape),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_gather_grad", gather_layout(op, op.outputs[0], op.inputs[0]))

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By rows of the table: a block has the gradient of its own rows."""
        x = op.outputs[0]
        return (Cut("table", x.shape[0], (None, None, along(x, 0))),) if op.get_int("axis") == 0 else ()


@register
class PutSlices(OpSpec):
    summary = "(x, indices, slices): x in place, its slices along `axis` that the indices name replaced"
    recomputable = False
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 3 or len(op.inputs[1].shape) != 1:
            raise ValueError(f"{self.kind} takes a tensor, a row of indices and slices, not {op.inputs}")
        x, indices, slices = op.inputs
        if spec("Gather").infer(Bound(op.attributes, (x, indices))) != (slices,):
            raise ValueError(f"{self.kind}: {slices} are not {indices.elements} slices of {x}")
        return (x,)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, indices, slices = inputs
        (axis,) = normalize_axes(self.kind, [op.get_int("axis")], x.ndim)
        result = x.copy()
        result[(slice(None),) * axis + (wrapped(indices, x.shape[axis]),)] = slices
        return (result,)

    def work(self, op: Bound) -> Work:
        return Work(bytes_moved=2 * op.inputs[2].size_bytes + op.inputs[1].size_bytes)

    def kernel(self, op: Bound) -> Kernel:
        x = op.inputs[0]
        slices = gather_layout(op, x, op.inputs[1])
        return Kernel("poetc_op_put_slices", replace(slices, size=slices.size * x.dtype.size_bytes))


# --- GatherElements: one element at a time along one axis


@dataclass(frozen=True, slots=True)
class _SingleElements(Parameters):
    """`count`: of x; `walk`: over x's other dimensions, for the indices."""

    count: int
    length: int
    stride: int
    walk: Walk


def elements_layout(op: Bound, x: Ints, indices: Ints) -> _SingleElements:
    (axis,) = normalize_axes("GatherElements", [op.get_int("axis")], len(x))
    strides = contiguous_strides(x)
    others = tuple(0 if i == axis else s for i, s in enumerate(strides))
    return _SingleElements(math.prod(x), x[axis], strides[axis], walk(indices, others))


def elements_index(op: Bound, x: Ints, indices: Array) -> tuple[Array, ...]:
    axis = op.get_int("axis") % len(x)
    index: list[Array] = list(np.indices(indices.shape, sparse=True))
    index[axis] = wrapped(indices, x[axis])
    return tuple(index)


@register
class GatherElements(_Gather):
    summary = "(x, indices): x at each position of indices, with the index in place of the position along `axis`"

    def places(self, op: Bound, x: TensorType, indices: TensorType) -> Ints:
        (axis,) = normalize_axes(self.kind, [op.get_int("axis")], len(x.shape))
        fits = [i == axis or k <= n for i, (n, k) in enumerate(zip(x.shape, indices.shape, strict=False))]
        if len(x.shape) != len(indices.shape) or not all(fits) or x.dtype is DType.U8:
            raise ValueError(f"GatherElements: indices {indices.shape} do not fit x {x} along {axis}")
        return indices.shape

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, indices = inputs
        return (x[elements_index(op, x.shape, indices)],)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_gather_elements", elements_layout(op, op.inputs[0].shape, op.inputs[1].shape))


@register
class GatherElementsGrad(_GatherGrad):
    summary = "(indices, gy): zeros of `shape`, plus gy where GatherElements read"
    forward = GatherElements()

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        indices, gy = inputs
        gx = np.zeros(op.get_ints("shape"), gy.dtype)
        np.add.at(gx, elements_index(op, gx.shape, indices), gy)
        return (gx,)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_gather_elements_grad", elements_layout(op, op.outputs[0].shape, op.inputs[0].shape))


# --- GatherND: slices at tuples of indices


@dataclass(frozen=True, slots=True)
class _Tuples(Parameters):
    """`size` of a slice, in elements (bytes for the gather itself); C reads the number of indexed dimensions first."""

    batches: int
    tuples: int
    size: int
    dims: Ints

    def ints(self) -> Ints:
        return (self.batches, self.tuples, self.size, len(self.dims), *self.dims)


def nd_layout(op: Bound, x: Ints, indices: Ints) -> tuple[int, int, int, Ints]:
    """Number of batches, of tuples in a batch, of elements in a slice, and the dimensions that a tuple indexes."""
    batch_dims, depth = op.get_int("batch_dims"), indices[-1]
    batches, tuples = math.prod(x[:batch_dims]), math.prod(indices[batch_dims:-1])
    return batches, tuples, math.prod(x[batch_dims + depth :]), x[batch_dims : batch_dims + depth]


def nd_rows(op: Bound, x: Ints, indices: Array) -> Array:
    """For each tuple, the number of its slice among all slices of x."""
    batches, tuples, _, dims = nd_layout(op, x, indices.shape)
    rows = np.zeros((batches, tuples), np.int64) + np.arange(batches)[:, None]
    parts = indices.reshape(batches, tuples, len(dims))
    for i, n in enumerate(dims):
        rows = rows * n + wrapped(parts[:, :, i], n)
    return rows.ravel()


@register
class GatherND(_Gather):
    summary = "(x, indices): the slices of x at the tuples in the last axis of indices, after `batch_dims` common axes"

    def places(self, op: Bound, x: TensorType, indices: TensorType) -> Ints:
        batch_dims = op.get_int("batch_dims")
        depth = indices.shape[-1] if indices.shape else 0
        if (
            not 0 <= batch_dims < max(1, len(indices.shape))
            or x.shape[:batch_dims] != indices.shape[:batch_dims]
            or not 1 <= depth <= len(x.shape) - batch_dims
        ):
            raise ValueError(f"GatherND: indices {indices.shape} do not fit x {x.shape} with batch_dims {batch_dims}")
        return indices.shape[:-1] + x.shape[batch_dims + depth :]

    def indices(self, use: Use) -> Indices | None:
        """In range of each axis that a tuple may name; how long a tuple is, only its own shape says."""
        length = min(use.first.shape)
        return Indices(use.inputs[1], -length, length - 1, is_exact=False)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, indices = inputs
        inner = nd_layout(op, x.shape, indices.shape)[2]
        rows = nd_rows(op, x.shape, indices)
        return (x.reshape(-1, inner)[rows].reshape(self.places(op, op.inputs[0], op.inputs[1])),)

    def kernel(self, op: Bound) -> Kernel:
        x = op.inputs[0]
        batches, tuples, inner, dims = nd_layout(op, x.shape, op.inputs[1].shape)
        return Kernel("poetc_op_gather_nd", _Tuples(batches, tuples, inner * x.dtype.size_bytes, dims))


@register
class GatherNDGrad(_GatherGrad):
    summary = "(indices, gy): zeros of `shape`, plus gy's slices where GatherND read them"
    forward = GatherND()

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        indices, gy = inputs
        shape = op.get_ints("shape")
        inner = nd_layout(op, shape, indices.shape)[2]
        gx = np.zeros((math.prod(shape) // max(inner, 1), inner), gy.dtype)
        np.add.at(gx, nd_rows(op, shape, indices), gy.reshape(-1, inner))
        return (gx.reshape(shape),)

    def kernel(self, op: Bound) -> Kernel:
        batches, tuples, inner, dims = nd_layout(op, op.outputs[0].shape, op.inputs[0].shape)
        return Kernel("poetc_op_gather_nd_grad", _Tuples(batches, tuples, inner, dims))
