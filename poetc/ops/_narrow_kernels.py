"""Kernels of operators on operands in 16 bits: products of their own, and f32 kernels that run slice by slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from poetc.graph import DType
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.kernel import Kernel, Parameters
from poetc.kernels.operators.parameters import Elements, Walk
from poetc.ops._bound import Bound
from poetc.ops._convolutions import group_of, shape_of
from poetc.ops._windows import Windows

TERMS, COLUMNS, ROWS, STRIP = 32, 32, 32, 12  # as in poetc_narrow_product.h
FEW = 4  # with so few rows, or terms, a product of matrices packs nothing
BLOCK_ROWS = 12  # at most, of a register block
ELEMENTS = 128  # of a slice, about
ALIGN = 16  # bytes at which operands that are read as they are begin
ACTIVATIONS = ("Relu", "LeakyRelu", "Clip", "HardSigmoid", "Sigmoid", "Tanh", "Silu", "HardSwish", "Elu")
POOLS = ("MaxPool", "MaxPoolGrad", "AveragePool", "AveragePoolGrad")
# Kinds whose f32 kernel runs slice by slice.
SLICED = (*ACTIVATIONS, *(f"{kind}Grad" for kind in ACTIVATIONS), *POOLS, "Add")
KINDS = (*SLICED, "Conv", "ConvGradInput", "ConvGradWeight", "MatMul", "ReduceSum")
_DEPTHWISE = {
    "Conv": "depthwise",
    "ConvGradInput": "depthwise_grad_input",
    "ConvGradWeight": "depthwise_grad_weight",
}
_FORMS = {DType.F16: 1, DType.BF16: 2}


def form_of(dtype: DType, rounded: bool) -> int:
    """`poetc_form` of an operand."""
    return _FORMS[dtype] + 2 * rounded


@dataclass(frozen=True, slots=True)
class Conversion(Parameters):
    count: int
    form: int
    scale: int


@dataclass(frozen=True, slots=True)
class Operand(Parameters):
    form: int
    scale: int


@dataclass(frozen=True, slots=True)
class NarrowConvolution(Parameters):
    convolution: Convolution
    operands: tuple[Operand, ...]
    workspace_floats: int


@dataclass(frozen=True, slots=True)
class NarrowProduct(Parameters):
    """Steps are in elements: of rows and terms of a, of terms and columns of b. Without workspace nothing is packed."""

    rows: int
    columns: int
    depth: int
    steps: tuple[int, int, int, int]
    has_bias: bool
    operands: tuple[Operand, ...]
    workspace_floats: int


@dataclass(frozen=True, slots=True)
class NarrowSum(Parameters):
    outer: int
    kept: int
    inner: int
    operand: Operand


@dataclass(frozen=True, slots=True)
class Slice(Parameters):
    """`slice_bytes` of an operand belong to a slice, in the form that it is stored in."""

    operand: Operand
    slice_bytes: int


@dataclass(frozen=True, slots=True)
class Slices(Parameters):
    """`inner` are the numbers of the f32 kernel, the number of its units at place `count_at`."""

    units: int
    at_once: int
    inputs: int
    operands: tuple[Slice, ...]
    count_at: int
    inner: tuple[int, ...]

    def ints(self) -> tuple[int, ...]:
        numbers = [n for operand in self.operands for n in operand.ints()]
        head = (self.units, self.at_once, self.count_at, len(self.operands), len(self.inner), self.inputs)
        return (*head, *numbers, *self.inner)


def workspace_floats(rows: int, depth: int) -> int:
    """Panels of the columns, some rows, and their sums."""
    terms = min(depth, TERMS)
    return 16 + (BLOCK_ROWS + COLUMNS) * terms + min(rows, STRIP) * terms + min(rows, ROWS) * COLUMNS


def kernel_of(
    kind: str, op: Bound, plain: Kernel | None, dtype: DType, forms: Sequence[int], scales: Sequence[int]
) -> Kernel | None:
    """The kernel of the operator `op` of f32 tensors, whose operands have such forms; None where there is none.

    `plain`: its f32 kernel.
    """
    operands = tuple(
        Operand(form_of(dtype, form == 2) if form else 0, scale) for form, scale in zip(forms, scales, strict=True)
    )
    if kind in ("Conv", "ConvGradInput", "ConvGradWeight"):
        return _convolution(kind, op, operands)
    if kind == "MatMul":
        return _product(op, operands)
    if kind == "ReduceSum":
        return _sum(op, operands)
    return _sliced(op, plain, operands, dtype) if kind in SLICED and plain is not None else None


def _convolution(kind: str, op: Bound, operands: tuple[Operand, ...]) -> Kernel | None:
    if len(op.inputs) > 2 + (kind == "Conv") or any(operand.form for operand in operands[2:-1]):
        return None
    left, right, result = *op.inputs[:2], op.outputs[0]
    group = group_of(op)
    if kind == "Conv":
        shape = shape_of(Windows.of(op, right.shape[2:]), group, left, result, len(op.inputs) > 2)
        rows, depth = shape.outputs // group, shape.channels // group * shape.taps
    elif kind == "ConvGradInput":
        shape = shape_of(Windows.of(op, right.shape[2:]), group, result, left, False)
        rows, depth = shape.channels // group, shape.outputs // group * shape.taps
    else:
        shape = shape_of(Windows.of(op, op.get_ints("kernel")), group, left, right, False)
        rows, depth = shape.outputs // group, shape.batch * shape.pixels
    kept = (*operands[:2], operands[-1])
    if shape.is_depthwise:
        floats = _depthwise_floats(kind, shape)
        return Kernel(f"poetc_op_narrow_{_DEPTHWISE[kind]}", NarrowConvolution(shape, kept, floats), (), 4 * floats)
    name = {"Conv": "conv", "ConvGradInput": "conv_grad_input", "ConvGradWeight": "conv_grad_weight"}[kind]
    floats = workspace_floats(rows, depth)
    return Kernel(f"poetc_op_narrow_{name}", NarrowConvolution(shape, kept, floats), (), 4 * floats)


def _depthwise_floats(kind: str, c: Convolution) -> int:
    """The workspace of narrow_depthwise.c: a ring of lines, one of zeros, and the sums and weights behind them."""
    rows, reach = (c.kernel_h - 1) * c.dilation_h + 1, (c.kernel_w - 1) * c.dilation_w
    if kind == "ConvGradWeight":
        lanes = _whole(c.kernel_w)
        line = (c.output_width - 1) * c.stride_w + (lanes - 1) * c.dilation_w + 1
        return (rows + 1) * line + 2 * c.kernel_h * lanes + c.output_width
    columns = _whole(c.output_width if kind == "Conv" else c.width)
    line = (columns - 1) * c.stride_w + reach + 1
    if kind == "ConvGradInput":
        rows = (c.kernel_h - 1) * c.dilation_h // c.stride_h + 1
        line = columns + c.pad_left + reach
    return (rows + 1) * line + 2 * columns + c.taps


def _whole(count: int) -> int:
    """Whole vectors of four floats."""
    return -(-count // 4) * 4


def _product(op: Bound, operands: tuple[Operand, ...]) -> Kernel | None:
    a, b = op.inputs[:2]
    trans_a, trans_b = bool(op.get_int("trans_a")), bool(op.get_int("trans_b"))
    batches = math.prod(a.shape[:-2]), math.prod(b.shape[:-2])
    if batches[1] != 1 or (trans_a and batches[0] != 1) or op.get_float("alpha", 1.0) != 1.0:
        return None
    if any(operand.form for operand in operands[2:-1]):
        return None
    rows, depth = (a.shape[-1], a.shape[-2]) if trans_a else (batches[0] * a.shape[-2], a.shape[-1])
    columns = b.shape[-2] if trans_b else b.shape[-1]
    steps = (*((1, rows) if trans_a else (depth, 1)), *((1, depth) if trans_b else (columns, 1)))
    floats = 0 if min(rows, depth) <= FEW else workspace_floats(rows, depth)
    kept = (*operands[:2], operands[-1])
    parameters = NarrowProduct(rows, columns, depth, steps, len(op.inputs) > 2, kept, floats)
    return Kernel("poetc_op_narrow_matmul", parameters, (), 4 * floats)


def _sum(op: Bound, operands: tuple[Operand, ...]) -> Kernel | None:
    (x,), axes = op.inputs, op.get_ints("axes")
    kept = [k for k in range(len(x.shape)) if k not in axes]
    if len(kept) != 1 or min(axes) < 0 or operands[1].form:
        return None
    (k,) = kept
    return Kernel(
        "poetc_op_narrow_reduce_sum",
        NarrowSum(math.prod(x.shape[:k]), x.shape[k], math.prod(x.shape[k + 1 :]), operands[0]),
    )


def _sliced(op: Bound, plain: Kernel, operands: tuple[Operand, ...], dtype: DType) -> Kernel | None:
    """Slices of about ELEMENTS elements, or whole planes of a pool; a unit is an element or a plane."""
    types, parameters = (*op.inputs, *op.outputs), plain.parameters
    if plain.workspace_bytes or any(operand.form not in (0, _FORMS[dtype]) for operand in operands):
        return None
    count_at, inner = 0, parameters.ints()
    if isinstance(parameters, Walk):
        if len(parameters.sizes) != 1 or any(step != (1,) for step in parameters.strides):
            return None
        count_at = 1
    units = inner[count_at]
    sizes = [t.elements * 2 if operand.form else t.size_bytes for t, operand in zip(types, operands, strict=True)]
    if units < 1 or any(size % units for size in sizes):
        return None
    least = ELEMENTS if isinstance(parameters, Elements | Walk) else 1
    at_once = next(
        n
        for n in range(least, least + ALIGN)
        if all(
            size // units * n % ALIGN == 0 for size, operand in zip(sizes, operands, strict=True) if not operand.form
        )
    )
    at_once = min(at_once, units)
    slices = tuple(Slice(o, size // units * at_once) for o, size in zip(operands, sizes, strict=True))
    held = [2 * s.slice_bytes for s in slices if s.operand.form]
    workspace = sum(-(-size // ALIGN) * ALIGN for size in held[:-1]) + held[-1]
    symbol = plain.symbol.replace("poetc_op_", "poetc_op_narrow_")
    return Kernel(symbol, Slices(units, at_once, len(op.inputs), slices, count_at, inner), plain.floats, workspace)
