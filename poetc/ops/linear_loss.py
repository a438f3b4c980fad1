"""A product and the cross-entropy of its result as one operator: logits exist for a few rows, or classes, at a time.

The step has the loss as its root, so that the gradient of the product's input is made while the logits are there. Rows
are independent of each other. So the bits are those of the operators apart, for any number of rows at a time.
Hsu et al., Liger Kernel (2024), arXiv 2410.10989, fuse these for GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.kernels.gemm.coded import CodedProduct
from poetc.kernels.gemm.selection import PackedProduct, Product
from poetc.kernels.operators.linear_loss import FLOPS, FLOPS_GRAD, LinearLoss, logits_floats
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, Part, along
from poetc.ops._indices import Indices, Use
from poetc.ops._registry import OpSpec, Work, register
from poetc.ops.coded import Codes, MatMulCoded
from poetc.ops.losses.cross_entropy import NEVER, CrossEntropy, CrossEntropyGrad
from poetc.ops.matmul import MatMul

LEAST_ROWS = 4  # at a time: rows of x and of its gradient begin at multiples of 16 bytes
CLASSES = 1024  # of a part of a sum of exponentials: POETC_CLASSES of poetc_loss.h
_OF_PRODUCTS = ("form", "rows", "depth", "block", "has_zeros", "small_ram")  # attributes


def _logits(op: Bound) -> TensorType:
    x, w = op.inputs[:2]
    shape = (op.get_int("rows"), op.get_int("depth")) if "form" in op.attributes else w.shape
    classes, features = shape if op.get_int("trans_b") else shape[::-1]
    if len(w.shape) != 2 or not x.shape or x.shape[-1] != features or classes != op.get_int("classes"):
        raise ValueError(f"LinearCrossEntropy: a weight of shape {shape} does not fit x {x.shape}")
    return TensorType((*x.shape[:-1], classes), x.dtype)


def _has_bias(op: Bound) -> bool:
    return bool(op.get_int("has_bias"))


def _weight_operands(op: Bound) -> int:
    """How many operands the weight takes: one, or those of its codes."""
    return Codes.of(op).operands if "form" in op.attributes else 1


def _parts(op: Bound) -> tuple[Bound, Bound, Bound]:
    """The product, the gradient of the loss and that of the product's input, as operators of their own."""
    x, weight = op.inputs[0], op.inputs[1 : 1 + _weight_operands(op)]
    logits, first = _logits(op), 1 + _weight_operands(op) + _has_bias(op)
    alpha, trans_b = op.get_float("alpha", 1.0), bool(op.get_int("trans_b"))
    shared = {name: op.attributes[name] for name in _OF_PRODUCTS if name in op.attributes}
    product = {"trans_a": False, "trans_b": trans_b, "alpha": alpha, **shared}
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
    of_probabilities = True
    summary = (
        "(x, w, [bias], target, [gradient of the loss]): CrossEntropy of alpha · x op(w) + bias, and its gradient in x."
        " Logits exist for a few rows, or classes, at a time, w may be codes (MatMulCoded); trans_b, alpha, has_bias,"
        " classes, ignore_index, label_smoothing"
    )
    cost_like = "MatMul"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        first = 1 + _weight_operands(op) + _has_bias(op)
        logits = _logits(op)
        if "form" in op.attributes:
            Codes.of(op).check(op.inputs[1 : 1 + _weight_operands(op)])
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

    def indices(self, use: Use) -> Indices | None:
        """Its target stands behind the weight, or the codes of it, and the bias."""
        form = str(use.attributes.get("form", ""))
        codes = form.startswith("int") + bool(use.integer("has_zeros", 0))
        target = use.inputs[2 + codes + use.integer("has_bias", 0)]
        return Indices(target, 0, use.integer("classes", 1) - 1, use.integer("ignore_index", 0))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        product, loss, backward = _parts(op)
        first = 1 + _weight_operands(op) + _has_bias(op)
        (logits,) = _product(op).evaluate(product, inputs[:first])
        target = inputs[first].reshape(logits.shape[:-1])
        (value,) = CrossEntropy().evaluate(loss, [logits, target])
        (gradient,) = CrossEntropyGrad().evaluate(loss, [logits, target, *inputs[first + 1 :]])
        return value, *_product(op).evaluate(backward, [gradient, *inputs[1 : 1 + _weight_operands(op)]])

    def work(self, op: Bound) -> Work:
        """Of forward and backward. In the fastest kernel all rows are one block, so the weight is read once."""
        turned, w = bool(op.get_int("trans_b")), op.inputs[1].shape
        classes = w[0] if turned else op.get_int("depth") if "form" in op.attributes else w[1]
        x = op.inputs[0]
        logits = x.elements // x.shape[-1] * classes
        return Work(macs=2 * logits * x.shape[-1], flops=(FLOPS + FLOPS_GRAD) * logits)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By classes, in two passes: the first one finds sums of exponentials, the second one makes gradients."""
        turned, weights = bool(op.get_int("trans_b")), _weight_operands(op)
        classes, is_coded = op.get_int("classes"), "form" in op.attributes
        few = isinstance(_product(op).kernel(_parts(op)[2]).parameters, Product)
        if classes <= CLASSES or (not turned and (is_coded or few)):
            return ()
        of_weight = [along(t, 0 if turned else 1) for t in op.inputs[1 : 1 + weights]]
        of_bias: list[Part | None] = [along(t, 0) for t in op.inputs[1 + weights : 1 + weights + _has_bias(op)]]
        after = len(op.inputs) - 1 - weights - len(of_bias) + len(op.outputs)
        parts = (None, *of_weight, *of_bias, *(None for _ in range(after)))
        within = Cut("classes", classes, parts, CLASSES)
        return (Cut("pass", 2, tuple(None for _ in parts), within=within, fills=True),)

    def kernel(self, op: Bound) -> Kernel:
        rows = math.prod(op.inputs[0].shape[:-1])
        return self._kernel(op, rows, 0)

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        """With fewer and fewer rows at a time; then with the least workspace of the products too."""
        offered = [self._kernel(op, rows, k) for k, rows in enumerate(_rows_at_once(op))]
        least = self._kernel(op, offered[-1].parameters_as(LinearLoss).at_once, len(offered), least=True)
        return (*offered, least) if least.workspace_bytes < offered[-1].workspace_bytes else tuple(offered)

    def _kernel(self, op: Bound, at_once: int, alternative: int, *, least: bool = False) -> Kernel:
        product, _, backward = _parts(op)
        rows, features = math.prod(op.inputs[0].shape[:-1]), op.inputs[0].shape[-1]
        classes = product.outputs[0].shape[-1]
        which = -1 if least else 0
        forward, back = (_product(op).kernels(o)[which] for o in (product, backward))
        space = max(forward.workspace_bytes, back.workspace_bytes)
        products = [_of_rows(k.parameters, at_once) for k in (forward, back)]
        smoothing = op.get_float("label_smoothing")
        has_upstream = len(op.inputs) > 2 + _weight_operands(op) + _has_bias(op)
        ignored = op.get_int("ignore_index", NEVER)
        sizes = (rows, at_once, classes, features, ignored, _has_bias(op), has_upstream, _weight_operands(op))
        floats = (1 - smoothing, smoothing / classes, op.get_float("alpha", 1.0))
        parameters = LinearLoss(*sizes, *products)
        logits = logits_floats(parameters) if space else at_once * classes
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
