"""Evaluation: the model in inference mode, followed by the loss that it is trained with."""

from __future__ import annotations

from dataclasses import replace

from poetc.graph import Graph, Phase, Role, TrainingGraph
from poetc.ops import Builder
from poetc.training._loss import emit_sum, pick_output, plan_losses
from poetc.training.options import TrainingOptions


def evaluation(graph: Graph, step: TrainingGraph) -> Graph:
    """The model `graph` and the loss of `step`, its training step, without dropout and on running statistics.

    Its last input is the target, under the name that it has in `step`. Its first output is the loss, a mean over the
    batch of `graph`; the outputs of the model follow. A model that ends in its own loss has the scores instead of it.
    """
    plans = plan_losses(graph, TrainingOptions.of_record(step.options))
    outputs, labels = graph.outputs, {plan.labels for plan in plans}
    for plan in plans:
        if plan.labels:
            name = pick_output(graph, str(plan.output or step.options.get("output") or ""))
            outputs = (plan.source, *(o for o in outputs if o not in (name, plan.source)))
    b = Builder()
    for op in graph.operators:
        b.fresh(op.name)
    b.tensors, b.operators, b.values = dict(graph.tensors), list(graph.operators), dict(graph.values)
    target = b.add_tensor(step.target, plans[0].target, Role.TARGET)
    others = step.inputs[len(step.inputs) - len(plans) + 1 :]  # the targets of further losses
    for plan, name in zip(plans[1:], others, strict=True):
        b.add_tensor(name, plan.target, Role.INPUT)
    b.phase = Phase.LOSS
    pairs = zip(plans, (target, *others), strict=True)
    loss = emit_sum(b, plans, [p.emit(b, p.source, t) for p, t in pairs])
    needed, operators = {loss, *outputs}, []
    for op in reversed(b.operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            operators.append(op)
    results = {t for op in operators for t in op.outputs}
    inputs = tuple(i for i in graph.inputs if i not in labels or i in needed) + others
    return replace(
        graph,
        tensors={n: t for n, t in b.tensors.items() if n in needed or n in results or n in inputs},
        operators=tuple(reversed(operators)),
        inputs=(*inputs, target),
        outputs=(loss, *outputs),
        values={n: v for n, v in b.values.items() if n in needed},
    )
