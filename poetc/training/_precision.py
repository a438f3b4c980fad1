"""Graph → TrainingGraph in the numbers that the options ask for."""

from __future__ import annotations

from poetc.graph import Graph, TrainingGraph
from poetc.training import _build, _integer_step
from poetc.training._options import TrainingOptions


def build(graph: Graph, options: TrainingOptions, part: Graph | None = None) -> TrainingGraph:
    """The whole training step of `graph`. Raises UsageError where the options do not fit the model.

    In integers `graph` is the result of `integer_model`. With `options.micro_batches` above 1, `part` is the model at
    that part of the batch.
    """
    if options.precision == "niti":
        return _integer_step.build_integer(graph, options)
    return _build.build(graph, options, part)
