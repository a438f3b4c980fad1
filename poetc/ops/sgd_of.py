"""Plain gradient descent on a gradient that is made for it alone: w -= lr · g, g never stored whole. At a rate of -1
the same kernels add up gradients: of a weight that several operators read, of micro-batches.

The fusion pass makes these. Every element of g is computed by the operations of the gradient's own kind in their order,
so that the weights have the bits that separate kernels give them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from poetc.graph import TensorType
from poetc.ops._packing import (
    COLUMNS,
    LONG_STRIP,
    PRODUCT_BYTES,
    PRODUCT_SHARE,
    SHAPES,
    THREAD_FLOATS,
    WIDE_SHARE,
    panel_columns,
    workspace_floats,
)
from poetc.ops._registry import Bound, Kernel, OpSpec, Work, register, spec
from poetc.ops.convolution import norm_table_floats
from poetc.ops.gather import gather_layout

TERMS = 64  # of one block of kernels/matmul.c
STRIP_ROWS = 48  # of kernels/sgd_of.c


class SgdOf(OpSpec):
    """Inputs: w, those of the gradient's kind, lr (one element)."""

    recomputable = False
    must_alias = ((0, 0),)
    adds: ClassVar[bool] = False  # w is the sum of other gradients, the rate -1

    def fits(self, op: Bound) -> bool:
        """Whether the gradient (`op` is its operator, bound) is one that the kernel can make."""
        raise NotImplementedError

    def part(self, op: Bound) -> Bound:
        """The operator that makes the gradient."""
        inputs = op.inputs[1:-1]
        return Bound(op.attributes, inputs, spec(self.cost_like).infer(Bound(op.attributes, inputs)))

    def needs_more(self, op: Bound, workspace_bytes: int) -> bool:
        """Whether more RAM than for the gradient's own kind and the step after it, if the weights come for the step."""
        part = self.part(op)
        operand_bytes, gradient_bytes = sum(t.size_bytes for t in part.inputs), part.outputs[0].size_bytes
        apart_bytes = operand_bytes + spec(self.cost_like).kernel(part).workspace_bytes
        return operand_bytes + workspace_bytes > max(apart_bytes, gradient_bytes)

    def leaner(self, op: Bound, columns: int, floats: Callable[[int], int]) -> int:
        """At most so many columns at once: fewer where that is what it takes to need no more; `floats` of workspace."""
        fewer = range(columns, 0, -COLUMNS)
        return next((n for n in fewer if not self.needs_more(op, 4 * floats(n))), columns)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) < 4 or op.inputs[-1].elements != 1:
            raise ValueError(f"{self.kind} takes the weights, what makes their gradient, and the learning rate")
        (gradient,) = self.part(op).outputs
        if gradient.elements != op.inputs[0].elements or not self.fits(self.part(op)):
            raise ValueError(f"{self.kind}: no gradient of {op.inputs[0]} can be made of {op.inputs[1:-1]}")
        return op.inputs[:1]

    def gradient_of(self, op: Bound, inputs: Sequence[Any]) -> Any:
        """What is not stored, in the shape of the weights."""
        (gradient,) = spec(self.cost_like).evaluate(self.part(op), inputs[1:-1])
        return gradient.reshape(inputs[0].shape)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (inputs[0] - inputs[-1].reshape(()) * self.gradient_of(op, inputs),)


def is_sgd_of(kind: str) -> bool:
    """Whether it moves weights."""
    found = spec(kind)
    return isinstance(found, SgdOf) and not found.adds


S = TypeVar("S", bound=type[SgdOf])


def register_with_sum(cls: S) -> S:
    """Register the kind, and what adds the same gradient to others."""
    register(cls)
    made = cls.cost_like
    attributes = {
        "kind": f"{made}Sum",
        "summary": f"total + {made}(...), in place of the total: (total, what {made} reads, -1); its attributes",
        "adds": True,
        "__module__": cls.__module__,
    }
    register(type(f"{made}Sum", (cls,), attributes))
    return cls


@register_with_sum
class GatherGradSgd(SgdOf):
    kind = "GatherGradSgd"
    summary = "Sgd of (w, indices, gy, lr) on GatherGrad(indices, gy): only the slices that were read; axis 0, shape"
    cost_like: ClassVar[str] = "GatherGrad"

    def fits(self, op: Bound) -> bool:
        """Looking for repeated indices takes less than passing over the table."""
        outer, _, _, count = gather_layout(op, op.outputs[0], op.inputs[0])
        return outer == 1 and count * count <= op.outputs[0].elements

    def work(self, op: Bound) -> Work:
        gy = op.inputs[2]
        return Work(flops=3 * gy.elements, bytes_moved=3 * gy.size_bytes + op.inputs[1].size_bytes)

    def kernel(self, op: Bound) -> Kernel:
        _, *ints = gather_layout(op, op.inputs[0], op.inputs[1])
        return Kernel("poetc_op_gather_grad_sgd", tuple(ints), (), 4 * ints[1])


@register_with_sum
class MatMulSgd(SgdOf):
    kind = "MatMulSgd"
    summary = "Sgd of (w, a, b, lr) on MatMul(a, b), both matrices, the first one transposed; trans_a"
    cost_like: ClassVar[str] = "MatMul"

    def fits(self, op: Bound) -> bool:
        plain = op.get_float("alpha", 1.0) == 1.0 and op.get_int("trans_a") == 1 and not op.get_int("trans_b")
        if not plain or len(op.inputs) != 2 or any(math.prod(t.shape[:-2]) != 1 for t in op.inputs):
            return False
        return self._packed(op) is not None or op.inputs[0].shape[-2] <= TERMS

    def _packed(self, op: Bound) -> int | None:
        """The terms of a block of the packing kernel that makes the gradient; None if it is not that kernel."""
        kernel = spec("MatMul").kernel(op)
        return kernel.ints[-1] if kernel.symbol.endswith("_packed") else None

    def work(self, op: Bound) -> Work:
        work = spec("MatMul").work(self.part(op))
        return Work(work.macs, work.flops + 2 * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        (k, m), n = op.inputs[1].shape[-2:], op.inputs[2].shape[-1]
        terms = self._packed(self.part(op))
        if terms is None:
            return Kernel("poetc_op_matmul_sgd", (m, n, k))

        def sizes(width: int) -> tuple[int, int]:
            """Floats of a block of terms, and of all the workspace, for so many columns at once."""
            floats = workspace_floats(width, terms, width // COLUMNS, True)
            return floats, -(-k // terms) * floats + STRIP_ROWS * width

        operand_bytes = sum(t.size_bytes for t in (*op.inputs, *op.outputs))
        share = PRODUCT_SHARE if operand_bytes >= PRODUCT_BYTES else WIDE_SHARE
        for panels in (16, 8, 4):  # only where that is next to nothing beside the operands
            width = min(panels, -(-n // COLUMNS)) * COLUMNS
            total = sizes(width)[1]
            if total <= THREAD_FLOATS and 4 * total * share <= operand_bytes:
                break
        else:
            width = min(SHAPES[0][0], -(-n // COLUMNS)) * COLUMNS
            width = self.leaner(op, width, lambda columns: sizes(columns)[1])
        floats, total = sizes(width)
        return Kernel("poetc_op_matmul_sgd_packed", (m, n, k, floats, terms, width), (), 4 * total)


@register_with_sum
class ConvGradWeightSgd(SgdOf):
    kind = "ConvGradWeightSgd"
    summary = "Sgd of (w, x, gy, lr) on ConvGradWeight(x, gy); its attributes"
    cost_like: ClassVar[str] = "ConvGradWeight"

    def fits(self, op: Bound) -> bool:
        return spec("ConvGradWeight").kernel(op).symbol.endswith(("_packed", "_turned", "_winograd"))

    def work(self, op: Bound) -> Work:
        work = spec("ConvGradWeight").work(self.part(op))
        return Work(work.macs, work.flops + 2 * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        part = self.part(op)
        packed = spec("ConvGradWeight").kernel(part)
        if packed.symbol.endswith(("_turned", "_winograd")):
            return replace(packed, symbol=packed.symbol.replace("grad_weight", "grad_weight_sgd"))
        *_, floats, terms, strip = packed.ints  # a strip: where workspace is next to nothing beside the operands
        w, (batch, _, *size) = part.outputs[0], op.inputs[2].shape
        blocks = batch if math.prod(size) <= terms else -(-math.prod(size) // terms)
        table = norm_table_floats(packed.ints[1]) if "norm" in packed.symbol else 0
        columns = panel_columns(w.elements // w.shape[0], blocks, floats - strip - table, terms)
        if strip and blocks == 1:
            columns = min(columns, LONG_STRIP)
        outputs = w.shape[0] // max(1, part.get_int("group", 1))
        if not strip:
            columns = self.leaner(op, columns, lambda columns: floats + outputs * columns)
        total = floats + outputs * columns
        symbol = packed.symbol.replace("grad_weight", "grad_weight_sgd")
        return Kernel(symbol, (*packed.ints, total), packed.floats, 4 * total)
