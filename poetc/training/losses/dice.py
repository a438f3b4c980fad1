"""The Dice loss, for images whose classes have areas of different size."""

from __future__ import annotations

from dataclasses import replace

from poetc.declare import LARGEST_FLOAT, Number, Option
from poetc.errors import UsageError
from poetc.training.losses._loss import Loss, LossPlan, Output, declare
from poetc.training.losses.cross_entropy import CLASS_AXIS, plan_classes

DICE_SMOOTH = Option(
    name="dice_smooth",
    values=Number(below=LARGEST_FLOAT),
    group="loss",
    default_text="1",
    help="Added to the overlap and to the size, so that an absent class counts as found.",
)


def _plan(output: Output) -> LossPlan:
    """As the cross-entropy reads the output; samples lie along its first axis."""
    plan = plan_classes(output)
    axis, smooth = plan.attributes["axis"], output.options.dice_smooth
    if axis == 0:
        raise UsageError(f"--loss dice: output {output.name!r} has its classes along the axis of the samples")
    return replace(plan, kind="Dice", attributes={"axis": axis, "smooth": 1.0 if smooth is None else smooth})


declare(
    Loss(
        name="dice",
        help="1 - overlap of the softmax with the target, for each sample and class (`--dice-smooth`)",
        target="an index of a class",
        plan=_plan,
        options=(DICE_SMOOTH, CLASS_AXIS),
    )
)
