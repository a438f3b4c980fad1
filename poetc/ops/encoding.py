"""Encodings of tensors that the forward pass saves for the backward pass.

Lossless ones give every gradient the same bits. A rectifier's gradient needs one bit an element: whether its slope is
one. The place of a maximum in a window of at most 16 taps needs 4 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from poetc.graph import Array, Attribute, DType, TensorType
from poetc.ops._bound import Bound
from poetc.ops._elementwise import Differentiable
from poetc.ops._registry import OpSpec, Work, register, spec
from poetc.ops.kernels import Kernel
from poetc.ops.kernels.rows import Elements

RECTIFIERS = ("Relu", "LeakyRelu", "Clip")  # their slope has two values
NIBBLES = 16  # values of 4 bits


def rectifier_attributes(kind: str, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The attributes of SlopeBits and SlopeGrad for the rectifier `kind` with its own `attributes`."""
    found = spec(kind)
    assert isinstance(found, Differentiable)
    return {"activation": kind, **{name: attributes[name] for name, _ in found.parameters if name in attributes}}


class _OfRectifier(OpSpec):
    """`activation` is a kind of RECTIFIERS; its attributes stand beside it."""

    def rectifier(self, op: Bound) -> Differentiable:
        kind = op.get_str("activation")
        if kind not in RECTIFIERS:
            raise ValueError(f"{self.kind}: activation must be one of {', '.join(RECTIFIERS)}, not {kind!r}")
        found = spec(kind)
        assert isinstance(found, Differentiable)
        return found


@register
class SlopeBits(_OfRectifier):
    kind = "SlopeBits"
    summary = "One bit an element of y, a rectifier's output: 1 where its slope is 1; `activation` and its attributes"
    cost_like = "Relu"

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

    def work(self, op: Bound) -> Work:
        return Work(flops=op.inputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        rectifier, count = self.rectifier(op), Elements(op.inputs[0].elements)
        if rectifier.kind == "Clip":
            return Kernel("poetc_op_slope_bits_between", count, rectifier.values(op))
        return Kernel("poetc_op_slope_bits", count)


@register
class SlopeGrad(_OfRectifier):
    kind = "SlopeGrad"
    summary = "Gradient of a rectifier from (SlopeBits of its output, gy); `activation` and its attributes"
    cost_like = "ReluGrad"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.rectifier(op)
        bits, gy = op.inputs
        if bits.dtype is not DType.U8 or bits.elements != -(-gy.elements // 8) or gy.dtype is not DType.F32:
            raise ValueError(f"SlopeGrad needs one bit for each element of an f32 tensor, not {op.inputs}")
        return (gy,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        bits, gy = inputs
        is_one = np.unpackbits(bits, count=gy.size, bitorder="little").reshape(gy.shape).astype(bool)
        return (np.where(is_one, gy, self._low(op) * gy if self._low(op) else gy.dtype.type(0)),)

    def work(self, op: Bound) -> Work:
        return Work(flops=2 * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        count = Elements(op.outputs[0].elements)
        if self._low(op):
            return Kernel("poetc_op_slope_grad_leaky", count, (self._low(op),))
        return Kernel("poetc_op_slope_grad", count)

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return ((1, 0),)

    def _low(self, op: Bound) -> float:
        """The other slope."""
        rectifier = self.rectifier(op)
        return rectifier.values(op)[0] if rectifier.kind == "LeakyRelu" else 0.0


@register
class PackNibbles(OpSpec):
    kind = "PackNibbles"
    summary = "Bytes below 16 → two in a byte, the first one in the lower half"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if x.dtype is not DType.U8:
            raise ValueError(f"PackNibbles needs bytes, not {x}")
        return (TensorType((-(-x.elements // 2),), DType.U8),)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        pairs = np.append(inputs[0].ravel(), np.zeros(inputs[0].size % 2, np.uint8)).reshape(-1, 2)
        return ((pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_pack_nibbles", Elements(op.inputs[0].elements))


@register
class UnpackNibbles(OpSpec):
    kind = "UnpackNibbles"
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

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_unpack_nibbles", Elements(op.outputs[0].elements))
