"""Assignment at indices, `x[i] = v`: ScatterElements and ScatterND, from gathers and their gradients.

With known indices the result is a gather: of the data with the updates behind them. With computed ones, the gradient of
a gather adds updates up at their places, in a tensor of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poetc.frontend._importer import Importer, Value, our_dtype
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._translations import onnx_operator
from poetc.graph import Array, Attribute, DType

_COMBINED = {"mul": "Mul", "max": "Maximum", "min": "Minimum"}
_MOST_IN_TURN = 64  # updates of one place that are combined one after the other


@dataclass(frozen=True, slots=True)
class _Places:
    """Where updates go. `kind`: the gather that reads there; `rows`: numbers of known rows of [count, size] data."""

    kind: str
    attributes: Mapping[str, Attribute]
    size: int
    rows: Array | None


@onnx_operator("ScatterElements", "Scatter")
def scatter_elements(c: Importer, n: Node) -> str:
    x, at, updates = (c.input(n, k) for k in range(3))
    axis = normalize_axis(n.get_int("axis", 0), len(x.shape))
    fits = [k == axis or a <= d for k, (d, a) in enumerate(zip(x.shape, at.shape, strict=False))]
    if len(at.shape) != len(x.shape) or at.shape != updates.shape or not all(fits):
        raise Malformed(f"indices {list(at.shape)} and updates {list(updates.shape)} for shape {list(x.shape)}")
    rows = None
    if at.known:
        index = list(np.indices(at.shape, sparse=True))
        index[axis] = _counted(c.array(at), x.shape[axis])
        rows = np.zeros(at.shape, np.int64)
        for k, d in enumerate(x.shape):
            rows = rows * d + index[k]
    places = _Places("GatherElements", {"axis": axis}, 1, rows.reshape(-1) if rows is not None else None)
    reduction = n.get_str("reduction", "none")
    if rows is None and reduction in _COMBINED:
        return _in_turn(c, n, x, at, updates, axis)
    return _scattered(c, n, x, at, updates, places, reduction)


@onnx_operator("ScatterND")
def scatter_nd(c: Importer, n: Node) -> str:
    x, at, updates = (c.input(n, k) for k in range(3))
    depth = at.shape[-1] if at.shape else 0
    if not 1 <= depth <= len(x.shape) or updates.shape != (*at.shape[:-1], *x.shape[depth:]):
        raise Malformed(f"indices {list(at.shape)} and updates {list(updates.shape)} for shape {list(x.shape)}")
    rows = None
    if at.known:
        tuples = c.array(at).reshape(-1, depth)
        rows = np.zeros(len(tuples), np.int64)
        for k in range(depth):
            rows = rows * x.shape[k] + _counted(tuples[:, k], x.shape[k])
    places = _Places("GatherND", {"batch_dims": 0}, math.prod(x.shape[depth:]), rows)
    return _scattered(c, n, x, at, updates, places, n.get_str("reduction", "none"))


def _counted(indices: Array, length: int) -> Array:
    """Indices from the front."""
    if indices.size and (int(indices.min()) < -length or int(indices.max()) >= length):
        raise Malformed(f"an index is out of range for length {length}")
    return np.where(indices < 0, indices + length, indices).astype(np.int64)


def _scattered(c: Importer, n: Node, x: Value, at: Value, updates: Value, places: _Places, reduction: str) -> str:
    if reduction not in ("none", "add", *_COMBINED):
        raise Malformed(f"reduction {reduction!r} is unknown")
    if not updates.elements or not x.elements:
        return c.tensor(x)
    if reduction == "add" and x.is_float:
        return c.emit1("Add", [x, _summed(c, x, at, updates, places)])
    if places.rows is not None:
        return _at_known_rows(c, x, updates, places.rows, places.size, reduction)
    if reduction != "none":
        raise Unsupported(f"reduction {reduction!r} at computed places")
    dtype = our_dtype(x.dtype)
    if dtype is DType.U8:
        data, new = (c.emit1("Cast", [v], {"to": "f32"}) for v in (x, updates))
        y = _replaced(c, data, new, at, places)
        return c.emit1("Greater", [y, c.constant(np.zeros((), np.float32))])
    if dtype is not DType.F32:
        raise Unsupported("integers at computed places")
    return _replaced(c, c.tensor(x), c.tensor(updates), at, places)


def _summed(c: Importer, x: Value | str, at: Value, updates: Value | str, places: _Places) -> str:
    """Zeros in the shape of x, plus the updates of each place."""
    return c.emit1(f"{places.kind}Grad", [at, updates], {**places.attributes, "shape": c.shape(x)})


def _replaced(c: Importer, x: str, updates: str, at: Value, places: _Places) -> str:
    """x with the updates at computed places, which differ from each other."""
    c.room(*c.shape(updates))
    ones = c.constant(np.ones(c.shape(updates), np.float32))
    is_written = c.emit1("Greater", [_summed(c, x, at, ones, places), c.constant(np.zeros((), np.float32))])
    return c.emit1("Where", [is_written, _summed(c, x, at, updates, places), x])


def _at_known_rows(c: Importer, x: Value, updates: Value, rows: Array, size: int, reduction: str) -> str:
    """The rows of [data; updates] that the result is made of. Of several updates of one place the last one stays."""
    count = x.elements // max(size, 1)
    data, new = c.reshape(x, (count, size)), c.reshape(updates, (len(rows), size))
    if our_dtype(x.dtype) is DType.U8 and reduction != "none":
        raise Unsupported(f"reduction {reduction!r} of integers of 8 bits")
    groups = [np.arange(len(rows))] if reduction == "none" else _occurrences(rows)
    if len(groups) > _MOST_IN_TURN:
        raise Unsupported(f"{len(groups)} updates of one place (at most {_MOST_IN_TURN})")
    kind = {"add": "Add", **_COMBINED}.get(reduction)
    for group in groups:
        at = rows[group]
        part = new if len(group) == len(rows) else c.emit1("Gather", [new, c.constant(group)], {"axis": 0})
        if kind is not None:
            part = c.emit1(kind, [c.emit1("Gather", [data, c.constant(at)], {"axis": 0}), part])
        c.room(count)
        chosen = np.arange(count)
        chosen[at] = count + np.arange(len(at))
        data = c.emit1("Gather", [c.emit1("Concat", [data, part], {"axis": 0}), c.constant(chosen)], {"axis": 0})
    return c.reshape(data, x.shape)


def _occurrences(rows: Array) -> list[Array]:
    """Positions in `rows`: the first one of each number, then the second ones, and so on."""
    seen: dict[int, int] = {}
    groups: list[list[int]] = []
    for position, row in enumerate(rows.tolist()):
        turn = seen.get(row, 0)
        seen[row] = turn + 1
        if turn == len(groups):
            groups.append([])
        groups[turn].append(position)
    return [np.asarray(group) for group in groups]


def _in_turn(c: Importer, n: Node, x: Value, at: Value, updates: Value, axis: int) -> str:
    """A product or extremum at computed places: along the axis one update after the other."""
    if at.shape[axis] > _MOST_IN_TURN or not x.is_float:
        raise Unsupported(f"this reduction of {at.shape[axis]} updates (at most {_MOST_IN_TURN}, and of floats)")
    y, kind = c.tensor(x), _COMBINED[n.get_str("reduction")]
    for k in range(at.shape[axis]):
        index = c.axis_slice(at, axis, k, 1)
        place = Value(index, c.shape(index), at.dtype, tensor=index)
        now = c.emit1("GatherElements", [y, index], {"axis": axis})
        step = c.emit1(kind, [now, c.axis_slice(updates, axis, k, 1)])
        y = _replaced(c, y, step, place, _Places("GatherElements", {"axis": axis}, 1, None))
    return y


@onnx_operator("ReverseSequence")
def reverse_sequence(c: Importer, n: Node) -> str:
    """Each sample's first `length` steps the other way round."""
    x, lengths = c.input(n, 0), c.input(n, 1)
    batch_axis, time_axis = n.get_int("batch_axis", 1), n.get_int("time_axis", 0)
    if len(x.shape) < 2 or {batch_axis, time_axis} != {0, 1}:
        raise Malformed(f"batch_axis {batch_axis} and time_axis {time_axis} of shape {list(x.shape)}")
    batch, steps = x.shape[batch_axis], x.shape[time_axis]
    if lengths.shape != (batch,):
        raise Malformed(f"{list(lengths.shape)} lengths for a batch of {batch}")
    if lengths.known and all(v == steps for v in c.ints(lengths, "the lengths")):
        return c.axis_slice(x, time_axis, steps - 1, steps, -1)
    time = np.arange(steps).reshape((steps, 1) if time_axis == 0 else (1, steps))
    place = np.arange(batch).reshape((batch, 1) if time_axis else (1, batch))
    strides = (batch, 1) if time_axis == 0 else (1, steps)
    rows = c.reshape(x, (batch * steps, *x.shape[2:]))
    if lengths.known:
        held = c.array(lengths).reshape(place.shape)
        at: str | Value = c.constant(np.where(time < held, held - 1 - time, time) * strides[0] + place * strides[1])
    else:
        name = c.reshape(lengths, place.shape)
        now = c.constant(time)
        turned = c.emit1("Sub", [c.emit1("Sub", [name, c.constant(np.array(1))]), now])
        back = c.emit1("Where", [c.emit1("Less", [now, name]), turned, now])
        scaled = c.emit1("Mul", [back, c.constant(np.array(strides[0]))])
        at = c.emit1("Add", [scaled, c.constant(place * strides[1])])
    y = c.emit1("Gather", [rows, at], {"axis": 0})
    return c.reshape(y, x.shape)


def lengths_reached(c: Importer, lengths: Value, steps: int) -> Sequence[str | None]:
    """For each step a mask [batch, 1] of the samples that have it; None where all of them do."""
    batch = lengths.elements
    if lengths.known:
        held = c.array(lengths, "sequence_lens").reshape(batch, 1)
        if held.size and (int(held.min()) < 0 or int(held.max()) > steps):
            raise Malformed(f"sequence_lens from {held.min()} to {held.max()} for {steps} time steps")
        return [None if bool((held > t).all()) else c.tensor(c.constant(held > t)) for t in range(steps)]
    name = c.reshape(lengths, (batch, 1))
    return [c.emit1("Greater", [name, c.constant(np.array(t))]) for t in range(steps)]
