"""Folded batch norms, put back for the training: the same function before, of its batch in it, folded after it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.helper import make_node as node

from poetc import training
from poetc.errors import UsageError
from poetc.frontend import load
from poetc.graph import Array, Graph, Role, materialize
from poetc.ops import bind, spec
from poetc.training import TrainingOptions
from tests.cli.conftest import run
from tests.frontend.support import make, normal, save

ROWS = 8
RESTORE = TrainingOptions(batch_norm="restore", loss="mse")


def convolutions() -> onnx.ModelProto:
    """Plain, by channel, transposed, behind a global pool (which never had a norm), and a dense layer at the end."""
    nodes = [
        node("Conv", ["x", "a.weight", "a.bias"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["a1"]),
        node("Conv", ["a1", "b.weight", "b.bias"], ["b"], pads=[1, 1, 1, 1], group=4),
        node("Clip", ["b", "", "six"], ["b1"]),
        node("Add", ["b1", "a1"], ["b2"]),
        node("ConvTranspose", ["b2", "c.weight", "c.bias"], ["c"], strides=[2, 2]),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Conv", ["p", "d.weight", "d.bias"], ["d"]),
        node("Flatten", ["d"], ["f"]),
        node("Gemm", ["f", "e.weight", "e.bias"], ["y"], transB=1),
    ]
    shapes = {"a": (4, 2, 3, 3), "b": (4, 1, 3, 3), "c": (4, 3, 2, 2), "d": (3, 3, 1, 1), "e": (2, 3)}
    values = {f"{n}.weight": normal(*s, seed=k) for k, (n, s) in enumerate(shapes.items())}
    outputs = {n: (s[1] if n == "c" else s[0]) for n, s in shapes.items()}
    values |= {f"{n}.bias": normal(c, seed=9) for n, c in outputs.items()}
    return make(nodes, {"x": (ROWS, 2, 5, 5)}, ["y"], {**values, "six": np.array(6, np.float32)})


def dense() -> onnx.ModelProto:
    nodes = [
        node("Gemm", ["x", "a.weight", "a.bias"], ["a"], transB=1),
        node("Relu", ["a"], ["a1"]),
        node("MatMul", ["a1", "b.weight"], ["b0"]),
        node("Add", ["b0", "b.bias"], ["b"]),
        node("Relu", ["b"], ["b1"]),
        node("Gemm", ["b1", "c.weight", "c.bias"], ["y"], transB=1),
    ]
    values = {"a.weight": normal(6, 5), "b.weight": normal(6, 4), "c.weight": normal(2, 4)}
    values |= {"a.bias": normal(6), "b.bias": normal(4), "c.bias": normal(2)}
    return make(nodes, {"x": (ROWS, 5)}, ["y"], values)


MODELS = {"convolutions": (convolutions, ["a", "b", "c"]), "dense": (dense, ["a", "b"])}


def outputs(graph: Graph, values: dict[str, Array]) -> dict[str, Array]:
    held = dict(values)
    for op in graph.operators:
        results = spec(op.kind).evaluate(bind(op, graph.tensors), [held[t] for t in op.inputs])
        held.update(zip(op.outputs, results, strict=True))
    return held


def double(graph: Graph, **others: Array) -> dict[str, Array]:
    given = {n: materialize(v, graph.tensors[n].type) for n, v in graph.values.items()} | others
    return {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in given.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_the_model_is_the_same_before_on_its_batch_and_folded(kind: str, tmp_path: Path) -> None:
    made, layers = MODELS[kind]
    original = load(save(made(), tmp_path))
    x = normal(*original.tensors["x"].shape, seed=3)
    norms = training.restored_norms(original, RESTORE)
    assert [norm.weight.removesuffix(".weight") for norm in norms] == layers
    graph = training.in_precision(original, RESTORE)
    plain = outputs(original, double(original, x=x))
    np.testing.assert_allclose(outputs(graph, double(graph, x=x))["y"], plain["y"], rtol=1e-6, atol=1e-6)

    values = training.measured(graph, [{"x": x}])
    for norm in norms:
        y = plain[norm.operator.outputs[0]]
        axes = (0, *range(2, y.ndim))
        np.testing.assert_allclose(values[norm.mean], y.mean(axes), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(values[norm.variance], y.var(axes), rtol=1e-4)
    at = double(graph, **values, x=x)
    np.testing.assert_allclose(outputs(graph, at)["y"], plain["y"], rtol=1e-5, atol=1e-5)
    step = training.build(graph, RESTORE)
    assert sum(op.kind == "BatchNormStats" for op in step.operators) == len(layers)
    target = normal(*plain["y"].shape, seed=4)
    extra = {n: a for n, a in double(step).items() if n not in at}
    loss = outputs(step, {**at, **extra, step.target: target.astype(np.float64)})[step.loss]
    assert float(loss) == pytest.approx(float(np.square(plain["y"] - target).mean()), rel=1e-4)

    changed = {n: np.abs(normal(*graph.tensors[n].shape, seed=k)) + 0.1 for k, n in enumerate(graph.values) if n in at}
    changed = {n: a for n, a in changed.items() if n != "six"}
    folded = training.folded(original, norms, changed)
    held = {n: a for n, a in double(original).items() if n not in folded.values}
    wanted = outputs(graph, {**at, **double(graph, **changed, x=x)})["y"]
    np.testing.assert_allclose(outputs(folded, {**held, **double(folded, x=x)})["y"], wanted, rtol=1e-5)
    assert training.measured(training.in_precision(original, RESTORE), [{"x": x}]).keys() == values.keys()
    trained = replace(graph, values={**graph.values, **values})
    assert training.measured(trained, [{"x": x}]) == {}  # norms that were trained keep their numbers


def shrinking() -> onnx.ModelProto:
    """As an untrained network: each layer's outputs spread less than those before it."""
    nodes, values, inputs, x = [], {}, 2, "x"
    for k, (outputs, group) in enumerate([(4, 1), (4, 1), (4, 4), (6, 1), (6, 2)]):
        values[f"{k}.weight"] = (0.02 if k else 0.3) * normal(outputs, inputs // group, 3, 3, seed=k)
        values[f"{k}.bias"] = 0.01 * normal(outputs, seed=9)
        nodes.append(node("Conv", [x, f"{k}.weight", f"{k}.bias"], [f"c{k}"], pads=[1, 1, 1, 1], group=group))
        nodes.append(node("Relu", [f"c{k}"], [f"r{k}"]))
        inputs, x = outputs, f"r{k}"
    nodes += [node("MaxPool", [x], ["m"], kernel_shape=[2, 2]), node("GlobalAveragePool", ["m"], ["p"])]
    nodes += [node("Flatten", ["p"], ["f"]), node("Gemm", ["f", "e.weight", "e.bias"], ["y"], transB=1)]
    values |= {"e.weight": normal(3, 6), "e.bias": normal(3)}
    return make(nodes, {"x": (ROWS, 2, 8, 8)}, ["y"], values)


@pytest.mark.parametrize(("untrained", "scales"), [("", {1, 2, 4}), ("2.weight", {2, 4}), ("e.bias", {1, 2})])
def test_a_weight_takes_over_a_scale_that_would_take_long_to_grow(
    untrained: str, scales: set[int], tmp_path: Path
) -> None:
    """Where the scale is small, and the next weight is trained and not of groups; the function is the same."""
    original = load(save(shrinking(), tmp_path))
    x = normal(*original.tensors["x"].shape, seed=3)
    plain = outputs(original, double(original, x=x))
    graph = training.in_precision(original, RESTORE)
    trained = {n for n, t in graph.tensors.items() if t.role is Role.PARAMETER} - {untrained}
    values = training.measured(graph, [{"x": x}], trained)
    assert untrained not in values
    held = outputs(graph, double(graph, x=x) | double(graph, **values))
    np.testing.assert_allclose(held["y"], plain["y"], rtol=1e-5, atol=1e-6)
    norms = training.restored_norms(original, RESTORE)
    for k, norm in enumerate(norms):
        is_small = math.sqrt(plain[norm.operator.outputs[0]].var((0, 2, 3)).mean()) < 0.1
        assert is_small == (k > 0), k
        assert (values[norm.scale] == 1).all() == (k in scales), k
        before = held[next(op.inputs[0] for op in graph.operators if norm.scale in op.inputs)]
        np.testing.assert_allclose(values[norm.variance], before.var((0, 2, 3)), rtol=1e-4)
        np.testing.assert_allclose(values[norm.mean], before.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    folded = training.folded(original, norms, {**double(graph), **values})
    np.testing.assert_allclose(outputs(folded, double(folded, x=x))["y"], plain["y"], rtol=1e-5, atol=1e-6)


def test_a_mean_of_the_channels_leaves_none_to_scale(tmp_path: Path) -> None:
    """The axis that is left is as long as there were channels: the next weight is not theirs."""
    nodes = [
        node("Conv", ["x", "a.weight", "a.bias"], ["a"], pads=[1, 1]),
        node("Relu", ["a"], ["r"]),
        node("ReduceMean", ["r"], ["m"], axes=[1], keepdims=0),
        node("Gemm", ["m", "e.weight", "e.bias"], ["y"], transB=1),
    ]
    values = {"a.weight": 0.02 * normal(4, 2, 3), "a.bias": 0.01 * normal(4), "e.weight": normal(3, 4)}
    original = load(save(make(nodes, {"x": (ROWS, 2, 4)}, ["y"], {**values, "e.bias": normal(3)}), tmp_path))
    x = normal(ROWS, 2, 4, seed=3)
    graph = training.in_precision(original, RESTORE)
    first = training.measured(graph, [{"x": x}], {n for n, t in graph.tensors.items() if t.role is Role.PARAMETER})
    plain = outputs(original, double(original, x=x))["y"]
    held = outputs(graph, double(graph, x=x) | double(graph, **first))["y"]
    np.testing.assert_allclose(held, plain, rtol=1e-5, atol=1e-6)
    assert "a.norm.weight" in first and "e.weight" not in first


def test_the_file_keeps_its_graph(tmp_path: Path) -> None:
    model, out = save(convolutions(), tmp_path), tmp_path / "out.onnx"
    np.savez(tmp_path / "data.npz", x=3 + normal(40, 2, 5, 5), y=np.arange(40) % 2)
    options = ["--batch-norm", "restore", "--epochs", "2", "--optimizer", "momentum", "--lr", "0.05", "--seed", "4"]
    options += ["--data", f"{tmp_path / 'data.npz'}:x,y", "--validation", f"{tmp_path / 'data.npz'}:x,y"]
    ended = run("train", model, *options, "-o", out, "--json")
    assert ended.code == 0, ended.err
    assert "batch norms are put back behind 3 layers" in ended.err and "warning: the batch norms" not in ended.err
    before, after = onnx.load(model).graph, onnx.load(out).graph
    assert [n.op_type for n in after.node] == [n.op_type for n in before.node]
    assert [t.name for t in after.initializer] == [t.name for t in before.initializer]
    same = [
        np.array_equal(*map(onnx.numpy_helper.to_array, pair))
        for pair in zip(before.initializer, after.initializer, strict=True)
    ]
    assert [t.name for t, is_same in zip(after.initializer, same, strict=True) if is_same] == ["six"]
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    with np.load(tmp_path / "data.npz") as held:
        logits = np.concatenate([session.run(None, {"x": held["x"][k : k + ROWS]})[0] for k in range(0, 40, ROWS)])
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        loss = -log_p[np.arange(40), held["y"]].mean()
    best = ended.json["epochs"][ended.json["best_epoch"] - 1]
    assert loss == pytest.approx(best["validation_loss"], rel=1e-4)  # of the model with norms, before it was folded
    resumed = run("train", "--resume", "-o", out, "--epochs", "3", "--json")
    assert resumed.code == 0 and len(resumed.json["epochs"]) == 3, resumed.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lora", "2"], "--batch-norm restore and --lora exclude each other"),
        (["--precision", "niti"], "integers are trained with folded norms"),
        (["--train", "e.*"], "has no trained layer with a bias and without a norm, but for its last one"),
    ],
)
def test_what_cannot_be_restored_is_said(options: list[str], said: str, tmp_path: Path) -> None:
    ended = run(
        "solve", save(convolutions(), tmp_path), "--batch-norm", "restore", *options, "-o", tmp_path / "s.poetc"
    )
    assert ended.code == 2 and said in ended.err, ended.err


def test_a_batch_of_one_has_no_statistics(tmp_path: Path) -> None:
    graph = training.in_precision(load(save(dense(), tmp_path), batch=1), RESTORE)
    with pytest.raises(UsageError, match="one number a channel in a batch of 1; use a larger --batch"):
        training.build(graph, RESTORE)
