"""Graph → TrainingGraph in the numbers that the options ask for."""

from __future__ import annotations

from dataclasses import replace

from poetc.errors import UsageError
from poetc.graph import Graph, TrainingGraph
from poetc.training._restored_norms import OPTION, with_restored_norms
from poetc.training.options import TrainingOptions
from poetc.training.precisions import PRECISIONS


def in_precision(graph: Graph, options: TrainingOptions) -> Graph:
    """The float model in the numbers that are trained; for a QDQ precision the model that was loaded with its codes.

    With the batch norms that `--batch-norm restore` puts back.
    """
    precision = PRECISIONS[options.precision]
    if options.batch_norm != "restore":
        return precision.lower(graph, options)
    if precision.is_integer:
        raise UsageError(f"{OPTION}: integers are trained with folded norms; leave it out, or use --precision f32")
    return with_restored_norms(graph, options)


def build(
    graph: Graph, options: TrainingOptions, part: Graph | None = None, *, names_sums: bool = False
) -> TrainingGraph:
    """The whole training step of `graph`. Raises UsageError where the options do not fit the model.

    `graph` is the result of `in_precision`. With `options.micro_batches` above 1, `part` is the model at that part of
    the batch. `names_sums`: sums over the first rows have names that say so.
    """
    precision = PRECISIONS[options.precision]
    step = precision.build(graph, options, part, names_sums=names_sums)
    if not precision.depends_on_parts or options.micro_batches == 1:
        return step
    note = f"--precision {precision.name} rounds in each micro-batch, so results are not those of the whole batch"
    return replace(step, notes=(*step.notes, note))
