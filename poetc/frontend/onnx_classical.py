"""Operators of ai.onnx.ml that scikit-learn's exporter writes. `_classical` has those with weights."""

from __future__ import annotations

import math

import numpy as np

from poetc.frontend._classical import CLASSICAL
from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._translations import onnx_operator
from poetc.graph import Array, DType

_SMALLEST = 1e-30  # in place of a norm of 0
_FLOAT_MAX = 3.4028234663852886e38


def _floats(c: Importer, x: Value) -> str | Value:
    return x if x.is_float else c.emit1("Cast", [x], {"to": DType.F32.value})


def _by_feature(x: Value, numbers: tuple[float, ...], name: str) -> Array:
    """One number, or one a column of x [..., features]."""
    if not x.shape or len(numbers) not in (1, x.shape[-1]):
        raise Malformed(f"{name} has {len(numbers)} numbers for shape {list(x.shape)}")
    return np.asarray(numbers if len(numbers) > 1 else numbers[0], np.float32)


@onnx_operator("Scaler", domain=CLASSICAL)
def scaler(c: Importer, n: Node) -> str:
    """(x - offset) · scale; both are facts about data, not weights."""
    x = c.input(n, 0)
    y = _floats(c, x)
    if offset := n.get_floats("offset"):
        y = c.emit1("Sub", [y, c.constant(_by_feature(x, offset, "offset"))])
    if scale := n.get_floats("scale"):
        y = c.emit1("Mul", [y, c.constant(_by_feature(x, scale, "scale"))])
    return c.tensor_of(y)


@onnx_operator("Normalizer", domain=CLASSICAL)
def normalizer(c: Importer, n: Node) -> str:
    """Each row by its norm; shares of a softmax stay as they are."""
    x, norm = c.input(n, 0), n.get_str("norm", "MAX")
    name, axis = c.tensor_of(_floats(c, x)), len(x.shape) - 1
    made = next((op for op in reversed(c.builder.operators) if name in op.outputs), None)
    if norm == "L1" and made is not None and made.kind == "Softmax" and made.attributes.get("axis") == axis:
        return name
    kinds = {"L1": "ReduceL1", "L2": "ReduceL2", "MAX": "ReduceMax"}
    if norm not in kinds or axis < 0:
        raise Malformed(f"norm {norm!r} of shape {list(x.shape)}")
    if norm == "MAX":
        raise Unsupported("the norm MAX, whose definitions differ")
    length = c.emit1(kinds[norm], [name], {"axes": (axis,), "keepdims": True})
    return c.emit1("Div", [name, c.emit1("Clip", [length], {"min": _SMALLEST, "max": _FLOAT_MAX})])


@onnx_operator("Imputer", domain=CLASSICAL)
def imputer(c: Importer, n: Node) -> str:
    """Numbers that stand for a missing one are replaced."""
    x = c.input(n, 0)
    imputed = n.get_floats("imputed_value_floats")
    if not x.is_float or imputed is None:
        raise Unsupported("imputed integers")
    attribute = next((a for a in n.proto.attribute if a.name == "replaced_value_float"), None)
    replaced = attribute.f if attribute is not None else 0.0
    name = c.tensor(x)
    if math.isnan(replaced):
        missing = c.emit1("Not", [c.emit1("Equal", [name, name])])
    else:
        missing = c.emit1("Equal", [name, c.constant(np.array(replaced, np.float32))])
    return c.emit1("Where", [missing, c.constant(_by_feature(x, imputed, "imputed_value_floats")), name])


@onnx_operator("ArrayFeatureExtractor", domain=CLASSICAL)
def array_feature_extractor(c: Importer, n: Node) -> str:
    """Columns of x by number."""
    x, at = c.input(n, 0), c.input(n, 1)
    if not x.shape:
        raise Malformed("extracts from a scalar")
    y = c.emit1("Gather", [x, c.reshape(at, (at.elements,))], {"axis": len(x.shape) - 1})
    return c.reshape(y, (1, at.elements)) if len(x.shape) == 1 else y


@onnx_operator("ZipMap", domain=CLASSICAL)
def zip_map(c: Importer, n: Node) -> Value:
    """A map from each class to its score: here the scores."""
    return c.input(n, 0)
