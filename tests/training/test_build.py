"""Autodiff and optimizers on a whole model, against finite differences and PyTorch's update rules."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.graph import Phase, Role
from poetc.passes import check_graph, run_standard
from poetc.training import TrainingOptions, build
from tests.support.graphs import evaluate, random_inputs, small_cnn


@pytest.mark.parametrize("mode", ["train", "frozen"])
def test_gradients_match_finite_differences(mode: str) -> None:
    step = build(small_cnn(), TrainingOptions(batch_norm=mode))
    check_graph(step)
    inputs = random_inputs(step)
    values = evaluate(step, inputs)
    random = np.random.default_rng(2)
    for parameter, gradient in step.gradients.items():
        direction = random.standard_normal(step.tensors[parameter].shape)
        losses = []
        for sign in (1, -1):
            moved = {**inputs, parameter: values[parameter] + sign * 1e-6 * direction}
            # `inputs` override the stored values, in float64
            losses.append(float(evaluate(step, moved)[step.loss]))
        finite = (losses[0] - losses[1]) / 2e-6
        assert np.sum(values[gradient] * direction) == pytest.approx(finite, rel=1e-5, abs=1e-8), parameter


def test_every_parameter_is_trained_and_updated_once() -> None:
    graph = small_cnn()
    step = build(graph, TrainingOptions(optimizer="adam"))
    parameters = {n for n, t in graph.tensors.items() if t.role is Role.PARAMETER}
    assert set(step.gradients) == parameters
    adams = [op for op in step.operators if op.kind == "Adam"]
    assert {op.inputs[0] for op in adams} == parameters
    assert sum(op.kind == "BatchNormUpdate" for op in step.operators) == 2
    for old, new in step.updates.items():
        assert step.tensors[new].role is step.tensors[old].role
        assert new == f"{old}@1"


def test_updates_follow_their_gradients() -> None:
    """Gradients are never all alive: no update waits for the end of the backward pass."""
    step = run_standard(build(small_cnn(), TrainingOptions()))
    position = {op.name: i for i, op in enumerate(step.operators)}
    first_update = next(i for i, op in enumerate(step.operators) if op.kind == "Sgd")
    last_backward = max(position[op.name] for op in step.operators if op.phase is Phase.BACKWARD)
    assert first_update < last_backward


def test_momentum_follows_pytorch() -> None:
    step = build(small_cnn(), TrainingOptions(optimizer="momentum", learning_rate=0.1, momentum=0.9))
    inputs = random_inputs(step)
    values = evaluate(step, inputs)
    weight = values["fc.weight"]
    gradient = values[step.gradients["fc.weight"]]
    velocity = np.full_like(gradient, 0.25)
    again = evaluate(step, {**inputs, "fc.weight:velocity": velocity})
    rate = float(np.float32(0.1))
    np.testing.assert_allclose(again["fc.weight@1"], weight - rate * (0.9 * velocity + gradient), rtol=1e-6)


def test_running_statistics_move_only_in_train_mode() -> None:
    for mode, expected in (("train", 4), ("frozen", 0)):
        step = build(small_cnn(), TrainingOptions(batch_norm=mode))
        assert sum(step.tensors[t].role is Role.STATISTIC for t in step.updates) == expected


def test_last_layer_only_needs_no_backward_below_it() -> None:
    step = build(small_cnn(), TrainingOptions(train="last:1"))
    assert set(step.gradients) == {"fc.weight", "fc.bias"}
    assert not any(op.kind.startswith(("ConvGrad", "BatchNormGrad", "BatchNormStats")) for op in step.operators)
    assert step.tensors["stem.weight"].role is Role.CONSTANT


def test_patterns_choose_parameters() -> None:
    assert set(build(small_cnn(), TrainingOptions(train="*.bias,bn0.scale")).gradients) == {
        "bn0.bias",
        "bn1.bias",
        "fc.bias",
        "bn0.scale",
    }
    with pytest.raises(UsageError, match=r"fc\.wieght.*fc\.weight"):
        build(small_cnn(), TrainingOptions(train="fc.wieght"))
    with pytest.raises(UsageError, match="last:N"):
        build(small_cnn(), TrainingOptions(train="last:x"))


def test_bad_options_name_the_option() -> None:
    for kwargs, option in (
        ({"loss": "hinge"}, "--loss"),
        ({"optimizer": "lion"}, "--optimizer"),
        ({"learning_rate": -1.0}, "--lr"),
        ({"batch_norm": "off"}, "--batch-norm"),
        ({"learning_rate": float("nan")}, "--lr"),
    ):
        with pytest.raises(UsageError, match=option):
            TrainingOptions(**kwargs)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--output"):
        build(small_cnn(), TrainingOptions(output="nope"))


def test_biases_that_batch_norm_cancels_are_left_alone() -> None:
    """Their gradient is zero; in float32 it would come out as rounding errors and the biases would drift."""
    graph = small_cnn(conv_bias=True)
    step = build(graph, TrainingOptions())
    assert step.zero_gradients == ("block.bias", "stem.bias")
    assert not {"block.bias", "stem.bias"} & step.gradients.keys()
    inputs = random_inputs(step)
    loss = float(evaluate(step, inputs)[step.loss])
    moved = {**inputs, "stem.bias": np.full(4, 3.0)}
    assert float(evaluate(step, moved)[step.loss]) == pytest.approx(loss, rel=1e-9)
    for options in (TrainingOptions(batch_norm="frozen"), TrainingOptions(weight_decay=1e-3)):
        assert "stem.bias" in build(graph, options).gradients
