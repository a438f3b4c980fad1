"""Connectionist temporal classification."""

from __future__ import annotations

from poetc.declare import Option, Whole
from poetc.errors import UsageError
from poetc.graph import Attribute, DType, TensorType
from poetc.training._micro import batch_of
from poetc.training.losses._loss import Loss, LossPlan, Output, declare

CTC_LABELS = Option(
    name="ctc_labels",
    values=Whole(1),
    group="loss",
    metavar="N",
    default_text="half of the time steps",
    help="Most labels of a sample.",
)
CTC_BLANK = Option(
    name="ctc_blank",
    values=Whole(),
    group="loss",
    metavar="CLASS",
    default_text="0",
    help="The class that is no label.",
)


def _plan(output: Output) -> LossPlan:
    """Logits are [batch, steps, classes]; [steps, batch, classes] where the second is the batch's axis."""
    graph, name, last, note, options = output.graph, output.name, output.last, output.note, output.options
    softmax = last is not None and last.kind in ("Softmax", "LogSoftmax")
    source = last.inputs[0] if last is not None and softmax else name
    shape = graph.tensors[source].shape
    if (
        len(shape) != 3
        or shape[2] < 2
        or (softmax and last is not None and last.attributes.get("axis", -1) not in (-1, 2))
    ):
        raise UsageError(f"--loss ctc: output {name!r} {list(shape)} is not [batch, steps, classes]")
    fact = graph.fact("batch axis", name)
    time_first = shape[0] != batch_of(graph) == shape[1] if fact is None else fact.value == 1
    batch, steps = (shape[1], shape[0]) if time_first else shape[:2]
    labels, blank = options.ctc_labels or max(1, steps // 2), options.ctc_blank or 0
    if labels > steps or blank >= shape[2]:
        wrong = f"--ctc-labels {labels}" if labels > steps else f"--ctc-blank {blank}"
        raise UsageError(f"{wrong}: output {name!r} has {steps} time steps and {shape[2]} classes")
    order = "[steps, batch, classes]" if time_first else "[batch, steps, classes]"
    note += f", taken as {order}" + ("" if fact is None else f" ({fact.evidence})")
    note += f"; labels end at the first {blank} or -1, and are at most {labels}"
    attributes: dict[str, Attribute] = {"axis": 2, "blank": blank, "time_first": time_first}
    return LossPlan("Ctc", source, TensorType((batch, labels), DType.I32), attributes, note, is_batch_first=True)


declare(
    Loss(
        name="ctc",
        help="connectionist temporal classification: logits of steps, blanks by `--ctc-blank`",
        target="labels of a sequence, at most `--ctc-labels`, ended by a blank or -1",
        plan=_plan,
        options=(CTC_LABELS, CTC_BLANK),
    )
)
