"""The loss: which kind, from which tensor, against which target; or a sum of several, each times a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poetc.errors import UsageError, shortened
from poetc.graph import DType, Graph, Operator
from poetc.ops import Builder, spec
from poetc.ops.losses import LOSSES, LossPlan, Output
from poetc.ops.losses.cross_entropy import (
    CLASS_AXIS,
    CLASS_WEIGHTS,
    IGNORE_INDEX,
    LABEL_SMOOTHING,
    own_cross_entropy,
)

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions


def plan_losses(graph: Graph, options: TrainingOptions) -> tuple[LossPlan, ...]:
    """The losses of `graph`: one, or those that --loss names by output, in that order."""
    terms = options.losses()
    if not terms[0].output:
        return (plan_loss(graph, options, terms[0].kind, options.output),)
    plans = []
    for term in terms:
        if term.output not in graph.outputs:
            raise UsageError(
                f"--loss {shortened(options.loss, 80)!r}: {shortened(term.output, 80)!r} is no output of the model; its"
                f" outputs are {', '.join(graph.outputs)}"
            )
        plan = plan_loss(graph, options, term.kind, term.output)
        times = "" if term.weight == 1 else f", times {term.weight:g}"
        plans.append(replace(plan, output=term.output, weight=term.weight, note=plan.note + times))
    return tuple(plans)


def emit_sum(b: Builder, plans: Sequence[LossPlan], losses: Sequence[str]) -> str:
    """Emit the weighted sum of `losses`, added up in their order; one loss without weight is the sum itself."""
    total = ""
    for plan, loss in zip(plans, losses, strict=True):
        term = loss
        if plan.weight != 1:
            term = b.emit1("Affine", [loss], {"alpha": plan.weight, "beta": 0.0}, hint=f"{loss}.weighted")
        total = b.emit1("Add", [total, term], hint="loss.total") if total else term
    return total


def plan_loss(graph: Graph, options: TrainingOptions, loss: str, output: str) -> LossPlan:
    """Decide the loss operator for an output of `graph`; "" is the first float output.

    A final Softmax, LogSoftmax (cross-entropy) or Sigmoid (bce) is skipped: the loss is taken from its input, which is
    the same function computed stably. Of other outputs that are probabilities it is taken from their logarithm. Class
    axis: --class-axis, else the softmax's or that of the last layer's units; without either 1 of [N,C,H,W], else the
    last.
    """
    asked = loss
    name = pick_output(graph, output)
    made_by = {t: op for op in graph.operators for t in op.outputs}
    last = _through_views(made_by, name)
    shape = graph.tensors[name].shape
    if loss == "auto":
        loss = _guess(graph, name, last)
    if loss == "nll" and last is not None and last.kind in ("Softmax", "LogSoftmax"):
        loss = "cross-entropy"  # the same loss, computed from the logits
    if loss == "bce-probabilities" and last is not None and last.kind == "Sigmoid":
        loss = "bce"
    is_one = (shape[1:2] if len(shape) == 4 else shape[-1:]) in ((), (1,))
    if loss == "focal" and (is_one or (last is not None and last.kind == "Sigmoid")):
        loss = "binary-focal"  # that of one class
    if asked in ("auto", "cross-entropy", "focal", "nll") and last is not None and last.kind == "CrossEntropy":
        return own_cross_entropy(graph, name, last, options, is_focal=asked == "focal")
    note = f"loss {loss} on output {name!r} {list(shape)}"
    if not shape and asked == "auto":
        note += "; a scalar is taken for a loss of the model's own: the target must be 0"
    if len(graph.outputs) > 1 and not output:
        note += f"; the model has {len(graph.outputs)} outputs, the rest is not trained (--model-output NAME chooses)"
    _require_effects(options, loss)
    plan = LOSSES[loss].plan(Output(graph, name, last, note, options, loss))
    alike = not plan.is_batch_first and plan.target.shape[:2] == shape[:2]
    return replace(plan, samples=graph.fact("batch axis", name)) if alike else plan


def _require_effects(options: TrainingOptions, loss: str) -> None:
    """UsageError for options of classes without an effect on the loss that was found; of several, any may have it."""
    typed = (
        (LABEL_SMOOTHING, options.label_smoothing != 0),
        (IGNORE_INDEX, options.ignore_index is not None),
        (CLASS_WEIGHTS, bool(options.class_weights)),
        (CLASS_AXIS, options.class_axis is not None),
    )
    idle = [option.flag for option, is_given in typed if is_given and option not in LOSSES[loss].options]
    if idle and len(options.losses()) == 1:
        raise UsageError(f"{' and '.join(idle)}: --loss {options.loss} means {loss} here, which does not take that")


def pick_output(graph: Graph, output: str) -> str:
    if output and output not in graph.outputs:
        raise UsageError(f"--model-output {output!r}: the model's outputs are {', '.join(graph.outputs)}")
    floats = (o for o in graph.outputs if graph.tensors[o].dtype is DType.F32)
    name = output or next(floats, graph.outputs[0])
    if graph.tensors[name].dtype is not DType.F32:
        raise UsageError(
            f"output {name!r} is not a float tensor and cannot be trained; choose another with --model-output"
        )
    return name


def _through_views(made_by: dict[str, Operator], name: str) -> Operator | None:
    op = made_by.get(name)
    while op is not None and spec(op.kind).is_view:
        op = made_by.get(op.inputs[0])
    return op


def _guess(graph: Graph, name: str, last: Operator | None) -> str:
    shape = graph.tensors[name].shape
    if not shape:
        return "l1"
    if last is not None and last.kind in ("Softmax", "LogSoftmax"):
        return "cross-entropy"
    if graph.fact("distribution", name) is not None:
        return "nll"
    if last is not None and last.kind == "Sigmoid":
        return "bce"
    if graph.fact("probability", name) is not None and 0 < shape[-1] <= 2 and len(shape) <= 2:
        return "bce-probabilities"
    floats = (graph.tensors[i] for i in graph.inputs if graph.tensors[i].dtype is DType.F32)  # indices are no targets
    same_as_input = any(tensor.shape == shape for tensor in floats)
    classes = shape[1] if len(shape) == 4 else shape[-1] if len(shape) > 1 else 1
    return "mse" if same_as_input or classes < 2 or len(shape) > 4 else "cross-entropy"
