"""Limits on gradients, with PyTorch's formulas (`clip_grad_value_`, `clip_grad_norm_`).

A norm over all gradients is known when the last of them is. `--clip-norm` lets every update wait for it: gradients
stay, or are made again, as the schedule finds cheaper. `--clip-norm-late` scales by the norm of the step before, which
is state: no gradient waits, and one is clipped a step late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetc.graph import Fill, Role, TensorType
from poetc.ops import Builder
from poetc.training._state import emit_update

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions

CLIPS = ("clip_value", "clip_norm_per_tensor", "clip_norm", "clip_norm_late")  # options

Clipped = tuple[str, str]  # a parameter, and its gradient as the optimizer is to see it


class Clipper:
    """Emits the operators between gradients and updates."""

    def __init__(self, b: Builder, options: TrainingOptions, updates: dict[str, str]) -> None:
        self._b, self._options, self._updates = b, options, updates
        self._norms: list[str] = []
        self._waiting: list[tuple[str, str]] = []  # parameter, gradient
        self._scale = ""
        if options.clip_norm_late is not None:
            name = b.fresh("clip_scale")
            self._scale = b.add_tensor(name, TensorType(()), Role.OPTIMIZER_STATE, Fill("ones"))

    def clip(self, parameter: str, gradient: str) -> str | None:
        """The clipped gradient; None where its scale needs the norm of all gradients, which `finish` knows."""
        b, o = self._b, self._options
        if o.clip_value is not None:
            attributes = {"min": -o.clip_value, "max": o.clip_value}
            return b.emit1("Clip", [gradient], attributes, hint=f"{gradient}.clipped")
        if o.clip_norm_per_tensor is not None:
            attributes = {"max_norm": o.clip_norm_per_tensor}
            return self._scaled(gradient, b.emit1("ClipScale", [self._norm(gradient)], attributes))
        if o.clip_norm is not None:
            self._norms.append(self._norm(gradient))
            self._waiting.append((parameter, gradient))
            return None
        if self._scale:
            self._norms.append(self._norm(gradient))
            return self._scaled(gradient, self._scale)
        return gradient

    def finish(self) -> list[Clipped]:
        """Those that waited, in the order of their gradients. To be called when there are no more."""
        if not self._norms:
            return []
        b, o = self._b, self._options
        if self._scale:
            (new,) = emit_update(b, "ClipScaleNext", [self._scale, *self._norms], {"max_norm": o.clip_norm_late or 0.0})
            self._updates[self._scale] = new
            return []
        assert o.clip_norm is not None
        scale = b.emit1("ClipScale", self._norms, {"max_norm": o.clip_norm}, hint="clip_scale")
        return [(parameter, self._scaled(gradient, scale)) for parameter, gradient in self._waiting]

    def _norm(self, gradient: str) -> str:
        return self._b.emit1("ReduceL2", [gradient], {"keepdims": False}, hint=f"{gradient}.norm")

    def _scaled(self, gradient: str, scale: str) -> str:
        return self._b.emit1("Mul", [gradient, scale], hint=f"{gradient}.clipped")
