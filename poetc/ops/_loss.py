"""The part that all float losses share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from poetc.graph import Operator, TensorType
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._registry import Gradients, OpSpec


class Loss(OpSpec):
    """A scalar of a prediction and a target. The kind `<kind>Grad` is its gradient in the prediction."""

    has_classes: ClassVar[bool] = False  # the prediction has a score of each class, along `axis`
    is_of_labels: ClassVar[bool] = False  # the target has another shape than the prediction, and is no class of it

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.check(op)
        return (TensorType((), op.inputs[0].dtype),)

    def check(self, op: Bound) -> None:
        """Raise ValueError where prediction and target do not fit."""
        raise NotImplementedError

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        """grads[0] None stands for 1: the loss is the root."""
        if not needed[0]:
            return [None, None]
        inputs = [*op.inputs, *([grads[0]] if grads[0] is not None else [])]
        return [b.emit1(f"{op.kind}Grad", inputs, op.attributes, hint=f"{op.inputs[0]}.grad"), None]
