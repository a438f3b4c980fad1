"""Loss and metrics of an evaluation, beside what their definitions give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.loop import Loss, default_metrics, parse_metrics
from poetc.loop.metrics import Meter

CLASSES = Loss("CrossEntropy", {"axis": 1}, "logits", (4, 3))


def _softmax_loss(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]


def test_classes() -> None:
    random = np.random.default_rng(0)
    scores, labels = random.standard_normal((7, 3)).astype(np.float32), np.array([0, 1, 2, 2, 1, 0, 1], np.int32)
    meter = Meter([CLASSES], parse_metrics("accuracy,top2,confusion,perplexity", CLASSES))
    meter.add({"logits": scores[:4]}, {"target": labels[:4]}, 1)
    rest, repeated = np.concatenate([scores[4:], scores[6:]]), np.concatenate([labels[4:], labels[6:]])
    meter.add({"logits": rest}, {"target": repeated}, 3 / 4)
    found = meter.result()
    losses = _softmax_loss(scores.astype(float), labels)
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-6)
    assert found["accuracy"] == pytest.approx((scores.argmax(axis=1) == labels).mean())
    order = np.argsort(-scores, axis=1)[:, :2]
    assert found["top2"] == pytest.approx((order == labels[:, None]).any(axis=1).mean())
    matrix = np.zeros((3, 3), int)
    for true, guess in zip(labels, scores.argmax(axis=1), strict=True):
        matrix[true, guess] += 1
    assert found["confusion"] == matrix.tolist()


def test_targets_that_are_ignored_count_for_nothing() -> None:
    loss = Loss("CrossEntropy", {"axis": 1, "ignore_index": -1}, "logits", (4, 3))
    scores, labels = np.eye(4, 3, dtype=np.float32), np.array([0, -1, -1, 0], np.int32)
    meter = Meter([loss], ("accuracy",))
    meter.add({"logits": scores}, {"target": labels}, 1)
    meter.add({"logits": scores}, {"target": np.full(4, -1, np.int32)}, 1)
    found = meter.result()
    assert found["loss"] == pytest.approx(_softmax_loss(scores[[0, 3]].astype(float), labels[[0, 3]]).mean())
    assert found["accuracy"] == 1.0


@pytest.mark.parametrize("last", ["Softmax", "LogSoftmax"])
def test_probabilities_give_the_loss_of_their_logits(last: str) -> None:
    logits = np.random.default_rng(1).standard_normal((4, 3))
    output = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([0, 1, 2, 0], np.int32)
    meter = Meter([Loss("CrossEntropy", {"axis": 1}, "p", (4, 3), last)], ())
    meter.add({"p": output if last == "Softmax" else np.log(output)}, {"target": labels}, 1)
    assert meter.result()["loss"] == pytest.approx(_softmax_loss(logits, labels).mean(), rel=1e-6)


def test_numbers() -> None:
    loss = Loss("Huber", {"delta": 1.0}, "y", (2, 2))
    found, target = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.5], [0.0, 4.0]])
    meter = Meter([loss], ("mse", "mae"))
    meter.add({"y": found}, {"target": target}, 1)
    assert meter.result() == {"loss": (0.125 + 2.5) / 4, "mse": (0.25 + 9) / 4, "mae": 3.5 / 4}


def test_several_losses_add_up_with_their_weights() -> None:
    scores, labels = np.random.default_rng(2).standard_normal((4, 3)), np.array([0, 1, 2, 0], np.int32)
    weights = (1.0, 2.0, 0.5)
    first = Loss("CrossEntropy", {"axis": 1, "class_weights": weights}, "logits", (4, 3), target="t")
    second = Loss("MeanSquaredError", {}, "y", (4, 1), target="t2", times=0.25)
    y = np.arange(4.0).reshape(4, 1)
    meter = Meter([first, second], ("accuracy",))
    for part in (slice(0, 2), slice(2, 4)):  # the first halves of two batches
        given = {"t": np.tile(labels[part], 2), "t2": np.zeros((4, 1))}
        meter.add({"logits": np.tile(scores[part], (2, 1)), "y": np.tile(y[part], (2, 1))}, given, 0.5)
    of_target = np.array(weights)[labels]
    expected = (of_target * _softmax_loss(scores, labels)).sum() / of_target.sum() + 0.25 * np.square(y).mean()
    assert meter.result()["loss"] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["top", "top0", "top3", "top50", "top²", "f1", "mse"])
def test_metrics_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"--metrics {name}"):
        parse_metrics(name, CLASSES)


def test_a_loss_of_numbers_has_no_share_of_right_ones() -> None:
    with pytest.raises(UsageError, match="--metrics accuracy: the loss Huber of this model gives no classes"):
        parse_metrics("accuracy", Loss("Huber", {"delta": 1.0}, "y", (2, 2)))


def test_a_sigmoid_that_was_rounded_to_one_does_not_drown_the_others() -> None:
    logits = np.array([20.0, 1, 1, 1], np.float32)
    loss = Loss("BceWithLogits", {}, "p", (4,), "Sigmoid")
    meter = Meter([loss], ())
    meter.add({"p": (1 / (1 + np.exp(-logits))).astype(np.float32)}, {"target": np.zeros(4, np.float32)}, 1)
    assert meter.result()["loss"] == pytest.approx(np.log1p(np.exp(logits.astype(float))).mean(), rel=0.2)


def test_losses_of_labels_have_no_metrics_and_cut_the_axis_of_samples() -> None:
    loss = Loss("Ctc", {"blank": 0, "time_first": 1}, "logits", (8, 4, 5))
    assert default_metrics(loss) == ()
    with pytest.raises(UsageError, match="--metrics mae"):
        parse_metrics("mae", loss)
    meter = Meter([loss], ())
    meter.add({"logits": np.zeros((8, 4, 5), np.float32)}, {"target": np.full((4, 2), 1, np.int32)}, 0.5)
    assert np.isfinite(meter.result()["loss"])
    meter.add({"logits": np.full((8, 4, 5), np.nan, np.float32)}, {"target": np.full((4, 2), 1, np.int32)}, 1)
    assert np.isnan(meter.result()["loss"])
