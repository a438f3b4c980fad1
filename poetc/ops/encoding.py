"""Encodings of tensors that the forward pass saves for the backward pass.

Lossless ones give every gradient the same bits. A rectifier's gradient needs one bit an element: whether its slope is
one. The place of a maximum in a window of at most 16 taps needs 4 bits. Lossy ones keep floats in 16 or 8 bits; they
have the same bits on every target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import Array, Attribute, DType, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Elements
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, Part
from poetc.ops._elementwise import Differentiable
from poetc.ops._registry import OpSpec, Work, register, spec

RECTIFIERS = ("Relu", "LeakyRelu", "Clip")  # their slope has two values
NIBBLES = 16  # values of 4 bits


def rectifier_attributes(kind: str, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The attributes of SlopeBits and SlopeGrad for the rectifier `kind` with its own `attributes`."""
    function = spec(kind)
    assert isinstance(function, Differentiable)
    return {"activation": kind, **{name: attributes[name] for name, _ in function.parameters if name in attributes}}


def _in_units(units: int, *elements: int, total: int) -> tuple[Cut, ...]:
    """The flat cut in so many units, each with `elements` of each operand; none where the last one is not whole."""
    if total != units * max(elements):
        return ()
    return (Cut("elements", units, tuple(Part(1, n) for n in elements), binds=True),)


class _OfRectifier(OpSpec):
    """`activation` is a kind of RECTIFIERS; its attributes stand beside it."""

    def rectifier(self, op: Bound) -> Differentiable:
        kind = op.get_str("activation")
        if kind not in RECTIFIERS:
            raise ValueError(f"{self.kind}: activation must be one of {', '.join(RECTIFIERS)}, not {kind!r}")
        function = spec(kind)
        assert isinstance(function, Differentiable)
        return function


@register
class SlopeBits(_OfRectifier):
    summary = "One bit an element of y, a rectifier's output: 1 where its slope is 1; `activation` and its attributes"
    cost_like = "Relu"
    flops = 1

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.rectifier(op)
        (y,) = op.inputs
        if y.dtype is not DType.F32:
            raise ValueError(f"SlopeBits needs an f32 tensor, not {y}")
        return (TensorType((-(-y.elements // 8),), DType.U8),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        y, low = inputs[0], 0.0
        with np.errstate(invalid="ignore"):
            if self.rectifier(op).kind == "Clip":
                low, high = self.rectifier(op).values(op)
                is_one = (y > y.dtype.type(low)) & (y < y.dtype.type(high))
            else:
                is_one = y > 0
        return (np.packbits(is_one.ravel(), bitorder="little"),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return _in_units(op.outputs[0].elements, 8, 1, total=op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        rectifier, count = self.rectifier(op), Elements(op.inputs[0].elements)
        if rectifier.kind == "Clip":
            return Kernel("poetc_op_slope_bits_between", count, rectifier.values(op))
        return Kernel("poetc_op_slope_bits", count)


@register
class SlopeGrad(_OfRectifier):
    summary = "Gradient of a rectifier from (SlopeBits of its output, gy); `activation` and its attributes"
    cost_like = "ReluGrad"
    aliases = ((1, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.rectifier(op)
        bits, gy = op.inputs
        if bits.dtype is not DType.U8 or bits.elements != -(-gy.elements // 8) or gy.dtype is not DType.F32:
            raise ValueError(f"SlopeGrad needs one bit for each element of an f32 tensor, not {op.inputs}")
        return (gy,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        bits, gy = inputs
        is_one = np.unpackbits(bits, count=gy.size, bitorder="little").reshape(gy.shape).astype(bool)
        low = self._low(op)
        return (np.where(is_one, gy, gy.dtype.type(0) if low is None else gy.dtype.type(low) * gy),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return _in_units(op.inputs[0].elements, 1, 8, 8, total=op.outputs[0].elements)

    def work(self, op: Bound) -> Work:
        return Work(flops=2 * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        count, low = Elements(op.outputs[0].elements), self._low(op)
        return (
            Kernel("poetc_op_slope_grad", count) if low is None else Kernel("poetc_op_slope_grad_leaky", count, (low,))
        )

    def _low(self, op: Bound) -> float | None:
        """The other slope, of 0 too: the product of that has a sign. None for a 0 without one."""
        rectifier = self.rectifier(op)
        return rectifier.values(op)[0] if rectifier.kind == "LeakyRelu" else None


@register
class PackNibbles(OpSpec):
    summary = "Bytes below 16 → two in a byte, the first one in the lower half"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.U8:
            raise ValueError(f"PackNibbles needs bytes, not {x}")
        return (TensorType((-(-x.elements // 2),), DType.U8),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        pairs = np.append(inputs[0].ravel(), np.zeros(inputs[0].size % 2, np.uint8)).reshape(-1, 2)
        return ((pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return _in_units(op.outputs[0].elements, 2, 1, total=op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_pack_nibbles", Elements(op.inputs[0].elements))


@register
class UnpackNibbles(OpSpec):
    summary = "The bytes that PackNibbles packed, in `shape`"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        result = TensorType(op.get_ints("shape"), DType.U8)
        if op.inputs[0].dtype is not DType.U8 or op.inputs[0].elements != -(-result.elements // 2):
            raise ValueError(f"UnpackNibbles: {op.inputs[0]} holds no {result}")
        return (result,)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (result,) = op.outputs
        halves = np.stack([inputs[0] & 15, inputs[0] >> 4], 1).ravel()
        return (halves[: result.elements].reshape(result.shape),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        return _in_units(op.inputs[0].elements, 1, 2, total=op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_unpack_nibbles", Elements(op.outputs[0].elements))


# --- lossy encodings of floats ----------------------------------------------------------------------------------------

BLOCK = 128  # elements of int8 that share a scale


@dataclass(frozen=True, slots=True)
class Format:
    """Floats in fewer bits: so many bytes for so many elements, from the floats and back."""

    size_bytes: Callable[[int], int]
    encode: Callable[[Array], Array]  # [n] floats of 32 bits -> [size_bytes(n)] bytes
    decode: Callable[[Array, int], Array]  # and back


def _f16_bytes(x: Array) -> Array:
    """To nearest, ties to even; a NaN keeps its upper bits and becomes quiet."""
    half = x.astype("<f2").view("<u2")
    return np.where(np.isnan(x), half | 0x200, half).astype("<u2").view(np.uint8)


def _f16_floats(code: Array, count: int) -> Array:
    word = code.view("<f2").astype(np.float32).view(np.uint32)
    return np.where(word & 0x7FFFFFFF > 0x7F800000, word | 0x400000, word).astype(np.uint32).view(np.float32)


def _bf16_bytes(x: Array) -> Array:
    """To nearest, ties to even; a NaN keeps its upper bits and becomes quiet."""
    word = x.view(np.uint32)
    nearest = (word + np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), word >> np.uint32(16) | np.uint32(0x40), nearest).astype("<u2").view(np.uint8)


def _int8_bytes(x: Array) -> Array:
    """A block has the scale max |x| / 127; values are rounded to nearest, ties away from zero.

    A block without a number above 1e-30 is zero. One with a NaN or an infinity becomes NaN.
    """
    blocks = np.pad(x, (0, -x.size % BLOCK)).reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1, initial=0)
    is_usual = (largest >= np.float32(1e-30)) & (largest < np.inf)
    factor = np.where(is_usual, np.float32(127) / np.where(is_usual, largest, 1), 0).astype(np.float32)
    scaled = np.where(is_usual[:, None], blocks, 0).astype(np.float32) * factor[:, None]
    q = np.trunc(scaled + np.where(scaled < 0, np.float32(-0.5), np.float32(0.5))).astype(np.int8)
    is_odd = ~(largest < np.inf)
    scale = np.where(is_odd, np.float32(np.nan), np.where(is_usual, largest * np.float32(1 / 127), 0))
    codes = np.pad(q.ravel()[: x.size].view(np.uint8), (0, -x.size % 4))
    return np.concatenate([codes, scale.astype("<f4").view(np.uint8)])


def _int8_floats(code: Array, count: int) -> Array:
    blocks = -(-count // BLOCK)
    scale = code[code.size - 4 * blocks :].view("<f4").astype(np.float32)
    return code[:count].view(np.int8).astype(np.float32) * np.repeat(scale, BLOCK)[:count]


FORMATS = {
    "f16": Format(lambda n: 2 * n, _f16_bytes, _f16_floats),
    "bf16": Format(
        lambda n: 2 * n,
        _bf16_bytes,
        lambda code, n: (code.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32),
    ),
    "int8": Format(lambda n: -(-n // 4) * 4 + 4 * -(-n // BLOCK), _int8_bytes, _int8_floats),
}


def format_of(op: Bound) -> Format:
    """The format that an operator names. Raises ValueError where there is none of that name."""
    name = op.get_str("format")
    if name not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name]


@register
class Encode(OpSpec):
    summary = f"Floats → bytes of `format`: f16, bf16, or int8 with a scale for each {BLOCK} elements"
    cost_like = "Relu"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.F32:
            raise ValueError(f"Encode needs an f32 tensor, not {x}")
        return (TensorType((format_of(op).size_bytes(x.elements),), DType.U8),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (format_of(op).encode(np.ascontiguousarray(inputs[0], np.float32).ravel()),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """None in int8, whose scales lie behind all elements."""
        units, code = op.inputs[0].elements, op.outputs[0].elements
        return _in_units(units, 1, 2, total=code) if op.get_str("format") != "int8" else ()

    def work(self, op: Bound) -> Work:
        return Work(flops=(4 if op.get_str("format") == "int8" else 2) * op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel(f"poetc_op_encode_{op.get_str('format')}", Elements(op.inputs[0].elements))


@register
class Decode(OpSpec):
    summary = "The floats that Encode put into `format`, in `shape`"
    cost_like = "Relu"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        result, (code,) = TensorType(op.get_ints("shape")), op.inputs
        if code.dtype is not DType.U8 or code.elements != format_of(op).size_bytes(result.elements):
            raise ValueError(f"Decode: {code} holds no {result} in {op.get_str('format')}")
        return (result,)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (result,) = op.outputs
        with np.errstate(all="ignore"):
            numbers = format_of(op).decode(np.ascontiguousarray(inputs[0]), result.elements)
        return (numbers.astype(np.float32).reshape(result.shape),)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """As of Encode."""
        units, code = op.outputs[0].elements, op.inputs[0].elements
        return _in_units(units, 2, 1, total=code) if op.get_str("format") != "int8" else ()

    def work(self, op: Bound) -> Work:
        return Work(flops=op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel(f"poetc_op_decode_{op.get_str('format')}", Elements(op.outputs[0].elements))
