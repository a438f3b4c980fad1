"""The fused Attention of operator set 23, taken apart: softmax(scale · Q Kᵀ + mask) V."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, onnx_operator

_KNOWN = {"q_num_heads", "kv_num_heads", "scale", "is_causal", "softcap", "qk_matmul_output_mode", "softmax_precision"}


@onnx_operator("Attention")
def attention(c: Importer, n: Node) -> Sequence[str]:
    q, k, v = (c.input(n, i) for i in range(3))
    mask = c.optional(n, 3)
    if n.has_output(3) and n.get_int("qk_matmul_output_mode", 0) != 3:
        raise Unsupported("the output of the raw scores")
    unknown = sorted(a.name for a in n.proto.attribute if a.name not in _KNOWN)
    if unknown or n.has_input(6):
        raise Unsupported(", ".join(unknown) or "nonpad_kv_seqlen")
    flat = len(q.shape) == 3
    q_heads, kv_heads = n.get_int("q_num_heads"), n.get_int("kv_num_heads")
    queries = _heads(c, q, q_heads, flat)
    keys, values = (_heads(c, x, kv_heads, flat) for x in (k, v))
    past_keys, past_values = c.optional(n, 4), c.optional(n, 5)
    if past_keys is not None and past_values is not None:
        keys = c.emit1("Concat", [past_keys, keys], {"axis": 2})
        values = c.emit1("Concat", [past_values, values], {"axis": 2})
    present = (keys, values)
    batch, heads, length, size = c.shape(queries)
    groups = c.shape(keys)[1]
    if heads % groups:
        raise Malformed(f"{heads} query heads do not divide into {groups} key heads")
    if heads != groups:
        keys, values = (_repeat_heads(c, x, heads // groups) for x in (keys, values))
    total = c.shape(keys)[2]
    scale = n.get_float("scale") if n.has("scale") else 1.0 / math.sqrt(size)
    scores = c.emit1("MatMul", [queries, keys], {"trans_b": True, "alpha": scale})
    if cap := n.get_float("softcap", 0.0):
        scores = c.affine(c.emit1("Tanh", [c.affine(scores, 1.0 / cap)]), cap)
    if n.get_int("is_causal", 0):
        visible = np.tri(length, total, total - length if past_keys is not None else 0, dtype=np.bool_)
        scores = c.emit1("Where", [c.constant(visible), scores, c.constant(np.array(-np.inf, np.float32))])
    if mask is not None:
        if c.type(c.tensor(mask)).dtype.value == "u8":
            scores = c.emit1("Where", [mask, scores, c.constant(np.array(-np.inf, np.float32))])
        else:
            scores = c.emit1("Add", [scores, mask])
    weights = c.emit1("Softmax", [scores], {"axis": 3})
    y = c.emit1("MatMul", [weights, values])
    if flat:
        y = c.reshape(c.transpose(y, (0, 2, 1, 3)), (batch, length, heads * c.shape(values)[3]))
    return [y, *present, weights]


def _heads(c: Importer, x: Value, heads: int, flat: bool) -> str:
    """[batch, heads, length, size]."""
    if not flat:
        if len(x.shape) != 4:
            raise Malformed(f"an operand has shape {list(x.shape)}")
        return c.tensor(x)
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        raise Malformed(f"{heads} heads do not divide shape {list(x.shape)}")
    batch, length, width = x.shape
    return c.transpose(c.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _repeat_heads(c: Importer, x: str, times: int) -> str:
    """Each key head serves `times` query heads in a row."""
    batch, groups, length, size = c.shape(x)
    wide = c.emit1(
        "Expand", [c.reshape(x, (batch, groups, 1, length, size))], {"shape": (batch, groups, times, length, size)}
    )
    return c.reshape(wide, (batch, groups * times, length, size))
