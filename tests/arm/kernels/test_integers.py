"""Training in integers has the same bits on the host and on every core, whatever the schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetc import measure, passes, training
from poetc.devices import build_problem, load_profile
from poetc.graph import Attribute, Graph, Role, TensorType
from poetc.measure import build_firmware, build_host, execute
from poetc.ops import Builder
from poetc.program import lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions
from tests.arm.conftest import INSTRUCTIONS, Bits, Solve, Solved, bits

STEPS = 3


@pytest.fixture(scope="module")
def residual(solve: Solve) -> Solved:
    return solve("resnet", 2, "qemu-mps2-an386", "60%", precision="niti")


@pytest.fixture(scope="module")
def residual_host(residual: Solved) -> Bits:
    return residual.on_host(STEPS)


@pytest.fixture(scope="module")
def depthwise(solve: Solve) -> Solved:
    return solve("ds-cnn", 2, "qemu-mps2-an386", "60%", precision="niti")


@pytest.fixture(scope="module")
def depthwise_host(depthwise: Solved) -> Bits:
    return depthwise.on_host(STEPS)


@pytest.mark.long
def test_the_schedule_changes_no_bit(residual: Solved, residual_host: Bits, solve: Solve) -> None:
    """At 60 % of the memory some kernels make their sums twice."""
    free = solve("resnet", 2, "qemu-mps2-an386", "100%", precision="niti")
    assert residual.program.high_water_bytes < free.program.high_water_bytes
    assert free.on_host(STEPS) == residual_host


@pytest.mark.parametrize("board", INSTRUCTIONS)
@pytest.mark.long
def test_residual_additions_have_the_same_bits(
    board: str, residual: Solved, residual_host: Bits, tmp_path: Path
) -> None:
    run = residual.on_board(board, tmp_path, STEPS, gradients=True)
    assert bits(run) == residual_host
    assert run.arena_bytes == residual.program.high_water_bytes


@pytest.mark.long
@pytest.mark.parametrize("board", ["mps2-an385-m0", "mps2-an386", "mps3-an547", "linux-a76"])
def test_depthwise_convolutions_have_the_same_bits(
    board: str, depthwise: Solved, depthwise_host: Bits, tmp_path: Path
) -> None:
    run = depthwise.on_board(board, tmp_path, STEPS, gradients=True)
    assert bits(run) == depthwise_host
    assert run.arena_bytes == depthwise.program.high_water_bytes


# Weights, strides, padding, groups: depthwise layers of every kernel and of one that has no planes, sums in parts.
ODD: tuple[tuple[tuple[int, int, int, int], int, int, int], ...] = (
    ((6, 3, 3, 3), 1, 1, 1),
    ((6, 1, 5, 5), 1, 2, 6),
    ((6, 1, 3, 3), 2, 1, 6),
    ((6, 1, 7, 7), 1, 3, 6),
    ((6, 1, 3, 3), 1, 1, 6),
    ((12, 1, 3, 2), 1, 1, 6),
    ((70, 6, 3, 3), 2, 1, 2),
    ((66, 70, 3, 3), 1, 1, 1),
    ((9, 66, 1, 1), 2, 0, 1),
)


@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547", "virt-a72", "linux-a76"])
def test_odd_convolutions_have_the_bits_of_the_host(board: str, tmp_path: Path) -> None:
    random, b = np.random.default_rng(7), Builder()
    y = b.add_tensor("x", TensorType((2, 3, 13, 11)), Role.INPUT)
    for number, (shape, stride, pad, group) in enumerate(ODD):
        value = random.standard_normal(shape).astype(np.float32)
        weight = b.add_tensor(f"weight{number}", TensorType(shape), Role.PARAMETER, value)
        attributes: dict[str, Attribute] = {"strides": (stride, stride), "pads": (pad,) * 4, "group": group}
        y = b.emit1("Conv", [y, weight], attributes)
    y = b.emit1("Reshape", [y], {"shape": (2, b.type(y).elements // 2)})
    graph = Graph("odd", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    options = TrainingOptions(precision="niti", learning_rate=1.0)
    step = passes.run_standard(training.build(training.in_precision(graph, options), options))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    batch = sample_inputs(program, 0)
    with build_host([program], step.values) as model:
        model.run(batch)
        expected = {name: model.state(name) for name in model.state_names()}
    run = execute(build_firmware(program, step.values, board, tmp_path), [batch])
    for number in range(len(ODD)):
        name = f"weight{number}"
        assert (np.asarray(step.values[name]) != expected[name]).any(), name
    assert run.state_sha256 == measure.state_digest(expected)
