"""Operators of ai.onnx.ml that scikit-learn's exporter writes. `_classical` has those with weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx

from poetc.frontend._classical import CLASSICAL
from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._reading import read_tensor, widened
from poetc.frontend._translations import onnx_operator
from poetc.graph import Array, DType

TEXT = onnx.TensorProto.STRING
_ZERO = np.zeros((), np.float32)
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
    maker = next((op for op in reversed(c.builder.operators) if name in op.outputs), None)
    if norm == "L1" and maker is not None and maker.kind == "Softmax" and maker.attributes.get("axis") == axis:
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


_SIDES = ("int64s", "floats", "tensor")


def _table(n: Node, side: str) -> Array:
    """The keys or the values of a LabelEncoder."""
    for kind in _SIDES:
        if n.has(f"{side}_{kind}"):
            if kind == "tensor":
                proto = n.get_tensor(f"{side}_tensor")
                held = read_tensor(proto, Path()) if proto is not None and proto.data_type != TEXT else None
                if held is not None:
                    return widened(held).reshape(-1)
            elif kind == "int64s":
                return np.asarray(n.get_ints(f"{side}_int64s"), np.int64)
            else:
                return np.asarray(n.get_floats(f"{side}_floats"), np.float32)
    raise Unsupported(f"{side} that are text; encode the labels before the model")


def _default(n: Node, dtype: np.dtype[np.generic]) -> Array:
    """The value of an unknown key."""
    if (proto := n.get_tensor("default_tensor")) is not None:
        held = read_tensor(proto, Path())
        assert held is not None
        return held.astype(dtype).reshape(())
    number = n.get_int("default_int64", -1) if dtype.kind == "i" else n.get_float("default_float", -0.0)
    return np.asarray(number, dtype)


def _hits(c: Importer, x: Value, keys: Array) -> str:
    """[..., keys] as 0 and 1: which key each element of x is."""
    c.room(*x.shape, keys.size)
    if x.is_float and keys.dtype.kind == "i":
        name = c.emit1("Cast", [x], {"to": "i32"})
    elif x.is_float == (keys.dtype.kind == "f"):
        name = c.tensor(x)
    else:
        raise Malformed(f"keys of {keys.dtype} for numbers of {x.dtype}")
    return c.emit1("Cast", [c.emit1("Equal", [c.reshape(name, (*x.shape, 1)), c.constant(keys)])], {"to": "f32"})


@onnx_operator("OneHotEncoder", domain=CLASSICAL)
def one_hot_encoder(c: Importer, n: Node) -> str:
    """A column a category; of an unknown one all are zero."""
    x, categories = c.input(n, 0), n.get_ints("cats_int64s")
    if not categories:
        raise Unsupported("categories that are text; encode them before the model")
    if not n.get_int("zeros", 1):
        c.note(f"{n.label} refuses unknown categories: here all of their columns are zero")
    return _hits(c, x, np.asarray(categories, np.int64))


@onnx_operator("LabelEncoder", domain=CLASSICAL)
def label_encoder(c: Importer, n: Node) -> str:
    """The value of each key, and a default for the others."""
    x, keys, values = c.input(n, 0), _table(n, "keys"), _table(n, "values")
    if keys.size != values.size or not keys.size:
        raise Malformed(f"{keys.size} keys and {values.size} values")
    hits = _hits(c, x, keys)
    axis = len(x.shape)
    place = c.emit1("ArgMax", [hits], {"axis": axis, "keepdims": False})
    chosen = c.emit1("Gather", [c.constant(values), place], {"axis": 0})
    best = c.emit1("ReduceMax", [hits], {"axes": (axis,), "keepdims": False})
    is_known = c.emit1("Greater", [best, c.constant(_ZERO)])
    return c.emit1("Where", [is_known, chosen, c.constant(_default(n, values.dtype))])


@onnx_operator("Binarizer", domain=CLASSICAL)
def binarizer(c: Importer, n: Node) -> str:
    """1 above the threshold, else 0."""
    x = c.tensor_of(_floats(c, c.input(n, 0)))
    limit = c.constant(np.array(n.get_float("threshold", 0.0), np.float32))
    return c.emit1("Cast", [c.emit1("Greater", [x, limit])], {"to": DType.F32.value})
