"""A step of a recurrent layer behind its matrix products: all that goes over hidden units one by one, in one kernel.

A row of a sample holds its gates one after another in ONNX's order. A cell keeps them activated for its gradient, which
computes the rest again. Every element is made by the operations of the separate kinds in their order (`apart` emits
those). So results have the bits that separate kernels give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from poetc.graph import Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators import parameters as rows
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, Part, Range, on_axis
from poetc.ops._elementwise import sigmoid
from poetc.ops._registry import Gradients, OpSpec, Work, register


def _split(x: Any, parts: int) -> list[Any]:
    return np.split(x, parts, axis=1)


class _Recurrent(OpSpec):
    """Operands are f32 matrices [batch, parts · hidden]."""

    cost_like: ClassVar[str] = "Sigmoid"
    parts: ClassVar[int]  # of the first input

    def sizes(self, op: Bound) -> tuple[int, int]:
        """(batch, hidden)."""
        x = op.inputs[0]
        if len(x.shape) != 2 or x.shape[1] % self.parts:
            raise ValueError(f"{self.kind} needs [batch, {self.parts} · hidden], not {x}")
        return x.shape[0], x.shape[1] // self.parts

    def matrices(self, op: Bound, *parts: int) -> tuple[TensorType, ...]:
        batch, hidden = self.sizes(op)
        return tuple(TensorType((batch, p * hidden)) for p in parts)

    def check(self, op: Bound, *parts: int) -> None:
        """ValueError unless the inputs have these numbers of parts."""
        if len(op.inputs) != len(parts) or op.inputs != self.matrices(op, *parts):
            raise ValueError(f"{self.kind} needs inputs of {parts} times as many columns as units, not {op.inputs}")

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By samples, and by hidden units. A block of these has the same units of all gates: a smaller cell."""
        hidden, operands = self.sizes(op)[1], (*op.inputs, *op.outputs)
        units = Cut("units", hidden, tuple(Part(t.elements // hidden, 1) for t in operands), binds=True)
        return (*on_axis(op, "samples", [0] * len(operands)), *([units] if hidden > 1 else []))

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """With fewer units."""
        if cut.name != "units":
            return super().block(op, cut, ranges)
        ((begin, end),), hidden = ranges, self.sizes(op)[1]

        def narrow(types: Sequence[TensorType]) -> tuple[TensorType, ...]:
            return tuple(TensorType((t.shape[0], t.shape[1] // hidden * (end - begin)), t.dtype) for t in types)

        return Bound(op.attributes, narrow(op.inputs), narrow(op.outputs))


class _Gradient(_Recurrent):
    """Beside the saved tensors: `gradients` of the hidden state that arrive apart (their sum is meant)."""

    def arriving(self, op: Bound, first: int) -> range:
        count = op.get_int("gradients", 1)
        if not 0 <= count <= len(op.inputs) - first:
            raise ValueError(f"{self.kind}: {count} gradients among {len(op.inputs)} inputs")
        return range(first, first + count)


def _sum(inputs: Sequence[Any], which: range, like: Any) -> Any:
    total = inputs[which[0]] if which else np.zeros_like(like)
    for i in which[1:]:
        total = total + inputs[i]
    return total


# --- LSTM -------------------------------------------------------------------------------------------------------------


@register
class LstmCell(_Recurrent):
    summary = "Gates (input, output, forget, candidate) row [+ product], [cell] → h, cell, gates activated: i, o, f, g"
    parts = 4

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        """(row): the first step, whose states are zero; else (row, product, cell)."""
        self.check(op, *((4,) if len(op.inputs) == 1 else (4, 4, 1)))
        return self.matrices(op, 1, 1, 4)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        i, o, f, g = _split(inputs[0] + inputs[1] if len(inputs) > 1 else inputs[0], 4)
        i, o, f, g = (np.asarray(y, inputs[0].dtype) for y in (sigmoid(i), sigmoid(o), sigmoid(f), np.tanh(g)))
        cell = f * inputs[2] + i * g if len(inputs) > 1 else i * g
        return o * np.tanh(cell), cell, np.concatenate([i, o, f, g], axis=1)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gh, gcell, _ = grads
        before = len(op.inputs) > 1
        inputs = [op.outputs[2], op.outputs[1], *op.inputs[2:], *(g for g in (gh, gcell) if g is not None)]
        attributes = {"before": before, "gradients": int(gh is not None)}
        gradients = b.emit("LstmCellGrad", inputs, attributes, hint=f"{op.inputs[0]}.grad")
        return [gradients[0], gradients[0], gradients[1]] if before else [gradients[0]]

    def apart(self, b: Builder, op: Operator) -> bool:
        h, cell, _ = op.outputs
        row, *more = op.inputs
        total = b.emit1("Add", [row, more[0]]) if more else row
        i, o, f, g = b.emit("Split", [total], {"axis": 1, "sizes": (b.type(row).shape[1] // 4,) * 4})
        i, o = b.emit1("Sigmoid", [i]), b.emit1("Sigmoid", [o])
        new = [i, b.emit1("Tanh", [g])]
        if more:
            kept = b.emit1("Mul", [b.emit1("Sigmoid", [f]), more[1]])
            b.emit("Add", [kept, b.emit1("Mul", new)], outputs=[cell])
        else:
            b.emit("Mul", new, outputs=[cell])
        b.emit("Mul", [o, b.emit1("Tanh", [cell])], outputs=[h])
        return True

    def work(self, op: Bound) -> Work:
        return Work(flops=58 * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_lstm_cell", rows.LstmCell(*self.sizes(op), len(op.inputs) > 1))

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return ((1, 2), (0, 2), (2, 1), (2, 0)) if len(op.inputs) > 1 else ((0, 2),)


@register
class LstmCellGrad(_Gradient):
    summary = (
        "Gradient of LstmCell from (gates, cell, [the cell before], its `gradients` gh, [gcell])"
        " → of the row, [of the cell before]; before"
    )
    parts = 4

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        before = op.get_int("before")
        self.arriving(op, 2 + before)
        if not 0 <= self._cell_gradients(op) <= 1:
            raise ValueError(f"{self.kind}: {len(op.inputs)} inputs")
        self.check(op, 4, *(1,) * (len(op.inputs) - 1))
        return self.matrices(op, *((4, 1) if before else (4,)))

    def _cell_gradients(self, op: Bound) -> int:
        """How many gradients of the cell state arrive: none or one."""
        return len(op.inputs) - 2 - op.get_int("before") - op.get_int("gradients", 1)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        (i, o, f, g), cell, before = _split(inputs[0], 4), inputs[1], op.get_int("before")
        t, gh = np.tanh(cell), _sum(inputs, self.arriving(op, 2 + before), cell)
        gcell = (1 - t) * (1 + t) * (gh * o)
        if self._cell_gradients(op):
            gcell = inputs[-1] + gcell
        forget = f * (1 - f) * (gcell * inputs[2]) if before else np.zeros_like(f)
        parts = [i * (1 - i) * (gcell * g), o * (1 - o) * (gh * t), forget, (1 - g) * (1 + g) * (gcell * i)]
        row = np.concatenate(parts, axis=1)
        return (row, gcell * f) if before else (row,)

    def work(self, op: Bound) -> Work:
        return Work(flops=34 * op.inputs[1].elements)

    def kernel(self, op: Bound) -> Kernel:
        (batch, hidden), before = self.sizes(op), bool(op.get_int("before"))
        parameters = rows.LstmCellGrad(batch, hidden, before, op.get_int("gradients", 1), self._cell_gradients(op))
        return Kernel("poetc_op_lstm_cell_grad", parameters)

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        others = range(len(op.inputs) - 1, 0, -1) if op.get_int("before") else ()
        return ((0, 0), *((i, 1) for i in others))


# --- GRU --------------------------------------------------------------------------------------------------------------


@register
class GruCell(_Recurrent):
    summary = (
        "Gates (update, reset, candidate) row, product with h, h → the next h, gates activated: z, r, n, product's n"
    )
    parts = 3
    aliases = ((2, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.check(op, 3, 3, 1)
        return self.matrices(op, 1, 4)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        (z, r, n), (more_z, more_r, rest), h = _split(inputs[0], 3), _split(inputs[1], 3), inputs[2]
        z, r = (np.asarray(sigmoid(y), h.dtype) for y in (z + more_z, r + more_r))
        n = np.tanh(n + r * rest)
        return n + z * (h - n), np.concatenate([z, r, n, rest], axis=1)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        gh = grads[0]
        if gh is None:
            return [None, None, None]
        return b.emit("GruCellGrad", [op.outputs[1], op.inputs[2], gh], {"gradients": 1}, hint=f"{op.inputs[0]}.grad")

    def apart(self, b: Builder, op: Operator) -> bool:
        row, product, h = op.inputs
        units = b.type(h).shape[1]
        ports, candidate = b.emit("Split", [row], {"axis": 1, "sizes": (2 * units, units)})
        more, rest = b.emit("Split", [product], {"axis": 1, "sizes": (2 * units, units)})
        both = b.emit("Split", [b.emit1("Add", [ports, more])], {"axis": 1, "sizes": (units, units)})
        z, r = (b.emit1("Sigmoid", [port]) for port in both)
        new = b.emit1("Tanh", [b.emit1("Add", [candidate, b.emit1("Mul", [r, rest])])])
        kept = b.emit1("Mul", [z, b.emit1("Sub", [h, new])])
        b.emit("Add", [new, kept], outputs=op.outputs[:1])
        return True

    def work(self, op: Bound) -> Work:
        return Work(flops=37 * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_gru_cell", rows.Cell(*self.sizes(op)))


@register
class GruCellGrad(_Gradient):
    summary = "Gradient of GruCell from (gates, h, its `gradients` of the next h) → of the row, the product, h"
    parts = 4

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if self.arriving(op, 2) != range(2, len(op.inputs)):
            raise ValueError(f"{self.kind}: {len(op.inputs)} inputs")
        self.check(op, 4, *(1,) * (len(op.inputs) - 1))
        return self.matrices(op, 3, 3, 1)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        (z, r, n, rest), h = _split(inputs[0], 4), inputs[1]
        gy = _sum(inputs, self.arriving(op, 2), h)
        gh = gy * z
        candidate = (1 - n) * (1 + n) * (gy - gh)
        ports = [z * (1 - z) * (gy * (h - n)), r * (1 - r) * (candidate * rest)]
        return np.concatenate([*ports, candidate], axis=1), np.concatenate([*ports, candidate * r], axis=1), gh

    def work(self, op: Bound) -> Work:
        return Work(flops=18 * op.inputs[1].elements)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_gru_cell_grad", rows.GruCellGrad(*self.sizes(op), op.get_int("gradients", 1)))

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return tuple((i, 2) for i in range(len(op.inputs) - 1, 0, -1))
