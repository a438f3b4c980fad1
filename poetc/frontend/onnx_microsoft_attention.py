"""Attention and MultiHeadAttention of onnxruntime (domain com.microsoft), taken apart into products and a softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._translations import MICROSOFT, onnx_operator
from poetc.graph import Array

_ATTENTION = {
    "num_heads", "unidirectional", "qkv_hidden_sizes", "mask_filter_value", "scale", "do_rotary",
    "rotary_embedding_dim", "past_present_share_buffer",
}  # fmt: skip
_MULTI_HEAD = {"num_heads", "unidirectional", "mask_filter_value", "scale"}


def _refuse_unknown(n: Node, known: set[str]) -> None:
    unknown = sorted(a.name for a in n.proto.attribute if a.name not in known)
    if unknown:
        raise Unsupported(", ".join(unknown))


@onnx_operator("Attention", domain=MICROSOFT)
def attention(c: Importer, n: Node) -> Sequence[str]:
    """Self-attention whose product with the weights of queries, keys and values is part of it."""
    _refuse_unknown(n, _ATTENTION)
    x, weight, bias = c.input(n, 0), c.input(n, 1), c.optional(n, 2)
    if n.get_int("do_rotary"):
        raise Unsupported("do_rotary")
    past = c.optional(n, 4)
    if (past is not None and past.elements) or n.has_output(1) or n.has_input(6):
        raise Unsupported("a cache of keys and values")
    if len(x.shape) != 3 or len(weight.shape) != 2 or weight.shape[0] != x.shape[2]:
        raise Malformed(f"multiplies {list(x.shape)} and {list(weight.shape)}")
    sizes = n.get_ints("qkv_hidden_sizes") or (weight.shape[1] // 3,) * 3
    if len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != weight.shape[1]:
        raise Malformed(f"qkv_hidden_sizes {list(sizes)} do not fit {weight.shape[1]} columns")
    batch, length, width = x.shape
    flat = c.reshape(x, (batch * length, width))
    product = c.emit1("MatMul", [flat, weight, *([bias] if bias is not None else [])])
    product = c.reshape(product, (batch, length, sum(sizes)))
    starts = (0, sizes[0], sizes[0] + sizes[1])
    parts = [_heads(c, c.axis_slice(product, 2, start, size), n) for start, size in zip(starts, sizes, strict=True)]
    return [_attend(c, n, parts, c.optional(n, 3), c.optional(n, 5))]


@onnx_operator("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(c: Importer, n: Node) -> Sequence[str]:
    """Attention over queries, keys and values; the latter may lie side by side in one tensor."""
    _refuse_unknown(n, _MULTI_HEAD)
    query, key, value, bias = c.input(n, 0), c.optional(n, 1), c.optional(n, 2), c.optional(n, 3)
    caches = [x for k in (6, 7, 8, 9) if (x := c.optional(n, k)) is not None]
    if any(x.elements for x in caches):
        raise Unsupported("a cache of keys and values that is not empty")
    if n.has_output(3):
        raise Unsupported("output 3 of this operator")
    parts: list[str | Value]
    if len(query.shape) == 5:
        parts = list(_side_by_side(c, query, 3))
    elif key is not None and len(key.shape) == 5:
        parts = [query, *_side_by_side(c, key, 2)]
    elif key is None or value is None:
        raise Malformed("keys or values are missing")
    else:
        parts = [query, key, value]
    if bias is not None:
        parts = _biased(c, parts, bias)
    queries, keys, values = (_heads(c, part, n) for part in parts)
    return [_attend(c, n, [queries, keys, values], c.optional(n, 4), c.optional(n, 5)), keys, values]


def _side_by_side(c: Importer, x: Value, count: int) -> list[str]:
    """[batch, length, heads, count, size] → `count` tensors [batch, length, heads · size]."""
    batch, length, heads, stacked, size = x.shape
    if stacked != count:
        raise Malformed(f"{count} tensors in one of shape {list(x.shape)}")
    return [c.reshape(c.axis_slice(x, 3, k, 1), (batch, length, heads * size)) for k in range(count)]


def _biased(c: Importer, parts: Sequence[str | Value], bias: Value) -> list[str | Value]:
    widths = [c.shape(part)[-1] if len(c.shape(part)) == 3 else c.shape(part)[1] * c.shape(part)[3] for part in parts]
    if bias.shape != (sum(widths),):
        raise Malformed(f"the bias has shape {list(bias.shape)}, not {[sum(widths)]}")
    result: list[str | Value] = []
    start = 0
    for part, width in zip(parts, widths, strict=True):
        own = c.axis_slice(bias, 0, start, width)
        start += width
        if len(c.shape(part)) == 4:
            _, heads, _, size = c.shape(part)
            own = c.reshape(own, (1, heads, 1, size))
        result.append(c.emit1("Add", [part, own]))
    return result


def _heads(c: Importer, x: str | Value, n: Node) -> str:
    """[batch, heads, length, size]; itself where it has four axes already."""
    shape, heads = c.shape(x), n.get_int("num_heads")
    if len(shape) == 4:
        return x if isinstance(x, str) else c.tensor(x)
    if len(shape) != 3 or heads < 1 or shape[2] % heads:
        raise Malformed(f"{heads} heads do not divide shape {list(shape)}")
    batch, length, width = shape
    return c.transpose(c.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _attend(c: Importer, n: Node, parts: Sequence[str], mask: Value | None, added: Value | None) -> str:
    """softmax(scale · Q Kᵀ + mask + `added`) V as [batch, length, heads · size]."""
    queries, keys, values = parts
    batch, heads, length, size = c.shape(queries)
    total = c.shape(keys)[2]
    scale = n.get_float("scale") or 1.0 / math.sqrt(size)
    scores = c.emit1("MatMul", [queries, keys], {"trans_b": True, "alpha": scale})
    hidden = n.get_float("mask_filter_value", -10000.0)
    if mask is not None:
        scores = c.emit1("Add", [scores, _hiding(c, mask, batch, length, total, hidden)])
    if n.get_int("unidirectional"):
        c.room(length, total)
        causal = np.tri(length, total, total - length, dtype=np.bool_)
        scores = c.emit1("Where", [c.constant(causal), scores, c.constant(np.array(-np.inf, np.float32))])
    if added is not None:
        scores = c.emit1("Add", [scores, added])
    y = c.emit1("MatMul", [c.emit1("Softmax", [scores], {"axis": 3}), values])
    return c.reshape(c.transpose(y, (0, 2, 1, 3)), (batch, length, heads * c.shape(values)[3]))


def _hiding(c: Importer, mask: Value, batch: int, length: int, total: int, hidden: float) -> str | Value:
    """A summand of the scores: 0 where a key is seen, else `hidden`.

    The mask is a number of keys a sample, or 0 and 1 for each key of a sample or of each of its queries.
    """
    shapes = {(batch,): (batch, 1, 1, 1), (batch, total): (batch, 1, 1, total)}
    shapes |= {(batch, length, total): (batch, 1, length, total), (batch, 1, length, total): (batch, 1, length, total)}
    if mask.shape not in shapes or (mask.shape == (batch,) and mask.is_float):
        raise Unsupported(f"a mask of shape {list(mask.shape)}")
    shape, counts = shapes[mask.shape], len(mask.shape) == 1
    if mask.known and not mask.weight:
        numbers: Array = c.array(mask).reshape(shape)
        c.room(*np.broadcast_shapes(shape, (1, 1, 1, total)))
        seen = np.arange(total) < numbers if counts else numbers > 0
        return c.constant(np.where(seen, np.float32(0), np.float32(hidden)))
    name = c.reshape(mask, shape)
    if counts:
        visible = c.emit1("Less", [c.constant(np.arange(total, dtype=np.int64)), name])
    else:
        zero = np.zeros((), np.float32 if mask.is_float else np.int64)
        name = c.emit1("Cast", [name], {"to": "i32"}) if mask.dtype.kind in "bu" else name
        visible = c.emit1("Greater", [name, c.constant(zero)])
    return c.emit1("Where", [visible, *(c.constant(np.array(x, np.float32)) for x in (0.0, hidden))])
