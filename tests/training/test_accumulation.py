"""Updates in the last of several steps, as the emitted C makes them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.networks import random_batches, trained
from tests.support.graphs import evaluate
from tests.training.test_clipping import step_with, wide


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_emitted_c_updates_in_the_last_step_of_several(optimizer: str) -> None:
    step = step_with(wide(), loss="mse", accumulate=2, optimizer=optimizer)
    batches = random_batches(step, 3, 0)
    losses, state = trained(step, batches)
    expected, found = {}, []
    for batch in batches:
        values = evaluate(step, {**batch, **expected}, np.float32)
        found.append(float(values[step.loss].reshape(())))
        expected = {old: values[new] for old, new in step.updates.items()}
    assert losses == pytest.approx(found, rel=1e-5)
    assert losses[0] != losses[2]
    for name in ("first", "second"):
        np.testing.assert_allclose(np.frombuffer(state[name], np.float32), expected[name].ravel(), 1e-4, 1e-6)
