"""The axis of the samples in inputs and outputs of sequences, where it is not the first one or could be another.

Recurrent models often take [steps, samples, ...]. One sample of a batch never changes another, and a step does.
So a run with another first or last slice of an input shows the axis of the samples.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from poetc.frontend.facts.probabilities import needed, run
from poetc.graph import Array, DType, Fact, Graph

KIND = "batch axis"
_EVIDENCE = "a run shows no other axis whose slices do not change each other"


def find(graph: Graph) -> Iterator[Fact]:
    """A fact for each input and output of sequences [a, b, ...], unless the samples can only be along the first.

    An output of samples [b, ...] tells the axis of an input of sequences [a, b, c] too.
    """
    axis_of: dict[str, int] = {}
    inputs = [n for n in graph.inputs if graph.tensors[n].dtype is DType.F32 and len(graph.tensors[n].shape) > 2]
    for output in graph.outputs:
        shape = graph.tensors[output].shape
        for name in inputs:
            own = graph.tensors[name].shape
            of_steps = len(shape) == 3 and own[:2] in (shape[:2], shape[1::-1])
            of_samples = len(shape) == 2 and len(own) == 3 and own[1] == shape[0]
            if min(own[:2]) > 1 and (of_steps or of_samples):
                axes = _axes(graph, name, output)
                if axes is not None:
                    axis_of.setdefault(name, axes[0])
                    axis_of.setdefault(output, axes[1])
    for name, axis in axis_of.items():
        shape = graph.tensors[name].shape
        if axis or (shape[0] == shape[1] and len(shape) == 3):
            yield Fact(KIND, name, axis, _EVIDENCE, "likely")


def _axes(graph: Graph, name: str, output: str) -> tuple[int, int] | None:
    """The axes of the samples in input and output; None where the run does not tell one pair from all others."""
    operators = needed(graph, [output])
    if not operators:
        return None
    random = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for other in graph.inputs:
        tensor = graph.tensors[other]
        is_float = tensor.dtype is DType.F32
        inputs[other] = random.standard_normal(tensor.shape) if is_float else np.zeros(tensor.shape)
    before = run(graph, operators, inputs).get(output)
    if before is None:
        return None
    places = (0, 1) if len(before.shape) == 3 else (0,)  # of the samples in the output
    possible = {(a, k) for a in (0, 1) for k in places if inputs[name].shape[a] == before.shape[k]}
    for a in (0, 1):
        for place in (0, -1):
            moved = inputs[name].copy()
            np.moveaxis(moved, a, 0)[place] += 1.0
            changed = run(graph, operators, {**inputs, name: moved})[output] != before
            for k in places:
                rest = np.delete(np.moveaxis(changed, k, 0), place, axis=0)
                if not changed.any() or rest.any():
                    possible.discard((a, k))
    return next(iter(possible)) if len(possible) == 1 else None
