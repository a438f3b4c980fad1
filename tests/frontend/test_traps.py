"""What exporters do to models, from the file to emitted C. Further ones: test_reading.py and test_roles.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc import api, training
from poetc.frontend import load
from poetc.training import TrainingOptions
from tests.frontend.support import assert_agrees, evaluate, kinds, make, normal, parameters, save
from tests.support import graphs


def convolutions(count: int, *, bias: bool) -> onnx.ModelProto:
    nodes, weights = [], dict[str, np.ndarray]()
    for k in range(count):
        inputs = [f"h{k}", f"w{k}", *([f"b{k}"] if bias else [])]
        nodes.append(make_node("Conv", inputs, [f"h{k + 1}"], pads=[1, 1, 1, 1]))
        weights[f"w{k}"] = normal(2, 2, 3, 3, seed=k)
        if bias:
            weights[f"b{k}"] = normal(2, seed=k)
    return make(nodes, {"h0": (1, 2, 4, 4)}, [f"h{count}"], weights)


def test_a_folded_batch_norm_is_suspected(tmp_path: Path) -> None:
    suspicion = "batch norms may be folded"
    assert any(suspicion in note for note in load(save(convolutions(9, bias=True), tmp_path)).notes)
    assert not load(save(convolutions(9, bias=False), tmp_path)).notes


def test_merged_initializers_are_told(tmp_path: Path) -> None:
    """An exporter keeps one of several equal tensors: biases that all began as zeros become one weight."""
    nodes = [
        make_node("Gemm", ["x", "w1", "zeros"], ["h"]),
        make_node("Relu", ["h"], ["r"]),
        make_node("Gemm", ["r", "w2", "zeros"], ["y"]),
    ]
    weights = {"w1": normal(4, 4), "w2": normal(4, 4, seed=2), "zeros": np.zeros(4, np.float32)}
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"w1", "w2", "zeros"}
    (note,) = graph.notes
    assert "'zeros' is the weight of 2 operators" in note
    assert "tied" in note


def test_shapes_computed_in_the_graph_are_numbers(tmp_path: Path) -> None:
    """x.view(x.size(0), -1, 2), spelled with Shape, Gather, Unsqueeze and Concat."""
    nodes = [
        make_node("Relu", ["x"], ["r"]),
        make_node("Shape", ["r"], ["shape"]),
        make_node("Gather", ["shape", "zero"], ["rows"]),
        make_node("Unsqueeze", ["rows", "axes"], ["first"]),
        make_node("Concat", ["first", "rest"], ["to"], axis=0),
        make_node("Reshape", ["r", "to"], ["v"]),
        make_node("MatMul", ["v", "w"], ["y"]),
    ]
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1, 2]), "w": normal(2, 3)}
    model = make(nodes, {"x": (4, 6)}, ["y"], weights)
    graph = assert_agrees(model, {"x": normal(4, 6)}, tmp_path)
    assert kinds(graph) == ["Relu", "MatMul"]
    symbolic = make(nodes, {"x": ("N", 6)}, ["y"], weights)
    assert load(save(symbolic, tmp_path), batch=3).tensors["y"].shape == (3, 3, 3)


@pytest.mark.parametrize("odd", ["model/act;bn:0/" + "x" * 200, 'ümlaut */ "b\\" %s ??/'])
def test_hard_names_reach_the_compiler(tmp_path: Path, odd: str) -> None:
    nodes = [
        make_node("Gather", [f"{odd}table", "tokens"], [f"{odd}e"], name=odd),
        make_node("MatMul", [f"{odd}e", f"{odd}w"], [f"{odd}y"]),
    ]
    inputs = {"tokens": (TensorProto.INT64, (2, 3))}
    weights = {f"{odd}table": normal(5, 4), f"{odd}w": normal(4, 3)}
    path = save(make(nodes, inputs, [f"{odd}y"], weights), tmp_path)
    solved = api.load(path).solve(device="host", budget="100%", time_limit_s=1)
    source = tmp_path / "src"
    solved.emit(source)
    done = subprocess.run(["make", "-s", "-C", source, "train"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert load(path).tensors[f"{odd}table"].shape == (5, 4)


def classifier(loss: list[onnx.NodeProto], *outputs: str) -> onnx.ModelProto:
    """Four features, three classes, and a loss in the model."""
    nodes = [make_node("Gemm", ["x", "w", "b"], ["scores"]), *loss]
    weights = {"w": normal(4, 3), "b": normal(3), "importance": np.array([0.5, 1, 2], np.float32)}
    return make(nodes, {"x": (5, 4), "labels": (TensorProto.INT64, (5,))}, outputs, weights)


def test_a_model_that_ends_in_its_loss_is_trained_on_it(tmp_path: Path) -> None:
    loss = [make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss", "log"], ignore_index=1)]
    step = training.build(load(save(classifier(loss, "loss"), tmp_path)), TrainingOptions())
    assert step.inputs == ("x",)  # the labels are the target
    options = TrainingOptions(loss="cross-entropy", ignore_index=1)
    plain = training.build(load(save(classifier([], "scores"), tmp_path)), options)
    feeds = {"x": normal(5, 4), "target": np.array([2, 0, 1, 1, 0], np.int32)}
    results = [graphs.evaluate(s, {**graphs.random_inputs(s), **feeds}) for s in (step, plain)]
    for one, other in ((step.loss, plain.loss), *zip(step.gradients.values(), plain.gradients.values(), strict=True)):
        np.testing.assert_array_equal(results[0][one], results[1][other])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("fused", [True, False])
def test_gradients_of_weighted_losses_in_the_model(tmp_path: Path, reduction: str, fused: bool) -> None:
    """Finite differences of ONNX's own loss; the model's outputs are trained towards a target of 0."""
    inputs = ["scores", "labels", "importance"] if fused else ["log", "labels", "importance"]
    nodes = [] if fused else [make_node("LogSoftmax", ["scores"], ["log"], axis=1)]
    op = "SoftmaxCrossEntropyLoss" if fused else "NegativeLogLikelihoodLoss"
    nodes.append(make_node(op, inputs, ["loss"], reduction=reduction, ignore_index=-7))
    model = classifier(nodes, "loss")
    labels = np.array([2, 0, 1, -7, 0])
    graph = assert_agrees(model, {"x": normal(5, 4), "labels": labels}, tmp_path)
    step = training.build(graph, TrainingOptions(loss="l1", train="w,b"))
    inputs64 = {**graphs.random_inputs(step), "x": normal(5, 4).astype(np.float64), "labels": labels.astype(np.int32)}
    inputs64["target"] = np.zeros(step.tensors["target"].shape)
    values = graphs.evaluate(step, inputs64)
    for parameter, gradient in step.gradients.items():
        direction = normal(*step.tensors[parameter].shape, seed=9).astype(np.float64)
        around = [{**inputs64, parameter: values[parameter] + e * direction} for e in (1e-6, -1e-6)]
        above, below = (float(graphs.evaluate(step, moved)[step.loss]) for moved in around)
        assert np.sum(values[gradient] * direction) == pytest.approx((above - below) / 2e-6, rel=1e-5)


def test_outputs_that_nobody_reads_change_nothing(tmp_path: Path) -> None:
    """Exporters name the mask of a Dropout, the running statistics of a norm, the indices of a pooling."""
    nodes = [
        make_node("Conv", ["x", "w"], ["c"]),
        make_node("MaxPool", ["c"], ["p", "where"], kernel_shape=[2, 2]),
        make_node("Dropout", ["p", "ratio", "training"], ["y", "mask"]),
    ]
    weights = {"w": normal(2, 2, 3, 3), "ratio": np.array(0.25, np.float32), "training": np.array(True)}
    graph = load(save(make(nodes, {"x": (1, 2, 6, 6)}, ["y"], weights), tmp_path))
    assert kinds(graph) == ["Conv", "MaxPool"]
    step = training.build(graph, TrainingOptions(loss="mse", dropout=True))
    assert [op.kind for op in step.operators].count("Dropout") == 1


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_gates_are_saved_once(tmp_path: Path, op: str, gates: int) -> None:
    """Split behind their activation they would be kept twice: whole for its gradient, in parts for the products."""
    hidden = 3
    weights = {"w": normal(1, gates * hidden, 5), "r": normal(1, gates * hidden, hidden, seed=1)}
    node = make_node(op, ["x", "w", "r"], ["y"], hidden_size=hidden, linear_before_reset=1)
    if op == "LSTM":
        del node.attribute[-1]
    graph = load(save(make([node], {"x": (4, 2, 5)}, ["y"], weights), tmp_path))
    made = {t: o for o in graph.operators for t in o.outputs}
    assert not [o for o in graph.operators if o.kind == "Split" and made[o.inputs[0]].kind == "Sigmoid"]


def test_a_query_that_may_look_at_nothing_gets_zeros(tmp_path: Path) -> None:
    nodes = [make_node("Attention", ["q", "q", "q", "mask"], ["y"])]
    mask = np.array([[True, False], [False, False]])
    model = make(nodes, {"q": (1, 1, 2, 3)}, ["y"], {"mask": mask}, opset=23)
    graph = load(save(model, tmp_path))
    y = evaluate(graph, {"q": normal(1, 1, 2, 3)})["y"]
    np.testing.assert_allclose(y[0, 0, 0], normal(1, 1, 2, 3)[0, 0, 0], rtol=1e-6)
    assert not y[0, 0, 1].any()


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_biases_that_a_norm_takes_away_are_not_trained(tmp_path: Path, op: str) -> None:
    """Their gradient is zero: what would be computed, and compared, is rounding."""
    nodes = [
        make_node(op, ["x", "w", "b"], ["c"]),
        make_node("InstanceNormalization", ["c", "s", "o"], ["y"]),
    ]
    weights = {"w": normal(3, 3, 2), "b": normal(3), "s": normal(3, seed=1), "o": normal(3, seed=2)}
    graph = load(save(make(nodes, {"x": (2, 3, 8)}, ["y"], weights), tmp_path))
    step = training.build(graph, TrainingOptions(loss="mse"))
    assert step.zero_gradients == ("b",)
    assert set(step.gradients) == {"w", "s", "o"}
    assert not training.build(graph, TrainingOptions(loss="mse", weight_decay=0.1)).zero_gradients


@pytest.mark.parametrize("cap", [-1.0, 0.0])
def test_a_softcap_that_is_not_positive_caps_nothing(tmp_path: Path, cap: float) -> None:
    node = make_node("Attention", ["q", "q", "q"], ["y"], softcap=cap)
    graph = load(save(make([node], {"q": (1, 1, 2, 3)}, ["y"], opset=23), tmp_path))
    assert "Tanh" not in kinds(graph)


def test_a_file_with_a_training_step_is_its_forward_part(tmp_path: Path) -> None:
    """Whose products are of three axes, and whose list of axes is one number."""
    squeeze = make_node("Squeeze", ["h"], ["scores"])
    squeeze.attribute.append(onnx.helper.make_attribute("axes", 1))
    nodes = [
        make_node("Gemm", ["x", "w", "b"], ["h"], alpha=0.5),
        squeeze,
        make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss", "log"]),
        make_node("SoftmaxCrossEntropyLossGrad", ["log", "labels"], ["d"], domain="com.microsoft"),
        make_node("SGD", ["b", "d"], ["b_updated"]),
    ]
    weights = {"w": normal(1, 4, 3), "b": normal(3)}
    model = make(nodes, {"x": (2, 1, 4), "labels": (TensorProto.INT64, (2,))}, ["b_updated"], weights, opset=12)
    graph = load(save(model, tmp_path))
    x = normal(2, 1, 4)
    expected = (0.5 * x @ weights["w"] + weights["b"])[:, 0]
    np.testing.assert_allclose(evaluate(graph, {"x": x})["scores"], expected, rtol=1e-5)
    assert graph.inputs == ("x",)
    assert any("it updated b (--train takes names)" in n for n in graph.notes)
    assert any("read as a batch" in n for n in graph.notes)
