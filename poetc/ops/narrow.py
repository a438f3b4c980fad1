"""Floats stored in 16 bits, and operators that read and write them: `--precision f16` and `bf16`.

A stored float is x · 2^scale, rounded to nearest, ties to even. The scale is the loss scale of the gradients in f16,
else 0. All arithmetic has 32 bits. A product of two stored floats is exact in 32 bits, so its sums have the same bits
with fused multiply-adds and without. The product of two bf16 is exact within the normal range of f32 alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from poetc.graph import Array, DType, TensorType
from poetc.kernels import Kernel
from poetc.ops import _narrow_kernels as kernels
from poetc.ops import _narrow_sums as sums
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, flat
from poetc.ops._registry import OpSpec, Work, register, spec
from poetc.ops.encoding import FORMATS
from poetc.ops.sgd_of import SgdOf

NARROW = (DType.F16, DType.BF16)
AS_IT_IS, NARROWED, ROUNDED = range(3)  # `forms` of an operand; ROUNDED: floats of 32 bits, rounded as they are read
SCALES = range(25)  # exponents: 2^-24 times any number of f16 is exact in f32


def stored(x: Array, dtype: DType, scale: int = 0) -> Array:
    """The bits of floats x · 2^scale in `dtype`."""
    with np.errstate(all="ignore"):
        scaled = np.ascontiguousarray(x, np.float32) * np.float32(2.0**scale)
        return FORMATS[dtype.value].encode(scaled.ravel()).view(np.uint16).reshape(x.shape)


def loaded(code: Array, dtype: DType, scale: int = 0) -> Array:
    """The floats behind the bits of `stored`."""
    with np.errstate(all="ignore"):
        flat = np.ascontiguousarray(code).ravel()
        numbers = FORMATS[dtype.value].decode(flat.view(np.uint8), flat.size).astype(np.float32)
        return (numbers * np.float32(2.0**-scale)).reshape(code.shape)


def _dtype(op: Bound) -> DType:
    name = op.get_str("dtype")
    if name not in NARROW:
        raise ValueError(f"dtype must be one of {', '.join(NARROW)}, not {name!r}")
    return DType(name)


def _scale(scale: int, dtype: DType) -> int:
    if scale not in SCALES or (scale and dtype is not DType.F16):
        raise ValueError(f"a scale of 2^{scale} for {dtype}: only f16 has one, from 2^0 to 2^{SCALES[-1]}")
    return scale


@register
class Narrow(OpSpec):
    summary = "Floats → x · 2^scale in 16 bits; dtype (f16 or bf16), scale. An infinity in f16 is an error"
    cost_like = "Relu"
    flops = 2

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,), dtype = op.inputs, _dtype(op)
        if x.dtype is not DType.F32:
            raise ValueError(f"Narrow needs an f32 tensor, not {x}")
        _scale(op.get_int("scale"), dtype)
        return (TensorType(x.shape, dtype),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (stored(inputs[0], _dtype(op), op.get_int("scale")),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Flat."""
        return (flat(op, 1, binds=True),)

    def kernel(self, op: Bound) -> Kernel:
        form = kernels.form_of(_dtype(op), False)
        return Kernel("poetc_op_narrow", kernels.Conversion(op.inputs[0].elements, form, op.get_int("scale")))


@register
class Widen(OpSpec):
    summary = "The floats that Narrow stored; its attributes"
    cost_like = "Relu"
    flops = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not _dtype(op):
            raise ValueError(f"Widen needs a tensor in {_dtype(op)}, not {x}")
        _scale(op.get_int("scale"), x.dtype)
        return (TensorType(x.shape),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (loaded(inputs[0], op.inputs[0].dtype, op.get_int("scale")),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Flat."""
        return (flat(op, 1, binds=True),)

    def kernel(self, op: Bound) -> Kernel:
        form = kernels.form_of(op.inputs[0].dtype, False)
        return Kernel("poetc_op_widen", kernels.Conversion(op.inputs[0].elements, form, op.get_int("scale")))


# --- operators on operands of 16 bits ---------------------------------------------------------------------------------


def plain(op: Bound) -> Bound:
    """The operator `of` as it is in 32 bits: with f32 operands, and types of its results inferred."""
    attributes = {
        name: value for name, value in op.attributes.items() if name not in ("of", "dtype", "forms", "scales")
    }
    inputs = tuple(replace(t, dtype=DType.F32) if t.dtype.is_narrow else t for t in op.inputs)
    bound = Bound(attributes, inputs)
    return replace(bound, outputs=spec(op.get_str("of")).infer(bound))


def _check(op: Bound, inner: Bound) -> None:
    """ValueError unless forms and scales fit the operands."""
    dtype, forms, scales = _dtype(op), op.get_ints("forms"), op.get_ints("scales")
    operands = (*op.inputs, *inner.outputs)
    if len(forms) != len(operands) or len(scales) != len(operands):
        raise ValueError(f"{op.get_str('of')} in 16 bits: forms and scales must name {len(operands)} operands")
    for k, (t, form, scale) in enumerate(zip(operands, forms, scales, strict=True)):
        _scale(scale, dtype)
        is_input = k < len(op.inputs)
        if form not in (AS_IT_IS, NARROWED, ROUNDED) or (is_input and (form == NARROWED) != (t.dtype is dtype)):
            raise ValueError(f"{op.get_str('of')} in 16 bits: operand {k} is {t}, its form {form}")
        if form and t.dtype not in (dtype, DType.F32):
            raise ValueError(f"{op.get_str('of')} in 16 bits: operand {k} is {t}, no floats")


def _floats(op: Bound, inputs: Sequence[Any]) -> list[Any]:
    """The inputs as the operator computes with them."""
    dtype, forms, scales = _dtype(op), op.get_ints("forms"), op.get_ints("scales")
    arrays: list[Any] = []
    for x, form, scale in zip(inputs, forms, scales, strict=False):
        if form == NARROWED:
            arrays.append(loaded(x, dtype, scale))
        else:
            arrays.append(loaded(stored(x, dtype, scale), dtype, scale) if form == ROUNDED else x)
    return arrays


@register
class Narrowed(OpSpec):
    """Products add up blocks of 32 terms in sequence, and the blocks in sequence: `poetc.ops._narrow_sums`."""

    summary = (
        "The operator `of` with its attributes on operands in 16 bits. `forms`, for each input and output: 0 as it is, "
        "1 in dtype (f16 or bf16), 2 an f32 input that is rounded to dtype. `scales`: exponents, as of Narrow"
    )

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        inner = plain(op)
        _check(op, inner)
        if kernel_of(op) is None:
            raise ValueError(f"{op.get_str('of')} has no form for operands in 16 bits")
        forms = op.get_ints("forms")[len(op.inputs) :]
        return tuple(replace(t, dtype=_dtype(op)) if f else t for t, f in zip(inner.outputs, forms, strict=True))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        inner, kind, floats = plain(op), op.get_str("of"), _floats(op, inputs)
        results = sums.evaluate(kind, inner, floats) or spec(kind).evaluate(inner, floats)
        count = len(op.inputs)
        forms, scales = op.get_ints("forms")[count:], op.get_ints("scales")[count:]
        return tuple(
            stored(y, _dtype(op), scale) if form else y for y, form, scale in zip(results, forms, scales, strict=True)
        )

    def work(self, op: Bound) -> Work:
        work = spec(op.get_str("of")).work(plain(op))
        return Work(work.macs, work.flops + _converted(op))

    def kernel(self, op: Bound) -> Kernel:
        chosen = kernel_of(op)
        assert chosen is not None
        return chosen

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        if op.get_str("of") not in kernels.SLICED:
            return ()
        pairs = spec(op.get_str("of")).may_alias(plain(op))
        return tuple((i, k) for i, k in pairs if op.inputs[i] == op.outputs[k])


def kernel_of(op: Bound) -> Kernel | None:
    """The kernel of a Narrowed; None where its operator has none for such operands."""
    kind = op.get_str("of")
    if kind not in kernels.KINDS:
        return None
    inner = plain(op)
    own = spec(kind).kernel(inner) if kind in kernels.SLICED else None
    return kernels.kernel_of(kind, inner, own, _dtype(op), op.get_ints("forms"), op.get_ints("scales"))


def _converted(op: Bound) -> int:
    """Elements that are converted, once each."""
    operands = (*op.inputs, *op.outputs)
    return sum(t.elements for t, form in zip(operands, op.get_ints("forms"), strict=False) if form)


@register
class NarrowedSgd(SgdOf):
    summary = "Sgd of (w, inputs, lr) on the gradient of w that Narrowed makes of the inputs, in f32; its attributes"
    cost_like: ClassVar[str] = "Narrowed"

    def fits(self, op: Bound) -> bool:
        return op.get_str("of") in ("ConvGradWeight", "MatMul")

    def work(self, op: Bound) -> Work:
        part = self.part(op)
        work = spec(self.cost_like).work(part)
        return Work(work.macs, work.flops + 2 * math.prod(part.outputs[0].shape))

    def kernel(self, op: Bound) -> Kernel:
        whole = spec(self.cost_like).kernel(self.part(op))
        return replace(whole, symbol=f"{whole.symbol}_sgd")
