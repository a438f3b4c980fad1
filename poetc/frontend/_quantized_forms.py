"""The float form of each quantised operator, of the default domain and of com.microsoft.

Their definitions: docs/Operators.md of onnx, docs/ContribOperators.md of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from poetc.errors import UnsupportedModelError
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._quantized import DOMAINS, FLOAT_TOO, FORMS, STANDARD, Floats, Quantization, form
from poetc.graph import Array

MICROSOFT = "com.microsoft"
# Numbers of weights whose scale is in none of the file's places: integers of 8 bits are then at most 1.
_UNIT = np.float32(1 / 128)


def _attributes(n: Node, *without: str) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in n.proto.attribute if a.name not in without}


def _name(n: Node, index: int) -> str:
    return n.inputs[index] if n.has_input(index) else ""


def _bind(f: Floats, n: Node, y: str, scale: int, zero: int) -> None:
    """The node's output: y, quantised with these inputs.

    Without a zero point `output_dtype` is the type of the integers, or the type is that of the first quantised input.
    """
    name = _name(n, zero)
    if not name and n.get_int("output_dtype"):
        none = np.zeros((), helper.tensor_dtype_to_np_dtype(n.get_int("output_dtype")))
        name = f.add(none, f"{n.outputs[0]}.zero")
    held = f.quantization(_name(n, scale), name)
    if not name and n.op != "QuantizeLinear":
        read = [f.quantized[i] for i in n.inputs if i in f.quantized]
        bounds = (read[0].lowest, read[0].highest) if read else (None, None)
        held = replace(held, lowest=bounds[0], highest=bounds[1])
    f.bind(y, n.outputs[0], held)


# --- between float and quantised tensors ---


@form("QuantizeLinear")
def quantize(f: Floats, n: Node) -> None:
    """Weights stay the numbers that they are, and activations are no longer rounded."""
    if n.inputs[0] in f.fixed:
        f.quantized[n.outputs[0]] = f.quantization(_name(n, 1), _name(n, 2))
        f.emit("Identity", [n.inputs[0]], n.outputs[0])
        return
    _bind(f, n, n.inputs[0], 1, 2)


@form("DequantizeLinear")
def dequantize(f: Floats, n: Node) -> None:
    """Stored weights stay behind this operator."""
    if n.inputs[0] not in f.quantized:  # weights, or integers that the model is given
        n.proto.domain = ""
        f.keep(n)
        return
    x = f.real_input(n, 0, 1, 2)
    f.emit("Identity", [x], n.outputs[0])


@form("DynamicQuantizeLinear")
def dynamic_quantize(f: Floats, n: Node) -> None:
    """The scale depends on the numbers, and takes itself out again: here it is 1."""
    x, (y, scale, zero) = n.inputs[0], (*n.outputs, "", "")[:3]
    f.emit("Identity", [x], y)
    f.dropped += 1
    one, none = np.ones((), np.float32), np.zeros((), np.uint8)
    for name, number in ((scale, one), (zero, none)):
        if name:
            f.emit("Identity", [f.add(number, f"{name}.fixed")], name)
            f.numbers[name] = number
    f.quantized[y] = Quantization(one, np.zeros((), np.int64))


# --- products ---


@form("QLinearConv")
def convolution(f: Floats, n: Node) -> None:
    x = f.real_input(n, 0, 1, 2)
    w = f.real_input(n, 3, 4, 5, axis=0)
    inputs = [x, w]
    if n.has_input(8):
        inputs.append(_bias(f, n, 8, (n.inputs[1], n.inputs[4])))
    y = _channels_first(f, n, "Conv", inputs)
    _bind(f, n, y, 6, 7)


def _bias(f: Floats, n: Node, index: int, scales: Sequence[str], factor: float = 1.0) -> str:
    """Integers of 32 bits whose scale is the product of two."""
    held = [f.array(s) for s in scales]
    if held[0] is None or held[1] is None:
        raise Unsupported("the scale that is computed from the model's inputs (it must be constant)")
    scale = (np.float32(factor) * held[0].reshape(-1) * held[1].reshape(-1)).astype(np.float32)
    name = n.inputs[index]
    if name not in f.fixed:
        raise Unsupported("a bias that is computed from the model's inputs")
    operands = [name, f.add(scale if scale.size > 1 else scale.reshape(()), f"{name}.scale")]
    return f.emit("DequantizeLinear", operands, f.fresh(f"{name}.float"), axis=0 if scale.size > 1 else None)


def _channels_first(f: Floats, n: Node, op: str, inputs: Sequence[str], **attributes: Any) -> str:
    """An operator on images, in whose input the channels may be last."""
    settings = {**_attributes(n, "channels_last"), **attributes}
    if not n.get_int("channels_last"):
        return f.emit(op, inputs, **settings)
    rank = f.rank(n)
    before = (0, rank - 1, *range(1, rank - 1))
    after = (0, *range(2, rank), 1)
    x = f.emit("Transpose", [inputs[0]], perm=before)
    return f.emit("Transpose", [f.emit(op, [x, *inputs[1:]], **settings)], perm=after)


@form("QLinearMatMul")
def matmul(f: Floats, n: Node) -> None:
    a = f.real_input(n, 0, 1, 2, axis=-2)
    b = f.real_input(n, 3, 4, 5, axis=-1)
    _bind(f, n, f.emit("MatMul", [a, b]), 6, 7)


@form("QGemm")
def gemm(f: Floats, n: Node) -> None:
    a = f.real_input(n, 0, 1, 2)
    b = f.real_input(n, 3, 4, 5, axis=0 if n.get_int("transB") else 1)
    alpha = n.get_float("alpha", 1.0)
    inputs = [a, b, *([_bias(f, n, 6, (n.inputs[1], n.inputs[4]), alpha)] if n.has_input(6) else [])]
    if n.has_input(7):
        _bind(f, n, f.emit("Gemm", inputs, **_attributes(n)), 7, 8)
    else:
        f.emit("Gemm", inputs, n.outputs[0], **_attributes(n))


@form("MatMulInteger")
def matmul_integer(f: Floats, n: Node) -> None:
    _integer_product(f, n, "MatMul", -1)


@form("ConvInteger")
def conv_integer(f: Floats, n: Node) -> None:
    _integer_product(f, n, "Conv", 0)


def _integer_product(f: Floats, n: Node, op: str, axis: int) -> None:
    """Sums of integers. A Cast and a Mul that make real numbers of them are taken in, with the scale of the weights."""
    x, zero = n.inputs[0], _name(n, 2)
    held = f.quantized.get(x)
    unit = f.add(np.ones((), np.float32), f"{n.outputs[0]}.unit")
    known = held.scale if held is not None and held.is_scalar else np.ones((), np.float32)
    held = Quantization(known, f.quantization(unit, zero).zero)
    operand = f.real(x, held)
    behind = _scaling(f, n)
    if n.inputs[1] not in f.fixed:
        other = f.quantized.get(n.inputs[1])
        if other is None or not other.is_scalar:
            raise Unsupported("a product of integers without a scale")
        b, scale = f.real(n.inputs[1], other), other.scale
    else:
        scale = np.asarray(_UNIT) if behind is None else _along(f, behind[2] / held.scale, n.inputs[1], axis)
        name = f.add(np.asarray(scale, np.float32), f"{n.inputs[1]}.scale")
        b = f.real_input(Node(helper.make_node("", [n.inputs[1], name, _name(n, 3)], [])), 0, 1, 2, axis)
    if behind is not None and n.inputs[1] in f.fixed:
        cast, product, _ = behind
        f.skipped.update((id(cast), id(product)))
        f.emit(op, [operand, b], product.outputs[0], **_attributes(n))
        return
    f.emit(op, [operand, b], n.outputs[0], **_attributes(n))
    f.quantized[n.outputs[0]] = Quantization(np.asarray(held.scale * scale, np.float32), np.zeros((), np.int64))


def _scaling(f: Floats, n: Node) -> tuple[Node, Node, Array] | None:
    """The Cast behind a sum of integers, the Mul behind that, and its constant factor."""
    chain: list[Node] = []
    for op in ("Cast", "Mul"):
        output = (chain[-1] if chain else n).outputs[0]
        readers = f.readers.get(output, [])
        if len(readers) != 1 or readers[0].op != op or output in f.outputs:
            return None
        chain.append(readers[0])
    cast, product = chain
    factor = next((f.factor(i) for i in product.inputs if i != cast.outputs[0]), None)
    return None if factor is None else (cast, product, factor)


def _along(f: Floats, scale: Array, weight: str, axis: int) -> Array:
    """A scale for the whole weight, or for each index along an axis. Unsupported for any other shape."""
    if scale.size == 1:
        return scale.reshape(())
    array = f.array(weight)
    if array is None or scale.size != array.shape[axis] or max(scale.shape) != scale.size:
        raise Unsupported(f"a scale of shape {list(scale.shape)}")
    return scale.reshape(-1)


@form("MatMulIntegerToFloat")
def matmul_to_float(f: Floats, n: Node) -> None:
    a = f.real_input(n, 0, 2, 4)
    b = f.real_input(n, 1, 3, 5, axis=-1)
    _with_bias(f, n, f.emit("MatMul", [a, b]), 6)


@form("DynamicQuantizeMatMul")
def dynamic_matmul(f: Floats, n: Node) -> None:
    f.dropped += 1
    _with_bias(f, n, f.emit("MatMul", [n.inputs[0], f.real_input(n, 1, 2, 3, axis=-1)]), 4)


def _with_bias(f: Floats, n: Node, y: str, index: int) -> None:
    bias = _name(n, index)
    f.emit("Add" if bias else "Identity", [y, bias] if bias else [y], n.outputs[0])


@form("MatMulNBits")
def matmul_of_few_bits(f: Floats, n: Node) -> None:
    """A product with a weight of 2, 4 or 8 bits, in blocks along its columns: several numbers a byte."""
    k, columns, bits, block = (n.get_int(a) for a in ("K", "N", "bits", "block_size"))
    packed, scales, zeros = (f.stored(_name(n, i)) for i in (1, 2, 3))
    if bits not in (2, 4, 8) or packed is None or scales is None or n.has_input(4):
        raise Unsupported("weights of this layout")
    if (zeros is None) == n.has_input(3) or block < 1:
        raise Unsupported("zero points of this layout")
    blocks = -(-k // block)
    w = _unpacked(packed.reshape(columns, -1), bits)[:, : blocks * block]
    scale = scales.reshape(columns, blocks).astype(np.float32)
    half = np.full((columns, blocks), 2 ** (bits - 1), np.uint8)
    zero = half
    if zeros is not None and zeros.dtype == np.uint8:
        zero = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks]
    elif zeros is not None:
        zero = zeros.reshape(columns, blocks).astype(np.float32)
    real = _decoded(f, n.inputs[1], w, scale, zero, 1, block)
    if blocks * block != k:
        ends = [f.add(np.array([v], np.int64), f"{real}.end") for v in (0, k, 1)]
        real = f.emit("Slice", [real, *ends])
    y = f.emit("MatMul", [n.inputs[0], f.emit("Transpose", [real], perm=(1, 0))])
    _with_bias(f, n, y, 5)


@form("GatherBlockQuantized")
def gather_of_few_bits(f: Floats, n: Node) -> None:
    """Rows of a table of 4 or 8 bits, in blocks along an axis; bytes of uint8 may hold two numbers of 4 bits."""
    data, scales, zeros = (f.stored(_name(n, i)) for i in (0, 2, 3))
    bits, block, along = n.get_int("bits", 4), n.get_int("block_size", 128), n.get_int("quantize_axis", 1)
    if data is None or scales is None or (zeros is None) == n.has_input(3) or block < 1:
        raise Unsupported("a table that is computed from the model's inputs (it must be constant)")
    along = normalize_axis(along, data.ndim)
    is_packed = data.dtype == np.uint8
    if is_packed:
        if bits not in (2, 4, 8) or along != data.ndim - 1:
            raise Unsupported(f"a table of {bits} bits in blocks along axis {along}")
        data = _unpacked(data, bits)
        zeros = None if zeros is None else _unpacked(zeros, bits)[..., : scales.shape[-1]]
    if zeros is None:
        zeros = np.full(scales.shape, 2 ** (bits - 1) if is_packed else 0, data.dtype)
    if scales.ndim != data.ndim or scales.shape[along] != -(-data.shape[along] // block) or zeros.shape != scales.shape:
        raise Malformed(f"scales of shape {list(scales.shape)} for blocks of {block} along {list(data.shape)}")
    real = _decoded(f, n.inputs[0], data, scales.astype(np.float32), zeros, along, block)
    f.emit("Gather", [real, n.inputs[1]], n.outputs[0], axis=n.get_int("gather_axis", 0))


def _decoded(f: Floats, name: str, whole: Array, scale: Array, zero: Array, axis: int, block: int) -> str:
    """The real numbers of stored codes; one tensor where a table and a head share them."""
    digest = sha256()
    for array in (whole, scale, zero):
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    key = ("codes", digest.digest(), axis, block)
    if key not in f.weights:
        parts = (("integers", whole), ("scale", scale), ("zero", zero))
        names = [f.add(array, f"{name}.{what}") for what, array in parts]
        f.weights[key] = f.emit("DequantizeLinear", names, axis=axis, block_size=block)
    return f.weights[key]


def _unpacked(packed: Array, bits: int) -> Array:
    """Bytes as their parts of `bits` bits, the lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8(2**bits - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], -1))


# --- element by element, pools and joins ---


@form("QLinearAdd", "QLinearMul")
def arithmetic(f: Floats, n: Node) -> None:
    y = f.emit(n.op.removeprefix("QLinear"), [f.real_input(n, 0, 1, 2), f.real_input(n, 3, 4, 5)])
    _bind(f, n, y, 6, 7)


@form("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
def activation(f: Floats, n: Node) -> None:
    y = f.emit(n.op.removeprefix("QLinear"), [f.real_input(n, 0, 1, 2)], **_attributes(n, "opset"))
    _bind(f, n, y, 3, 4)


@form("QLinearAveragePool", "QLinearGlobalAveragePool")
def average_pool(f: Floats, n: Node) -> None:
    y = _channels_first(f, n, n.op.removeprefix("QLinear"), [f.real_input(n, 0, 1, 2)])
    _bind(f, n, y, 3, 4)


@form("NhwcMaxPool")
def max_pool(f: Floats, n: Node) -> None:
    """Its input has the channels last, and its output the scale of the input."""
    x = n.inputs[0]
    held = f.quantized.get(x)
    rank = f.rank(n)
    first = f.emit("Transpose", [x], perm=(0, rank - 1, *range(1, rank - 1)))
    pooled = f.emit("MaxPool", [first], **_attributes(n))
    f.emit("Transpose", [pooled], n.outputs[0], perm=(0, *range(2, rank), 1))
    if held is not None:
        f.quantized[n.outputs[0]] = held


@form("QLinearConcat")
def concat(f: Floats, n: Node) -> None:
    if len(n.inputs) < 5 or len(n.inputs) % 3 != 2:
        raise Malformed(f"has {len(n.inputs)} inputs")
    parts = [f.real_input(n, k, k + 1, k + 2) for k in range(2, len(n.inputs), 3)]
    _bind(f, n, f.emit("Concat", parts, **_attributes(n)), 0, 1)


@form("QLinearWhere")
def where(f: Floats, n: Node) -> None:
    y = f.emit("Where", [n.inputs[0], f.real_input(n, 1, 2, 3), f.real_input(n, 4, 5, 6)])
    _bind(f, n, y, 7, 8)


@form("Pad", of_floats_too=True)
def pad(f: Floats, n: Node) -> None:
    """The integer that is put around a quantised tensor stands for a real number."""
    held = f.quantized.get(n.inputs[0])
    if held is None:
        f.keep(n)
        return
    value = n.get_float("value")
    fill = f.number(n.inputs[2]) if n.has_input(2) else None
    if n.has_input(2) and fill is None:
        raise Unsupported("a padding that is computed from the model's inputs")
    real = np.float32(held.real(value if fill is None else fill))
    inputs = [n.inputs[0], *n.inputs[1:2]]
    if f.opset >= 11:
        inputs += [f.add(real, f"{n.inputs[0]}.padding"), *n.inputs[3:]]
        f.emit("Pad", inputs, n.outputs[0], **_attributes(n))
    else:
        f.emit("Pad", inputs, n.outputs[0], **_attributes(n, "value"), value=float(real))
    f.quantized[n.outputs[0]] = held


@form("Relu", "Clip", of_floats_too=True)
def clip(f: Floats, n: Node) -> None:
    """The bounds of a quantised tensor are integers that stand for real numbers."""
    held = f.quantized.get(n.inputs[0])
    if held is None:
        f.keep(n)
        return
    low: float | None = 0.0
    high: float | None = None
    if n.op == "Clip":
        low, high = (f.number(n.inputs[k]) if n.has_input(k) else None for k in (1, 2))
    bounds = [None if b is None else held.real(b) for b in (low, high)]
    f.clip(n.inputs[0], bounds[0], bounds[1], n.outputs[0])
    f.quantized[n.outputs[0]] = held


@form("Cast", of_floats_too=True)
def cast(f: Floats, n: Node) -> None:
    """The integers of a quantised tensor as float numbers, without rounding."""
    held = f.quantized.get(n.inputs[0])
    if held is None:
        f.keep(n)
        return
    to = np.dtype(helper.tensor_dtype_to_np_dtype(n.get_int("to")))
    if to.kind != "f" or not held.is_scalar:
        raise Unsupported(f"a cast of quantised numbers to {to}")
    scale = float(held.scale)
    f.affine(n.inputs[0], 1.0 / scale, float(held.zero), n.outputs[0])


# --- layers of transformers and recurrent ones ---


@form("QAttention")
def attention(f: Floats, n: Node) -> None:
    x = f.real_input(n, 0, 3, 6)
    w = f.real_input(n, 1, 4, 7, axis=-1)
    inputs = [x, w, _name(n, 2), _name(n, 5), _name(n, 8)]
    node = helper.make_node("Attention", inputs, list(n.outputs), n.proto.name, domain=MICROSOFT, **_attributes(n))
    f.keep(Node(node))


@form("QEmbedLayerNormalization")
def embedding(f: Floats, n: Node) -> None:
    tables = [f.real_input(n, k, k + 6, k + 11) if n.has_input(k) else "" for k in range(2, 7)]
    inputs = [n.inputs[0], _name(n, 1), *tables, _name(n, 7)]
    node = helper.make_node(
        "EmbedLayerNormalization", inputs, list(n.outputs), n.proto.name, domain=MICROSOFT, **_attributes(n)
    )
    f.keep(Node(node))


@form("DynamicQuantizeLSTM")
def lstm(f: Floats, n: Node) -> None:
    """Its weights lie with the gates last."""
    f.dropped += 1
    weights = []
    for k, scale, zero in ((1, 8, 9), (2, 10, 11)):
        held = f.array(n.inputs[scale])
        axis = 2 if held is not None and held.ndim == 2 and held.shape[0] == 1 else 0
        weights.append(f.emit("Transpose", [f.real_input(n, k, scale, zero, axis)], perm=(0, 2, 1)))
    inputs = [n.inputs[0], *weights, *(_name(n, k) for k in range(3, 8))]
    f.keep(Node(helper.make_node("LSTM", inputs, list(n.outputs), n.proto.name, **_attributes(n))))


# --- the pass ---


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether a model holds quantised activations, and not only weights behind DequantizeLinear."""
    constants = {t.name for t in model.graph.initializer}
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    constants |= {n.output[0] for n in nodes if n.op_type == "Constant" and n.output}
    marks = FORMS.keys() - FLOAT_TOO

    def stored(node: onnx.NodeProto) -> bool:
        return node.op_type == "DequantizeLinear" and node.domain in STANDARD and set(node.input[:1]) <= constants

    return any(n.op_type in marks and n.domain in DOMAINS and not stored(n) for n in nodes)


def with_floats(model: onnx.ModelProto, folder: Path, moved: Collection[str] | None = None) -> list[str]:
    """Replace the quantised operators of `model` by float ones; notes on the changes. No change to a float model.

    `model` has no functions, `folder` has its external data. UnsupportedModelError names a node that has no float form.
    `moved`: the stored integers whose numbers change, by their names afterwards. Codes of other weights stay as they
    are in the file.
    """
    return Floats(model, folder, moved).run() if is_quantized(model) else []


def require_qdq(model: onnx.ModelProto) -> None:
    """UnsupportedModelError unless all that is quantised stands between QuantizeLinear and DequantizeLinear."""
    pair = {"QuantizeLinear", "DequantizeLinear"}
    nodes = [Node(n) for n in model.graph.node if n.domain in DOMAINS]
    if other := next((n for n in nodes if n.op in FORMS.keys() - FLOAT_TOO - pair), None):
        raise UnsupportedModelError(f"{other.label} is of another form than QDQ; {_WAY_TO_QDQ}")
    if not any(n.op == "QuantizeLinear" for n in nodes):
        raise UnsupportedModelError(f"no QuantizeLinear in the model; {_WAY_TO_QDQ}, or use --precision niti or f32")
    types = {t.name: t.data_type for t in model.graph.initializer}
    codes = {n.outputs[0]: types.get(n.inputs[2]) for n in nodes if n.op == "QuantizeLinear" and len(n.inputs) > 2}
    for n in nodes:
        if n.op == "DequantizeLinear" and len(n.inputs) > 2:
            written, read = codes.get(n.inputs[0]), types.get(n.inputs[2])
            if written is not None and read is not None and written != read:
                raise UnsupportedModelError(
                    f"{n.label}: its zero point has another type than that of the QuantizeLinear before it;"
                    " quantise the model again"
                )


_WAY_TO_QDQ = "--precision qas wants QDQ: onnxruntime.quantization.quantize_static with QuantFormat.QDQ makes it"
