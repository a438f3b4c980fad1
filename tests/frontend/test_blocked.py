"""Channels in blocks, as ORT_ENABLE_ALL writes them: outputs are onnxruntime's, and no filled-up channel is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.helper import make_node

from poetc.errors import UnsupportedModelError, UsageError
from poetc.frontend import load
from poetc.graph import Role
from tests.frontend.support import evaluate, make, normal, save
from tests.frontend.test_microsoft import session

ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL

BLOCKED = "com.microsoft.nchwc"


def network(width: int) -> onnx.ModelProto:
    """A first layer from the image, depthwise and pointwise, a shortcut, pools, a concatenation and an upsampling."""
    nodes = [
        make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        make_node("Relu", ["c1"], ["r1"]),
        make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1], group=width),
        make_node("HardSigmoid", ["c2"], ["h2"]),
        make_node("Conv", ["h2", "w3"], ["c3"]),
        make_node("Add", ["c3", "r1"], ["sum"]),
        make_node("MaxPool", ["sum"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("Conv", ["p", "w4", "b4"], ["c4"]),
        make_node("Tanh", ["c4"], ["t4"]),
        make_node("AveragePool", ["t4"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        make_node("Resize", ["a", "", "scales"], ["u"], mode="nearest", coordinate_transformation_mode="asymmetric",
                  nearest_mode="floor"),
        make_node("Concat", ["u", "sum"], ["k"], axis=1),
        make_node("Conv", ["k", "w5"], ["c5"]),
        make_node("GlobalAveragePool", ["c5"], ["g"]),
        make_node("Flatten", ["g"], ["y"]),
    ]  # fmt: skip
    weights = {
        "w1": normal(width, 3, 3, 3), "b1": normal(width), "w2": normal(width, 1, 3, 3), "b2": normal(width),
        "w3": normal(width, width, 1, 1), "w4": normal(width, width, 1, 1, seed=1), "b4": normal(width, seed=1),
        "w5": normal(12, 2 * width, 1, 1), "scales": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    model = make(nodes, {"x": (2, 3, 8, 8)}, ["y"], weights)
    model.ir_version = 10
    return model


@pytest.mark.parametrize("width", [16, 20, 32])
def test_blocked_network(tmp_path: Path, width: int) -> None:
    saved = tmp_path / "optimised.onnx"
    session(network(width), ALL, saved)
    blocked = [n.op_type for n in onnx.load(saved).graph.node if n.domain == BLOCKED]
    if not blocked:
        pytest.skip("onnxruntime blocks no channels on this processor")
    feeds = {"x": normal(2, 3, 8, 8)}
    (expected,) = session(saved).run(None, feeds)
    graph = load(saved)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    trained = sum(t.type.elements for t in graph.tensors.values() if t.role is Role.PARAMETER)
    plain = load(save(network(width), tmp_path))
    assert trained == sum(t.type.elements for t in plain.tensors.values() if t.role is Role.PARAMETER)
    assert any(f"{len(blocked)} nodes held channels in blocks of" in n for n in graph.notes)


def blocks_of(width: int) -> onnx.ModelProto:
    """12 channels that are filled up to a block: its width can be read from the file."""
    plain = np.zeros((16, 16, 1, 1), np.float32)
    plain[:12, :12, 0, 0] = normal(12, 12)
    parts = plain.reshape(16 // width, width, 16 // width, width, 1, 1).transpose(0, 2, 4, 5, 3, 1)
    nodes = [
        make_node("ReorderInput", ["x"], ["b"], domain=BLOCKED),
        make_node("Conv", ["b", "w"], ["c"], domain=BLOCKED, kernel_shape=[1, 1]),
        make_node("ReorderOutput", ["c"], ["y"], domain=BLOCKED, channels=12),
    ]
    model = make(nodes, {"x": (1, 12, 2, 2)}, ["y"], {"w": parts.reshape(16, 16, 1, 1).copy()})
    model.opset_import.add(domain=BLOCKED, version=1)
    return model


def test_channels_that_fill_up_a_block_are_left_out(tmp_path: Path) -> None:
    x = normal(1, 12, 2, 2)
    graph = load(save(blocks_of(16), tmp_path))
    assert graph.tensors["w"].shape == (12, 12, 1, 1)
    expected = np.einsum("oi,nihw->nohw", normal(12, 12), x)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("channels", "is_open"), [(32, True), (24, False)])
def test_a_width_that_the_file_does_not_say_is_a_warning(tmp_path: Path, channels: int, is_open: bool) -> None:
    """Of 32 channels blocks of 8 and of 16 look alike; 24 are three blocks of 8."""
    nodes = [
        make_node("ReorderInput", ["x"], ["b"], domain=BLOCKED),
        make_node("Conv", ["b", "w"], ["c"], domain=BLOCKED, kernel_shape=[1, 1]),
        make_node("ReorderOutput", ["c"], ["y"], domain=BLOCKED, channels=channels),
    ]
    model = make(nodes, {"x": (1, channels, 2, 2)}, ["y"], {"w": normal(channels, channels, 1, 1)})
    model.opset_import.add(domain=BLOCKED, version=1)
    (note,) = (n for n in load(save(model, tmp_path)).notes if BLOCKED in n)
    assert ("may be out of order" in note) == is_open


def test_refusals(tmp_path: Path) -> None:
    model = blocks_of(16)
    model.graph.node[1].op_type = "Deconv"
    with pytest.raises(UnsupportedModelError, match=r"Deconv 'c': this operator; .*ORT_ENABLE_EXTENDED"):
        load(save(model, tmp_path))
    model = blocks_of(16)
    node = make_node("Upsample", ["c"], ["u"], domain=BLOCKED, scales=[1, 1, 2, 2], mode=3)
    model.graph.node.insert(2, node)
    model.graph.node[3].input[0] = "u"
    with pytest.raises(UsageError, match=r"nchwc is malformed: attribute 'mode' is not a string"):
        load(save(model, tmp_path))
    model = blocks_of(16)
    model.graph.initializer[0].dims[0] = 5
    with pytest.raises((UnsupportedModelError, UsageError)):
        load(save(model, tmp_path))
