"""`--lora` and the sets of `--train`: what is trained, how adapters start, and the gradients of their factors."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.graph import DType, Filed, Fill, Graph, Phase, Role, TensorType, materialize
from poetc.ops import Builder
from poetc.passes import check_graph, run_standard
from poetc.training import (
    Adapter,
    Channels,
    TrainingOptions,
    Updates,
    Whole,
    adapter_names,
    build,
    merged,
    select_parameters,
    select_updates,
    with_adapters,
)
from poetc.training._micro import apart_from
from tests.support.graphs import evaluate, random_inputs, small_cnn


def _adapted(graph: Graph, *lora: str, train: str = "all") -> Graph:
    return with_adapters(graph, select_updates(graph, train, lora))


def _grouped() -> Graph:
    """A convolution of groups, one in one dimension, and a norm."""
    random = np.random.default_rng(0)
    b = Builder()

    def parameter(name: str, *shape: int) -> str:
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, random.standard_normal(shape).astype(np.float32))

    x = b.add_tensor("x", TensorType((2, 4, 1, 6)), Role.INPUT)
    geometry = {"strides": (1, 1), "pads": (0, 1, 0, 1), "dilations": (1, 1)}
    h = b.emit1("Conv", [x, parameter("depth.weight", 4, 1, 1, 3)], {**geometry, "group": 4})
    line = b.emit1("Reshape", [parameter("line.weight", 5, 4, 3)], {"shape": (5, 4, 1, 3)})
    h = b.emit1("Conv", [h, line, parameter("line.bias", 5)], {**geometry, "group": 1})
    h = b.emit("LayerNorm", [h, parameter("norm.gain", 6)], {"axis": -1, "epsilon": 1e-5})[0]
    h = b.emit1("MatMul", [b.emit1("Reshape", [h], {"shape": (2, 30)}), parameter("fc.weight", 30, 3)], hint="logits")
    return Graph("grouped", b.tensors, tuple(b.operators), ("x",), (h,), b.values)


def test_a_model_with_new_adapters_computes_what_it_did() -> None:
    for graph in (small_cnn(), _grouped()):
        adapted = _adapted(graph, "2:alpha=6")
        inputs = random_inputs(graph)
        np.testing.assert_array_equal(
            evaluate(adapted, inputs)[graph.outputs[0]], evaluate(graph, inputs)[graph.outputs[0]]
        )


def test_factors_start_and_are_shaped_as_in_peft() -> None:
    adapted = _adapted(_grouped(), "3:seed=7")
    shapes = {n: t.shape for n, t in adapted.tensors.items() if "lora_" in n and t.role is Role.PARAMETER}
    assert shapes == {
        "line.lora_A.weight": (3, 4, 3),
        "line.lora_B.weight": (5, 3, 1),
        "fc.lora_A.weight": (3, 30),
        "fc.lora_B.weight": (3, 3),
    }
    a = materialize(adapted.values["fc.lora_A.weight"], adapted.tensors["fc.lora_A.weight"].type)
    bound = 1 / math.sqrt(30)  # Kaiming uniform with a = √5
    assert 0.8 * bound < np.abs(a).max() <= bound and not np.array_equal(a, _start(_grouped(), "3"))
    np.testing.assert_array_equal(a, _start(_grouped(), "3:seed=7"))
    b = materialize(adapted.values["fc.lora_B.weight"], adapted.tensors["fc.lora_B.weight"].type)
    assert not b.any()


def _start(graph: Graph, lora: str) -> np.ndarray:
    value = _adapted(graph, lora).values["fc.lora_A.weight"]
    assert isinstance(value, np.ndarray)
    return value


@pytest.mark.parametrize("make", [small_cnn, _grouped])
def test_gradients_match_finite_differences(make: object) -> None:
    graph = _adapted(make(), "2:alpha=6:dropout=0.25")  # type: ignore[operator]
    random = np.random.default_rng(3)
    values = dict(graph.values)
    for name in values:
        if "lora_B" in name:
            values[name] = random.standard_normal(graph.tensors[name].shape).astype(np.float32)
    graph = Graph(graph.name, graph.tensors, graph.operators, graph.inputs, graph.outputs, values)
    step = build(graph, TrainingOptions(lora=("2:alpha=6:dropout=0.25",)))
    check_graph(step)
    assert sum(op.kind == "Dropout" for op in step.operators) == len(step.gradients) / 2
    assert set(step.gradients) == {n for n, t in graph.tensors.items() if "lora_" in n and t.role is Role.PARAMETER}
    inputs = random_inputs(step)
    known = evaluate(step, inputs)
    for parameter, gradient in step.gradients.items():
        direction = random.standard_normal(step.tensors[parameter].shape)
        losses = []
        for sign in (1, -1):
            moved = {**inputs, parameter: known[parameter] + sign * 1e-6 * direction}
            losses.append(float(evaluate(step, moved)[step.loss]))
        finite = (losses[0] - losses[1]) / 2e-6
        assert np.sum(known[gradient] * direction) == pytest.approx(finite, rel=1e-4, abs=1e-8), parameter


def test_only_adapters_are_state() -> None:
    step = run_standard(build(_adapted(small_cnn(), "1"), TrainingOptions(lora=("1",), optimizer="adam")))
    state = {n for n, t in step.tensors.items() if t.role.is_state and "@" not in n}
    names = {f"{m}.lora_{f}.weight" for m in ("stem", "block", "fc") for f in "AB"}
    statistics = {f"bn{k}.{what}" for k in (0, 1) for what in ("mean", "var")}
    moments = {f"{n}:{m}" for n in names for m in "mv"}
    assert state - statistics == names | moments | {"learning_rate", "step"}
    assert step.tensors["fc.weight"].role is Role.CONSTANT


def test_what_train_names_is_trained_whole_and_gets_no_adapter() -> None:
    graph = small_cnn()
    updates = select_updates(graph, "last:1,norm", ("2",))
    assert updates.whole == {"fc.weight", "fc.bias", "bn0.scale", "bn0.bias", "bn1.scale", "bn1.bias"}
    assert set(updates.adapters) == {"stem.weight", "block.weight"}
    adapted = with_adapters(graph, updates)
    trained = select_parameters(adapted, "last:1,norm", ("2",))
    assert trained == updates.whole | {f"{m}.lora_{f}.weight" for m in ("stem", "block") for f in "AB"}


def test_ready_sets() -> None:
    graph = small_cnn(conv_bias=True)
    assert select_parameters(graph, "norm") == {"bn0.scale", "bn0.bias", "bn1.scale", "bn1.bias"}
    assert select_parameters(graph, "bias") == {"stem.bias", "block.bias", "bn0.bias", "bn1.bias", "fc.bias"}
    assert select_parameters(graph, "bias&last:1") == {"fc.bias"}
    assert select_parameters(_grouped(), "norm") == {"norm.gain"}
    adapted = _adapted(graph, "1:fc*")
    assert select_parameters(adapted, "adapter") == {"fc.lora_A.weight", "fc.lora_B.weight"}
    assert "block.weight" not in select_parameters(adapted, "last:1")


def test_several_entries() -> None:
    """The last one that matches counts; modules match too."""
    updates = select_updates(small_cnn(), "all", ("1", "3:fc:alpha=2", "2:block.weight:dropout=0.5"))
    assert updates.adapters == {
        "stem.weight": Adapter(1),
        "fc.weight": Adapter(3, 2),
        "block.weight": Adapter(2, 8, 0.5),
    }


def test_one_entry_from_python_may_be_a_text() -> None:
    assert TrainingOptions(lora="16:fc*").lora == ("16:fc*",)  # type: ignore[arg-type]


def test_updates_are_a_value_that_options_can_say() -> None:
    graph = small_cnn()
    updates = Updates(
        {
            "fc.bias": Whole(),
            "block.weight": Channels(Fraction(1, 4), largest=True),
            "stem.weight": Channels(Fraction(1, 2)),
            "fc.weight": Adapter(2, 4, 0.125),
        },
        seed=5,
    )
    assert select_updates(graph, *updates.options()) == updates
    alone = Updates({"fc.weight": Adapter(2)}, 1)
    assert select_updates(graph, *alone.options()) == alone


@pytest.mark.parametrize(
    "train, lora, message",
    [
        ("all", "4:conv9*", "--lora 'conv9\\*' matches no weight"),
        ("all", "4:fc", "--lora 4: 'fc.weight' is 3 x 36; the rank is at most 3"),
        ("all", "99", "--lora 99: no weight takes an adapter of that rank; the largest rank that one takes is 4"),
        ("last:1", "2:fc", "frozen"),
        ("all", "none", "write RANK"),
        ("all", "0", "at least 1"),
        ("all", "2:alpha=0", "alpha above 0"),
        ("all", "2:dropout=1", "dropout in"),
        ("all", "2:alpha=1:alpha=2", "twice"),
        ("all", "2:dora:rslora:dora", "dora stands there twice"),
        ("all", "2:dora:dropout=0.5", "dora has no dropout"),
        ("all", "2:stem:dora", "'stem.weight' belongs to a convolution, which takes no dora"),
        ("adapter", "", "--train adapter: the model has no adapters; --lora"),
        ("fc*&norm", "", "no parameter is in all of these sets"),
        ("fc.weight@5/4", "", "a share between 0 and 1"),
        ("fc.bias@1/4", "", "matches no weight"),
        (f"fc.weight@{'1' * 5000}/2", "", "write PATTERN@1/4, with a share between 0 and 1"),
        ("stem.weight@1/4", "", "has 2 input channels"),
    ],
)
def test_bad_options(train: str, lora: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        select_updates(small_cnn(), train, (lora,) if lora else ())
    assert "\n" not in str(caught.value)


def test_layers_that_take_no_adapter_are_passed_over_or_named() -> None:
    graph = _grouped()
    assert set(select_updates(graph, "all", ("1",)).adapters) == {"line.weight", "fc.weight"}
    with pytest.raises(UsageError, match=r"'depth\.weight' belongs to a convolution of 4 groups"):
        select_updates(graph, "all", ("1:depth*",))
    with pytest.raises(UsageError, match="groups"):
        select_updates(graph, "depth.weight@1/2")


def test_a_model_without_norms_has_no_such_set() -> None:
    with pytest.raises(UsageError, match="--train norm: the model has no norm"):
        select_parameters(_without_norm(), "norm")


def _without_norm() -> Graph:
    b = Builder()
    x = b.add_tensor("x", TensorType((2, 3)), Role.INPUT)
    w = b.add_tensor("w", TensorType((3, 4)), Role.PARAMETER, np.ones((3, 4), np.float32))
    return Graph("plain", b.tensors, tuple(b.operators), ("x",), (b.emit1("MatMul", [x, w]),), b.values)


def test_frozen_layers_behind_the_last_adapter_have_no_gradients_of_weights() -> None:
    """A frozen front has no backward pass; a frozen middle has gradients of its inputs alone."""
    step = run_standard(build(_adapted(small_cnn(), "1:block"), TrainingOptions(lora=("1:block",))))
    backward = [op for op in step.operators if op.phase is Phase.BACKWARD]
    assert not any("stem" in t for op in backward for t in (*op.inputs, *op.outputs))
    assert sum(op.kind.startswith("ConvGradWeight") for op in (*backward, *step.operators)) >= 2
    assert not any(t == "x" for op in backward for t in op.inputs)
    assert not any("fc.weight.grad" in t for op in backward for t in op.outputs)


def _decoder(words: int = 40, *, with_table: bool = True) -> Graph:
    """A table, a layer and a head, as a language model has them."""
    random = np.random.default_rng(0)
    b = Builder()

    def parameter(name: str, *shape: int) -> str:
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, random.standard_normal(shape).astype(np.float32))

    if with_table:
        ids = b.add_tensor("ids", TensorType((2, 5), DType.I32), Role.INPUT)
        x = b.emit1("Gather", [parameter("embed.weight", words, 8), ids], {"axis": 0})
    else:
        x = b.add_tensor("ids", TensorType((2, 5, 8)), Role.INPUT)
    h = b.emit1("MatMul", [x, parameter("layers.0.attn.q_proj.MatMul.weight", 8, 8)])
    h = b.emit1("MatMul", [h, parameter("layers.0.mlp.up_proj.weight", 8, 8)])
    y = b.emit1("MatMul", [h, parameter("lm_head.weight", 8, words)], hint="logits")
    return Graph("decoder", b.tensors, tuple(b.operators), ("ids",), (y,), b.values)


def test_the_head_of_a_language_model_has_no_adapter_unless_it_is_named() -> None:
    blocks = {"layers.0.attn.q_proj.MatMul.weight", "layers.0.mlp.up_proj.weight"}
    assert set(select_updates(_decoder(), "all", ("2",)).adapters) == blocks
    assert set(select_updates(_decoder(), "all", ("2:lm_head",)).adapters) == {"lm_head.weight"}
    assert set(select_updates(_decoder(with_table=False), "all", ("2",)).adapters) == {*blocks, "lm_head.weight"}


def test_modules_are_named_by_their_last_words() -> None:
    graph = _decoder()
    assert set(select_updates(graph, "all", ("2:up_proj",)).adapters) == {"layers.0.mlp.up_proj.weight"}
    assert set(select_updates(graph, "all", ("2:mlp.up_proj",)).adapters) == {"layers.0.mlp.up_proj.weight"}
    with pytest.raises(UsageError, match="matches no weight"):
        select_updates(graph, "all", ("2:proj",))
    pairs = adapter_names(graph, ["layers.0.attn.q_proj.MatMul.weight"])
    assert pairs == {
        "layers.0.attn.q_proj.MatMul.weight": tuple(f"layers.0.self_attn.q_proj.lora_{f}.weight" for f in "AB")
    }


def test_rslora_scales_by_the_root_of_the_rank() -> None:
    updates = select_updates(_decoder(), "all", ("4:q_proj:alpha=6:rslora",))
    (adapter,) = updates.adapters.values()
    assert adapter == Adapter(4, 6.0, stable=True) and adapter.scale == 3.0
    assert select_updates(_decoder(), *updates.options()) == updates


def _with_bias(across: bool) -> Graph:
    """A product with a bias, whose weight lies either way."""
    random = np.random.default_rng(0)
    b = Builder()
    x = b.add_tensor("x", TensorType((5, 6)), Role.INPUT)
    shapes = {"fc.weight": (4, 6) if across else (6, 4), "fc.bias": (4,)}
    for name, shape in shapes.items():
        b.add_tensor(name, TensorType(shape), Role.PARAMETER, random.standard_normal(shape).astype(np.float32))
    y = b.emit1("MatMul", [x, *shapes], {"trans_a": False, "trans_b": across}, hint="logits")
    return Graph("biased", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


@pytest.mark.parametrize("across", [False, True])
def test_magnitudes_scale_the_rows_and_merge(across: bool) -> None:
    """DoRA by its definition in float64: m (W + s B A) / norm of its rows; the bias is not scaled."""
    graph, lora = _with_bias(across), ("2:alpha=6:dora",)
    updates = select_updates(graph, "all", lora)
    assert select_updates(graph, *updates.options()) == updates
    adapted, inputs = with_adapters(graph, updates), random_inputs(graph)
    (y,) = graph.outputs
    before, bias = evaluate(graph, inputs)[y], np.asarray(graph.values["fc.bias"], np.float64)
    np.testing.assert_allclose(evaluate(adapted, inputs)[y], before, rtol=1e-5, atol=1e-6)
    trained, random = select_parameters(adapted, "all", lora), np.random.default_rng(4)
    names = ["fc.lora_A.weight", "fc.lora_B.weight", "fc.lora_magnitude_vector"]
    assert sorted(trained) == names
    moved = {n: random.standard_normal(adapted.tensors[n].shape).astype(np.float32) for n in names}
    a, b, m = (moved[n].astype(np.float64) for n in names)
    weight = np.asarray(graph.values["fc.weight"], np.float64)
    total = (weight if across else weight.T) + 3.0 * b @ a
    wanted = inputs["x"] @ (m[:, None] * total / np.linalg.norm(total, axis=1, keepdims=True)).T + bias
    found = evaluate(replace(adapted, values={**adapted.values, **moved}), inputs)[y]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    whole = merged(graph, updates, {**graph.values, **moved})
    np.testing.assert_allclose(evaluate(whole, inputs)[y], wanted, rtol=1e-5, atol=1e-5)


def test_convolutions_keep_their_weights_beside_magnitudes() -> None:
    assert set(select_updates(small_cnn(), "all", ("2:dora",)).adapters) == {"fc.weight"}


@pytest.mark.parametrize(("factor", "norm"), [(0.0, "0"), (1e-30, "2.45e-30"), (1e30, "2.45e+30")])
def test_an_output_without_a_norm_has_no_magnitude(factor: float, norm: str) -> None:
    """Float32 has 0 or inf for the square of such a norm, by which each step would divide."""
    graph = _with_bias(True)
    weight = np.ones((4, 6), np.float32)
    weight[2] *= np.float32(factor)
    graph = replace(graph, values={**graph.values, "fc.weight": weight})
    with pytest.raises(UsageError, match=re.escape(f"that of output 2 of 'fc.weight' is {norm};")):
        _adapted(graph, "2:dora")
    assert _adapted(graph, "2")


def test_norms_of_random_weights_are_those_of_a_part_of_the_batch() -> None:
    """Nothing is drawn to see that, and no program holds them twice."""

    def adapted() -> Graph:
        graph = small_cnn()
        weights = {n: Fill("normal", 0.1, seed_name=n) for n in graph.values if graph.tensors[n].role is Role.PARAMETER}
        return _adapted(replace(graph, values={**graph.values, **weights}), "2:dora")

    whole, part = adapted(), adapted()
    assert any(isinstance(value, Filed) for value in whole.values.values())
    assert apart_from(whole, part).tensors.keys() == part.tensors.keys()
