"""Views: the same bytes under another shape."""

from __future__ import annotations

from collections.abc import Sequence

from poetc.graph import Array, Operator, TensorType
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._registry import OpSpec, Work, register


@register
class Reshape(OpSpec):
    summary = "The same elements under `shape`."
    is_view = True

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        y = TensorType(op.get_ints("shape"), x.dtype)
        if y.elements != x.elements or min(y.shape, default=0) < 0:
            raise ValueError(f"Reshape: {x.shape} has {x.elements} elements, {y.shape} cannot hold them")
        return (y,)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].reshape(op.get_ints("shape")),)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return b.emit1("Reshape", [gy], {"shape": b.type(op.inputs[0]).shape})

    def work(self, op: Bound) -> Work:
        return Work(bytes_moved=0)


@register
class DropoutSite(OpSpec):
    """Inference does nothing here. Building the training step puts `Dropout` or a view in its place."""

    summary = "x itself; where training puts Dropout with `ratio` if asked to."
    is_view = True

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        (x,) = op.inputs
        if not 0 < op.get_float("ratio") < 1:
            raise ValueError(f"DropoutSite: ratio must be in (0, 1), not {op.get_float('ratio')}")
        return (x,)

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0],)

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        return gy

    def work(self, op: Bound) -> Work:
        return Work(bytes_moved=0)
