"""Nothing is computed: reshaping, slicing, joining, padding, repeating, gathering, sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._translations import onnx_operator
from poetc.graph import Array

# --- views ---


@onnx_operator("Reshape")
def reshape(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    target = n.get_ints("shape") if not n.has_input(1) else c.ints(c.input(n, 1), "the shape")
    allow_zero = bool(n.get_int("allowzero", 0))
    before = c.rebatch.shapes.get(n.inputs[0]) if c.rebatch is not None else None
    if c.rebatch is None or before is None or before == x.shape:
        return c.reshape(x, _resolve(x.shape, list(target or ()), allow_zero))
    return c.reshape(x, _rebatched(before, x.shape, c.rebatch.shapes[n.outputs[0]]))


def _resolve(shape: tuple[int, ...], target: list[int], allow_zero: bool) -> list[int]:
    """The lengths that 0 (copy) and -1 (the rest) stand for."""
    if not allow_zero:
        for k, d in enumerate(target):
            if d == 0:
                if k >= len(shape):
                    raise Malformed(f"dimension {k} of the shape is to be copied from an input of rank {len(shape)}")
                target[k] = shape[k]
    if target.count(-1) > 1 or any(d < -1 for d in target):
        raise Malformed(f"shape {target} is not valid")
    if -1 in target:
        rest = math.prod(d for d in target if d != -1)
        if rest == 0 or math.prod(shape) % rest:
            raise Malformed(f"{list(shape)} does not fit into shape {target}")
        target[target.index(-1)] = math.prod(shape) // rest
    if math.prod(target) != math.prod(shape):
        raise Malformed(f"{list(shape)} does not fit into shape {target}")
    return target


def _rebatched(before: tuple[int, ...], now: tuple[int, ...], target: tuple[int, ...]) -> list[int]:
    """The shape of a view that made `target` of `before`, now that the batch changed that to `now`.

    The file's own shape may hold the old batch, so it is not asked. The axis that grew lies behind the same number of
    outer elements in the target. Malformed where that is not on a boundary between axes.
    """
    changed = [k for k, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    outer, inner = math.prod(before[: changed[0]]), before[changed[0]]
    for k, length in enumerate(target):
        grown = length * now[changed[0]]
        if len(changed) == 1 and math.prod(target[:k]) == outer and grown % inner == 0:
            result = [*target[:k], grown // inner, *target[k + 1 :]]
            if math.prod(result) == math.prod(now):
                return result
    raise Malformed(
        f"its shape {list(target)} mixes the batch with other axes; use that batch, or export with a dynamic one"
    )


@onnx_operator("Flatten")
def flatten(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    axis = n.get_int("axis", 1)
    if not -len(x.shape) <= axis <= len(x.shape):
        raise Malformed(f"axis {axis} is out of range for rank {len(x.shape)}")
    axis = axis + len(x.shape) if axis < 0 else axis
    return c.reshape(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


def _axes(c: Importer, n: Node) -> tuple[int, ...] | None:
    return c.ints(c.input(n, 1), "the axes") if n.has_input(1) else n.get_ints("axes")


@onnx_operator("Squeeze")
def squeeze(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    axes = _axes(c, n)
    if axes is None:
        return c.reshape(x, [d for d in x.shape if d != 1])
    gone = {normalize_axis(a, len(x.shape)) for a in axes}
    if any(x.shape[a] != 1 for a in gone):
        raise Malformed(f"squeezes axes {sorted(gone)} of shape {list(x.shape)}")
    return c.reshape(x, [d for k, d in enumerate(x.shape) if k not in gone])


@onnx_operator("Unsqueeze")
def unsqueeze(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    axes = _axes(c, n) or ()
    rank = len(x.shape) + len(axes)
    new = {normalize_axis(a, rank) for a in axes}
    if len(new) != len(axes):
        raise Malformed(f"axes {list(axes)} repeat")
    old = iter(x.shape)
    return c.reshape(x, [1 if k in new else next(old) for k in range(rank)])


@onnx_operator("Transpose")
def transpose(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    perm = n.get_ints("perm") or tuple(reversed(range(len(x.shape))))
    return c.transpose(x, perm)


@onnx_operator("DepthToSpace")
def depth_to_space(c: Importer, n: Node) -> str:
    x, b = c.input(n, 0), n.get_int("blocksize")
    if len(x.shape) != 4 or b < 1 or x.shape[1] % (b * b):
        raise Malformed(f"blocksize {b} does not fit shape {list(x.shape)}")
    batch, channels, h, w = x.shape
    left = channels // (b * b)
    if n.get_str("mode", "DCR") == "DCR":
        blocks = c.transpose(c.reshape(x, [batch, b, b, left, h, w]), (0, 3, 4, 1, 5, 2))
    else:
        blocks = c.transpose(c.reshape(x, [batch, left, b, b, h, w]), (0, 1, 4, 2, 5, 3))
    return c.reshape(blocks, [batch, left, h * b, w * b])


@onnx_operator("SpaceToDepth")
def space_to_depth(c: Importer, n: Node) -> str:
    x, b = c.input(n, 0), n.get_int("blocksize")
    if len(x.shape) != 4 or b < 1 or x.shape[2] % b or x.shape[3] % b:
        raise Malformed(f"blocksize {b} does not fit shape {list(x.shape)}")
    batch, channels, h, w = x.shape
    order = (0, 3, 5, 1, 2, 4) if n.get_str("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    blocks = c.transpose(c.reshape(x, [batch, channels, h // b, b, w // b, b]), order)
    return c.reshape(blocks, [batch, channels * b * b, h // b, w // b])


# --- slicing, joining, padding, repeating ---


@onnx_operator("Slice")
def slice_(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    rank = len(x.shape)
    if n.has_input(1):
        starts, ends = c.ints(c.input(n, 1), "the starts"), c.ints(c.input(n, 2), "the ends")
        axes_input, strides = c.optional(n, 3), c.optional(n, 4)
        axes = c.ints(axes_input, "the axes") if axes_input else tuple(range(len(starts)))
        steps = c.ints(strides, "the steps") if strides else (1,) * len(starts)
    else:
        starts, ends = n.get_ints("starts") or (), n.get_ints("ends") or ()
        axes, steps = n.get_ints("axes") or tuple(range(len(starts))), (1,) * len(starts)
    full_starts, full_steps, sizes = [0] * rank, [1] * rank, list(x.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise Malformed("a step is 0")
        k = normalize_axis(axis, rank)
        picked = range(x.shape[k])[slice(start, end, step)]
        full_starts[k], full_steps[k], sizes[k] = (picked.start if len(picked) else 0), step, len(picked)
    return c.slice(x, full_starts, sizes, full_steps)


@onnx_operator("Concat")
def concat(c: Importer, n: Node) -> str:
    return _concat(c, [c.input(n, k) for k in range(len(n.inputs))], n.get_int("axis", 1))


def _concat(c: Importer, values: Sequence[Value], axis: int) -> str:
    if not values:
        raise Malformed("has no inputs")
    axis = normalize_axis(axis, len(values[0].shape))
    filled = [v for v in values if v.elements] or list(values[:1])
    if c.rebatch is not None and c.rebatch.old == 1 and len(filled) > 1:
        filled = [_spread(c, v, np.max([o.shape for o in filled], axis=0), axis) for v in filled]
    return c.tensor(filled[0]) if len(filled) == 1 else c.emit1("Concat", filled, {"axis": axis})


def _spread(c: Importer, value: Value, lengths: Array, axis: int) -> Value:
    """A known operand of batch 1 (a class token), repeated for another batch."""
    if not value.known or value.shape[:1] != (1,) or axis == 0 or lengths[0] == 1:
        return value
    shape = (int(lengths[0]), *value.shape[1:])
    return _as_value(c, c.emit1("Expand", [value], {"shape": shape}), value)


@onnx_operator("Split")
def split(c: Importer, n: Node) -> Sequence[str | Value]:
    x = c.input(n, 0)
    axis = normalize_axis(n.get_int("axis", 0), len(x.shape))
    sizes = c.ints(c.input(n, 1), "the sizes") if n.has_input(1) else n.get_ints("split")
    parts = len(n.outputs)
    if sizes is None and n.get_int("num_outputs", parts) != parts:
        raise Malformed(f"has {parts} outputs, num_outputs is {n.get_int('num_outputs')}")
    return _split(c, x, axis, sizes or _even(x.shape[axis], parts))


def _even(length: int, parts: int) -> tuple[int, ...]:
    """Equal parts, the last one smaller where it does not divide."""
    if parts < 1:
        raise Malformed(f"splits into {parts} parts")
    size = -(-length // parts)
    return tuple(min(size, length - k * size) for k in range(parts))


def _split(c: Importer, x: Value, axis: int, sizes: Sequence[int]) -> tuple[str, ...]:
    if sum(sizes) != x.shape[axis] or any(s < 0 for s in sizes):
        raise Malformed(f"the sizes {list(sizes)} do not add up to {x.shape[axis]}")
    if len(sizes) == 1:
        return (c.tensor(x),)
    return c.emit("Split", [x], {"axis": axis, "sizes": tuple(sizes)})


@onnx_operator("Pad")
def pad(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    rank = len(x.shape)
    pads = c.ints(c.input(n, 1), "the pads") if n.has_input(1) else n.get_ints("pads") or ()
    axes_input = c.optional(n, 3)
    if axes_input is not None:
        axes = [normalize_axis(a, rank) for a in c.ints(axes_input, "the axes")]
        full = [0] * (2 * rank)
        for k, a in enumerate(axes):
            full[a], full[a + rank] = pads[k], pads[k + len(axes)]
        pads = tuple(full)
    if len(pads) != 2 * rank:
        raise Malformed(f"{len(pads)} pads for rank {rank}")
    value = c.optional(n, 2)
    number = n.get_float("value", 0.0) if value is None else c.number(value)
    # Negative pads cut off.
    starts = [max(-pads[k], 0) for k in range(rank)]
    sizes = [x.shape[k] - starts[k] - max(-pads[k + rank], 0) for k in range(rank)]
    if min(sizes, default=0) < 0:
        raise Malformed(f"the pads {list(pads)} cut off more than there is")
    kept = c.slice(x, starts, sizes)
    pads = tuple(max(p, 0) for p in pads)
    mode = n.get_str("mode", "constant")
    if not any(pads):
        return kept
    padded = c.emit1("Pad", [kept], {"pads": pads, "mode": mode, "value": number or 0.0})
    if number is not None or mode != "constant":
        return padded
    assert value is not None
    if value.elements != 1:
        raise Malformed(f"a pad value of shape {list(value.shape)}")
    shape = c.shape(padded)
    c.room(*shape)
    inside = np.zeros(shape, np.bool_)
    inside[tuple(slice(pads[k], d - pads[k + rank]) for k, d in enumerate(shape))] = True
    return c.emit1("Where", [c.constant(inside), padded, c.reshape(value, ())])


@onnx_operator("Expand")
def expand(c: Importer, n: Node) -> str | Value:
    x = c.input(n, 0)
    target = list(c.ints(c.input(n, 1), "the shape"))
    before = c.rebatch.shapes.get(n.inputs[0], x.shape) if c.rebatch is not None else x.shape
    for k in range(1, min(len(target), len(x.shape)) + 1):
        if target[-k] == before[-k] != x.shape[-k]:
            target[-k] = x.shape[-k]  # held the batch of the file
        elif c.rebatch is not None and (x.shape[-k], target[-k]) == (c.rebatch.old, c.rebatch.new):
            x = _one_row(c, x, len(x.shape) - k)
    if c.rebatch is not None and target and target[0] == c.rebatch.old and len(target) >= len(x.shape):
        leading = x.shape[0] if len(x.shape) == len(target) else 1
        target[0] = c.rebatch.new if leading in (1, c.rebatch.new) else target[0]
    if any(d < 0 for d in target):
        raise Malformed(f"shape {target} is not valid")
    try:
        shape = np.broadcast_shapes(x.shape, tuple(target))
    except ValueError:
        raise Malformed(f"{list(x.shape)} does not broadcast to {target}") from None
    if x.known and not x.weight:
        c.room(*shape)
        return c.constant(np.broadcast_to(c.array(x), shape), n.outputs[0])
    return _expand(c, x, shape)


def _one_row(c: Importer, x: Value, axis: int) -> Value:
    """A constant of the file's batch whose rows are equal (an initial state of zeros), as one row; else x itself."""
    if not x.known or (x.weight and not c.is_zero(x)):
        return x
    array = c.array(x)
    first = array.take([0], axis)
    return c.constant(first) if bool((array == first).all()) else x


def _expand(c: Importer, x: Value, shape: tuple[int, ...]) -> str:
    if math.prod(shape) == x.elements:
        return c.reshape(x, shape)
    return c.emit1("Expand", [x], {"shape": shape})


@onnx_operator("Tile")
def tile(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    repeats = c.ints(c.input(n, 1), "the repeats")
    if len(repeats) != len(x.shape) or any(r < 0 for r in repeats):
        raise Malformed(f"repeats {list(repeats)} do not fit rank {len(x.shape)}")
    return c.tensor(x) if all(r == 1 for r in repeats) else c.emit1("Tile", [x], {"repeats": repeats})


@onnx_operator("Trilu")
def trilu(c: Importer, n: Node) -> str:
    x = c.input(n, 0)
    k = c.ints(c.input(n, 1), "k")[0] if n.has_input(1) else 0
    rows, columns = x.shape[-2:]
    c.room(rows, columns)
    kept = np.tri(rows, columns, k if not n.get_int("upper", 1) else k - 1, dtype=np.bool_)
    mask = ~kept if n.get_int("upper", 1) else kept
    return c.emit1("Where", [c.constant(mask), x, c.constant(np.zeros((), np.float32 if x.is_float else np.int32))])


# --- gathering ---


def _indices(array: Array, length: int) -> Array:
    """Known indices, counted from the front. Malformed when out of range."""
    if array.size and (int(array.min()) < -length or int(array.max()) >= length):
        raise Malformed(f"an index is out of range for length {length}")
    return np.where(array < 0, array + length, array).astype(np.int64)


def _evenly_spaced(indices: Array) -> tuple[int, int] | None:
    """(start, step) when indices are start, start + step, ..., else None."""
    flat = indices.reshape(-1)
    if flat.size < 2:
        return (int(flat[0]), 1) if flat.size else None
    step = int(flat[1] - flat[0])
    return (int(flat[0]), step) if step > 0 and bool((np.diff(flat) == step).all()) else None


@onnx_operator("Gather")
def gather(c: Importer, n: Node) -> str:
    x, at = c.input(n, 0), c.input(n, 1)
    axis = normalize_axis(n.get_int("axis", 0), len(x.shape))
    if not at.known:
        return c.emit1("Gather", [x, at], {"axis": axis})
    return _gather_known(c, x, _indices(c.array(at), x.shape[axis]), axis)


def _gather_known(c: Importer, x: Value | str, indices: Array, axis: int) -> str:
    """Slices and views where the indices allow it."""
    shape = c.shape(x)
    result = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
    spaced = _evenly_spaced(indices)
    if spaced is not None:
        start, step = spaced
        return c.reshape(c.axis_slice(x, axis, start, indices.size, step), result)
    if indices.size and bool((indices == indices.reshape(-1)[0]).all()):
        one = c.axis_slice(x, axis, int(indices.reshape(-1)[0]), 1)
        ones = c.reshape(one, (*shape[:axis], *(1 for _ in indices.shape), *shape[axis + 1 :]))
        return c.emit1("Expand", [ones], {"shape": result})
    return c.emit1("Gather", [x, c.constant(indices)], {"axis": axis})


@onnx_operator("GatherElements")
def gather_elements(c: Importer, n: Node) -> str:
    x, at = c.input(n, 0), c.input(n, 1)
    axis = normalize_axis(n.get_int("axis", 0), len(x.shape))
    if at.known:
        at = c.constant(_indices(c.array(at), x.shape[axis]))
    return c.emit1("GatherElements", [x, at], {"axis": axis})


@onnx_operator("GatherND")
def gather_nd(c: Importer, n: Node) -> str:
    x, at = c.input(n, 0), c.input(n, 1)
    batch_dims = n.get_int("batch_dims", 0)
    if not at.known or batch_dims or not at.shape or at.shape[-1] > len(x.shape):
        return c.emit1("GatherND", [x, at], {"batch_dims": batch_dims})
    # Known indices over the first axes: one index over all of them at once.
    depth = at.shape[-1]
    indices = c.array(at)
    flat = np.zeros(at.shape[:-1], np.int64)
    for k in range(depth):
        flat = flat * x.shape[k] + _indices(indices[..., k], x.shape[k])
    rows = c.reshape(x, [math.prod(x.shape[:depth]), *x.shape[depth:]])
    return _gather_known(c, rows, flat, 0)


@onnx_operator("OneHot")
def one_hot(c: Importer, n: Node) -> str:
    at = c.input(n, 0)
    stated, off_on = c.array(c.input(n, 1), "a depth").reshape(-1), c.input(n, 2)
    if stated.size != 1 or off_on.elements != 2:
        raise Malformed("a depth that is not one number, or other than two values")
    depth = float(stated[0])
    if not 0 < depth <= 65536 or depth != int(depth):
        raise Malformed(f"a depth of {depth:g}")
    rank = len(at.shape) + 1
    axis = normalize_axis(n.get_int("axis", -1), rank)
    index = c.tensor(at) if not at.is_float else c.emit1("Cast", [at], {"to": "i32"})
    index = c.reshape(index, [*at.shape[:axis], 1, *at.shape[axis:]])
    # Counted from the front or from the back; anything else matches nowhere.
    places = np.arange(int(depth), dtype=np.int64).reshape([-1] + [1] * (rank - 1 - axis))
    front, back = (c.emit1("Equal", [index, c.constant(p)]) for p in (places, places - int(depth)))
    off, on = (c.reshape(c.axis_slice(off_on, 0, k, 1), ()) for k in range(2))
    return c.emit1("Where", [c.emit1("Or", [front, back]), on, off])


# --- sequences of tensors: known at import time, nothing is left of them ---


def _sequence(c: Importer, n: Node, members: list[Value]) -> Value:
    dtype = members[0].dtype if members else np.dtype(np.float32)
    return Value(n.outputs[0], (), dtype, sequence=members, is_sequence=True)


def _members(c: Importer, n: Node) -> list[Value]:
    value = c.input(n, 0)
    if not value.is_sequence:
        raise Malformed("its input is not a sequence")
    return value.sequence


def _as_value(c: Importer, tensor: str, like: Value) -> Value:
    return Value(tensor, c.shape(tensor), like.dtype, tensor=tensor)


@onnx_operator("SequenceConstruct")
def sequence_construct(c: Importer, n: Node) -> Value:
    return _sequence(c, n, [c.input(n, k) for k in range(len(n.inputs))])


@onnx_operator("SequenceEmpty")
def sequence_empty(c: Importer, n: Node) -> Value:
    return _sequence(c, n, [])


@onnx_operator("SequenceInsert")
def sequence_insert(c: Importer, n: Node) -> Value:
    members = list(_members(c, n))
    at = c.ints(c.input(n, 2), "the position")[0] if n.has_input(2) else len(members)
    if not -len(members) <= at <= len(members):
        raise Malformed(f"position {at} is out of range for a sequence of {len(members)}")
    members.insert(at, c.input(n, 1))
    return _sequence(c, n, members)


@onnx_operator("SequenceErase")
def sequence_erase(c: Importer, n: Node) -> Value:
    members = list(_members(c, n))
    at = c.ints(c.input(n, 1), "the position")[0] if n.has_input(1) else -1
    if not -len(members) <= at < len(members):
        raise Malformed(f"position {at} is out of range for a sequence of {len(members)}")
    del members[at]
    return _sequence(c, n, members)


@onnx_operator("SplitToSequence")
def split_to_sequence(c: Importer, n: Node) -> Value:
    x = c.input(n, 0)
    axis = normalize_axis(n.get_int("axis", 0), len(x.shape))
    length = x.shape[axis]
    drop = False
    if n.has_input(1):
        split = c.input(n, 1)
        sizes = c.ints(split, "the sizes")
        if not split.shape:
            (size,) = sizes
            if size < 1:
                raise Malformed(f"splits into parts of {size}")
            sizes = tuple(min(size, length - k) for k in range(0, length, size))
    else:
        sizes, drop = (1,) * length, not n.get_int("keepdims", 1)
    members = []
    for part in _split(c, x, axis, sizes):
        shape = c.shape(part)
        members.append(_as_value(c, c.reshape(part, shape[:axis] + shape[axis + 1 :]) if drop else part, x))
    return _sequence(c, n, members)


@onnx_operator("SequenceAt")
def sequence_at(c: Importer, n: Node) -> Value:
    sequence = _members(c, n)
    (position,) = c.ints(c.input(n, 1), "the position")
    if not -len(sequence) <= position < len(sequence):
        raise Malformed(f"position {position} is out of range for a sequence of {len(sequence)}")
    return sequence[position]


@onnx_operator("SequenceLength")
def sequence_length(c: Importer, n: Node) -> Value:
    return c.constant(np.array(len(_members(c, n)), np.int64), n.outputs[0])


@onnx_operator("ConcatFromSequence")
def concat_from_sequence(c: Importer, n: Node) -> str:
    members, axis = _members(c, n), n.get_int("axis")
    if not members:
        raise Unsupported("an empty sequence")
    if n.get_int("new_axis", 0):
        rank = len(members[0].shape) + 1
        axis = normalize_axis(axis, rank)
        members = [_as_value(c, c.reshape(m, [*m.shape[:axis], 1, *m.shape[axis:]]), m) for m in members]
    return _concat(c, members, axis)
