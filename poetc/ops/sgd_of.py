"""Plain gradient descent on a gradient that is made for it alone: w -= lr · g, g never stored whole.

At a rate of -1 the same kernels add up gradients: of a weight that several operators read, of micro-batches.

The fusion pass makes these. Every element of g is computed by the operations of the gradient's own kind in their order.
So the weights have the bits that separate kernels give them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel
from poetc.kernels.convolution.selection import descending
from poetc.kernels.gemm.packing import COLUMNS
from poetc.kernels.gemm.selection import PackedProduct, sgd_kernel
from poetc.kernels.operators.parameters import DescendingSlices
from poetc.ops._bound import Bound, operand_bytes_of
from poetc.ops._cuts import INDICES, Cut, Range
from poetc.ops._registry import OpSpec, Work, register, spec
from poetc.ops.gather import gather_layout

TERMS = 64  # of one block of kernels/gemm/matmul.c


class SgdOf(OpSpec):
    """Inputs: w, those of the gradient's kind, lr (one element)."""

    recomputable = False
    must_alias = ((0, 0),)
    adds: ClassVar[bool] = False  # w is the sum of other gradients, the rate -1

    def fits(self, op: Bound) -> bool:
        """Whether the gradient (`op` is its operator, bound) is one that the kernel can make."""
        raise NotImplementedError

    def part(self, op: Bound) -> Bound:
        """The fused half that computes the gradient, as an operator of its own kind with its inputs and output."""
        inputs = op.inputs[1:-1]
        return Bound(op.attributes, inputs, spec(self.cost_like).infer(Bound(op.attributes, inputs)))

    def needs_more(self, op: Bound, workspace_bytes: int) -> bool:
        """Whether more RAM than for the gradient's own kind and the step after it, if the weights come for the step."""
        part = self.part(op)
        operand_bytes, gradient_bytes = sum(t.size_bytes for t in part.inputs), part.outputs[0].size_bytes
        apart_bytes = operand_bytes + spec(self.cost_like).kernel(part).workspace_bytes
        return operand_bytes + workspace_bytes > max(apart_bytes, gradient_bytes)

    def fewer_columns(self, op: Bound, columns: int, floats: Callable[[int], int]) -> int:
        """At most so many columns at once: fewer where that keeps the need from growing; `floats` of workspace."""
        fewer = range(columns, 0, -COLUMNS)
        return next((n for n in fewer if not self.needs_more(op, 4 * floats(n))), columns)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) < 4 or op.inputs[-1].elements != 1:
            raise ValueError(f"{self.kind} takes the weights, the inputs of their gradient, and the learning rate")
        (gradient,) = self.part(op).outputs
        if gradient.elements != op.inputs[0].elements or not self.fits(self.part(op)):
            raise ValueError(f"{self.kind}: no gradient of {op.inputs[0]} can be made of {op.inputs[1:-1]}")
        return op.inputs[:1]

    def gradient_of(self, op: Bound, inputs: Sequence[Any]) -> Any:
        """The gradient that is not stored, in the shape of the weights."""
        (gradient,) = spec(self.cost_like).evaluate(self.part(op), inputs[1:-1])
        return gradient.reshape(inputs[0].shape)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (inputs[0] - inputs[-1].reshape(()) * self.gradient_of(op, inputs),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Those of the gradient, whose blocks move the same blocks of the weights."""
        part = self.part(op)
        # Axes of one element before those of the weights, or of the gradient, as the weights of an LSTM have.
        more = len(part.outputs[0].shape) - len(op.inputs[0].shape)
        if part.outputs[0].shape[max(0, more) :] != op.inputs[0].shape[max(0, -more) :]:
            return ()

        def descends(cut: Cut) -> Cut | None:
            *inputs, result = cut.parts
            within = descends(cut.within) if cut.within is not None else None
            if (
                result is None
                or result.axis is None
                or result.axis < more
                or (cut.within is not None and within is None)
            ):
                return None
            first = None if result.first is None else result.first - more
            of_weights = replace(result, axis=result.axis - more, first=first)
            return replace(cut, parts=(of_weights, *inputs, None, of_weights), within=within)

        descending = (descends(cut) for cut in spec(self.cost_like).cuts(part))
        return tuple(cut for cut in descending if cut is not None)


def is_sgd_of(kind: str) -> bool:
    """Whether it moves weights."""
    operator = spec(kind)
    return isinstance(operator, SgdOf) and not operator.adds


S = TypeVar("S", bound=type[SgdOf])


def register_with_sum(cls: S) -> S:
    """Register the kind, and the operator that adds the same gradient to others."""
    register(cls)
    summed = cls.cost_like
    attributes = {
        "summary": f"total + {summed}(...), in place of the total: (total, the inputs of {summed}, -1); its attributes",
        "adds": True,
        "reads_rows": False,  # it is no state
        "__module__": cls.__module__,
    }
    register(type(f"{summed}Sum", (cls,), attributes))
    return cls


@register_with_sum
class GatherGradSgd(SgdOf):
    summary = "Sgd of (w, indices, gy, lr) on GatherGrad(indices, gy): only the slices that were read; axis 0, shape"
    cost_like: ClassVar[str] = "GatherGrad"
    reads_rows = True

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By rows of the table; by indices: the rows that they name are read, moved and written."""
        cuts, inputs = super().cuts(op), len(op.inputs)
        count = op.inputs[1].elements
        if not self.reads_rows or not 1 < count < op.inputs[0].shape[0] or op.get_int("axis") != 0:
            return cuts
        return (*cuts, Cut(INDICES, count, (None,) * (inputs + 1), tables=(0, inputs), indices=1))

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        if cut.name != INDICES:
            return super().block(op, cut, ranges)
        ((begin, end),) = ranges
        indices, gy = TensorType((end - begin,), DType.I32), TensorType((end - begin, *op.inputs[0].shape[1:]))
        return Bound(op.attributes, (op.inputs[0], indices, gy, *op.inputs[3:]), op.outputs)

    def fits(self, op: Bound) -> bool:
        """Looking for repeated indices takes less than passing over the table."""
        slices = gather_layout(op, op.outputs[0], op.inputs[0])
        return slices.outer == 1 and slices.count * slices.count <= op.outputs[0].elements

    def work(self, op: Bound) -> Work:
        gy = op.inputs[2]
        return Work(flops=3 * gy.elements, bytes_moved=3 * gy.size_bytes + op.inputs[1].size_bytes)

    def kernel(self, op: Bound) -> Kernel:
        slices = gather_layout(op, op.inputs[0], op.inputs[1])
        parameters = DescendingSlices(slices.length, slices.size, slices.count)
        return Kernel("poetc_op_gather_grad_sgd", parameters, (), 4 * slices.size)


@register_with_sum
class MatMulSgd(SgdOf):
    summary = "Sgd of (w, a, b, lr) on MatMul(a, b), both matrices, the first one transposed; trans_a"
    evaluates_blocks = True
    cost_like: ClassVar[str] = "MatMul"

    def fits(self, op: Bound) -> bool:
        plain = op.get_float("alpha", 1.0) == 1.0 and op.get_int("trans_a") == 1 and not op.get_int("trans_b")
        if not plain or len(op.inputs) != 2 or any(math.prod(t.shape[:-2]) != 1 for t in op.inputs):
            return False
        return self._packed(op) is not None or op.inputs[0].shape[-2] <= TERMS

    def _packed(self, op: Bound) -> int | None:
        """The terms of a block of the packing kernel that makes the gradient; None if it is not that kernel."""
        parameters = spec("MatMul").kernel(op).parameters
        return parameters.terms if isinstance(parameters, PackedProduct) else None

    def work(self, op: Bound) -> Work:
        work = spec("MatMul").work(self.part(op))
        return Work(work.macs, work.flops + 2 * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        (k, m), n = op.inputs[1].shape[-2:], op.inputs[2].shape[-1]
        operand_bytes = operand_bytes_of(op)
        terms, fewer = self._packed(self.part(op)), functools.partial(self.fewer_columns, op)
        return sgd_kernel((m, n, k), terms, operand_bytes, fewer)


@register_with_sum
class ConvGradWeightSgd(SgdOf):
    summary = "Sgd of (w, x, gy, lr) on ConvGradWeight(x, gy); its attributes"
    cost_like: ClassVar[str] = "ConvGradWeight"

    def fits(self, op: Bound) -> bool:
        return spec("ConvGradWeight").kernel(op).symbol.endswith(("_packed", "_turned", "_winograd"))

    def work(self, op: Bound) -> Work:
        work = spec("ConvGradWeight").work(self.part(op))
        return Work(work.macs, work.flops + 2 * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        kernel = spec("ConvGradWeight").kernel(self.part(op))
        return descending(kernel, functools.partial(self.fewer_columns, op))
