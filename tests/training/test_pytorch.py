"""Whole steps of training beside PyTorch's, in double precision: the numbers of `make_pytorch.py`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from poetc.graph import Array
from poetc.passes import check_graph, run_standard
from poetc.training import TrainingOptions, build
from tests.support.graphs import evaluate
from tests.training.pytorch_cases import (
    CASES,
    CLASSES,
    LABELS,
    NUMBERS,
    RATE,
    ROWS,
    batches,
    elements,
    network,
)

EXPECTED: dict[str, dict[str, list[float]]] = json.loads(NUMBERS.read_text())


def test_every_case_has_numbers() -> None:
    assert CASES.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", CASES)
def test_steps(name: str) -> None:
    losses, weights = run(CASES[name])
    expected = EXPECTED[name]
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-6 if "micro_batches" in CASES[name] else 1e-9)
    np.testing.assert_allclose(weights["fc1.weight"][0], expected["fc1.weight"], rtol=1e-9)
    np.testing.assert_allclose(weights["fc2.bias"], expected["fc2.bias"], rtol=1e-9)


def run(options: dict[str, Any]) -> tuple[list[float], dict[str, Array]]:
    """Losses of the steps, and the state after the last one."""
    two, paths = "hidden" in options.get("loss", ""), "paths" in options.get("loss", "")
    outputs = ("logits", "hidden") if two else ("paths",) if paths else ("logits",)
    part = network(ROWS // options["micro_batches"], outputs) if "micro_batches" in options else None
    step = run_standard(build(network(ROWS, outputs), TrainingOptions(learning_rate=RATE, **options), part))
    check_graph(step)
    state: dict[str, Array] = {}
    losses = []
    for x, classes, hidden in batches():
        targets = dict(zip((step.target, *step.inputs[1:]), (classes, hidden) if two else (classes,), strict=True))
        if step.tensors[step.target].shape == hidden.shape:
            targets = {step.target: hidden, step.inputs[1]: classes}
        if step.tensors[step.target].shape == (ROWS, CLASSES):
            targets = {step.target: elements(options["loss"], options.get("box_format", ""), hidden)}
        if paths:
            targets = {step.target: classes[: 2 * LABELS].reshape(2, LABELS)}
        values = evaluate(step, {**state, "x": x, **targets})
        losses.append(float(values[step.loss]))
        state = {old: values[new] for old, new in step.updates.items()}
    return losses, state
