"""The fused Attention of operator set 23, taken apart: softmax(scale · Q Kᵀ + mask) V."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._translations import onnx_operator

_KNOWN = {
    "q_num_heads", "kv_num_heads", "scale", "is_causal", "softcap", "qk_matmul_output_mode", "softmax_precision",
    "left_window_size", "right_window_size",
}  # fmt: skip
NOTHING = np.array(-np.inf, np.float32)


@onnx_operator("Attention")
def attention(c: Importer, n: Node) -> Sequence[str]:
    q, k, v = (c.input(n, i) for i in range(3))
    mask = c.optional(n, 3)
    unknown = sorted(a.name for a in n.proto.attribute if a.name not in _KNOWN)
    if unknown:
        raise Unsupported(", ".join(unknown))
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
        keys, values = (repeat_heads(c, x, heads // groups) for x in (keys, values))
    total = c.shape(keys)[2]
    scale = n.get_float("scale") if n.has("scale") else 1.0 / math.sqrt(size)
    raw = scores = c.emit1("MatMul", [queries, keys], {"trans_b": True, "alpha": scale})
    if (cap := n.get_float("softcap", 0.0)) > 0:
        scores = c.affine(c.emit1("Tanh", [c.affine(scores, 1.0 / cap)]), cap)
    capped = scores
    visible = _visible(c, n, length, total, past_keys)
    if visible is not None:
        scores = c.emit1("Where", [visible, scores, c.constant(NOTHING)])
    if mask is not None:
        scores = _masked(c, scores, mask, total)
    weights = c.emit1("Softmax", [scores], {"axis": 3})
    y = c.emit1("MatMul", [weights, values])
    if flat:
        y = c.reshape(c.transpose(y, (0, 2, 1, 3)), (batch, length, heads * c.shape(values)[3]))
    shown = (raw, capped, scores, weights)
    mode = n.get_int("qk_matmul_output_mode", 0)
    if not 0 <= mode < len(shown):
        raise Malformed(f"qk_matmul_output_mode {mode}")
    return [y, *present, shown[mode]]


def _masked(c: Importer, scores: str, mask: Value, total: int) -> str:
    """A mask shorter than the keys hides those behind it."""
    is_bool = c.type(c.tensor(mask)).dtype.value == "u8"
    name, missing = c.tensor(mask), total - (mask.shape[-1] if mask.shape else total)
    if missing > 0:
        c.room(*mask.shape[:-1], missing)
        hidden = np.full((*mask.shape[:-1], missing), False if is_bool else -np.inf)
        rest = c.constant(hidden.astype(np.bool_ if is_bool else np.float32))
        name = c.emit1("Concat", [name, rest], {"axis": len(mask.shape) - 1})
    if is_bool:
        return c.emit1("Where", [name, scores, c.constant(NOTHING)])
    return c.emit1("Add", [scores, name])


def _visible(c: Importer, n: Node, length: int, total: int, past_keys: Value | None) -> str | Value | None:
    """Which keys a query may see for being behind, near, or no padding; None: all of them.

    Query i stands at the key i + offset.

    The offset is behind the cache that came in. Where the cache holds padding, the last query stands at the last key
    that is none.
    """
    left, right = n.get_int("left_window_size", -1), n.get_int("right_window_size", -1)
    if n.get_int("is_causal", 0):
        right = 0 if right < 0 else min(right, 0)
    counts = c.optional(n, 6)
    if counts is None and left < 0 and right < 0:
        return None
    c.room(length, total)
    ahead = np.arange(total) - np.arange(length)[:, None]  # of key j, had the offset been 0
    if counts is None:
        offset = past_keys.shape[2] if past_keys is not None else 0
        allowed = np.ones((length, total), np.bool_)
        if right >= 0:
            allowed &= ahead - offset <= right
        if left >= 0:
            allowed &= offset - ahead <= left
        return None if allowed.all() else c.constant(allowed)
    if len(counts.shape) != 1:
        raise Malformed(f"nonpad_kv_seqlen has shape {list(counts.shape)}")
    # All of it are bounds on the number of keys: offset = number - length.
    number = c.reshape(counts, (*counts.shape, 1, 1, 1))
    least = np.broadcast_to(np.arange(total) + 1, (length, total))
    if right >= 0:
        least = np.maximum(least, ahead + length - right)
    seen = c.emit1("LessOrEqual", [c.constant(least.astype(np.int64)), number])
    if left < 0:
        return seen
    most = c.constant((ahead + length + left).astype(np.int64))
    return c.emit1("And", [seen, c.emit1("GreaterOrEqual", [most, number])])


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


def repeat_heads(c: Importer, x: str, times: int) -> str:
    """Each key head serves `times` query heads in a row."""
    batch, groups, length, size = c.shape(x)
    wide = c.emit1(
        "Expand", [c.reshape(x, (batch, groups, 1, length, size))], {"shape": (batch, groups, times, length, size)}
    )
    return c.reshape(wide, (batch, groups * times, length, size))
