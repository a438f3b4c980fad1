"""Batch norms in integers, as WAGEUBN has them: C beside numpy, and two steps beside PyTorch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poetc import passes, training
from poetc.errors import UsageError
from poetc.graph import TrainingGraph
from poetc.measure import build_host
from poetc.program import Interpreter, sample_inputs
from poetc.training import PRECISIONS, TrainingOptions
from poetc.training.precisions import Algorithm, Numbers
from tests.training.mixed_norm_cases import NUMBERS, RATE, batches, network
from tests.training.test_mixed import compiled

PYTORCH = json.loads(NUMBERS.read_text("utf-8"))
TWELVE = Numbers(floats=(7, 11))


def norms_alone() -> Algorithm:
    wageubn = PRECISIONS["wageubn"].algorithm
    assert wageubn is not None and wageubn.norms is not None
    return Algorithm(weights=TWELVE, activations=TWELVE, errors=TWELVE, norms=wageubn.norms)


def step_of(precision: str, **options: object) -> TrainingGraph:
    given = TrainingOptions(precision=precision, loss="mse", learning_rate=RATE, **options)
    return passes.run_standard(training.build(network(), given))


@pytest.mark.parametrize("fusion", [True, False])
def test_c_has_the_bits_of_numpy(fusion: bool, tmp_path: Path) -> None:
    step = step_of("wageubn", optimizer="momentum", fusion=fusion)
    program = compiled(step)
    numpy = Interpreter(program, step.values)
    with build_host([program], step.values, directory=tmp_path, cflags="-O1") as model:
        for index in range(3):
            batch = sample_inputs(program, index)
            loss = numpy.run(batch)
            assert np.isfinite(loss) and model.run(batch) == pytest.approx(loss, rel=1e-5)
        for name in model.state_names():
            found, expected = model.state(name), numpy.state(name)
            if name in ("mean", "var"):  # sums in floats, whose order is the kernel's
                np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(found, expected, err_msg=name)


def moves(step: TrainingGraph) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of the steps, and by how much parameters moved."""
    interpreter = Interpreter(compiled(step), step.values)
    losses = [interpreter.run({"x": x, step.target: target}) for x, target in batches()]
    names = PYTORCH["weights"]
    return losses, {n: interpreter.state(n).ravel() - np.asarray(step.values[n]).ravel() for n in names}


def error_of(found: dict[str, np.ndarray], step: TrainingGraph) -> float:
    """The largest relative difference of a parameter's move from PyTorch's."""
    errors = []
    for name, values in PYTORCH["weights"].items():
        moved = np.array(values) - np.asarray(step.values[name]).ravel()
        errors.append(np.linalg.norm(found[name] - moved) / np.linalg.norm(moved))
    return float(max(errors))


def test_two_steps_are_those_of_pytorch() -> None:
    step = step_of(norms_alone().text())
    losses, found = moves(step)
    assert losses == pytest.approx(PYTORCH["losses"], rel=1e-4)
    assert error_of(found, step) < 2e-3


@pytest.mark.parametrize("part", ["statistics", "normalised", "parameters", "gradients"])
def test_pytorch_tells_each_rounding_from_none(part: str) -> None:
    """Else the comparison could not fail."""
    norms = norms_alone().norms
    assert norms is not None
    rest = {name: numbers for name, numbers in norms.items() if name != part}
    step = step_of(replace(norms_alone(), norms=rest).text())
    _, found = moves(step)
    whole = moves(step_of(norms_alone().text()))[1]
    assert max(np.abs(found[n] - whole[n]).max() / np.abs(whole[n]).max() for n in whole) > 1e-6
    if part in ("normalised", "parameters"):
        assert error_of(found, step) > 2e-3


def test_frozen_norms_stay_in_floats() -> None:
    frozen = step_of("wageubn", batch_norm="frozen")
    assert {op.kind for op in frozen.operators if op.source == "conv"}.isdisjoint({"Sqrt", "BatchNormStats"})


def test_a_deviation_gets_one_step_of_its_numbers_more() -> None:
    step = step_of(replace(norms_alone(), norms={"statistics": Numbers(integer=12, times=16)}).text())
    (added,) = [op.inputs[1] for op in step.operators if op.inputs[0].endswith(".root.few")]
    assert (np.asarray(step.values[added]) == 2.0**-15).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norms: {means: {integer: 8}}", ":4: norms.means: unknown; there are statistics, normalised"),
        ("norms: {statistics: {integer: 8, scale: power}}", "norms: statistics have a fixed scale"),
        ("norms: {statistics: {floats: [7, 11]}}", "norms: statistics are integers"),
        ("stored: {integer: 8, clips: false}", ":4: stored.clips: is for integers of norms"),
        ("norms: {parameters: {floats: [4, 3], clips: false}}", ":4: norms.parameters.clips: is for integers"),
        ("norms: {parameters: {integer: 8, clips: 0}}", ":4: norms.parameters.clips: is 0, neither true nor false"),
    ],
)
def test_a_description_of_norms_that_is_none(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(f"weights: {{integer: 8}}\nactivations: {{integer: 8}}\nerrors: {{integer: 8}}\n{text}\n", "utf-8")
    with pytest.raises(UsageError) as error:
        TrainingOptions(precision=str(file))
    assert message in str(error.value)
