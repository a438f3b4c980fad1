"""Operators that onnxruntime's optimizer leaves (domain com.microsoft): each is taken apart into kinds that exist.

Their definitions: docs/ContribOperators.md of onnxruntime. Attention of that domain is in `onnx_microsoft_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._translations import MICROSOFT, onnx_operator
from poetc.frontend.onnx_nn import conv, gemm
from poetc.frontend.onnx_norm import layer_norm, over_trailing
from poetc.graph import Attribute, DType

# Activations without parameters, by their name in FusedConv and FusedGemm.
_PLAIN = frozenset({"Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish"})
# The parameters of the others in order, with the defaults of onnxruntime's kernels.
_PARAMETERS = {
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "Selu": (("alpha", 1.6732632423543772), ("gamma", 1.0507009873554805)),
    "Clip": (("min", -3.4028234663852886e38), ("max", 3.4028234663852886e38)),
}


def activated(c: Importer, x: str, activation: str, parameters: Sequence[float | None]) -> str:
    """`x` behind the activation that is fused into a layer. `parameters`: its parameters, None for a default."""
    if not activation:
        return x
    if activation in _PLAIN:
        return c.emit1(activation, [x])
    if activation not in _PARAMETERS:
        raise Unsupported(f"the fused activation {activation!r}")
    attributes: dict[str, Attribute] = {}
    for k, (name, default) in enumerate(_PARAMETERS[activation]):
        value = parameters[k] if k < len(parameters) else None
        attributes[name] = default if value is None else float(value)
    return c.emit1(activation, [x], attributes)


# --- activations ---


def _added(c: Importer, x: str | Value, bias: Value | None) -> str | Value:
    return x if bias is None else c.emit1("Add", [x, bias])


@onnx_operator("Gelu", "BiasGelu", domain=MICROSOFT)
def gelu(c: Importer, n: Node) -> str:
    return c.emit1("Gelu", [_added(c, c.input(n, 0), c.optional(n, 1))], {"approximate": "none"})


@onnx_operator("FastGelu", domain=MICROSOFT)
def fast_gelu(c: Importer, n: Node) -> str:
    return c.emit1("Gelu", [_added(c, c.input(n, 0), c.optional(n, 1))], {"approximate": "tanh"})


@onnx_operator("QuickGelu", domain=MICROSOFT)
def quick_gelu(c: Importer, n: Node) -> str:
    """x sigmoid(alpha x), which is silu(alpha x) / alpha."""
    x, alpha = c.input(n, 0), n.get_float("alpha", 1.702)
    if not alpha:
        return c.affine(x, 0.5)
    return c.affine(c.emit1("Silu", [c.affine(x, alpha)]), 1.0 / alpha)


# --- products and convolutions ---


@onnx_operator("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(c: Importer, n: Node) -> str:
    """alpha A' B', either operand turned in its last two axes, or with its first axis behind the other batch axes."""
    operands = []
    for k, side in enumerate("AB"):
        x = c.input(n, k)
        if len(x.shape) < 2:
            raise Unsupported(f"an operand of shape {list(x.shape)}")
        name, rank = c.tensor(x), len(x.shape)
        if n.get_int(f"transBatch{side}"):
            name = c.transpose(name, (*range(1, rank - 1), 0, rank - 1))
        operands.append(name)
    attributes: dict[str, Attribute] = {
        "trans_a": bool(n.get_int("transA")),
        "trans_b": bool(n.get_int("transB")),
        "alpha": n.get_float("alpha", 1.0),
    }
    return c.emit1("MatMul", operands, attributes)


@onnx_operator("FusedGemm", domain=MICROSOFT)
def fused_gemm(c: Importer, n: Node) -> str:
    activation = n.get_str("activation")
    names = [name for name, _ in _PARAMETERS.get(activation, ())]
    parameters = [n.get_float(f"activation_{p}") if n.has(f"activation_{p}") else None for p in names]
    return activated(c, gemm(c, n), activation, parameters)


@onnx_operator("FusedConv", domain=MICROSOFT)
def fused_conv(c: Importer, n: Node) -> str:
    """A convolution, plus a fourth input if there is one, and an activation of the sum."""
    y = conv(c, n)
    other = c.optional(n, 3)
    if other is not None:
        y = c.emit1("Add", [y, other])
    return activated(c, y, n.get_str("activation"), n.get_floats("activation_params") or ())


# --- normalisation ---


@onnx_operator("LayerNormalization", domain=MICROSOFT)
def microsoft_layer_norm(c: Importer, n: Node) -> Sequence[str]:
    return layer_norm(c, n)


@onnx_operator("SimplifiedLayerNormalization")
@onnx_operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_norm(c: Importer, n: Node) -> str:
    """RMS norm; onnxruntime writes it into the default domain."""
    x = c.input(n, 0)
    return _rms_norm(c, c.tensor(x), c.input(n, 1), normalize_axis(n.get_int("axis", -1), len(x.shape)), n)


def _rms_norm(c: Importer, x: str, scale: Value, axis: int, n: Node) -> str:
    weight = over_trailing(c, scale, c.shape(x)[axis:], "scale")
    return c.emit1("RmsNorm", [x, weight], {"axis": axis, "epsilon": n.get_float("epsilon", 1e-5)})


def _skip_sum(c: Importer, n: Node, bias: Value | None) -> str | Value:
    """input + skip + bias; the skip may lack the batch axis."""
    x, skip = c.input(n, 0), c.input(n, 1)
    if len(x.shape) < 2 or np.broadcast_shapes(x.shape, skip.shape) != x.shape:
        raise Malformed(f"adds shape {list(skip.shape)} to {list(x.shape)}")
    return _added(c, c.emit1("Add", [x, skip]), bias)


def _unless_asked(n: Node, *outputs: int) -> None:
    for k in outputs:
        if n.has_output(k):
            raise Unsupported(f"output {k} of this operator")


@onnx_operator("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(c: Importer, n: Node) -> Sequence[str]:
    _unless_asked(n, 1, 2)
    total = c.tensor_of(_skip_sum(c, n, c.optional(n, 4)))
    y = _layer_norm(c, total, c.input(n, 2), c.optional(n, 3), n.get_float("epsilon", 1e-12))
    return [y, y, y, total]


@onnx_operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_norm(c: Importer, n: Node) -> Sequence[str]:
    _unless_asked(n, 1, 2)
    total = c.tensor_of(_skip_sum(c, n, c.optional(n, 3)))
    y = _rms_norm(c, total, c.input(n, 2), len(c.shape(total)) - 1, n)
    return [y, y, y, total]


def _layer_norm(c: Importer, x: str, scale: Value, bias: Value | None, epsilon: float) -> str:
    axis = len(c.shape(x)) - 1
    inputs = [x, over_trailing(c, scale, c.shape(x)[axis:], "scale")]
    if bias is not None:
        inputs.append(over_trailing(c, bias, c.shape(x)[axis:], "bias"))
    return c.emit("LayerNorm", inputs, {"axis": axis, "epsilon": epsilon})[0]


@onnx_operator("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(c: Importer, n: Node) -> Sequence[str]:
    """Rows of words, of places and of segments, added and normalised; with the number of tokens that are no padding."""
    tokens, segments = c.input(n, 0), c.optional(n, 1)
    token_table, places, segment_rows = c.input(n, 2), c.input(n, 3), c.optional(n, 4)
    scale, bias, mask, given_places = c.input(n, 5), c.input(n, 6), c.optional(n, 7), c.optional(n, 8)
    if len(tokens.shape) != 2:
        raise Malformed(f"token numbers have shape {list(tokens.shape)}")
    batch, length = tokens.shape
    total = c.emit1("Gather", [token_table, tokens], {"axis": 0})
    if given_places is not None:
        total = c.emit1("Add", [total, c.emit1("Gather", [places, given_places], {"axis": 0})])
    elif len(places.shape) != 2 or places.shape[0] < length:
        raise Malformed(f"{list(places.shape)} has no rows for {length} places")
    else:
        rows = c.axis_slice(places, 0, 0, length)
        total = c.emit1("Add", [total, c.reshape(rows, (1, length, places.shape[1]))])
    if segment_rows is not None:
        if segments is None:
            raise Malformed("segment numbers are missing")
        total = c.emit1("Add", [total, c.emit1("Gather", [segment_rows, segments], {"axis": 0})])
    y = _layer_norm(c, total, scale, bias, n.get_float("epsilon", 1e-12))
    count: str | Value = c.constant(np.zeros(batch, np.int32))
    if mask is not None and n.has_output(1):
        seen = c.emit1("Cast", [mask], {"to": DType.F32.value})
        count = c.emit1("Cast", [c.emit1("ReduceSum", [seen], {"axes": (1,), "keepdims": False})], {"to": "i32"})
    return [y, c.tensor_of(count), total]
