"""The first numbers of batch norms that are put back: statistics of a model's own training data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from poetc import training
from poetc.artifact import Artifact
from poetc.commands.import_state import with_values
from poetc.commands.programs import graph_of
from poetc.commands.weights import model_of
from poetc.datasets import Batches
from poetc.graph import Array, Graph

SAMPLES = 256  # at least, where there are as many


def with_statistics(solved: Artifact, batches: Batches) -> Artifact:
    """The solution of a model with restored norms, which begin with the statistics of the first batches."""
    graph = model_of(solved)
    rows = min(batches.rows, graph.batch or batches.rows)
    first = islice(_inputs(graph, batches), -(-SAMPLES // rows))
    values = training.measured(graph, first, graph_of(solved).updates.keys())
    return with_values(solved, values, batches.source.where)


def _inputs(graph: Graph, batches: Batches) -> Iterator[dict[str, Array]]:
    """The inputs of the model, which may have another batch than its training: rows are left out, or go round."""
    for batch in batches.epoch(1):
        yield {name: np.resize(batch[name], graph.tensors[name].shape) for name in graph.inputs if name in batch}
