"""Losses larger than the budget: their blocks have the bits of the whole operator, in networks of random sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetc
from poetc.ops import spec
from poetc.ops.losses import LossKind
from poetc.training import TrainingOptions


def _pixels(path: Path, random: np.random.Generator, batch: int, classes: int) -> Path:
    """A network that says something of each pixel of images of a random size."""
    side, hidden = int(random.integers(20, 33)), int(random.integers(2, 5))
    shapes = {"w1": (hidden, 2, 3, 3), "w2": (classes, hidden, 1, 1)}
    weights = [
        numpy_helper.from_array((0.4 * random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Dropout", ["r"], ["d"]),
        helper.make_node("Conv", ["d", "w2"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, channels, side, side + 3])
        for name, channels in (("x", 2), ("y", classes))
    ]
    graph = helper.make_graph(nodes, "pixels", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


WEIGHTS = (0.5, 2.0, 1.0, 0.0, 3.0)

# Options, batch, channels of the output, and the cuts of the loss and of its gradient.
LOSSES = [
    (TrainingOptions(loss="cross-entropy", label_smoothing=0.1), 1, 9, "places", "places"),
    (TrainingOptions(loss="cross-entropy", ignore_index=1), 1, 5, "places", "pass/places"),
    (TrainingOptions(loss="cross-entropy", class_weights=WEIGHTS), 3, 5, "samples", "pass/samples"),
    (TrainingOptions(loss="focal"), 2, 6, "samples/places", "samples/places"),
    (TrainingOptions(loss="soft-cross-entropy"), 1, 4, "places", "places"),
    (TrainingOptions(loss="dice"), 1, 4, "places", "pass/places"),
    (TrainingOptions(loss="dice"), 3, 4, "samples", "samples"),
    (TrainingOptions(loss="mse"), 2, 3, "elements", "elements"),
    (TrainingOptions(loss="huber", dropout=True), 1, 3, "elements", "elements"),
    (TrainingOptions(loss="binary-focal"), 1, 3, "elements", "elements"),
    (TrainingOptions(loss="bce", class_weights=(2.0, 0.5, 1.0)), 1, 3, "elements", "elements"),
]


@pytest.mark.parametrize(("options", "batch", "classes", "of_loss", "of_gradient"), LOSSES, ids=range(len(LOSSES)))
def test_losses_stream(
    tmp_path: Path, options: TrainingOptions, batch: int, classes: int, of_loss: str, of_gradient: str
) -> None:
    random = np.random.default_rng(classes + 10 * batch)
    path = _pixels(tmp_path / "pixels.onnx", random, batch, classes)
    loaded = poetc.load(path, training=options)
    least = loaded.solve(device="nrf52840", budget="least", time_limit_s=5)
    budget = int(least.problem.budget_bytes * random.uniform(1, 1.3))
    for solution in (least, loaded.solve(device="nrf52840", budget=budget, time_limit_s=3)):
        cuts = {op.kind: op.cut for op in solution.problem.operators if op.cut}
        found = solution.validate()  # raises CheckFailed
        assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]
        if solution is least:
            loss = next(op.kind for op in solution.problem.operators if isinstance(spec(op.kind), LossKind))
            assert (cuts[loss], cuts[f"{loss}Grad"]) == (of_loss, of_gradient)
            assert not options.dropout or cuts["Dropout"] == cuts["DropoutGrad"] == "elements"
