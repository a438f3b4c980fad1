"""Rotary position embedding: pairs of features are turned by the angle of their position. Nothing is saved for it.

Su et al., RoFormer (2021), arXiv 2104.09864; the operators RotaryEmbedding of ONNX and of onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poetc.graph import Operator, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import Cut, on_axis
from poetc.ops._registry import OpSpec, register


@dataclass(frozen=True, slots=True)
class RotaryRows(Parameters):
    """x has [batch, before, places, after, size] elements, the first 2 · `pairs` of each row in pairs.

    `tables`: rows of a table for each sample, 0 for one table of all. `interleaved`: pairs are neighbours, not halves.
    `back`: by the negative angle.
    """

    batch: int
    before: int
    places: int
    after: int
    size: int
    pairs: int
    tables: int
    interleaved: bool
    back: bool


@register
class Rotary(OpSpec):
    summary = (
        "(x, cos, sin): pairs of features of x turned by the angle of their place along `axis`; `back`: the other way"
    )
    cost_like = "Mul"
    flops = 3
    aliases = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 3:
            raise ValueError(f"Rotary takes x, cosines and sines, not {op.inputs}")
        x, cos, sin = op.inputs
        axis = op.get_int("axis")
        if len(x.shape) != 4 or axis not in (1, 2):
            raise ValueError(f"Rotary turns axis {axis} of shape {x.shape}, not axis 1 or 2 of four")
        fits = ((x.shape[axis],), (1, x.shape[axis]), (x.shape[0], x.shape[axis]))
        if cos.shape != sin.shape or cos.shape[:-1] not in fits or not 1 <= cos.shape[-1] <= x.shape[3] // 2:
            raise ValueError(f"Rotary: cosines {cos.shape} and sines {sin.shape} do not fit x {x.shape}")
        return (x,)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, cos, sin = inputs
        pairs = cos.shape[-1]
        shape = [len(x) if cos.ndim == 3 and len(cos) > 1 else 1, 1, 1, pairs]
        shape[op.get_int("axis")] = x.shape[op.get_int("axis")]
        cos, sin = cos.reshape(shape), sin.reshape(shape)
        if bool(op.get_int("back")):
            sin = -sin
        y = x.copy()
        if bool(op.get_int("interleaved")):
            parts = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        else:
            parts = slice(0, pairs), slice(pairs, 2 * pairs)
        a, b = x[..., parts[0]], x[..., parts[1]]
        y[..., parts[0]] = a * cos - b * sin
        y[..., parts[1]] = b * cos + a * sin
        return (y,)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        """The tables are constants: a graph in which they are trained is refused by the importer."""
        attributes = {**op.attributes, "back": not op.attributes.get("back", False)}
        return b.emit1("Rotary", [gy, *op.inputs[1:]], attributes, hint=f"{op.inputs[0]}.grad")

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By heads, and by places."""
        axis, of_table = op.get_int("axis"), len(op.inputs[1].shape) - 2
        by_heads = on_axis(op, "heads", [3 - axis, None, None, 3 - axis])
        return (*by_heads, *on_axis(op, "places", [axis, of_table, of_table, axis]))

    def kernel(self, op: Bound) -> Kernel:
        x, cos, _ = op.inputs
        batch, _, _, size = x.shape
        axis = op.get_int("axis")
        before, after = math.prod(x.shape[1:axis]), math.prod(x.shape[axis + 1 : 3])
        tables = x.shape[axis] if len(cos.shape) == 3 and cos.shape[0] > 1 else 0
        flags = bool(op.get_int("interleaved")), bool(op.get_int("back"))
        return Kernel(
            "poetc_op_rotary", RotaryRows(batch, before, x.shape[axis], after, size, cos.shape[-1], tables, *flags)
        )
