"""Attention whose products read queries, keys and values where they lie: as on the host where they are moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetc import emit, passes, training
from poetc.devices import build_problem, load_profile
from poetc.graph import TrainingGraph
from poetc.measure import build_firmware, build_host, execute
from poetc.program import Program, lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions
from tests.passes.networks import attention, kinds


def compiled(projections: str, fusion: bool) -> tuple[TrainingGraph, Program]:
    options = TrainingOptions(loss="mse", learning_rate=1.0, fusion=fusion)
    step = passes.run_standard(training.build(attention(projections, tokens=21, size=9), options))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    return step, lower(step, problem, schedule, pack(problem, schedule))


@pytest.mark.parametrize(
    ("board", "numerics", "projections"),
    [
        ("mps2-an385", "separate", "apart"),
        ("mps2-an386", "separate", "slices"),
        ("mps3-an547", "separate", "split"),
        ("mps3-an547", "fast", "split"),
        ("mps3-an547", "fast", "apart"),
        ("virt-a72", "separate", "turned"),
    ],
)
def test_attention_that_moves_nothing(board: str, numerics: emit.Numerics, projections: str, tmp_path: Path) -> None:
    plain, apart = compiled(projections, fusion=False)
    step, program = compiled(projections, fusion=True)
    assert kinds(step)["MatMulOfViews"] == 6
    batch = sample_inputs(program, 0)
    with build_host([apart], plain.values) as model:
        model.run(batch)
        expected = {name: model.state(name) for name in model.state_names()}
    run = execute(build_firmware(program, step.values, board, tmp_path, numerics=numerics), [batch])
    for name, value in expected.items():
        if numerics == "separate":
            assert run.state[name].tobytes() == value.tobytes(), name
        else:
            np.testing.assert_allclose(run.state[name], value, 1e-5, 1e-5, err_msg=name)
