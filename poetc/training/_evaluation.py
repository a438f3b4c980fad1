"""Evaluation: the model in inference mode, followed by the loss that it is trained with."""

from __future__ import annotations

from dataclasses import fields, replace

from poetc.graph import Graph, Phase, Role, TrainingGraph
from poetc.ops import Builder
from poetc.training._loss import plan_loss
from poetc.training._options import TrainingOptions


def evaluation(graph: Graph, step: TrainingGraph) -> Graph:
    """The model `graph` and the loss of `step`, its training step, without dropout and on running statistics.

    Its last input is the target, under the name that it has in `step`. Its first output is the loss, a mean over the
    batch of `graph`; the outputs of the model follow. A model that ends in its own loss has the scores instead of it.
    """
    known = {field.name for field in fields(TrainingOptions)}
    plan = plan_loss(graph, TrainingOptions(**{k: v for k, v in step.options.items() if k in known}))  # type: ignore[arg-type]
    outputs, own = graph.outputs, bool(plan.labels)
    if own:
        name = str(step.options.get("output") or graph.outputs[0])
        outputs = (plan.source, *(o for o in graph.outputs if o not in (name, plan.source)))
    b = Builder()
    for op in graph.operators:
        b.fresh(op.name)
    b.tensors, b.operators, b.values = dict(graph.tensors), list(graph.operators), dict(graph.values)
    target = b.add_tensor(step.target, plan.target, Role.TARGET)
    b.phase = Phase.LOSS
    loss = b.emit1(plan.kind, [plan.source, target], plan.attributes, hint="loss")
    needed, operators = {loss, *outputs}, []
    for op in reversed(b.operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            operators.append(op)
    made = {t for op in operators for t in op.outputs}
    inputs = tuple(i for i in graph.inputs if i != plan.labels or i in needed)
    return replace(
        graph,
        tensors={n: t for n, t in b.tensors.items() if n in needed or n in made or n in inputs},
        operators=tuple(reversed(operators)),
        inputs=(*inputs, target),
        outputs=(loss, *outputs),
        values={n: v for n, v in b.values.items() if n in needed},
    )
