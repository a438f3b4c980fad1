"""Random numbers in the file: drawn anew in each step of training, from a seed; elsewhere they are their mean."""

from __future__ import annotations

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._reading import element_dtype, is_float
from poetc.frontend._translations import onnx_operator


@onnx_operator("RandomNormalLike", "RandomUniformLike", "RandomNormal", "RandomUniform")
def random_numbers(c: Importer, n: Node) -> str:
    if n.has("dtype") and not is_float(element_dtype(n.get_int("dtype"), n.op)):
        raise Unsupported("random integers")
    x = c.input(n, 0) if n.op.endswith("Like") else _of_shape(c, n)
    source = x if x.is_float else c.emit1("Cast", [x], {"to": "f32"})
    if "Normal" in n.op:
        numbers = {"mean": n.get_float("mean", 0.0), "deviation": n.get_float("scale", 1.0), "width": 0.0}
    else:
        low, high = n.get_float("low", 0.0), n.get_float("high", 1.0)
        numbers = {"mean": (low + high) / 2, "deviation": 0.0, "width": high - low}
    if numbers["deviation"] < 0 or numbers["width"] < 0:
        raise Malformed("a scale below 0, or high below low")
    c.note(f"{n.label} draws numbers in each step of training (--dropout-seed); evaluation takes their mean")
    return c.emit1("RandomSite", [source], numbers)


def _of_shape(c: Importer, n: Node) -> Value:
    shape = n.get_ints("shape")
    if shape is None or any(d < 0 for d in shape):
        raise Malformed(f"a shape {list(shape or ())}")
    c.room(*shape)
    return c.constant(np.zeros(shape, np.float32))
