"""An exponent that overflows while a step runs: the message names the operator and the node of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import poetc
from poetc import TrainingOptions
from poetc.commands.run import RunRequest, run
from poetc.errors import CheckFailed
from poetc.events import silent
from poetc.measure import BoardStopped
from poetc.runtime.session import SessionError

HUGE = np.float32(2.0**60)
WHERE = r" in IntegerConv 'IntegerConv\(y.*\)' of node 'second': a number out of range"


@pytest.fixture(scope="module")
def solution(tmp_path_factory: pytest.TempPathFactory) -> poetc.Solution:
    """Two dense layers with weights so large that the exponent of the second one's sums is above 100."""
    path, draw = tmp_path_factory.mktemp("overflow") / "huge.onnx", np.random.default_rng(0).standard_normal
    weights = [draw(shape).astype(np.float32) * HUGE for shape in ((6, 4), (4, 3))]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "w1"], ["y"], name="second"),
    ]
    ends = [helper.make_tensor_value_info(name, 1, [2, size]) for name, size in (("x", 6), ("y", 3))]
    tensors = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "huge", ends[:1], ends[1:], tensors), ir_version=8), path)
    model = poetc.load(path, training=TrainingOptions(precision="niti"))
    return model.solve(device="qemu-mps2-an386", time_limit_s=5)


def test_a_session_names_it(solution: poetc.Solution) -> None:
    with solution.trainer() as session, pytest.raises(SessionError, match="step 1" + WHERE):
        session.step(np.ones((2, 6), np.float32), np.zeros(2, np.int32))


def test_validate_and_a_run_on_this_machine_name_it(solution: poetc.Solution, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="code -75" + WHERE):
        solution.validate()
    solution.save(tmp_path / "solved")
    with pytest.raises(CheckFailed, match="step 1: .* code -75" + WHERE):
        run(RunRequest(directory=tmp_path / "solved", on="host"), silent, lambda step, loss: None)


def test_a_run_on_a_board_names_it(solution: poetc.Solution, tmp_path: Path) -> None:
    solution.save(tmp_path / "solved")
    with pytest.raises(BoardStopped, match="mps2-an386: stopped step 1 code -75" + WHERE):
        run(RunRequest(directory=tmp_path / "solved", on="qemu:mps2-an386"), silent, lambda step, loss: None)
