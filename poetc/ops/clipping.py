"""The factor that limits the norm of gradients (Pascanu et al. 2013), as PyTorch's `clip_grad_norm_` has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.graph import DType, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.ops._bound import Bound
from poetc.ops._registry import OpSpec, Work, register

EPSILON = 1e-6  # added to the norm


@dataclass(frozen=True, slots=True)
class _Norms(Parameters):
    """The norms are the operands from `first` on."""

    first: int
    count: int


class _Scale(OpSpec):
    """min(1, max_norm / (norm + EPSILON)), norm² the sum of the squares of the inputs from `first` on."""

    first = 0

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) <= self.first or any(t.elements != 1 or t.dtype is not DType.F32 for t in op.inputs):
            raise ValueError(f"{self.kind} takes f32 tensors of one element, not {op.inputs}")
        return (TensorType(()),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        norms = np.stack([x.reshape(()) for x in inputs[self.first :]])
        with np.errstate(all="ignore"):
            norm = np.sqrt(np.square(norms).sum())
            return (np.minimum(norms.dtype.type(op.get_float("max_norm")) / (norm + norms.dtype.type(EPSILON)), 1),)

    def work(self, op: Bound) -> Work:
        return Work(flops=2 * len(op.inputs) + 20)

    def kernel(self, op: Bound) -> Kernel:
        parameters = _Norms(self.first, len(op.inputs) - self.first)
        return Kernel("poetc_op_clip_scale", parameters, (op.get_float("max_norm"), EPSILON))


@register
class ClipScale(_Scale):
    summary = "min(1, max_norm / (norm + 1e-6)), norm² the sum of the squares of the inputs; max_norm"


@register
class ClipScaleNext(_Scale):
    summary = "ClipScale of the inputs after the first, in place of the first: the scale of the next step; max_norm"
    recomputable = False
    must_alias = ((0, 0),)
    cost_like = "ClipScale"
    first = 1
