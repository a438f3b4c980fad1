"""The training graph in double precision: whether it is the right one, apart from how it rounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from poetc.graph import Role, TrainingGraph, materialize
from poetc.ops import bind, spec

Array = np.ndarray[Any, np.dtype[Any]]


def losses(step: TrainingGraph, inputs: Mapping[str, Array], count: int, learning_rate: float) -> list[float]:
    """`count` losses on one batch with an update after each, every operator through its numpy reference."""
    state: dict[str, Array] = {}
    for name, value in step.values.items():
        array = np.asarray(materialize(value, step.tensors[name].type))
        state[name] = array.astype(np.float64) if array.dtype == np.float32 else array
        if step.tensors[name].role is Role.OPTIMIZER_STATE and re.match(r"learning_rate", name):
            state[name] = np.full_like(state[name], learning_rate)  # as given, not as rounded
    found = []
    for _ in range(count):
        tensors = {**state, **inputs}
        for operator in step.operators:
            arguments = [tensors[name] for name in operator.inputs]
            results = spec(operator.kind).evaluate(bind(operator, step.tensors), arguments)
            tensors.update(zip(operator.outputs, results, strict=True))
        found.append(float(tensors[step.loss]))
        state.update({name: tensors[following] for name, following in step.updates.items()})
    return found
