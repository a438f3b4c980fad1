"""Losses of boxes by their overlap: IoU, GIoU (Rezatofighi et al. 2019) and CIoU (Zheng et al. 2020).

A box is four numbers: corners (xyxy), a corner and a size (xywh), or a centre and a size (cxcywh). Overlaps are divided
by their union plus 1e-7, as torchvision does. Where two edges coincide, each of them has half the slope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.declare import Choice, Option
from poetc.errors import UsageError
from poetc.graph import Array, Attribute, DType, TensorType
from poetc.kernels import Kernel, Parameters
from poetc.ops._bound import Bound
from poetc.ops._indices import Use
from poetc.ops._registry import register
from poetc.ops.losses._loss import Loss, LossPlan, Output, declare
from poetc.ops.losses._operators import LossGradient, LossKind, upstream

EPSILON = 1e-7
FORMATS = ("xyxy", "xywh", "cxcywh")
_KINDS = ("Iou", "Giou", "Ciou")
# From the numbers of a box to its corners (x1, y1, x2, y2).
_CORNERS = {
    "xyxy": np.eye(4),
    "xywh": np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]),
    "cxcywh": np.array([[1, 0, -0.5, 0], [0, 1, 0, -0.5], [1, 0, 0.5, 0], [0, 1, 0, 0.5]]),
}


@dataclass(frozen=True, slots=True)
class _Boxes(Parameters):
    """`measure` and `format` are indices into iou, giou, ciou and into FORMATS."""

    boxes: int
    measure: int
    format: int
    has_upstream: bool


def _format(op: Bound) -> str:
    return str(op.attributes.get("format", "xyxy"))


def _check(op: Bound) -> None:
    boxes, targets = op.inputs[:2]
    if boxes.shape[-1:] != (4,) or boxes.dtype is not DType.F32 or targets != boxes:
        raise ValueError(f"f32 boxes [..., 4] and targets of that shape are needed, not {boxes} and {targets}")
    if _format(op) not in FORMATS:
        raise ValueError(f"the format is one of {', '.join(FORMATS)}, not {_format(op)}")


def _kernel(op: Bound, kind: str, symbol: str) -> Kernel:
    sizes = op.inputs[0].elements // 4, _KINDS.index(kind), FORMATS.index(_format(op))
    return Kernel(symbol, _Boxes(*sizes, len(op.inputs) > 2), (EPSILON,))


def is_target_of_boxes(use: Use) -> bool:
    """Whether the second input of the operator holds boxes of a target."""
    return use.kind in (*_KINDS, *(f"{kind}Grad" for kind in _KINDS))


def negative_sides(boxes: Array, format: str) -> Array:
    """Of boxes [..., 4], in their shape: the sides below 0; of two corners, at the second one."""
    negative = np.zeros(boxes.shape, bool)
    sides = boxes[..., 2:]
    negative[..., 2:] = sides < boxes[..., :2] if format == "xyxy" else sides < 0
    return negative


def _above(a: Any, b: Any) -> Any:
    """The slope of max(a, b) in a."""
    return np.where(a > b, 1.0, np.where(a == b, 0.5, 0.0)).astype(a.dtype)


def _measure(op: Bound, kind: str, inputs: Sequence[Any]) -> tuple[Any, Any]:
    """Of each box the loss, and its slope in the numbers of the box."""
    x = inputs[0].reshape(-1, 4)
    one, epsilon, corners = x.dtype.type(1), x.dtype.type(EPSILON), _CORNERS[_format(op)].astype(x.dtype)
    box, other = x @ corners.T, inputs[1].reshape(-1, 4) @ corners.T
    low, high, other_low, other_high = box[:, :2], box[:, 2:], other[:, :2], other[:, 2:]
    size, other_size = high - low, other_high - other_low
    shared = np.minimum(high, other_high) - np.maximum(low, other_low)
    meets = np.all(shared > 0, axis=1, keepdims=True).astype(x.dtype)
    overlap = np.prod(shared, axis=1, keepdims=True) * meets
    union = np.prod(size, axis=1, keepdims=True) + np.prod(other_size, axis=1, keepdims=True) - overlap
    whole = union + epsilon
    ratio = overlap / whole
    # Slopes in (low, high): of the box's area, of the overlap, of the sides of the hull.
    turned = size[:, ::-1]
    area_slope = np.concatenate([-turned, turned], axis=1)
    other_extent = shared[:, ::-1] * meets
    overlap_slope = np.concatenate(
        [-other_extent * _above(low, other_low), other_extent * _above(other_high, high)], axis=1
    )
    hull = np.maximum(high, other_high) - np.minimum(low, other_low)
    hull_slope = np.concatenate([-_above(other_low, low), _above(high, other_high)], axis=1)
    loss = one - ratio
    in_overlap, in_union = -one / whole, ratio / whole
    extra = np.zeros_like(box)
    if kind == "Giou":
        around = np.prod(hull, axis=1, keepdims=True)
        loss = loss + (around - union) / (around + epsilon)
        in_union = in_union - one / (around + epsilon)
        in_hull = whole / np.square(around + epsilon)
        extra = in_hull * np.tile(hull[:, ::-1], 2) * hull_slope
    if kind == "Ciou":
        diagonal = np.square(hull).sum(axis=1, keepdims=True) + epsilon
        apart = (low + high - other_low - other_high) / 2
        distance = np.square(apart).sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            turn = np.arctan(size[:, :1] / size[:, 1:])
            lean = np.arctan(other_size[:, :1] / other_size[:, 1:]) - turn
        scale = x.dtype.type(4 / math.pi**2)
        shape_loss = scale * np.square(lean)
        alpha = shape_loss / (loss + shape_loss + epsilon)  # a weight: it has no slope
        loss = loss + distance / diagonal + alpha * shape_loss
        extra = (np.tile(apart, 2) - 2 * distance / diagonal * np.tile(hull, 2) * hull_slope) / diagonal
        square = np.square(size).sum(axis=1, keepdims=True)
        steep = np.divide(2 * alpha * scale * lean, square, out=np.zeros_like(square), where=square > 0)
        in_size = steep * np.concatenate([-size[:, 1:], size[:, :1]], axis=1)
        extra = extra + np.concatenate([-in_size, in_size], axis=1)
    slope = in_union * area_slope + (in_overlap - in_union) * overlap_slope + extra
    return loss[:, 0], slope @ corners


class _Overlap(LossKind):
    flops = 12

    def check(self, op: Bound) -> None:
        _check(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (_measure(op, self.kind, inputs)[0].mean(),)

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, self.kind, "poetc_op_boxes")


class _OverlapGrad(LossGradient):
    flops = 30

    def check(self, op: Bound) -> None:
        _check(op)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        slope = _measure(op, self.kind.removesuffix("Grad"), inputs)[1]
        return ((slope * (upstream(inputs) / slope.dtype.type(len(slope)))).reshape(inputs[0].shape),)

    def kernel(self, op: Bound) -> Kernel:
        return _kernel(op, self.kind.removesuffix("Grad"), "poetc_op_boxes_grad")


@register
class Iou(_Overlap):
    summary = "Mean of 1 - intersection / union of boxes [..., 4] and those of the target; format"


@register
class IouGrad(_OverlapGrad):
    summary = "Gradient of Iou in the boxes from (boxes, target, [gradient of the loss]); format"


@register
class Giou(_Overlap):
    summary = "Mean of 1 - intersection / union + share of the hull that is in neither box; format"


@register
class GiouGrad(_OverlapGrad):
    summary = "Gradient of Giou in the boxes from (boxes, target, [gradient of the loss]); format"


@register
class Ciou(_Overlap):
    summary = "Mean of 1 - intersection / union + squared distance of the centres / diagonal² + loss of shape; format"


@register
class CiouGrad(_OverlapGrad):
    summary = "Gradient of Ciou in the boxes from (boxes, target, [gradient of the loss]), its alpha fixed; format"


BOX_FORMAT = Option(
    name="box_format",
    values=Choice(FORMATS),
    default_text="xyxy",
    help="Numbers of a box; xyxy: two corners; xywh: a corner and a size; cxcywh: centre and size.",
)


def _plan(output: Output) -> LossPlan:
    shape, format = output.graph.tensors[output.name].shape, output.options.box_format or FORMATS[0]
    if shape[-1:] != (4,):
        raise UsageError(f"--loss {output.loss}: output {output.name!r} {list(shape)} is not of boxes [..., 4]")
    attributes: dict[str, Attribute] = {"format": format}
    note = f"{output.note}, boxes as {format} (--box-format)"
    return LossPlan(output.loss.capitalize(), output.name, TensorType(shape), attributes, note)


def _overlap(name: str, help: str) -> Loss:
    return Loss(name=name, help=help, target="boxes in the shape of the output", plan=_plan, options=(BOX_FORMAT,))


declare(
    _overlap("iou", "1 - intersection / union of boxes [..., 4] (`--box-format`)"),
    _overlap("giou", "as `iou`, with a slope for boxes that do not meet"),
    _overlap("ciou", "as `iou`, with the distance of centres and the shape of the boxes"),
)
