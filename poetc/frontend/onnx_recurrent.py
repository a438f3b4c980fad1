"""LSTM, GRU and RNN unrolled: one group of small operators a time step, so that steps can be recomputed one by one.

The product with the inputs is one MatMul over some steps, whose rows take about as much RAM as the weights twice. Over
all steps, the rows would be in RAM at once, and in the backward pass their gradients. Step by step, adding up the
gradient of the weights would cost more than the rest. The recurrent product is per step. Weights keep the shape that
they have in the file: directions and gates are sliced from them. The operators behind the products are one, a cell
(poetc/ops/recurrent.py), where there is one for them. They stay apart for other activations, clip, peepholes, and a GRU
that resets before its product, or its first step. Gates are split before their activation then, not behind it. So its
gradient and the product with it read one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from poetc.frontend._importer import MOST_OPERATORS, Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._translations import onnx_operator
from poetc.frontend.onnx_scatter import lengths_reached

_SLOW = 1_500  # operators, from which on solving takes minutes
_ROWS_X_WEIGHTS = 2
_ACTIVATIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "softsign": "Softsign", "softplus": "Softplus"}
_DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}  # runs backwards?
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True, slots=True)
class _Layer:
    """One direction. Tensors by name; `rows`: the input's part of the gates, [batch, gates · hidden] a step."""

    hidden: int
    activations: tuple[str, ...]
    rows: tuple[str, ...]
    recurrent: str  # [gates · hidden, hidden]
    recurrent_bias: str | None  # [gates · hidden], where it is not already in `rows`
    peepholes: str | None  # [3 · hidden]: input, output, forget
    state: str | None  # [batch, hidden]; None: zeros
    cell: str | None
    bound: float | None  # gates are clipped to ± this before their activation


@onnx_operator("LSTM", "GRU", "RNN")
def recurrent(c: Importer, n: Node) -> Sequence[str]:
    x, w, r = c.input(n, 0), c.input(n, 1), c.input(n, 2)
    if len(x.shape) != 3 or len(w.shape) != 3 or len(r.shape) != 3:
        raise Malformed("X, W and R must have rank 3")
    batch_first = bool(n.get_int("layout", 0))
    steps_first = c.transpose(x, (1, 0, 2)) if batch_first else c.tensor(x)
    length, batch, features = c.shape(steps_first)
    if length < 1:
        raise Malformed("a sequence without time steps")
    directions = _DIRECTIONS.get(n.get_str("direction", "forward"))
    hidden = r.shape[2]
    expected = (len(directions or ()), _GATES[n.op] * hidden)
    if directions is None or w.shape != (*expected, features) or r.shape[:2] != expected:
        raise Malformed(f"W {list(w.shape)} and R {list(r.shape)} do not fit X {list(x.shape)}")
    lengths = c.optional(n, 4)
    if lengths is not None and lengths.shape != (batch,):
        raise Malformed(f"sequence_lens of shape {list(lengths.shape)} for a batch of {batch}")
    reached = [None] * length if lengths is None else lengths_reached(c, lengths, length)
    if n.get_int("input_forget", 0):
        raise Unsupported("input_forget")
    names = _activations(n, len(directions))
    _check_room(c, length, 2 * length * len(directions))  # a product and a cell, or more
    flat = c.reshape(steps_first, (length * batch, features))
    steps = _steps(c, flat, length)
    tracks, last_h, last_c = [], [], []
    for d, reverse in enumerate(directions):
        layer = _layer(c, n, d, flat, steps, length, batch, names[d])
        step: Callable[..., tuple[str, str | None]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}[n.op]
        h, cell, outputs = layer.state, layer.cell, [""] * length
        for count, t in enumerate(reversed(range(length)) if reverse else range(length)):
            before = len(c.builder.operators)
            new, new_cell = step(c, n, layer, layer.rows[t], h, cell)
            # Behind the end of a sequence its state stands still, and the output is zero.
            outputs[t] = _where(c, reached[t], new, None)
            h, cell = _where(c, reached[t], new, h), new_cell and _where(c, reached[t], new_cell, cell)
            if count == 1:  # the first step may be shorter
                whole = (len(c.builder.operators) - before) * length * (len(directions) - d)
                _check_room(c, length, whole)
                if d == 0 and whole > _SLOW:
                    c.note(
                        f"{n.label}: {length:,} time steps become about {whole:,} operators; a schedule takes minutes"
                    )
        assert h is not None
        joined = outputs[0] if length == 1 else c.emit1("Concat", outputs, {"axis": 0})
        tracks.append(c.reshape(joined, (length, 1, batch, hidden)))
        last_h.append(c.reshape(h, (1, batch, hidden)))
        last_c.append(c.reshape(cell or h, (1, batch, hidden)))
    y = tracks[0] if len(tracks) == 1 else c.emit1("Concat", tracks, {"axis": 1})
    finals = [v[0] if len(v) == 1 else c.emit1("Concat", v, {"axis": 0}) for v in (last_h, last_c)]
    if batch_first:
        y = c.transpose(y, (2, 0, 1, 3))
        finals = [c.transpose(f, (1, 0, 2)) for f in finals]
    return [y, finals[0], finals[1]] if n.op == "LSTM" else [y, finals[0]]


def _where(c: Importer, mask: str | None, new: str, old: str | None) -> str:
    """`new` where the mask [batch, 1] is set (None: everywhere), else `old` (None: zeros)."""
    return new if mask is None else c.emit1("Where", [mask, new, old or c.constant(np.zeros((), np.float32))])


def _check_room(c: Importer, length: int, operators: int) -> None:
    """Unsupported where a layer would be unrolled into more operators than there may be."""
    if operators + len(c.builder.operators) > MOST_OPERATORS:
        raise Unsupported(
            f"{length:,} time steps would be unrolled into about {operators:,} operators, and the model may have"
            f" {MOST_OPERATORS:,}; train on shorter sequences, which may be windows of the long one"
        )


def _activations(n: Node, directions: int) -> list[tuple[str, ...]]:
    per = len(_DEFAULTS[n.op])
    stated = [a.lower() for a in n.get_strs("activations")] or list(_DEFAULTS[n.op]) * directions
    if n.get_floats("activation_alpha") or n.get_floats("activation_beta"):
        raise Unsupported("activation_alpha or activation_beta")
    if any(a not in _ACTIVATIONS for a in stated):
        raise Unsupported(f"activations {', '.join(n.get_strs('activations'))}")
    if len(stated) != per * directions:
        raise Malformed(f"{len(stated)} activations for {directions} directions")
    kinds = [_ACTIVATIONS[a] for a in stated]
    return [tuple(kinds[per * d : per * (d + 1)]) for d in range(directions)]


def _direction(c: Importer, value: Value, d: int) -> str:
    """value[d] of a tensor with one entry a direction."""
    return c.reshape(c.axis_slice(value, 0, d, 1), value.shape[1:])


def _initial(c: Importer, n: Node, index: int, d: int, batch: int, hidden: int) -> str | None:
    """The first state, None where it is zero."""
    value = c.optional(n, index)
    if value is None or c.is_zero(value):
        return None
    if n.get_int("layout", 0):
        value = Value(value.name, (), value.dtype, tensor=c.transpose(value, (1, 0, 2)))
        value.shape = c.shape(value.tensor)
    value = _of_batch(c, value, batch)
    if len(value.shape) != 3 or value.shape[1:] != (batch, hidden):
        raise Malformed(f"the initial state has shape {list(value.shape)}")
    return _direction(c, value, d)


def _of_batch(c: Importer, value: Value, batch: int) -> Value:
    """[directions, batch, hidden] of a state that was repeated along the batch that the file fixes, for another one."""
    maker = next((op for op in reversed(c.builder.operators) if value.tensor in op.outputs), None)
    if c.rebatch is None or len(value.shape) != 3 or value.shape[1] == batch:
        return value
    if maker is None or maker.kind != "Expand" or c.shape(maker.inputs[0])[-2] != 1:
        return value
    shape = (value.shape[0], batch, value.shape[2])
    return Value(value.name, shape, value.dtype, tensor=c.emit1("Expand", [maker.inputs[0]], {"shape": shape}))


def _steps(c: Importer, flat: str, length: int) -> tuple[str, ...]:
    """The tensors that were joined to make the rows of all steps, if that is one tensor a step.

    They are the states of the layer before.
    """
    maker = {t: op for op in c.builder.operators for t in op.outputs}
    rows, features = c.shape(flat)
    while (op := maker.get(flat)) is not None and op.kind == "Reshape":
        flat = op.inputs[0]
    if op is None or op.kind != "Concat" or op.attributes["axis"] != 0 or len(op.inputs) != length:
        return ()
    return op.inputs if all(c.shape(t) == (rows // length, features) for t in op.inputs) else ()


def _layer(
    c: Importer,
    n: Node,
    d: int,
    flat: str,
    parts: Sequence[str],
    length: int,
    batch: int,
    activations: tuple[str, ...],
) -> _Layer:
    w, r, b = c.input(n, 1), c.input(n, 2), c.optional(n, 3)
    hidden, wide = r.shape[2], r.shape[1]
    bias = after = None
    if b is not None:
        if b.shape != (r.shape[0], 2 * wide):
            raise Malformed(f"B has shape {list(b.shape)}")
        both = _direction(c, b, d)
        bias, after = c.axis_slice(both, 0, 0, wide), c.axis_slice(both, 0, wide, wide)
        if n.op != "GRU" or not n.get_int("linear_before_reset", 0):
            bias, after = c.emit1("Add", [bias, after]), None
    weights = [_direction(c, w, d), *([bias] if bias else [])]
    at_once = min(length, -(-_ROWS_X_WEIGHTS * w.shape[2] // batch))
    steps = [min(at_once, length - first) for first in range(0, length, at_once)]
    sizes = tuple(batch * count for count in steps)
    inputs: Sequence[str] = [flat]
    if len(steps) > 1 and parts:
        ends = [sum(steps[: k + 1]) for k in range(len(steps))]
        groups = [parts[end - count : end] for end, count in zip(ends, steps, strict=True)]
        inputs = [group[0] if len(group) == 1 else c.emit1("Concat", group, {"axis": 0}) for group in groups]
    elif len(steps) > 1:
        inputs = c.emit("Split", [flat], {"axis": 0, "sizes": sizes})
    rows: list[str] = []
    for x, count in zip(inputs, steps, strict=True):
        block = c.emit1("MatMul", [x, *weights], {"trans_b": True})
        rows += [block] if count == 1 else c.emit("Split", [block], {"axis": 0, "sizes": (batch,) * count})
    peepholes = c.optional(n, 7) if n.op == "LSTM" else None
    if peepholes is not None and c.is_zero(peepholes):
        peepholes = None
    bound = n.get_float("clip") if n.has("clip") else None
    return _Layer(
        hidden,
        activations,
        tuple(rows),
        _direction(c, r, d),
        after,
        _direction(c, peepholes, d) if peepholes is not None else None,
        _initial(c, n, 5, d, batch, hidden),
        _initial(c, n, 6, d, batch, hidden) if n.op == "LSTM" else None,
        bound,
    )


def _apply(c: Importer, layer: _Layer, kind: str, x: str) -> str:
    if layer.bound is not None:
        x = c.emit1("Clip", [x], {"min": -layer.bound, "max": layer.bound})
    return c.emit1(kind, [x])


def _parts(c: Importer, x: str, sizes: Sequence[int]) -> tuple[str, ...]:
    """Split along the last axis."""
    return c.emit("Split", [x], {"axis": len(c.shape(x)) - 1, "sizes": tuple(sizes)})


def _is_plain(layer: _Layer, op: str) -> bool:
    """Whether a cell operator computes the part behind the products."""
    kinds = tuple(_ACTIVATIONS[a] for a in _DEFAULTS[op])
    return layer.activations == kinds and layer.bound is None


def _rnn(c: Importer, n: Node, layer: _Layer, row: str, h: str | None, cell: str | None) -> tuple[str, str | None]:
    if h is not None:
        row = c.emit1("Add", [row, c.emit1("MatMul", [h, layer.recurrent], {"trans_b": True})])
    return _apply(c, layer, layer.activations[0], row), None


def _lstm(c: Importer, n: Node, layer: _Layer, row: str, h: str | None, cell: str | None) -> tuple[str, str | None]:
    """i, o, f = σ(·), g = tanh(·), c' = f c + i g, h' = o tanh(c')."""
    f, g, out = layer.activations
    k = layer.hidden
    if _is_plain(layer, "LSTM") and layer.peepholes is None and (h is None) == (cell is None):
        before = [] if h is None or cell is None else [c.emit1("MatMul", [h, layer.recurrent], {"trans_b": True}), cell]
        new_h, new_cell, _ = c.emit("LstmCell", [row, *before])
        return new_h, new_cell
    total = row if h is None else c.emit1("Add", [row, c.emit1("MatMul", [h, layer.recurrent], {"trans_b": True})])
    if layer.peepholes is None:
        *ports, candidate = _parts(c, total, (k, k, k, k))
        i, o, forget = (_apply(c, layer, f, port) for port in ports)
    else:
        raw = _parts(c, total, (k, k, k, k))
        pi, po, pf = _parts(c, layer.peepholes, (k, k, k))
        i, forget = (
            _apply(c, layer, f, gate if cell is None else c.emit1("Add", [gate, c.emit1("Mul", [cell, p])]))
            for gate, p in ((raw[0], pi), (raw[2], pf))
        )
        o, candidate = "", raw[3]
    new = c.emit1("Mul", [i, _apply(c, layer, g, candidate)])
    if cell is not None:
        new = c.emit1("Add", [c.emit1("Mul", [forget, cell]), new])
    if layer.peepholes is not None:
        o = _apply(c, layer, f, c.emit1("Add", [raw[1], c.emit1("Mul", [new, po])]))
    return c.emit1("Mul", [o, c.emit1(out, [new])]), new


def _gru(c: Importer, n: Node, layer: _Layer, row: str, h: str | None, cell: str | None) -> tuple[str, str | None]:
    """z, r = σ(·), g = tanh(· + r ⊙ (R h + b)) or tanh(· + R (r ⊙ h)), h' = g + z (h - g)."""
    f, g = layer.activations
    k = layer.hidden
    linear = bool(n.get_int("linear_before_reset", 0))
    product = layer.recurrent_bias
    if linear and h is not None:
        bias = [product] if product else []
        product = c.emit1("MatMul", [h, layer.recurrent, *bias], {"trans_b": True})
        if _is_plain(layer, "GRU"):
            return c.emit1("GruCell", [row, product, h]), None
    ports, candidate = _parts(c, row, (2 * k, k))
    if linear:
        if product is not None:
            more, rest = _parts(c, product, (2 * k, k))
            ports = c.emit1("Add", [ports, more])
        z, reset = (_apply(c, layer, f, port) for port in _parts(c, ports, (k, k)))
        if product is not None:
            candidate = c.emit1("Add", [candidate, c.emit1("Mul", [reset, rest])])
    else:
        if h is not None:
            gate_rows = c.axis_slice(layer.recurrent, 0, 0, 2 * k)
            ports = c.emit1("Add", [ports, c.emit1("MatMul", [h, gate_rows], {"trans_b": True})])
        z, reset = (_apply(c, layer, f, port) for port in _parts(c, ports, (k, k)))
        if h is not None:
            candidate_rows = c.axis_slice(layer.recurrent, 0, 2 * k, k)
            kept = c.emit1("Mul", [reset, h])
            candidate = c.emit1("Add", [candidate, c.emit1("MatMul", [kept, candidate_rows], {"trans_b": True})])
    new = _apply(c, layer, g, candidate)
    if h is None:
        return c.emit1("Mul", [c.affine(z, -1.0, 1.0), new]), None
    return c.emit1("Add", [new, c.emit1("Mul", [z, c.emit1("Sub", [h, new])])]), None
