"""Facts about a model that the training data tell, and the losses of probabilities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetc import TrainingOptions, load
from poetc.loop.metrics import Loss, Meter
from poetc.training import build
from tests.cli.conftest import Ended
from tests.support.cases import CASES
from tests.support.graphs import evaluate

Run = Callable[..., Ended]


def _train(poetc: Run, tmp_path: Path, model: Path, data: object, *more: object) -> Ended:
    return poetc("train", model, "--data", data, "--epochs", 1, "-o", tmp_path / "out.onnx", "--force", "--json", *more)


def test_a_logistic_regression_trains_on_its_own_probabilities(tmp_path: Path, poetc: Run) -> None:
    data = f"{CASES / 'sk_lr2.npz'}:X,target"
    ended = _train(poetc, tmp_path, CASES / "sk_lr2.onnx", data, "--batch", 40, "--validation", data, "--lr", 1e-6)
    assert ended.code == 0, ended.err
    with np.load(CASES / "sk_lr2.npz") as archive:
        assert ended.json["before"]["loss"] == pytest.approx(float(archive["ll"]), rel=1e-5)
        assert ended.json["before"]["accuracy"] == pytest.approx(float(archive["acc"]))
    assert ended.json["epochs"][0]["loss"] == pytest.approx(ended.json["before"]["loss"], rel=1e-4)
    assert "loss nll on output 'probabilities'" in ended.err


def test_the_target_leaves_out_the_axis_of_classes(tmp_path: Path, poetc: Run) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((10, 3, 10)).astype(np.float32)
    losses = {}
    for axis, length in ((1, 10), (2, 4)):
        np.savez(tmp_path / "d.npz", x=x, y=random.integers(0, 4, (10, length)))
        ended = _train(poetc, tmp_path, CASES / "ncl_logits.onnx", tmp_path / "d.npz")
        assert ended.code == 0, ended.err
        assert f"classes along axis {axis}" in ended.err
        losses[axis] = ended.json["epochs"][0]["loss"]
    np.savez(tmp_path / "d.npz", x=x, y=random.integers(0, 4, (10, 7)))
    ended = _train(poetc, tmp_path, CASES / "ncl_logits.onnx", tmp_path / "d.npz")
    assert ended.code == 2
    assert "y has shape [10, 7]" in ended.err


def _plain(path: Path, *, clipped: bool) -> Path:
    """Scores [N, 4, 4] without a layer; `clipped`: a softmax that no rule recognises."""
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    if clipped:
        nodes = [
            helper.make_node("Add", ["x", "w"], ["s"]),
            helper.make_node("Exp", ["s"], ["e"]),
            helper.make_node("Einsum", ["e"], ["t"], equation="nij->ni"),
            helper.make_node("Unsqueeze", ["t", "two"], ["u"]),
            helper.make_node("Reciprocal", ["u"], ["r"]),
            helper.make_node("Mul", ["e", "r"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 4])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.linspace(0.5, 1, 16).reshape(4, 4).astype(np.float32), "w"),
         numpy_helper.from_array(np.array([2]), "two")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_an_axis_that_nothing_shows_is_asked_for(tmp_path: Path, poetc: Run) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((6, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=random.integers(0, 4, (6, 4)))
    model = _plain(tmp_path / "m.onnx", clipped=False)
    ended = _train(poetc, tmp_path, model, tmp_path / "d.npz", "--loss", "cross-entropy")
    assert ended.code == 2
    assert "does not show which axis holds the classes, and the target fits 1 and 2; give --class-axis" in ended.err
    for axis in (1, 2):
        ended = _train(
            poetc, tmp_path, model, tmp_path / "d.npz", "--loss", "cross-entropy", "--class-axis", axis, "--lr", 1e-9
        )
        assert ended.code == 0, ended.err
        scores = np.moveaxis(x + np.linspace(0.5, 1, 16).reshape(4, 4), axis, -1)
        log_p = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        with np.load(tmp_path / "d.npz") as archive:
            wanted = -np.take_along_axis(log_p, archive["y"][:, :, None], -1).mean()
        assert ended.json["epochs"][0]["loss"] == pytest.approx(wanted, rel=1e-5)


def test_losses_of_probabilities_are_those_of_their_logits(tmp_path: Path) -> None:
    """Step and evaluation, beside -log p computed here."""
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 4, 4)).astype(np.float32)
    graph = load(_plain(tmp_path / "m.onnx", clipped=True)).graph
    e = np.exp(x.astype(np.float64) + np.linspace(0.5, 1, 16).reshape(4, 4))
    p = e / e.sum(axis=2, keepdims=True)
    labels, truth = random.integers(0, 4, (2, 4)), random.integers(0, 2, (2, 4, 4)).astype(np.float32)
    cross = -np.log(np.take_along_axis(p, labels[:, :, None], 2)).mean()
    binary = -(truth * np.log(p) + (1 - truth) * np.log1p(-p)).mean()
    for loss, axis, target, wanted in (
        ("nll", 2, labels, cross), ("auto", 2, labels, cross), ("bce-probabilities", None, truth, binary)
    ):  # fmt: skip
        step = build(graph, TrainingOptions(loss=loss, class_axis=axis))
        values = evaluate(step, {"x": x, "target": target})
        assert float(values[step.loss]) == pytest.approx(wanted, rel=1e-6)
        (of,) = Loss.of(step, graph)
        meter = Meter([of], ())
        meter.add({"y": p.astype(np.float32)}, {"target": target}, 1)
        assert meter.result()["loss"] == pytest.approx(wanted, rel=1e-5)
        (gradient,) = step.gradients.values()
        assert np.isfinite(values[gradient]).all() and np.abs(values[gradient]).max() > 0


def test_one_class_a_sample_is_no_output_to_restore(tmp_path: Path, poetc: Run) -> None:
    """Two features in, two logits out: of one shape, so `auto` alone would take the input for the target."""
    random = np.random.default_rng(0)
    weight = numpy_helper.from_array(random.standard_normal((2, 2)).astype(np.float32), "w")
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", *([end] for end in ends), [weight])
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), model)
    x = random.standard_normal((16, 2)).astype(np.float32)
    scores = x.astype(np.float64) @ numpy_helper.to_array(weight)
    labels = random.integers(0, 2, 16)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    cross = float(-np.log(p[np.arange(16), labels]).mean())
    for target, wanted in ((labels, cross), (x, float(np.square(scores - x).mean()))):
        np.savez(tmp_path / "d.npz", x=x, y=target)
        ended = _train(poetc, tmp_path, model, f"{tmp_path / 'd.npz'}:x,y", "--batch", 16, "--lr", 1e-6)
        assert ended.code == 0, ended.err
        assert ended.json["epochs"][0]["loss"] == pytest.approx(wanted, rel=1e-5)


def test_gaps_in_a_table_are_filled_by_the_model(tmp_path: Path, poetc: Run) -> None:
    """Empty cells of a CSV, and NaN in Python: by onnxruntime's numbers."""
    model = CASES / "imputer_mlp.onnx"
    ended = _train(
        poetc, tmp_path, model, CASES / "imputer_mlp.csv", "--batch", 8, "--validation", CASES / "imputer_mlp.csv"
    )
    assert ended.code == 0, ended.err
    assert np.isfinite(ended.json["epochs"][0]["loss"])
    x = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    x[2, 1] = np.nan
    solved = load(CASES / "nan_where.onnx", training=TrainingOptions(loss="cross-entropy")).solve(time_limit_s=5)
    with solved.trainer() as trainer:
        found = trainer.predict(x)
        assert np.isfinite(trainer.step(x, np.zeros(8, np.int32)))
        with pytest.raises(ValueError, match=r"x\[0, 0\] is inf"):
            trainer.predict(np.full((8, 3), np.inf, np.float32))
    session = onnxruntime.InferenceSession(str(CASES / "nan_where.onnx"), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)


def _speech(path: Path, steps: int, samples: int, *, is_time_first: bool) -> Path:
    """An LSTM over [steps, samples, 2] and a product; else the same over [samples, steps, 2]."""
    random = np.random.default_rng(4)
    shapes = {"w": (1, 12, 2), "r": (1, 12, 3), "v": (3, 4)}
    weights = {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    turned = not is_time_first
    nodes = [
        *[helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2])] * turned,
        helper.make_node("LSTM", ["t" if turned else "x", "w", "r"], ["h"], hidden_size=3),
        helper.make_node("Squeeze", ["h", "one"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["u" if turned else "y"]),
        *[helper.make_node("Transpose", ["u"], ["y"], perm=[1, 0, 2])] * turned,
    ]
    given = [samples, steps, 2] if turned else [steps, samples, 2]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(a, n) for n, a in {**weights, "one": np.array([1])}.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("steps", [4, 6])
def test_samples_may_lie_along_the_second_axis(tmp_path: Path, poetc: Run, steps: int) -> None:
    """Data are samples first; trained weights are those of the model that takes them so. Four steps look like four
    samples."""
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((8, steps, 2)).astype(np.float32), random.integers(1, 4, (8, steps // 2))
    np.savez(tmp_path / "d.npz", x=x, y=labels)
    rows = []
    for is_time_first in (True, False):
        model = _speech(tmp_path / "m.onnx", steps, 4, is_time_first=is_time_first)
        data = tmp_path / "d.npz"
        ended = _train(poetc, tmp_path, model, data, "--loss", "ctc", "--validation", data)
        assert ended.code == 0, ended.err
        order = "[steps, batch, classes] (a run shows" if is_time_first else "[batch, steps, classes]"
        assert f"taken as {order}" in ended.err
        rows.append((ended.json["before"]["loss"], ended.json["epochs"][0]["loss"]))
        rows.append(ended.json["epochs"][0]["validation_loss"])
    assert rows[0] == pytest.approx(rows[2], rel=1e-6)
    assert rows[1] == pytest.approx(rows[3], rel=1e-6)


@pytest.mark.parametrize("steps", [4, 6])
def test_targets_like_the_output_are_turned_with_it(tmp_path: Path, poetc: Run, steps: int) -> None:
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((8, steps, n)).astype(np.float32) for n in (2, 4))
    np.savez(tmp_path / "d.npz", x=x, y=y)
    np.savez(tmp_path / "v.npz", x=x[:6], y=y[:6])  # the last batch is half full
    found = []
    for is_time_first in (True, False):
        model = _speech(tmp_path / "m.onnx", steps, 4, is_time_first=is_time_first)
        ended = _train(poetc, tmp_path, model, tmp_path / "d.npz", "--loss", "mse", "--validation", tmp_path / "v.npz")
        assert ended.code == 0, ended.err
        found += [ended.json["before"]["loss"], ended.json["epochs"][0]["loss"]]
    assert found[:2] == pytest.approx(found[2:], rel=1e-6)
