"""Which tensors are trained, and what the user is told of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node

from poetc.frontend import load, parameter_decisions
from poetc.graph import Role
from poetc.training import select_parameters
from tests.frontend.support import make, normal, parameters, save


def test_masks_scalars_and_standardisation_are_not_trained(tmp_path: Path) -> None:
    additive = np.where(np.tri(4, dtype=bool), 0.0, -1e9).astype(np.float32)
    nodes = [
        make_node("Sub", ["x", "pixel_mean"], ["centred"]),
        make_node("MatMul", ["centred", "w"], ["p"]),
        make_node("Add", ["p", "mask"], ["masked"]),
        make_node("Where", ["visible", "masked", "never"], ["seen"]),
        make_node("Add", ["seen", "positions"], ["placed"]),
        make_node("Mul", ["placed", "two"], ["y"]),
    ]
    weights = {
        "pixel_mean": normal(4), "w": normal(4, 4), "mask": additive, "visible": np.tri(4, dtype=bool),
        "never": np.array(-np.inf, np.float32), "positions": normal(4, 4, seed=3), "two": np.array(2.0, np.float32),
    }  # fmt: skip
    graph = load(save(make(nodes, {"x": (4, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"w", "positions"}
    decisions = {d.name: d for d in parameter_decisions(graph)}
    assert decisions["mask"].decision is Role.CONSTANT
    assert "mask" in decisions["mask"].reason
    assert decisions["w"].reason == "matrix of a product"
    assert decisions["positions"].shape == (4, 4)


def test_a_float_buffer_that_only_feeds_a_comparison_is_folded(tmp_path: Path) -> None:
    nodes = [
        make_node("Slice", ["tril", "zero", "three", "zero"], ["part"]),
        make_node("Equal", ["part", "nought"], ["hidden"]),
        make_node("Where", ["hidden", "never", "x"], ["y"]),
    ]
    weights = {
        "tril": np.tri(5, dtype=np.float32)[:, :3].copy(), "zero": np.array([0]), "three": np.array([3]),
        "nought": np.array(0.0, np.float32), "never": np.array(-1.0, np.float32),
    }  # fmt: skip
    graph = load(save(make(nodes, {"x": (3, 3)}, ["y"], weights), tmp_path))
    assert parameters(graph) == set()
    assert "tril" not in graph.tensors


def test_a_summand_of_scores_may_be_a_mask_and_is_told(tmp_path: Path) -> None:
    for view in ("m", "viewed"):  # windows of attention, in several images, are put in one dimension
        nodes = [
            make_node("MatMul", ["x", "w"], ["s"]),
            make_node("Add", ["s", "a.mask"], ["m"]),
            make_node("Reshape", ["m", "shape"], ["viewed"]),
            make_node("Softmax", [view], ["p"], axis=-1),
            make_node("Add", ["p", "a.bias"], ["y"]),
        ]
        weights = {"w": normal(3, 3), "a.mask": normal(3, 3), "a.bias": normal(3), "shape": np.array([3, 1, 3])}
        graph = load(save(make(nodes, {"x": (3, 3)}, ["y"], weights), tmp_path))
        assert parameters(graph) == {"w", "a.mask", "a.bias"}
        told = [note for note in graph.notes if "may have been a fixed mask" in note]
        assert len(told) == 1 and "'a.mask'" in told[0]
        assert select_parameters(graph, "all,!a.mask") == {"w", "a.bias"}


def test_batch_norm_statistics(tmp_path: Path) -> None:
    weights = {"s": normal(3), "b": normal(3), "m": normal(3), "v": np.ones(3, np.float32)}
    node = make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "rm", "rv"], training_mode=1, momentum=0.7)
    graph = load(save(make([node], {"x": (2, 3, 4, 4)}, ["y"], weights, opset=15), tmp_path))
    assert parameters(graph) == {"s", "b"}
    assert {t.name for t in graph.tensors.values() if t.role is Role.STATISTIC} == {"m", "v"}
    assert graph.operators[0].attributes["training"] is False
    assert abs(float(str(graph.operators[0].attributes["momentum"])) - 0.7) < 1e-6


def test_a_bias_of_one_channel_is_trained(tmp_path: Path) -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["p"]), make_node("Add", ["p", "b"], ["y"])]
    graph = load(save(make(nodes, {"x": (5, 4)}, ["y"], {"w": normal(4, 1), "b": normal(1)}), tmp_path))
    assert parameters(graph) == {"w", "b"}


def test_tied_weights_stay_tied_and_are_told(tmp_path: Path) -> None:
    nodes = [
        make_node("Gather", ["table", "tokens"], ["e"]),
        make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        make_node("MatMul", ["e", "t"], ["y"]),
    ]
    graph = load(save(make(nodes, {"tokens": (TensorProto.INT64, (2, 3))}, ["y"], {"table": normal(7, 4)}), tmp_path))
    assert parameters(graph) == {"table"}
    assert [op.kind for op in graph.operators] == ["Gather", "MatMul"]
    assert any("'table' is the weight of 2 operators" in note for note in graph.notes)


def test_untied_embeddings_are_told(tmp_path: Path) -> None:
    table = normal(7, 4)
    nodes = [make_node("Gather", ["table", "tokens"], ["e"]), make_node("MatMul", ["e", "head"], ["y"])]
    inputs = {"tokens": (TensorProto.INT64, (2, 3))}
    graph = load(save(make(nodes, inputs, ["y"], {"table": table, "head": table.T.copy()}), tmp_path))
    assert parameters(graph) == {"table", "head"}
    assert any("'table' and 'head' hold the same numbers" in note for note in graph.notes)
    graph = load(save(make(nodes, inputs, ["y"], {"table": table, "head": normal(4, 7)}), tmp_path))
    assert not graph.notes


def test_decisions_cover_every_value_in_order(tmp_path: Path) -> None:
    nodes = [make_node("Conv", ["x", "k", "b"], ["c"]), make_node("Mul", ["c", "scale"], ["y"])]
    weights = {"k": normal(2, 3, 3, 3), "b": normal(2), "scale": normal(2, 1, 1)}
    graph = load(save(make(nodes, {"x": (1, 3, 5, 5)}, ["y"], weights), tmp_path))
    decisions = parameter_decisions(graph)
    assert [d.name for d in decisions] == ["b", "k", "scale"]
    assert {d.reason for d in decisions} == {"convolution weight", "convolution bias", "factor"}


def test_encodings_of_positions_are_not_trained(tmp_path: Path) -> None:
    """Tables of sines and cosines stand where weights do: rotary embeddings, and the encoding of the first
    transformers."""
    angles = np.outer(np.arange(6), [1.0, 0.1, 0.01, 0.001])
    sine, cosine = np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)
    nodes = [
        make_node("Mul", ["p", "cosine"], ["a"]),
        make_node("Mul", ["p", "sine"], ["b"]),
        make_node("Add", ["a", "b"], ["rotated"]),
        make_node("Concat", ["rotated", "rotated"], ["wide"], axis=1),
        make_node("Add", ["wide", "halves"], ["c"]),
        make_node("Add", ["c", "interleaved"], ["d"]),
        make_node("Add", ["d", "learned"], ["y"]),
        make_node("Relu", ["x"], ["p"]),
    ]
    weights = {
        "cosine": cosine, "sine": sine, "halves": np.hstack([sine, cosine]), "learned": normal(6, 8),
        "interleaved": np.stack([sine, cosine], 2).reshape(6, 8),
    }  # fmt: skip
    assert parameters(load(save(make(nodes, {"x": (6, 4)}, ["y"], weights), tmp_path))) == {"learned"}


def test_an_encoding_of_odd_width_is_not_trained(tmp_path: Path) -> None:
    """Its last sine has no cosine."""
    angles = np.outer(np.arange(6), [1.0, 0.1])
    table = np.hstack([np.stack([np.sin(angles), np.cos(angles)], 2).reshape(6, 4), np.sin(angles[:, :1] / 100)])
    nodes = [make_node("Add", ["x", "table"], ["a"]), make_node("Add", ["a", "learned"], ["y"])]
    weights = {"table": table.astype(np.float32), "learned": normal(6, 5)}
    assert parameters(load(save(make(nodes, {"x": (6, 5)}, ["y"], weights), tmp_path))) == {"learned"}


def test_a_constant_of_a_single_one_is_no_scale_to_train(tmp_path: Path) -> None:
    """An instance norm without a scale of its own, over one channel."""
    numbers = {name: onnx.numpy_helper.from_array(np.full(1, x, np.float32)) for name, x in (("s", 1), ("b", 0))}
    nodes = [make_node("Constant", [], [name], value=value) for name, value in numbers.items()]
    nodes += [make_node("InstanceNormalization", ["x", "s", "b"], ["a"]), make_node("Add", ["a", "w"], ["y"])]
    graph = load(save(make(nodes, {"x": (2, 1, 3, 3)}, ["y"], {"w": normal(3, 3)}), tmp_path))
    assert parameters(graph) == {"w"}
