"""Graph → TrainingGraph in the numbers that the options ask for."""

from __future__ import annotations

from poetc.errors import UsageError
from poetc.graph import Graph, TrainingGraph
from poetc.training import _build, _integer_model, _integer_step, _qas_model
from poetc.training._declarations import INTEGERS
from poetc.training._restored_norms import OPTION, with_restored_norms
from poetc.training.options import TrainingOptions


def in_precision(graph: Graph, options: TrainingOptions) -> Graph:
    """The float model in the numbers that are trained; for qas the model that was loaded as a quantised one.

    With the batch norms that `--batch-norm restore` puts back.
    """
    if options.batch_norm == "restore":
        if options.precision in INTEGERS:
            raise UsageError(f"{OPTION}: integers are trained with folded norms; leave it out, or use --precision f32")
        return with_restored_norms(graph, options)
    if options.precision == "qas":
        return _qas_model.quantized_model(graph, options)
    return _integer_model.integer_model(graph, options) if options.precision == "niti" else graph


def build(
    graph: Graph, options: TrainingOptions, part: Graph | None = None, *, names_sums: bool = False
) -> TrainingGraph:
    """The whole training step of `graph`. Raises UsageError where the options do not fit the model.

    `graph` is the result of `in_precision`. With `options.micro_batches` above 1, `part` is the model at that part of
    the batch. `names_sums`: sums over the first rows have names that say so.
    """
    if options.precision == "niti":
        return _integer_step.build_integer(graph, options)
    return _build.build(graph, options, part, names_sums=names_sums)
