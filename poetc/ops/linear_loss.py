"""A product and the cross-entropy of its result as one operator: logits exist for a few rows at a time.

The step has the loss as its root, so that the gradient of the product's input is made while the logits are there. Rows
are independent of each other. So the bits are those of the operators apart, for any number of rows at a time.
Hsu et al., Liger Kernel (2024), arXiv 2410.10989, fuse these for GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from poetc.graph import DType, TensorType
from poetc.ops._bound import Bound
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops.coded import CodedProduct, Codes, MatMulCoded
from poetc.ops.kernels import Kernel, Parameters
from poetc.ops.kernels.matmul import PackedProduct, Product
from poetc.ops.loss import NEVER, CrossEntropy, CrossEntropyGrad
from poetc.ops.matmul import MatMul

LEAST_ROWS = 4  # at a time: rows of x and of its gradient begin at multiples of 16 bytes
_ALIGN_FLOATS = 4
_CODES = ("form", "rows", "depth", "block", "has_zeros")
FLOPS, FLOPS_GRAD = 13, 15  # for each logit, of the loss and of its gradient


@dataclass(frozen=True, slots=True)
class LinearLoss(Parameters):
    """`at_once` of `rows` rows have logits at a time. C reads the sizes of the two products before them."""

    rows: int
    at_once: int
    classes: int
    features: int
    ignored: int
    has_bias: bool
    has_upstream: bool
    weights: int
    forward: Product | PackedProduct | CodedProduct
    backward: Product | PackedProduct | CodedProduct

    def ints(self) -> tuple[int, ...]:
        sizes = (self.rows, self.at_once, self.classes, self.features, self.ignored)
        flags = (int(self.has_bias), int(self.has_upstream), self.weights)
        products = [(_KERNELS.index(type(p)), p.ints()) for p in (self.forward, self.backward)]
        heads = [n for kernel, ints in products for n in (kernel, len(ints))]
        return (*sizes, *flags, *heads, *products[0][1], *products[1][1])


_KERNELS: tuple[type[Parameters], ...] = (Product, PackedProduct, CodedProduct)  # as C numbers them


def _logits(op: Bound) -> TensorType:
    x, w = op.inputs[:2]
    shape = (op.get_int("rows"), op.get_int("depth")) if "form" in op.attributes else w.shape
    classes, features = shape if op.get_int("trans_b") else shape[::-1]
    if len(w.shape) != 2 or not x.shape or x.shape[-1] != features or classes != op.get_int("classes"):
        raise ValueError(f"LinearCrossEntropy: a weight of shape {shape} does not fit x {x.shape}")
    return TensorType((*x.shape[:-1], classes), x.dtype)


def _has_bias(op: Bound) -> bool:
    return bool(op.get_int("has_bias"))


def _weights(op: Bound) -> int:
    """Operands that are the weight: one, or its codes."""
    return Codes.of(op).operands if "form" in op.attributes else 1


def _parts(op: Bound) -> tuple[Bound, Bound, Bound]:
    """The product, the gradient of the loss and that of the product's input, as operators of their own."""
    x, weight = op.inputs[0], op.inputs[1 : 1 + _weights(op)]
    logits, first = _logits(op), 1 + _weights(op) + _has_bias(op)
    alpha, trans_b = op.get_float("alpha", 1.0), bool(op.get_int("trans_b"))
    coded = {name: op.attributes[name] for name in _CODES if name in op.attributes}
    product = {"trans_a": False, "trans_b": trans_b, "alpha": alpha, **coded}
    loss = {name: op.attributes[name] for name in ("ignore_index", "label_smoothing") if name in op.attributes}
    return (
        Bound(product, op.inputs[:first], (logits,)),
        Bound({**loss, "axis": len(logits.shape) - 1}, (logits, *op.inputs[first:]), (logits,)),
        Bound({**product, "trans_b": not trans_b}, (logits, *weight), (x,)),
    )


def _product(op: Bound) -> MatMul | MatMulCoded:
    return MatMulCoded() if "form" in op.attributes else MatMul()


@register
class LinearCrossEntropy(OpSpec):
    kind = "LinearCrossEntropy"
    summary = (
        "(x, w, [bias], target, [gradient of the loss]): CrossEntropy of alpha · x op(w) + bias, and its gradient in x."
        " Logits exist for a few rows at a time, w may be codes (MatMulCoded); trans_b, alpha, has_bias, classes,"
        " ignore_index, label_smoothing"
    )
    cost_like = "MatMul"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        first = 1 + _weights(op) + _has_bias(op)
        logits = _logits(op)
        if "form" in op.attributes:
            Codes.of(op).check(op.inputs[1 : 1 + _weights(op)])
        if not first < len(op.inputs) <= first + 2:
            raise ValueError(f"LinearCrossEntropy does not take {len(op.inputs)} inputs")
        target = op.inputs[first]
        if target.dtype is not DType.I32 or target.elements != math.prod(logits.shape[:-1]):
            raise ValueError(f"LinearCrossEntropy: the target {target} has no class for each row of {op.inputs[0]}")
        if _has_bias(op) and op.inputs[first - 1].shape != logits.shape[-1:]:
            raise ValueError(
                f"LinearCrossEntropy: the bias is {op.inputs[first - 1]}, not of shape {logits.shape[-1:]}"
            )
        return TensorType((), op.inputs[0].dtype), op.inputs[0]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        product, loss, backward = _parts(op)
        first = 1 + _weights(op) + _has_bias(op)
        (logits,) = _product(op).evaluate(product, inputs[:first])
        target = inputs[first].reshape(logits.shape[:-1])
        (value,) = CrossEntropy().evaluate(loss, [logits, target])
        (gradient,) = CrossEntropyGrad().evaluate(loss, [logits, target, *inputs[first + 1 :]])
        return value, *_product(op).evaluate(backward, [gradient, *inputs[1 : 1 + _weights(op)]])

    def work(self, op: Bound) -> Work:
        """The weight is read once for each block of rows of the fastest kernel, which is all of them."""
        logits = _logits(op).elements
        return Work(macs=2 * logits * op.inputs[0].shape[-1], flops=(FLOPS + FLOPS_GRAD) * logits)

    def kernel(self, op: Bound) -> Kernel:
        rows = math.prod(op.inputs[0].shape[:-1])
        return self._kernel(op, rows, 0)

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        return tuple(self._kernel(op, rows, k) for k, rows in enumerate(_rows_at_once(op)))

    def _kernel(self, op: Bound, at_once: int, alternative: int) -> Kernel:
        product, _, backward = _parts(op)
        rows, features = math.prod(op.inputs[0].shape[:-1]), op.inputs[0].shape[-1]
        classes = product.outputs[0].shape[-1]
        forward, back = _product(op).kernel(product), _product(op).kernel(backward)
        space = max(forward.workspace_bytes, back.workspace_bytes)
        logits = at_once * classes
        if space:
            logits = -(-logits // _ALIGN_FLOATS) * _ALIGN_FLOATS
        products = [_of_rows(k.parameters, at_once) for k in (forward, back)]
        smoothing = op.get_float("label_smoothing")
        has_upstream = len(op.inputs) > 2 + _weights(op) + _has_bias(op)
        ignored = op.get_int("ignore_index", NEVER)
        sizes = (rows, at_once, classes, features, ignored, _has_bias(op), has_upstream, _weights(op))
        floats = (1 - smoothing, smoothing / classes, op.get_float("alpha", 1.0))
        parameters = LinearLoss(*sizes, *products)
        return Kernel("poetc_op_linear_cross_entropy", parameters, floats, 4 * logits + space, alternative)


def _of_rows(parameters: Parameters, rows: int) -> Product | PackedProduct | CodedProduct:
    """The same product of fewer rows. Its blocks of terms stay, and so do its bits."""
    assert isinstance(parameters, (Product, PackedProduct, CodedProduct)), parameters
    assert isinstance(parameters, CodedProduct) or not parameters.batch, parameters
    return replace(parameters, rows=rows)


def _rows_at_once(op: Bound) -> Iterator[int]:
    """All rows, then fewer and fewer, down to `LEAST_ROWS`."""
    rows = math.prod(op.inputs[0].shape[:-1])
    yield rows
    steps = [n for n in (64, 32, 16, 8, LEAST_ROWS) if n < rows]
    yield from steps
