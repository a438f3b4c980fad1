"""Autodiff and optimizers on a whole model, against finite differences and PyTorch's update rules."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.graph import Graph, Phase, Role, TensorType
from poetc.ops import Builder
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


def test_defaults_are_those_of_the_optimizer() -> None:
    def chosen(optimizer: str) -> tuple[float, ...]:
        o = TrainingOptions(optimizer=optimizer)
        return o.momentum, o.beta2, o.epsilon

    assert chosen("sgd") == chosen("adam") == (0.9, 0.999, 1e-8)
    assert chosen("rmsprop")[0] == 0
    assert chosen("lion")[1] == 0.99
    assert chosen("adagrad")[2] == 1e-10
    assert TrainingOptions(optimizer="lion", beta2=0.999).beta2 == 0.999


def test_options_of_another_optimizer_are_refused() -> None:
    for option, kwargs in (
        ("--alpha", {"alpha": 0.9}),
        ("--centered", {"centered": True, "optimizer": "adam"}),
        ("--momentum-decay", {"momentum_decay": 0.1, "optimizer": "rmsprop"}),
        ("--alpha 1.0", {"alpha": 1.0, "optimizer": "rmsprop"}),
    ):
        with pytest.raises(UsageError, match=option):
            TrainingOptions(**kwargs)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("name", ["w@²", "w@3", "w@", "@", "@1"])
def test_a_weight_may_look_like_a_version_of_another(name: str) -> None:
    b = Builder()
    x = b.add_tensor("x", TensorType((2, 3)), Role.INPUT)
    w = b.add_tensor(name, TensorType((3, 4)), Role.PARAMETER, np.ones((3, 4), np.float32))
    y = b.emit1("MatMul", [x, w])
    graph = Graph("g", b.tensors, tuple(b.operators), (x,), (y,), b.values)
    step = build(graph, TrainingOptions(optimizer="sgd", loss="mse"))
    ((old, new),) = step.updates.items()
    assert old == name and new != name and step.tensors[new].type == step.tensors[old].type


def test_bad_options_name_the_option() -> None:
    for kwargs, option in (
        ({"loss": "hinge"}, "--loss"),
        ({"optimizer": "lamb"}, "--optimizer"),
        ({"learning_rate": -1.0}, "--lr"),
        ({"batch_norm": "off"}, "--batch-norm"),
        ({"learning_rate": float("nan")}, "--lr"),
    ):
        with pytest.raises(UsageError, match=option):
            TrainingOptions(**kwargs)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--model-output"):
        build(small_cnn(), TrainingOptions(output="nope"))


def with_dropout(ratio: float = 0.4) -> Graph:
    """Dense, dropout, dense, dropout: as an importer leaves it."""
    random = np.random.default_rng(3)
    b = Builder()
    h = b.add_tensor("x", TensorType((6, 8)), Role.INPUT)
    for layer in ("first", "second"):
        weight = random.standard_normal((8, 8)).astype(np.float32)
        w = b.add_tensor(f"{layer}.weight", TensorType((8, 8)), Role.PARAMETER, weight)
        h = b.emit1("MatMul", [h, w], {"trans_a": False, "trans_b": False, "alpha": 1.0}, hint=layer)
        h = b.emit1("DropoutSite", [h], {"ratio": ratio}, hint=f"{layer}.dropped")
    return Graph("dropout", b.tensors, tuple(b.operators), ("x",), (h,), b.values)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_dropout_draws_anew_at_every_place_and_step(optimizer: str) -> None:
    step = build(with_dropout(), TrainingOptions(dropout=True, optimizer=optimizer, loss="mse"))
    check_graph(step)
    assert sum(op.kind == "StepCount" for op in step.operators) == 1
    assert sum(op.kind == "DropoutGrad" for op in step.operators) == 2
    inputs = random_inputs(step)

    def masks(count: int) -> list[np.ndarray]:
        values = evaluate(step, {**inputs, "step": np.array([count], np.int32)})
        return [values[f"{layer}.dropped"] != 0 for layer in ("first", "second")]

    first, second = masks(0)
    assert 0 < first.sum() < first.size
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, masks(1)[0])
    assert all(np.array_equal(a, b) for a, b in zip(masks(1), masks(1), strict=True))
    other = build(with_dropout(), TrainingOptions(dropout=True, dropout_seed=1, loss="mse"))
    assert not np.array_equal(first, evaluate(other, inputs)["first.dropped"] != 0)


def test_gradient_through_dropout() -> None:
    step = build(with_dropout(), TrainingOptions(dropout=True, loss="mse"))
    inputs = random_inputs(step)
    values = evaluate(step, inputs)
    direction = np.random.default_rng(2).standard_normal((8, 8))
    for name in ("first.weight", "second.weight"):
        up, down = (
            float(evaluate(step, {**inputs, name: values[name] + s * 1e-6 * direction})[step.loss]) for s in (1, -1)
        )
        assert np.sum(values[step.gradients[name]] * direction) == pytest.approx((up - down) / 2e-6, rel=1e-6)


def test_dropout_is_off_unless_asked_for() -> None:
    step = build(with_dropout(), TrainingOptions(loss="mse"))
    assert not {"Dropout", "DropoutSite", "StepCount"} & {op.kind for op in step.operators}
    assert any("2 Dropout operators drop nothing" in note for note in step.notes)
    assert not any("Dropout" in note for note in build(with_dropout(), TrainingOptions(dropout=True)).notes)


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def test_losses_as_their_definitions_say() -> None:
    """Of each loss and option: the value by its formula, and one gradient by finite differences."""
    random = np.random.default_rng(8)
    classes, values = np.array([0, 2, 1, 2], np.int32), random.standard_normal((4, 3)).astype(np.float32)
    shares = np.abs(values) / np.abs(values).sum(1, keepdims=True)
    picked = np.arange(4), classes

    def smooth(x: np.ndarray) -> float:
        return float(-0.8 * log_softmax(x)[picked].mean() - 0.2 * log_softmax(x).mean())

    def huber(x: np.ndarray) -> float:
        d = np.abs(x - values)
        return float(np.where(d <= 0.3, d * d / 2, 0.3 * (d - 0.15)).mean())

    cases = [
        (TrainingOptions(loss="cross-entropy"), classes, lambda x: -log_softmax(x)[picked].mean()),
        (TrainingOptions(label_smoothing=0.2), classes, smooth),
        (TrainingOptions(ignore_index=2), classes, lambda x: -log_softmax(x)[[0, 2], [0, 1]].mean()),
        (TrainingOptions(loss="soft-cross-entropy"), shares, lambda x: -(shares * log_softmax(x)).sum(1).mean()),
        (TrainingOptions(loss="mse"), values, lambda x: np.square(x - values).mean()),
        (TrainingOptions(loss="l1"), values, lambda x: np.abs(x - values).mean()),
        (TrainingOptions(loss="huber", huber_delta=0.3), values, huber),
        (TrainingOptions(loss="bce"), shares, lambda x: (np.logaddexp(0, x) - x * shares).mean()),
    ]
    for options, target, formula in cases:
        step = build(small_cnn(), options)
        inputs = {**random_inputs(step), step.target: target}
        assert step.tensors[step.target].shape == target.shape
        made = evaluate(step, inputs)
        assert float(made[step.loss]) == pytest.approx(float(formula(made["logits"])), rel=1e-6), options
        bias = made["fc.bias"]
        nudge = np.array([1e-6, -2e-6, 0.5e-6])
        up, down = (float(evaluate(step, {**inputs, "fc.bias": bias + s * nudge})[step.loss]) for s in (1, -1))
        assert np.sum(made[step.gradients["fc.bias"]] * nudge) == pytest.approx((up - down) / 2, rel=1e-5), options


def test_a_batch_without_rows_is_refused() -> None:
    b = Builder()
    x = b.add_tensor("x", TensorType((0, 2)), Role.INPUT)
    w = b.add_tensor("w", TensorType((2, 3)), Role.PARAMETER, np.ones((2, 3), np.float32))
    y = b.emit1("MatMul", [x, w], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    with pytest.raises(UsageError, match="'x' has no elements"):
        build(Graph("empty", b.tensors, tuple(b.operators), ("x",), (y,), b.values), TrainingOptions())


def test_options_of_another_loss_are_refused() -> None:
    for kwargs, option in (
        ({"loss": "mse", "label_smoothing": 0.1}, "--label-smoothing"),
        ({"loss": "bce", "ignore_index": 0}, "--ignore-index"),
        ({"loss": "mse", "huber_delta": 0.5}, "--huber-delta"),
        ({"loss": "huber", "huber_delta": 0.0}, "--huber-delta"),
        ({"label_smoothing": 1.0}, "--label-smoothing"),
        ({"loss": "focal", "label_smoothing": 0.1}, "--label-smoothing"),
        ({"loss": "mse", "class_weights": (1.0, 2.0)}, "--class-weights"),
        ({"class_weights": (1.0, -2.0)}, "--class-weights -2.0"),
        ({"class_weights": (0.0, 0.0)}, "--class-weights: all are 0"),
        ({"focal_gamma": 2.0}, "--focal-gamma"),
    ):
        with pytest.raises(UsageError, match=option):
            TrainingOptions(**kwargs)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="2 weights are given for 3 classes"):
        build(small_cnn(), TrainingOptions(class_weights=(1.0, 2.0)))
    with pytest.raises(UsageError, match="--label-smoothing"):
        one = Graph("one", *one_output())
        build(one, TrainingOptions(label_smoothing=0.1))


def one_output() -> tuple[object, ...]:
    """A model whose only output has one column: `auto` means mse."""
    b = Builder()
    x = b.add_tensor("x", TensorType((4, 2)), Role.INPUT)
    w = b.add_tensor("w", TensorType((2, 1)), Role.PARAMETER, np.ones((2, 1), np.float32))
    y = b.emit1("MatMul", [x, w], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    return b.tensors, tuple(b.operators), ("x",), (y,), b.values


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


@pytest.mark.parametrize("train", ["all", "n1.scale,n1.bias,head"])
@pytest.mark.parametrize("own_variance", [False, True])
def test_batch_norms_may_share_statistics(train: str, own_variance: bool) -> None:
    """Each moves them in turn, after everything that reads the old ones (a frozen batch-norm does)."""
    b = Builder()
    channels = TensorType((2,))
    x = b.add_tensor("x", TensorType((4, 2, 3, 3)), Role.INPUT)
    mean = b.add_tensor("mean", channels, Role.STATISTIC, np.zeros(2, np.float32))
    for name in ("n1", "n2"):
        variance = f"{name}.var" if own_variance else "var"
        if variance not in b.tensors:
            b.add_tensor(variance, channels, Role.STATISTIC, np.ones(2, np.float32))
        scale = b.add_tensor(f"{name}.scale", channels, Role.PARAMETER, np.full(2, 0.5, np.float32))
        bias = b.add_tensor(f"{name}.bias", channels, Role.PARAMETER, np.zeros(2, np.float32))
        attributes = {"epsilon": 1e-5, "training": False, "momentum": 0.5}
        x = b.emit1("BatchNormApply", [x, mean, variance, scale, bias], attributes)
        x = b.emit1("Tanh", [x])
    x = b.emit1("Reshape", [x], {"shape": (4, 18)})
    head = b.add_tensor("head", TensorType((18, 3)), Role.PARAMETER, np.ones((18, 3), np.float32))
    y = b.emit1("MatMul", [x, head], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    graph = Graph("shared", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    step = run_standard(build(graph, TrainingOptions(train=train)))
    check_graph(step)
    values = evaluate(step, random_inputs(step))
    batch_means = [values[op.outputs[0]] for op in step.operators if op.kind == "BatchNormStats"]
    expected = np.zeros(2)
    for batch_mean in batch_means:
        expected = 0.5 * expected + 0.5 * batch_mean
    np.testing.assert_allclose(values[step.updates["mean"]], expected)
    assert len(batch_means) == (2 if train == "all" else 1)


def sliced(cuts: list[tuple[int, int]], *, also: bool = False) -> Graph:
    """x w, of which slices (start, size) along the last axis are each used by itself; `also`: the product too."""
    random = np.random.default_rng(6)
    b = Builder()
    x = b.add_tensor("x", TensorType((4, 3)), Role.INPUT)
    weight = b.add_tensor("w", TensorType((3, 6)), Role.PARAMETER, random.normal(0, 1, (3, 6)).astype(np.float32))
    whole = b.emit1("MatMul", [x, weight])
    terms = [b.emit1("ReduceMean", [b.emit1("Tanh", [whole])], {"axes": (1,), "keepdims": True})] if also else []
    for i, (start, size) in enumerate(cuts):
        part = b.emit1("Slice", [whole], {"starts": (0, start), "sizes": (4, size), "steps": (1, 1)})
        part = b.emit1("Affine", [b.emit1("Tanh", [part])], {"alpha": i + 1.0, "beta": 0.0})
        terms.append(b.emit1("ReduceSum", [part], {"axes": (1,), "keepdims": True}))
    y = b.emit1("Concat", terms, {"axis": 1})
    return Graph("sliced", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


@pytest.mark.parametrize(
    ("cuts", "also", "joined"),
    [
        ([(0, 2), (2, 3), (5, 1)], False, True),
        ([(5, 1), (0, 2), (2, 3)], True, True),
        ([(0, 2), (3, 3)], False, False),  # a column is left out
        ([(0, 3), (2, 4)], False, False),  # one is read twice
        ([(0, 2), (2, 4), (2, 4)], False, False),
    ],
)
def test_gradients_of_slices_that_are_the_whole_are_joined(
    cuts: list[tuple[int, int]], also: bool, joined: bool
) -> None:
    step = build(sliced(cuts, also=also), TrainingOptions(loss="mse"))
    check_graph(step)
    backward = [op.kind for op in step.operators if op.phase is Phase.BACKWARD]
    assert ("Concat" in backward, "SliceGrad" in backward) == (joined, not joined)
    inputs = random_inputs(step)
    values = evaluate(step, inputs)
    direction = np.random.default_rng(2).standard_normal((3, 6))
    losses = [
        float(evaluate(step, {**inputs, "w": values["w"] + sign * 1e-6 * direction})[step.loss]) for sign in (1, -1)
    ]
    found = np.sum(values[step.gradients["w"]] * direction)
    assert found == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-5, abs=1e-8)
