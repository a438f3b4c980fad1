"""Integers of a tensor that the model's input or a table gives, as the real numbers that they stand for."""

from __future__ import annotations

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._translations import onnx_operator
from poetc.graph import Attribute, DType


@onnx_operator("DequantizeLinear")
def dequantize(c: Importer, n: Node) -> str:
    """scale · (q - zero), with one scale, one for each index along an axis, or one for each block along it.

    Weights in the file do not come here: the importer decodes them.
    """
    q, zero = c.input(n, 0), c.optional(n, 2)
    if q.tensor and c.type(q.tensor).dtype is DType.I8:
        return c.emit1("DequantizeLinear", [q], _codes(c, n))
    if c.quantized and q.tensor and c.type(q.tensor).dtype is DType.U8:
        raise Unsupported("a given tensor of uint8 (quantise to int8, or let QuantizeLinear make it from floats)")
    x = c.tensor(q) if q.is_float else c.emit1("Cast", [q], {"to": DType.F32.value})
    if zero is not None and c.array(zero, "the zero point").any():
        x = c.emit1("Sub", [x, _along(c, n, q, zero)])
    return c.emit1("Mul", [x, _along(c, n, q, c.input(n, 1))])


@onnx_operator("QuantizeLinear")
def quantize(c: Importer, n: Node) -> str:
    """Codes of an activation, in a model that stays quantised; u8 becomes i8 by another zero."""
    return c.emit1("QuantizeLinear", [c.input(n, 0)], _codes(c, n))


def _codes(c: Importer, n: Node) -> dict[str, Attribute]:
    """The scale and the zero point of a node, as i8."""
    scale, zero_input = c.array(c.input(n, 1), "the scale"), c.optional(n, 2)
    if zero_input is None and n.op == "DequantizeLinear":  # whether codes have a sign is known of the zero point alone
        raise Unsupported("no zero point (write it, if it is 0 too)")
    zero = np.zeros((), np.uint8) if zero_input is None else c.array(zero_input, "the zero point")
    if scale.size != 1 or zero.size != 1:
        raise Unsupported("a scale for each channel of an activation (give it one)")
    if zero.dtype not in (np.int8, np.uint8):
        raise Unsupported(f"activations of {zero.dtype} (quantise them to 8 bits)")
    if not 0 < float(scale.reshape(())) < np.inf:
        raise Malformed("the scale is not above 0")
    first = int(zero.reshape(())) - (128 if zero.dtype == np.uint8 else 0)
    return {"scale": float(np.float32(scale.reshape(()))), "zero": first}


def _along(c: Importer, n: Node, q: Value, scale: Value) -> Value:
    """The numbers of a scale or zero point, in a shape that broadcasts with the tensor."""
    numbers, rank = c.array(scale, "the scale").astype(np.float32), len(q.shape)
    if numbers.size == 1:
        return c.constant(numbers.reshape(()))
    axis = normalize_axis(n.get_int("axis", 1), rank)
    if block := n.get_int("block_size"):
        numbers = np.repeat(numbers, block, axis).take(range(q.shape[axis]), axis)
    elif numbers.size != q.shape[axis]:
        raise Malformed(f"{numbers.size} scales along an axis of {q.shape[axis]}")
    else:
        numbers = numbers.reshape([numbers.size if k == axis else 1 for k in range(rank)])
    return c.constant(numbers)
