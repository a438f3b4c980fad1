"""Losses of boxes, by their overlap with those of the target."""

from __future__ import annotations

from poetc.declare import Choice, Option
from poetc.errors import UsageError
from poetc.graph import Attribute, TensorType
from poetc.ops.boxes import FORMATS
from poetc.training.losses._loss import Loss, LossPlan, Output, declare

BOX_FORMAT = Option(
    name="box_format",
    values=Choice(FORMATS),
    group="loss",
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
