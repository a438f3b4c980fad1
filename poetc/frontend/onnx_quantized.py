"""Integers of a tensor that the model's input or a table gives, as the real numbers that they stand for."""

from __future__ import annotations

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, normalize_axis
from poetc.frontend._translations import onnx_operator
from poetc.graph import DType


@onnx_operator("DequantizeLinear")
def dequantize(c: Importer, n: Node) -> str:
    """scale · (q - zero), with one scale, one for each index along an axis, or one for each block along it.

    Stored weights never come here.
    """
    q, zero = c.input(n, 0), c.optional(n, 2)
    x = c.tensor(q) if q.is_float else c.emit1("Cast", [q], {"to": DType.F32.value})
    if zero is not None and c.array(zero, "the zero point").any():
        x = c.emit1("Sub", [x, _along(c, n, q, zero)])
    return c.emit1("Mul", [x, _along(c, n, q, c.input(n, 1))])


def _along(c: Importer, n: Node, q: Value, given: Value) -> Value:
    """The numbers of a scale or zero point, in a shape that broadcasts with the tensor."""
    numbers, rank = c.array(given, "the scale").astype(np.float32), len(q.shape)
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
