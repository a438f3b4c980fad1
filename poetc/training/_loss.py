"""The loss: which kind, from which tensor, against which target; or a sum of several, each times a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poetc.errors import UsageError, shortened
from poetc.graph import Attribute, DType, Graph, Operator, TensorType
from poetc.ops import Builder, spec
from poetc.training._micro import batch_of
from poetc.training.options import TrainingOptions


@dataclass(frozen=True, slots=True)
class LossPlan:
    kind: str  # operator kind
    source: str  # the tensor that the loss reads (logits, prediction)
    target: TensorType
    attributes: dict[str, Attribute]
    note: str
    labels: str = ""  # the input of the model that the target takes the place of
    output: str = ""  # of the model; "" where there is one loss
    weight: float = 1.0  # Its weight in the sum.
    of_probabilities: bool = False  # the source holds probabilities: the loss reads their logarithms or log-odds

    def emit(self, b: Builder, source: str, target: str) -> str:
        """The loss of `source`, this plan's or that of a part of the batch."""
        if self.of_probabilities:
            source = _log_of(b, source) if self.kind == "CrossEntropy" else _log_odds(b, source)
        return b.emit1(self.kind, [source, target], self.attributes, hint="loss")


_ELEMENTWISE = {"mse": "MeanSquaredError", "l1": "MeanAbsoluteError", "huber": "Huber", "bce": "BceWithLogits"}
_LEAST = 1e-30  # probability
METRIC = {"triplet": "Triplet", "contrastive": "Contrastive"}  # of rows beside the other rows of the batch


def _log_of(b: Builder, p: str) -> str:
    """log p; a probability of 0 counts as the least number that has a finite slope."""
    return b.emit1("Log", [b.emit1("Clip", [p], {"min": _LEAST, "max": 1.0})])


def _log_odds(b: Builder, p: str) -> str:
    """The number whose sigmoid is p."""
    rest = b.emit1("Affine", [p], {"alpha": -1.0, "beta": 1.0})
    return b.emit1("Sub", [_log_of(b, p), _log_of(b, rest)])


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
    if asked in ("auto", "cross-entropy", "focal", "nll") and last is not None and last.kind == "CrossEntropy":
        return _own_cross_entropy(graph, name, last, options, is_focal=asked == "focal")
    note = f"loss {loss} on output {name!r} {list(shape)}"
    if not shape and asked == "auto":
        note += "; a scalar is taken for a loss of the model's own: the target must be 0"
    if len(graph.outputs) > 1 and not output:
        note += f"; the model has {len(graph.outputs)} outputs, the rest is not trained (--model-output NAME chooses)"
    if loss in ("cross-entropy", "soft-cross-entropy", "focal", "nll"):
        return _cross_entropy(graph, name, last, note, options, loss)
    if loss in METRIC:
        return _metric(graph, name, note, options, loss)
    if loss == "ctc":
        return _ctc(graph, name, last, note, options)
    given = options.label_smoothing or options.ignore_index is not None or options.class_weights
    if (given or options.class_axis is not None) and len(options.losses()) == 1:  # else they are for another output
        names = "--label-smoothing, --ignore-index, --class-weights and --class-axis"
        raise UsageError(f"{names} are for cross-entropy; --loss auto means {loss} here")
    if loss == "bce-probabilities":
        return _of_odds(graph, name, note)
    source = name
    if loss == "bce" and last is not None and last.kind == "Sigmoid":
        source = last.inputs[0]
    attributes: dict[str, Attribute] = {"delta": options.huber_delta} if loss == "huber" else {}
    return LossPlan(_ELEMENTWISE[loss], source, TensorType(graph.tensors[source].shape), attributes, note)


def _own_cross_entropy(graph: Graph, name: str, op: Operator, options: TrainingOptions, *, is_focal: bool) -> LossPlan:
    """The model ends in its loss: that one is trained, and the input that held the labels is the target."""
    scores, labels = op.inputs
    loss = "focal" if is_focal else "cross-entropy"
    attributes = {**op.attributes, **_class_attributes(options, graph.tensors[scores].shape[_axis(op)], loss)}
    if is_focal:
        attributes.pop("label_smoothing", None)
    note = f"loss {loss} of {scores!r}, which the model computes itself as output {name!r}"
    if labels in graph.inputs:
        note += f"; the target is its input {labels!r}"
    return LossPlan("CrossEntropy", scores, graph.tensors[labels].type, attributes, note, labels)


def _axis(op: Operator) -> int:
    axis = op.attributes.get("axis", -1)
    assert isinstance(axis, int)
    return axis


def _class_attributes(options: TrainingOptions, classes: int, loss: str) -> dict[str, Attribute]:
    """The loss over `classes`, as the options set it."""
    if loss != "soft-cross-entropy" and options.class_weights and len(options.class_weights) != classes:
        raise UsageError(f"--class-weights: {len(options.class_weights)} weights are given for {classes} classes")
    attributes: dict[str, Attribute] = {}
    if options.label_smoothing and loss != "focal":
        attributes["label_smoothing"] = options.label_smoothing
    if options.ignore_index is not None and loss != "soft-cross-entropy":
        attributes["ignore_index"] = options.ignore_index
    if options.class_weights and loss != "soft-cross-entropy":
        attributes["class_weights"] = tuple(float(w) for w in options.class_weights)
    if loss == "focal":
        attributes["gamma"] = 2.0 if options.focal_gamma is None else options.focal_gamma
    return attributes


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
    same_as_input = any(graph.tensors[i].shape == shape for i in graph.inputs)
    classes = shape[1] if len(shape) == 4 else shape[-1] if len(shape) > 1 else 1
    return "mse" if same_as_input or classes < 2 or len(shape) > 4 else "cross-entropy"


def _cross_entropy(
    graph: Graph, name: str, last: Operator | None, note: str, options: TrainingOptions, loss: str
) -> LossPlan:
    source, known = name, graph.fact("class axis", name)
    softmax = last is not None and last.kind in ("Softmax", "LogSoftmax")
    if softmax and last is not None:
        source = last.inputs[0]
    shape = graph.tensors[source].shape
    axis = options.class_axis
    if axis is None and softmax and last is not None:
        axis = _axis(last)
    elif axis is None and known is not None and isinstance(known.value, int):
        axis = known.value
        note += f"; classes along axis {axis}, {known.evidence} (--class-axis)"
    elif axis is None:
        axis = 1 if len(shape) == 4 else len(shape) - 1
        if len(shape) > 2:
            note += f"; classes along axis {axis}, which nothing in the file shows (--class-axis)"
    elif not -len(shape) <= axis < len(shape):
        raise UsageError(f"--class-axis {axis}: output {name!r} has the shape {list(shape)}")
    else:
        note += f"; classes along axis {axis % len(shape)}"
    axis %= max(len(shape), 1)
    if not shape or shape[axis] < 2:
        raise UsageError(
            f"--loss cross-entropy: output {name!r} {list(shape)} has no class axis of at least 2; try --loss mse"
        )
    if loss == "nll" and (fact := graph.fact("distribution", name)) is not None:
        note += f"; -log p of its probabilities: {fact.evidence} (--loss cross-entropy takes logits)"
    attributes: dict[str, Attribute] = {"axis": axis, **_class_attributes(options, shape[axis], loss)}
    if loss == "soft-cross-entropy":
        return LossPlan("SoftCrossEntropy", source, TensorType(shape), attributes, note)
    target = TensorType(shape[:axis] + shape[axis + 1 :], DType.I32)
    return LossPlan("CrossEntropy", source, target, attributes, note, of_probabilities=loss == "nll")


def _of_odds(graph: Graph, name: str, note: str) -> LossPlan:
    """The binary cross-entropy of probabilities, each for itself."""
    fact = graph.fact("probability", name)
    note += "; of its probabilities" + (f", {fact.evidence}" if fact is not None else "")
    target = TensorType(graph.tensors[name].shape)
    return LossPlan("BceWithLogits", name, target, {}, note, of_probabilities=True)


def _ctc(graph: Graph, name: str, last: Operator | None, note: str, options: TrainingOptions) -> LossPlan:
    """Logits are [batch, steps, classes]; [steps, batch, classes] where only the second is as long as the batch."""
    softmax = last is not None and last.kind in ("Softmax", "LogSoftmax")
    source = last.inputs[0] if last is not None and softmax else name
    shape = graph.tensors[source].shape
    if len(shape) != 3 or shape[2] < 2 or (softmax and last is not None and _axis(last) not in (-1, 2)):
        raise UsageError(f"--loss ctc: output {name!r} {list(shape)} is not [batch, steps, classes]")
    time_first = shape[0] != batch_of(graph) == shape[1]
    batch, steps = (shape[1], shape[0]) if time_first else shape[:2]
    labels, blank = options.ctc_labels or max(1, steps // 2), options.ctc_blank or 0
    if labels > steps or blank >= shape[2]:
        wrong = f"--ctc-labels {labels}" if labels > steps else f"--ctc-blank {blank}"
        raise UsageError(f"{wrong}: output {name!r} has {steps} time steps and {shape[2]} classes")
    order = "[steps, batch, classes]" if time_first else "[batch, steps, classes]"
    note += f", taken as {order}; labels end at the first {blank} or -1, and are at most {labels}"
    attributes: dict[str, Attribute] = {"axis": 2, "blank": blank, "time_first": time_first}
    return LossPlan("Ctc", source, TensorType((batch, labels), DType.I32), attributes, note)


def _metric(graph: Graph, name: str, note: str, options: TrainingOptions, loss: str) -> LossPlan:
    shape = graph.tensors[name].shape
    if len(shape) != 2 or shape[0] < 2:
        raise UsageError(
            f"--loss {loss}: output {name!r} {list(shape)} is not [batch, width] with a batch of at least 2"
        )
    attributes: dict[str, Attribute] = {"margin": 1.0 if options.margin is None else options.margin}
    return LossPlan(METRIC[loss], name, TensorType(shape[:1], DType.I32), attributes, note)
