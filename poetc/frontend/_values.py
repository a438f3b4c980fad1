"""Values that a file gives or leaves out: constants, shapes, stored integers, and seeded numbers for absent weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from poetc.errors import UnsupportedModelError
from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._reading import LARGEST_FOLDED_BYTES, check_size, element_dtype, is_float, read_tensor, widened
from poetc.graph import Array, Coded, Fill, Origin
from poetc.graph._coded import pack

# Added to stored integers, so that none is below 0.
_BIASES = {"uint8": 0, "int8": 128, "uint4": 0, "int4": 8}


def fill_for(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], role: str, seed: int = 0) -> Fill:
    """Seeded numbers for a weight that the file does not carry, of the size that training expects there.

    Depends on name, shape, role (scale | var | "") and seed alone. Matrices and filters: deviation 1 / sqrt(fan in).
    """
    if not is_float(dtype):
        return Fill("zeros")
    name = f"{seed}:{name}" if seed else name
    if role == "var":
        return Fill("uniform", 0.6, 1.4, name)
    if role == "scale":
        return Fill("uniform", 0.75, 1.25, name)
    if len(shape) >= 2:
        fan_in = math.prod(shape[1:]) if len(shape) > 2 else max(shape)
        return Fill("normal", 1.0 / math.sqrt(max(fan_in, 1)), seed_name=name)
    return Fill("normal", 0.05, seed_name=name)


def absent_value(
    model: onnx.ModelProto, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], seed: int
) -> Fill:
    """The numbers that stand for an initializer of `model` whose external file is absent."""
    roles = fill_roles([Node(n) for n in model.graph.node])
    return fill_for(name, shape, dtype, roles.get(name, ""), seed)


def fill_roles(nodes: Sequence[Node]) -> dict[str, str]:
    roles = {}
    for n in nodes:
        if n.op == "BatchNormalization" and len(n.inputs) >= 5:
            roles[n.inputs[1]], roles[n.inputs[4]] = "scale", "var"
        elif n.op in ("LayerNormalization", "GroupNormalization", "InstanceNormalization", "RMSNormalization"):
            roles[n.inputs[1] if len(n.inputs) > 1 else ""] = "scale"
    return roles


def constant(n: Node) -> Value:
    name = n.outputs[0] if n.outputs else ""
    array: Array
    if (tensor := n.get_tensor("value")) is not None:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise Unsupported("a Constant with external data")
        read = read_tensor(tensor, Path())
        assert read is not None
        array = widened(read)
    elif n.has("value_float"):
        array = np.array(n.get_float("value_float"), np.float32)
    elif n.has("value_int"):
        array = np.array(n.get_int("value_int"), np.int64)
    elif (floats := n.get_floats("value_floats")) is not None:
        array = np.array(floats, np.float32)
    elif (ints := n.get_ints("value_ints")) is not None:
        array = np.array(ints, np.int64)
    else:
        raise Unsupported("a Constant that is not a dense tensor of numbers")
    is_number = is_float(array.dtype)
    # All zeros or ones are initial states and scales of norms without any: exporters give parameters as initializers.
    plain = is_number and bool((array == 0).all() or (array == 1).all())
    origin = None if plain else Origin(name, "Constant", array.dtype.name)
    weight = is_number and array.size > 1 and not plain
    return Value(name, array.shape, array.dtype, array, weight=weight, in_file=not plain, origin=origin)


def constant_of_shape(c: Importer, n: Node) -> Value:
    """The tensor as a Fill, one number and a shape, since some files have all of their weights from this operator."""
    shape = c.ints(c.input(n, 0), "the shape")
    tensor = n.get_tensor("value")
    array = np.zeros(1, np.float32) if tensor is None else read_tensor(tensor, Path())
    if array is None or array.size != 1:
        raise Malformed("attribute 'value' is not one number")
    check_size(f"the output of {n.label}", shape, array.dtype.itemsize)
    number = array.reshape(-1)[0]
    if not is_float(array.dtype) or math.prod(shape) <= 4096:
        if (size_bytes := math.prod(shape) * array.dtype.itemsize) > LARGEST_FOLDED_BYTES:
            raise UnsupportedModelError(f"{n.label} makes a constant of {size_bytes:,} bytes: {list(shape)}")
        held: Array | Fill = np.full(shape, number, array.dtype)
    else:
        held = Fill("constant", float(number))
    # All zeros or ones are initial states and masks, any other number stands for weights.
    weight = is_float(array.dtype) and math.prod(shape) > 1 and float(number) not in (0.0, 1.0)
    origin = Origin(n.outputs[0], n.op, array.dtype.name) if weight else None
    return Value(n.outputs[0], shape, array.dtype, held, weight=weight, in_file=weight, origin=origin)


def shape_of(c: Importer, n: Node) -> Value:
    value = c.input(n, 0)
    if value.is_sequence:
        raise Unsupported("the shape of a sequence")
    if n.op == "Size":
        return c.constant(np.array(value.elements, np.int64), n.outputs[0])
    rank = len(value.shape)
    start = n.get_int("start", 0)
    end = n.get_int("end", rank)
    return c.constant(np.array(value.shape[start:end], np.int64), n.outputs[0])


def eye_like(c: Importer, n: Node) -> Value:
    """Ones on a diagonal, in the shape of a matrix."""
    x = c.input(n, 0)
    if len(x.shape) != 2:
        raise Malformed(f"a diagonal of shape {list(x.shape)}")
    dtype = element_dtype(n.get_int("dtype"), "EyeLike") if n.has("dtype") else x.dtype
    c.room(*x.shape)
    return c.constant(widened(np.eye(*x.shape, n.get_int("k", 0)).astype(dtype)), n.outputs[0])


def _codes(c: Importer, n: Node, stored: Value) -> Coded | None:
    """The codes of a stored matrix with scales along its rows; None for another layout."""
    if len(stored.shape) != 2 or not stored.elements or stored.dtype.name not in _BIASES:
        return None
    scales = np.asarray(c.array(c.value(n.inputs[1])), np.float32)
    axis, block = n.get_int("axis", 1) % 2, n.get_int("block_size")
    (rows, depth), whole = stored.shape, c.array(stored).astype(np.int16) + _BIASES[stored.dtype.name]
    if not block:  # one scale for all, or one for each row
        if scales.size not in (1, rows) or (scales.size > 1 and axis != 0):
            return None
        scales, block = np.broadcast_to(scales.reshape(-1, 1), (rows, 1)), depth
    elif axis != 1 or scales.shape != (rows, -(-depth // block)):
        return None
    zero_points = c.array(c.value(n.inputs[2])) if n.has_input(2) else np.zeros((), stored.dtype)
    shape = zero_points.reshape(-1, 1) if zero_points.size in (1, rows) and zero_points.ndim < 2 else zero_points
    if zero_points.dtype.kind == "f":  # of MatMulNBits
        bits = 4 if int(whole.max()) < 16 else 8
        codes, points = pack(whole.astype(np.uint8), bits), np.ascontiguousarray(np.broadcast_to(shape, scales.shape))
        return Coded(f"int{bits}", (rows, depth), codes, block, np.ascontiguousarray(scales), points.astype(np.float32))
    zeros = np.broadcast_to(shape, scales.shape).astype(np.int16) + _BIASES[stored.dtype.name]
    bits = 4 if stored.dtype.name.endswith("int4") or max(int(whole.max()), int(zeros.max())) < 16 else 8
    is_half = bool((zeros == 2 ** (bits - 1)).all())
    packed = None if is_half else pack(zeros.astype(np.uint8), bits)
    codes = pack(whole.astype(np.uint8), bits)
    return Coded(f"int{bits}", (rows, depth), codes, block, np.ascontiguousarray(scales), packed)


def dequantized(c: Importer, n: Node) -> Value:
    """Weights stored as integers become float parameters under the name of the stored tensor."""
    stored = c.input(n, 0)
    if not c.quantized:
        c.note("quantized weights (DequantizeLinear) are f32 parameters where they are trained")
    key = (stored.name, *(c.array(c.value(i)).tobytes() for i in n.inputs[1:] if i), n.get_int("axis", 1))
    if key in c.dequantized:
        return c.dequantized[key]  # One weight of several layers stays one.
    again = any(stored.name == name for name, *_ in c.dequantized)
    name = n.outputs[0] if again else stored.name
    origin = Origin(stored.name, n.op, stored.dtype.name)
    if c.quantized:
        scale = c.array(c.value(n.inputs[1]), "the scale").astype(np.float32).reshape(-1)
        origin = replace(origin, scale=tuple(float(s) for s in scale))
    if isinstance(stored.array, Fill):
        fill = fill_for(stored.name, stored.shape, np.dtype(np.float32), "", c.seed)
        value = Value(name, stored.shape, np.dtype(np.float32), fill, weight=True, in_file=True, origin=origin)
    elif (codes := None if c.quantized else _codes(c, n, stored)) is not None:
        value = Value(name, stored.shape, np.dtype(np.float32), codes, weight=True, in_file=True, origin=origin)
    else:
        c.fold(n)
        value = c.values.pop(n.outputs[0])
        value = replace(value, name=name, weight=value.elements > 1, in_file=True, origin=origin)
    c.dequantized[key] = value
    return value
