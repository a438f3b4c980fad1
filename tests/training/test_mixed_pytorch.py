"""Two steps of each algorithm beside PyTorch, which rounds in double precision and goes straight through."""

from __future__ import annotations

import json

import numpy as np
import pytest

from poetc import passes, training
from poetc.graph import TrainingGraph
from poetc.program import Interpreter
from poetc.training import TrainingOptions
from tests.training.mixed_cases import ALGORITHMS, NUMBERS, RATE, algorithm, batches, network
from tests.training.test_mixed import compiled

PYTORCH = json.loads(NUMBERS.read_text("utf-8"))


def step_of(row: str) -> TrainingGraph:
    options = TrainingOptions(precision=algorithm(row).text(), learning_rate=RATE)
    return passes.run_standard(training.build(network(), options))


@pytest.mark.parametrize("row", ALGORITHMS)
def test_two_steps(row: str) -> None:
    """A number of which the two precisions round to different neighbours moves little: a few in a hundred may."""
    step = step_of(row)
    interpreter = Interpreter(compiled(step), step.values)
    expected = PYTORCH[row]
    for (x, target), loss in zip(batches(), expected["losses"], strict=True):
        assert interpreter.run({"x": x, step.target: target}) == pytest.approx(loss, rel=2e-4)
    before = step.values
    for name, values in expected["weights"].items():
        moved = np.array(values) - np.asarray(before[name]).ravel()
        found = interpreter.state(name).ravel() - np.asarray(before[name]).ravel()
        assert np.linalg.norm(found - moved) <= 0.01 * np.linalg.norm(moved), name
        close = np.isclose(found, moved, rtol=1e-4, atol=1e-4 * np.abs(moved).max())
        assert close.mean() >= 0.95, f"{row}, {name}: {close.mean():.1%} agree"


def test_rows_differ() -> None:
    """So that the comparison tells one algorithm from the other."""
    moved = {row: np.array(PYTORCH[row]["weights"]["w2"]) for row in ALGORITHMS}
    for row in ALGORITHMS:
        for other in ALGORITHMS:
            if row != other:
                assert np.abs(moved[row] - moved[other]).max() > 1e-4, (row, other)
