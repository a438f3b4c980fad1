"""Recurrent layers whose weights and gates are larger than the budget: streamed, with equal bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetc
from poetc.training import TrainingOptions

HIDDEN, STEPS, INPUTS, BUDGET = 512, 2, 8, 30_000
GATES = {"LSTM": 4, "GRU": 3}


def network(path: Path, kind: str) -> Path:
    """A recurrent layer and a dense one, for one sample; the recurrent weights take 4.2 or 3.1 MB."""
    random, gates = np.random.default_rng(0), GATES[kind]
    shapes = {"w": (1, gates * HIDDEN, INPUTS), "r": (1, gates * HIDDEN, HIDDEN), "b": (1, 2 * gates * HIDDEN)}
    shapes["last"] = (STEPS * HIDDEN, 4)
    weights = [
        numpy_helper.from_array((0.1 * random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    weights.append(numpy_helper.from_array(np.array([1, STEPS * HIDDEN]), "shape"))
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(kind, ["steps", "w", "r", "b"], ["states"], hidden_size=HIDDEN, **more),
        helper.make_node("Transpose", ["states"], ["of_samples"], perm=[2, 0, 1, 3]),
        helper.make_node("Reshape", ["of_samples", "shape"], ["row"]),
        helper.make_node("MatMul", ["row", "last"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, STEPS, INPUTS]), ("y", [1, 4]))
    ]
    graph = helper.make_graph(nodes, kind, ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("kind", GATES)
def test_recurrent_weights_and_cells_stream(tmp_path: Path, kind: str) -> None:
    """The update of a weight with an axis of directions, and the cell by hidden units."""
    path = network(tmp_path / "cell.onnx", kind)
    solution = poetc.load(path, training=TrainingOptions(optimizer="sgd")).solve(
        device="nrf52840", budget=BUDGET, gap=0.1, time_limit_s=8
    )
    cuts = {(op.kind, op.cut) for op in solution.problem.operators if op.is_streamed}
    assert any(kind == "MatMulSgd" for kind, _ in cuts), cuts
    if kind == "LSTM":
        assert {("LstmCell", "units"), ("LstmCellGrad", "units")} & cuts, cuts
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]
