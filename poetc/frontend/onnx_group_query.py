"""GroupQueryAttention of onnxruntime, and rotary position embedding of both domains, taken apart.

Training is the first prompt of onnxruntime: the cache of keys and values is empty, so query i stands at key
i. Definitions: docs/ContribOperators.md of onnxruntime, docs/Operators.md of onnx.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._translations import MICROSOFT, onnx_operator
from poetc.frontend.onnx_attention import NOTHING, repeat_heads

_KNOWN = {
    "num_heads", "kv_num_heads", "scale", "local_window_size", "softcap", "do_rotary", "rotary_interleaved",
    "smooth_softmax", "qk_norm_epsilon", "qk_output", "k_quant_type", "v_quant_type", "kv_cache_bit_width",
}  # fmt: skip
_PADDING = (
    "GroupQueryAttention: seqlens_k is not read; a row of padding behind the tokens of a sample attends to keys of"
    " padding, so leave padding out of the loss"
)


@onnx_operator("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(c: Importer, n: Node) -> Sequence[str | Value]:
    """Causal attention of num_heads query heads over kv_num_heads heads of keys and values."""
    _refuse(c, n)
    heads, groups = n.get_int("num_heads"), n.get_int("kv_num_heads")
    if heads < 1 or groups < 1 or heads % groups:
        raise Malformed(f"{heads} query heads do not divide into {groups} key heads")
    queries, keys, values = (_split_heads(c, x, h) for x, h in zip(_parts(c, n), (heads, groups, groups), strict=True))
    batch, length, _, size = c.shape(queries)
    epsilon = n.get_float("qk_norm_epsilon", 1e-6)
    queries, keys = (_normed(c, x, c.optional(n, k), epsilon) for x, k in ((queries, 14), (keys, 15)))
    if n.get_int("do_rotary"):
        # onnxruntime counts the places of a first prompt itself, whatever position_ids (input 9) says.
        cos, sin = _tables(c, c.input(n, 7), c.input(n, 8), None, batch, length)
        attributes = {"axis": 1, "interleaved": bool(n.get_int("rotary_interleaved")), "back": False}
        queries, keys = (c.emit1("Rotary", [x, cos, sin], attributes) for x in (queries, keys))
    queries, keys, values = (c.transpose(x, (0, 2, 1, 3)) for x in (queries, keys, values))
    present = (keys, values)
    if heads != groups:
        keys, values = (repeat_heads(c, x, heads // groups) for x in (keys, values))
    scale = n.get_float("scale") or 1.0 / math.sqrt(size)
    scores = c.emit1("MatMul", [queries, keys], {"trans_b": True, "alpha": scale})
    if cap := n.get_float("softcap"):
        scores = c.affine(c.emit1("Tanh", [c.affine(scores, 1.0 / cap)]), cap)
    if (added := c.optional(n, 10)) is not None:
        scores = c.emit1("Add", [scores, added])
    scores = c.emit1("Where", [_visible(c, n, length), scores, c.constant(NOTHING)])
    weights = _softmax(c, scores, _sinks(c, n, heads))
    y = c.transpose(c.emit1("MatMul", [weights, values]), (0, 2, 1, 3))
    if (lengths := c.optional(n, 5)) is not None and not lengths.known:
        c.note(_PADDING)
    return [c.reshape(y, (batch, length, heads * c.shape(values)[3])), *present]


@onnx_operator("PagedAttention", domain=MICROSOFT)
def paged_attention(c: Importer, n: Node) -> str:
    raise Unsupported(
        "a cache of keys and values in pages, of a server (build the model for the CPU, with GroupQueryAttention)"
    )


def _refuse(c: Importer, n: Node) -> None:
    unknown = sorted(a.name for a in n.proto.attribute if a.name not in _KNOWN)
    if unknown:
        raise Unsupported(", ".join(unknown))
    if n.has_input(12) or n.has_input(13) or n.get_int("kv_cache_bit_width"):
        raise Unsupported("a quantised cache of keys and values (build the model with one of floats)")
    for k in (3, 4):
        past = c.optional(n, k)
        if past is not None and past.elements:
            raise Unsupported(f"a cache of keys and values that is not empty, of shape {list(past.shape)}")
    if n.has_output(3):
        raise Unsupported("output 3 of this operator")


def _parts(c: Importer, n: Node) -> list[str | Value]:
    """Queries, keys and values [batch, length, heads · size]; they may lie side by side in one tensor."""
    query, key, value = c.input(n, 0), c.optional(n, 1), c.optional(n, 2)
    if (key is None) != (value is None):
        raise Malformed("keys or values are missing")
    if len(query.shape) != 3:
        raise Malformed(f"queries have shape {list(query.shape)}")
    if key is not None and value is not None:
        if key.shape[:2] != query.shape[:2] or value.shape[:2] != query.shape[:2]:
            raise Unsupported(f"keys of shape {list(key.shape)} for queries of shape {list(query.shape)}")
        return [query, key, value]
    heads, groups = n.get_int("num_heads"), n.get_int("kv_num_heads")
    size, rest = divmod(query.shape[2], heads + 2 * groups)
    if rest:
        raise Malformed(f"{heads} + 2 · {groups} heads do not divide {query.shape[2]} columns")
    starts = ((0, heads), (heads, groups), (heads + groups, groups))
    return [c.axis_slice(query, 2, first * size, count * size) for first, count in starts]


def _split_heads(c: Importer, x: str | Value, heads: int) -> str:
    """[batch, length, heads, size]."""
    shape = c.shape(x)
    if len(shape) != 3 or shape[2] % heads:
        raise Malformed(f"{heads} heads do not divide shape {list(shape)}")
    return c.reshape(x, (*shape[:2], heads, shape[2] // heads))


def _normed(c: Importer, x: str, weight: Value | None, epsilon: float) -> str:
    """Each head divided by its root mean square."""
    if weight is None:
        return x
    return c.emit1("RmsNorm", [x, c.reshape(weight, c.shape(x)[3:])], {"axis": 3, "epsilon": epsilon})


def _visible(c: Importer, n: Node, length: int) -> Value:
    """Keys up to the query's own place, and of a window no farther back than its length."""
    c.room(length, length)
    behind = np.arange(length)[:, None] - np.arange(length)
    window = n.get_int("local_window_size", -1)
    return c.constant((behind >= 0) & (behind < window) if window > 0 else behind >= 0)


def _sinks(c: Importer, n: Node, heads: int) -> Value | None:
    """A score for each head that takes a share of the softmax, and no value."""
    sinks = c.optional(n, 11)
    if sinks is not None and sinks.shape != (heads,):
        raise Malformed(f"{list(sinks.shape)} sinks for {heads} heads")
    if sinks is None and n.get_int("smooth_softmax") > 0:
        return c.constant(np.zeros(heads, np.float32))
    return sinks


def _softmax(c: Importer, scores: str, sinks: Value | None) -> str:
    if sinks is None:
        return c.emit1("Softmax", [scores], {"axis": 3})
    batch, heads, length, total = c.shape(scores)
    column = c.emit1("Expand", [c.reshape(sinks, (1, heads, 1, 1))], {"shape": (batch, heads, length, 1)})
    shares = c.emit1("Softmax", [c.emit1("Concat", [scores, column], {"axis": 3})], {"axis": 3})
    return c.axis_slice(shares, 3, 0, total)


# --- rotary position embedding ---

_COSINES = {("GroupQueryAttention", MICROSOFT): 7, ("RotaryEmbedding", MICROSOFT): 2, ("RotaryEmbedding", ""): 1}


def most_places(model: onnx.ModelProto) -> int | None:
    """The longest text for which the stored tables of cosines suffice; None without such tables."""
    rows = {t.name: int(t.dims[0]) for t in model.graph.initializer if len(t.dims) == 2}
    inputs = [(list(n.input), _COSINES.get((n.op_type, n.domain), len(n.input))) for n in model.graph.node]
    return min((rows[names[k]] for names, k in inputs if k < len(names) and names[k] in rows), default=None)


@onnx_operator("RotaryEmbedding", domain=MICROSOFT)
def microsoft_rotary(c: Importer, n: Node) -> str:
    if n.get_int("is_packed_batching"):
        raise Unsupported("is_packed_batching")
    y = _rotary(c, n, c.input(n, 0), c.input(n, 2), c.input(n, 3), c.input(n, 1))
    return c.affine(y, n.get_float("scale", 1.0))


@onnx_operator("RotaryEmbedding")
def rotary(c: Importer, n: Node) -> str:
    return _rotary(c, n, c.input(n, 0), c.input(n, 1), c.input(n, 2), c.optional(n, 3))


def _rotary(c: Importer, n: Node, x: Value, cos: Value, sin: Value, places: Value | None) -> str:
    """x is [batch, heads, length, size], or [batch, length, heads · size]."""
    shape, heads = x.shape, n.get_int("num_heads")
    if len(shape) == 4:
        name, axis = c.tensor(x), 2
    elif len(shape) == 3:
        dim = n.get_int("rotary_embedding_dim")
        if not heads:
            if dim and dim != 2 * cos.shape[-1]:
                raise Malformed("num_heads is missing")
            heads = shape[2] // (2 * cos.shape[-1])
        name, axis = _split_heads(c, x, heads), 1
    else:
        raise Malformed(f"turns shape {list(shape)}")
    if (dim := n.get_int("rotary_embedding_dim")) and dim != 2 * cos.shape[-1]:
        raise Malformed(f"rotary_embedding_dim {dim} with {cos.shape[-1]} cosines a place")
    tables = _tables(c, cos, sin, places, shape[0], c.shape(name)[axis])
    if any(isinstance(t, Value) and not t.known for t in tables):
        return c.reshape(_turned(c, name, axis, tables, bool(n.get_int("interleaved"))), shape)
    attributes = {"axis": axis, "interleaved": bool(n.get_int("interleaved")), "back": False}
    return c.reshape(c.emit1("Rotary", [name, *tables], attributes), shape)


def _turned(c: Importer, x: str, axis: int, tables: tuple[str | Value, str | Value], interleaved: bool) -> str:
    """Of tables that the model computes, through which a gradient may flow: products and sums."""
    shape, pairs = c.shape(x), c.shape(tables[0])[2]
    of_table = [c.shape(tables[0])[0], 1, 1, pairs]
    of_table[axis] = shape[axis]
    cos, sin = (c.reshape(t, of_table) for t in tables)
    start, step = (1, 2) if interleaved else (pairs, 1)
    a, b = c.axis_slice(x, 3, 0, pairs, step), c.axis_slice(x, 3, start, pairs, step)
    first = c.emit1("Sub", [c.emit1("Mul", [a, cos]), c.emit1("Mul", [b, sin])])
    second = c.emit1("Add", [c.emit1("Mul", [b, cos]), c.emit1("Mul", [a, sin])])
    if interleaved:
        wide = (*shape[:3], pairs, 1)
        joined = c.emit1("Concat", [c.reshape(first, wide), c.reshape(second, wide)], {"axis": 4})
        parts = [c.reshape(joined, (*shape[:3], 2 * pairs))]
    else:
        parts = [first, second]
    if rest := shape[3] - 2 * pairs:
        parts.append(c.axis_slice(x, 3, 2 * pairs, rest))
    return parts[0] if len(parts) == 1 else c.emit1("Concat", parts, {"axis": 3})


def _tables(
    c: Importer, cos: Value, sin: Value, places: Value | None, batch: int, length: int
) -> tuple[str | Value, str | Value]:
    """Cosines and sines [length, pairs], or [batch, length, pairs]. They are never trained.

    `places`: of each token [batch, length], of the first one [1], None: 0, 1, ...
    """
    if cos.shape != sin.shape or len(cos.shape) not in (2, 3):
        raise Malformed(f"cosines of shape {list(cos.shape)} and sines of shape {list(sin.shape)}")
    if len(cos.shape) == 3:
        if cos.shape[:2] not in ((batch, length), (1, length)):
            raise Malformed(f"cosines of shape {list(cos.shape)} for {batch} x {length} tokens")
        if cos.known and sin.known:
            known = [c.constant(np.asarray(c.array(t), np.float32)) for t in (cos, sin)]
            return known[0], known[1]
        return cos, sin
    if places is not None and not places.known:
        if places.shape != (batch, length):
            raise Unsupported(f"places of shape {list(places.shape)} that are computed from the model's inputs")
        rows = [c.constant(np.asarray(c.array(t, "a table of cosines"), np.float32)) for t in (cos, sin)]
        first, second = (c.emit1("Gather", [table, places], {"axis": 0}) for table in rows)
        return first, second
    positions = np.arange(length) if places is None else c.array(places).astype(np.int64)
    if positions.size == 1:
        positions = positions.reshape(()) + np.arange(length)
    if positions.shape not in ((length,), (batch, length)) or positions.min() < 0 or positions.max() >= cos.shape[0]:
        raise Malformed(f"the tables have {cos.shape[0]} places, which do not fit {length} tokens")
    if positions.ndim == 2 and (positions == positions[0]).all():
        positions = positions[0]
    first_rows, second_rows = (
        c.constant(np.asarray(c.array(t, "a table of cosines"), np.float32)[positions]) for t in (cos, sin)
    )
    return first_rows, second_rows
