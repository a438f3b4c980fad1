"""Random integer networks: the compiled C beside the numpy rendering of each operator, bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetc import passes, training
from poetc.devices import build_problem, load_profile
from poetc.graph import Attribute, Graph, Role, TensorType
from poetc.measure import build_host
from poetc.ops import Builder
from poetc.program import Interpreter, Program, lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

STEPS = 3
QUICK, MORE = (2, 3), (0, 1, *range(4, 40))


def network(seed: int) -> Graph:
    """Convolutions of any stride, padding and grouping, pools and additions; a dense layer behind them."""
    random, b = np.random.default_rng(seed), Builder()
    batch, channels, side = (int(random.integers(low, high)) for low, high in ((1, 6), (1, 6), (4, 12)))

    def parameter(*shape: int) -> str:
        value = (random.standard_normal(shape) * random.uniform(0.05, 1.0)).astype(np.float32)
        return b.add_tensor(f"w{len(b.values)}", TensorType(shape), Role.PARAMETER, value)

    def convolution(x: str, outputs: int, kernel: int, stride: int, groups: int) -> str:
        weight = parameter(outputs, b.type(x).shape[1] // groups, kernel, kernel)
        attributes: dict[str, Attribute] = {"strides": (stride, stride), "pads": (kernel // 2,) * 4, "group": groups}
        return b.emit1("Conv", [x, weight], attributes)

    h = b.add_tensor("x", TensorType((batch, channels, side, side)), Role.INPUT)
    h = convolution(h, int(random.integers(1, 9)), int(random.choice([1, 3])), 1, 1)
    for _ in range(int(random.integers(0, 4))):
        width, size = b.type(h).shape[1], b.type(h).shape[2]
        match int(random.integers(5)):
            case 0:
                h = b.emit1("Relu", [convolution(h, width, 3, 1, width)])  # depthwise
            case 1:
                h = b.emit1("Add", [h, b.emit1("Relu", [convolution(h, width, 3, 1, 1)])])
            case 2 if size >= 4:
                h = b.emit("MaxPool", [b.emit1("Relu", [h])], {"kernel": (2, 2), "strides": (2, 2)})[0]
            case 3 if size >= 4:
                h = convolution(b.emit1("Relu", [h]), int(random.integers(1, 9)), 3, 2, 1)
            case _:
                h = b.emit1("Relu", [convolution(h, int(random.integers(1, 9)), 1, 1, 1)])
    h = b.emit1("Reshape", [h], {"shape": (batch, b.type(h).elements // batch)})
    y = b.emit1("MatMul", [h, parameter(b.type(h).shape[1], int(random.integers(2, 8)))], hint="logits")
    return Graph(f"random{seed}", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def options_of(seed: int) -> TrainingOptions:
    """Options of integer training, drawn by the seed."""
    random = np.random.default_rng([seed, 1])
    ways = ("nearest", "stochastic")
    return TrainingOptions(
        precision="niti",
        learning_rate=float(2.0 ** -(seed % 6)),
        weight_bits=int(random.choice([8, 24])),
        rescale=str(random.choice(["every", "interval"])),
        rounding=",".join(f"{what}={random.choice(ways)}" for what in ("act", "err", "update")),
        niti_weights=str(random.choice(["model", "xavier"])),
        train=str(random.choice(["all", "all", "last:1", "last:2"])),
    )


def test_quick_seeds_have_each_option_once() -> None:
    drawn = [options_of(seed) for seed in QUICK]
    assert {int(o.weight_bits) for o in drawn} == {8, 24} and {o.rescale for o in drawn} == {"every", "interval"}
    assert all(f"{what}=stochastic" in "".join(o.rounding for o in drawn) for what in ("act", "err", "update"))


def compiled(seed: int) -> tuple[Program, Graph]:
    options = options_of(seed)
    step = passes.run_standard(training.build(training.in_precision(network(seed), options), options))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    return lower(step, problem, schedule, pack(problem, schedule)), step


@pytest.mark.parametrize("seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.long) for seed in MORE)])
def test_c_equals_numpy(seed: int, tmp_path: Path) -> None:
    program, step = compiled(seed)
    numpy = Interpreter(program, step.values)
    with build_host([program], step.values, directory=tmp_path, cflags="-O1") as model:
        for index in range(STEPS):
            batch = sample_inputs(program, index)
            assert model.run(batch) == pytest.approx(numpy.run(batch), rel=1e-5, abs=1e-6)  # the one float
        for name in model.state_names():
            np.testing.assert_array_equal(model.state(name), numpy.state(name), err_msg=f"seed {seed}: {name}")
