"""Limits on gradients and rates by pattern: what is refused, what waits, what is fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.graph import Graph, Phase, Role, TensorType, TrainingGraph
from poetc.ops import Builder
from poetc.passes import check_graph, run_standard
from poetc.training import TrainingOptions, build
from tests.support.graphs import evaluate, random_inputs, small_cnn


def step_with(graph: Graph | None = None, **options: Any) -> TrainingGraph:
    step = run_standard(build(graph or small_cnn(), TrainingOptions(**options)))
    check_graph(step)
    return step


def place(step: TrainingGraph, kind: str) -> list[int]:
    return [i for i, op in enumerate(step.operators) if op.kind == kind]


def wide(batch: int = 2) -> Graph:
    """A product whose gradient plain descent would make by itself."""
    random = np.random.default_rng(0)
    b = Builder()
    x = b.add_tensor("x", TensorType((batch, 128)), Role.INPUT)
    for name, shape in (("first", (128, 96)), ("second", (96, 8))):
        weight = b.add_tensor(name, TensorType(shape), Role.PARAMETER, random.normal(0, 0.1, shape).astype(np.float32))
        x = b.emit1("MatMul", [x, weight], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    return Graph("wide", b.tensors, tuple(b.operators), ("x",), (x,), b.values)


def test_no_update_comes_before_the_norm_of_all_gradients() -> None:
    step = step_with(clip_norm=1.0)
    (scale,) = place(step, "ClipScale")
    assert len(step.operators[scale].inputs) == len(step.gradients)
    assert min(place(step, "Sgd")) > scale > max(place(step, "ReduceL2"))


def test_a_late_norm_lets_updates_follow_their_gradients() -> None:
    step = step_with(clip_norm_late=1.0)
    last_backward = max(i for i, op in enumerate(step.operators) if op.phase is Phase.BACKWARD)
    assert min(place(step, "Sgd")) < last_backward
    assert step.updates["clip_scale"] == "clip_scale@1"


def test_the_late_scale_is_that_of_the_step_before() -> None:
    step, plain = step_with(clip_norm_late=0.01), step_with(clip_norm=0.01)
    inputs = random_inputs(step)
    first = evaluate(step, inputs)
    expected = evaluate(plain, inputs)
    assert float(first["clip_scale@1"]) == pytest.approx(float(expected["clip_scale"]), rel=1e-12)
    assert float(first["clip_scale@1"]) < 0.1
    again = evaluate(step, {**inputs, "clip_scale": first["clip_scale@1"]})
    np.testing.assert_allclose(again["fc.weight@1"], expected["fc.weight@1"], rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"clip_value": 0.01}, {"clip_norm_per_tensor": 0.01}, {"clip_norm": 0.01}, {"clip_norm_late": 0.01}],
    ids=str,
)
@pytest.mark.parametrize("micro", [False, True])
def test_a_gradient_that_is_clipped_is_not_made_by_its_update(options: Mapping[str, float], micro: bool) -> None:
    def made(**more: Any) -> TrainingGraph:
        count = {"micro_batches": 2} if micro else {}
        whole, part = wide(4), wide(2) if micro else None
        return run_standard(build(whole, TrainingOptions(loss="mse", **count, **options, **more), part))

    assert any(op.kind == "MatMulSgd" for op in run_standard(build(wide(), TrainingOptions(loss="mse"))).operators)
    fused, apart = made(), made(fusion=False)
    assert not [op.kind for op in fused.operators if op.kind.endswith("Sgd") and op.kind != "Sgd"]
    inputs = random_inputs(fused)
    one, other = evaluate(fused, inputs, np.float32), evaluate(apart, inputs, np.float32)
    for name in ("first@1", "second@1"):
        np.testing.assert_allclose(one[name], other[name], rtol=2e-6, atol=1e-7)
        assert np.abs(one[name] - one[name.removesuffix("@1")]).max() > 0


def test_the_update_that_makes_its_gradient_takes_the_rate_of_its_pattern() -> None:
    step = step_with(wide(), loss="mse", lr_for=("first=0.125",), learning_rate=0.5)
    rates = {op.inputs[0]: op.inputs[-1] for op in step.operators if op.kind == "MatMulSgd"}
    assert rates["first"] == "learning_rate*0.125"
    inputs = random_inputs(step)
    plain = step_with(wide(), loss="mse", learning_rate=0.0625)
    np.testing.assert_array_equal(evaluate(step, inputs)["first@1"], evaluate(plain, inputs)["first@1"])


def test_equal_factors_share_a_rate() -> None:
    step = step_with(lr_for=("*.weight=0.5", "*.bias=0.5"))
    assert len(place(step, "Affine")) == 1


def test_a_bias_that_a_norm_cancels_moves_where_it_decays() -> None:
    graph = small_cnn(conv_bias=True)
    assert build(graph, TrainingOptions(weight_decay_for=("stem.bias=0.1",))).zero_gradients == ("block.bias",)
    decays = TrainingOptions(weight_decay=0.1, weight_decay_for=("*.bias=0",))
    assert build(graph, decays).zero_gradients == ("block.bias", "stem.bias")


def test_only_the_last_step_of_several_updates() -> None:
    step = step_with(wide(), loss="mse", accumulate=3, optimizer="adam")
    assert not [op.kind for op in step.operators if op.kind in ("Adam", "StepCount") or op.kind.endswith("MatMulSgd")]
    inputs, state = random_inputs(step), {}
    for left in (2, 1, 0):
        values = evaluate(step, {**inputs, **state}, np.float32)
        moved = {name: not np.array_equal(values[name], values[step.updates[name]]) for name in ("first", "first:m")}
        assert moved == dict.fromkeys(moved, left == 0)
        assert int(values["steps_left@1"][0]) == left
        state = {old: values[new] for old, new in step.updates.items()}
    assert int(state["updates"][0]) == 1


def test_what_cannot_be_is_refused() -> None:
    for message, kwargs in (
        ("--clip-norm 0.0 is no finite number above 0", {"clip_norm": 0.0}),
        ("--clip-value nan", {"clip_value": float("nan")}),
        ("--clip-value and --clip-norm: choose one", {"clip_value": 1.0, "clip_norm": 1.0}),
        ("--accumulate 1 is no whole number from 2", {"accumulate": 1}),
        ("--accumulate and --micro-batches", {"accumulate": 2, "micro_batches": 2}),
        ("--accumulate and --clip-norm-late", {"accumulate": 2, "clip_norm_late": 1.0}),
        ("--lr-for 'fc': write PATTERN=NUMBER", {"lr_for": ("fc",)}),
        ("--lr-for '=2'", {"lr_for": ("=2",)}),
        ("--lr-for 'fc=-1'", {"lr_for": ("fc=-1",)}),
        ("--lr-for 'fc=0'.*--train", {"lr_for": ("fc=0",)}),
        ("--weight-decay-for 'fc=much'", {"weight_decay_for": ("fc=much",)}),
    ):
        with pytest.raises(UsageError, match=message):
            TrainingOptions(**kwargs)  # type: ignore[arg-type]
    for message, kwargs in (
        ("--lr-for 'fx.*' matches no parameter.*fc", {"lr_for": ("fx.*=2",)}),
        ("--weight-decay-for 'last:x': write last:N", {"weight_decay_for": ("last:x=0",)}),
        ("--lr-for 'stem.*=2': none of these", {"lr_for": ("stem.*=2",), "train": "last:1"}),
    ):
        with pytest.raises(UsageError, match=message):
            build(small_cnn(), TrainingOptions(**kwargs))  # type: ignore[arg-type]
