"""A local response norm between integers: it computes in floats, and its errors become integers again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from poetc import passes, training
from poetc.graph import Graph, Role, TensorType, TrainingGraph
from poetc.measure import build_host
from poetc.ops import Builder
from poetc.program import Interpreter, sample_inputs
from poetc.training import TrainingOptions
from tests.training.test_mixed import compiled

STEPS = 3
NORM = {"size": 5, "alpha": 20.0, "beta": 0.75, "bias": 1.0}


def network() -> Graph:
    """A convolution, a norm that is far from linear, and a dense layer."""
    random, b = np.random.default_rng(8), Builder()

    def parameter(name: str, *shape: int) -> str:
        value = (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    x = b.add_tensor("x", TensorType((6, 3, 6, 6)), Role.INPUT)
    h = b.emit1("Conv", [x, parameter("w1", 5, 3, 3, 3)], {"pads": (1, 1, 1, 1)})
    h = b.emit1("Lrn", [h], NORM)
    h = b.emit1("Reshape", [b.emit1("Relu", [h])], {"shape": (6, 180)})
    y = b.emit1("MatMul", [h, parameter("w2", 180, 4)], hint="logits")
    return Graph("lrn", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def step_of(**options: object) -> TrainingGraph:
    given = TrainingOptions(learning_rate=0.0625, **options)
    return passes.run_standard(training.build(training.in_precision(network(), given), given))


def test_the_update_is_that_of_floats_in_8_bits() -> None:
    integers, floats = step_of(precision="niti", rounding="update=nearest"), step_of()
    moved = {}
    for step in (integers, floats):
        interpreter = Interpreter(compiled(step), step.values)
        before = {name: np.asarray(interpreter.state(name), np.float64).ravel() for name in ("w1", "w2")}
        interpreter.run(sample_inputs(compiled(step), 0))
        for name, value in before.items():
            after = np.asarray(interpreter.state(name), np.float64)
            moved.setdefault(name, []).append(after.ravel() - value)
    exact, whole = moved["w1"][1], moved["w1"][0]

    assert np.corrcoef(exact, whole)[0, 1] > 0.9


def test_c_has_the_weights_of_numpy(tmp_path: Path) -> None:
    """A power may differ in its last bit, and then a weight by one unit."""
    step = step_of(precision="niti")
    program = compiled(step)
    numpy = Interpreter(program, step.values)
    with build_host([program], step.values, directory=tmp_path, cflags="-O1") as model:
        for index in range(STEPS):
            batch = sample_inputs(program, index)
            assert abs(model.run(batch) - numpy.run(batch)) < 1e-2
        for name in ("w1", "w2"):
            apart = np.abs(np.asarray(model.state(name), np.int32) - np.asarray(numpy.state(name), np.int32))
            assert apart.max() <= 1 and (apart > 0).mean() < 0.02, name
