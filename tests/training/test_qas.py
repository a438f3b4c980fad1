"""QDQ models that are trained as they are: bits of onnxruntime forward, and QAS's rule written out for the update."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import poetc
from poetc.batches import read_batches
from poetc.commands.best_updates import choice_of
from poetc.commands.import_state import import_state
from poetc.commands.programs import training_program
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.errors import PoetcError, UnsupportedModelError, UsageError
from poetc.frontend import load
from poetc.graph import Array, Graph
from poetc.passes import check_graph, run_standard
from poetc.training import TrainingOptions, build, in_precision
from tests.support import qdq
from tests.support.graphs import evaluate

ROOT = Path(__file__).resolve().parents[2]
QAS = TrainingOptions(precision="qas", learning_rate=0.1)


def model_of(path: Path, options: TrainingOptions = QAS) -> Graph:
    return in_precision(load(path, quantized=True), options)


def codes_of_onnxruntime(path: Path, x: Array, *, fused: bool) -> dict[str, Any]:
    """Every quantised activation, from 0 for u8."""
    ort = pytest.importorskip("onnxruntime")
    model = onnx.load(path)
    names = [n.output[0] for n in model.graph.node if n.op_type == "QuantizeLinear"]
    is_u8 = any(t.data_type == TensorProto.UINT8 for t in model.graph.initializer)
    type = TensorProto.UINT8 if is_u8 else TensorProto.INT8
    model.graph.output.extend([helper.make_tensor_value_info(n, type, None) for n in names])
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if fused else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = dict(zip(names, session.run(names, {"x": x}), strict=True))
    return {n: q.astype(np.int32) - (128 if is_u8 else 0) for n, q in found.items()}


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize(("activation", "per_channel"), [("QUInt8", True), ("QInt8", False)])
def test_codes_equal_those_of_onnxruntime(tmp_path: Path, activation: str, per_channel: bool, fused: bool) -> None:
    path = qdq.quantised(tmp_path, activation, per_channel)
    x = qdq.images(9)
    mine = evaluate(model_of(path), {"x": x}, np.float32)
    compared = 0
    for name, codes in codes_of_onnxruntime(path, x, fused=fused).items():
        if name in mine and mine[name].dtype == np.int8:
            np.testing.assert_array_equal(mine[name], codes, err_msg=name)
            compared += 1
    assert compared == 7


def without_codes(path: Path, tensor: str) -> Path:
    """The model of `path`, in which `tensor` is not quantised."""
    model = onnx.load(path)
    nodes = model.graph.node
    pair = [n for n in nodes if n.input[0] in (tensor, f"{tensor}_QuantizeLinear_Output")][:2]
    for node in nodes:
        node.input[:] = [tensor if name == pair[1].output[0] else name for name in node.input]
    for node in pair:
        nodes.remove(node)
    onnx.save(model, path)
    return path


def test_a_reshape_may_stand_between_an_operator_and_its_codes(tmp_path: Path) -> None:
    """onnxruntime leaves a ReduceMean of PyTorch's exporter, and the Reshape behind it, in floats."""
    path, x = without_codes(qdq.quantised(tmp_path), "g"), qdq.images(9)
    mine = evaluate(model_of(path), {"x": x}, np.float32)
    codes = codes_of_onnxruntime(path, x, fused=False)
    for name in ("f_QuantizeLinear_Output", "h_QuantizeLinear_Output"):
        np.testing.assert_array_equal(mine[name], codes[name])


def twice(path: Path, trans_b: bool) -> Path:
    """Two dense layers that share a square matrix; the second one takes it transposed or not."""
    values = {
        "w": np.random.default_rng(0).integers(-127, 128, (6, 6)).astype(np.int8),
        "s": np.array(0.01, np.float32),
        "z": np.array(0, np.int8),
    }
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wf"])]
    for k, at in enumerate(("x", "a", "b")):
        nodes.append(helper.make_node("QuantizeLinear", [at, "s", "z"], [f"{at}q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{at}q", "s", "z"], [f"{at}f" if k < 2 else "y"]))
        if k < 2:
            inputs, output = [f"{at}f", "wf"], ["a", "b"][k]
            nodes.append(helper.make_node("Gemm", inputs, [output], transB=int(trans_b or k == 0)))
    ends = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 6])] for n in "xy")
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in values.items()]
    graph = helper.make_graph(nodes, "twice", *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def test_a_shared_matrix_is_the_same_way_round_in_all_layers(tmp_path: Path) -> None:
    assert [op.kind for op in model_of(twice(tmp_path / "same.onnx", True)).operators].count("QLinearConv") == 2
    with pytest.raises(UnsupportedModelError, match=r"shares its weight 'w' in another form"):
        model_of(twice(tmp_path / "turned.onnx", False))


def trained(path: Path, options: TrainingOptions, steps: int = 1) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """The graph on codes, the values of the last step, and the state after it."""
    model = model_of(path, options)
    step = run_standard(build(model, options))
    check_graph(step)
    state: dict[str, Array] = {}
    values: dict[str, Array] = {}
    for k in range(steps):
        target = np.arange(4, dtype=np.int32) % qdq.CLASSES
        values = evaluate(step, {"x": qdq.images(k % 2), "target": target, **state}, np.float32)
        state = {name: values[new] for name, new in step.updates.items()}
    return step, values, state


def test_an_update_is_that_of_qas(tmp_path: Path) -> None:
    """w -= lr · (g · s) / s² on codes, rounded to nearest: the last layer, written out."""
    options = TrainingOptions(precision="qas", learning_rate=2.0, rounding="update=nearest")
    step, values, state = trained(qdq.quantised(tmp_path), options)
    last = next(op for op in step.operators if op.kind == "QLinearConv" and op.inputs[1] == "w4_quantized")
    x_scale, x_zero = float(str(last.attributes["x_scale"])), int(str(last.attributes["x_zero"]))
    x = (values[last.inputs[0]].astype(np.float64).reshape(4, 8) - x_zero) * x_scale
    logits = values["h_DequantizeLinear_Output"].astype(np.float64)
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = (p / p.sum(1, keepdims=True) - np.eye(qdq.CLASSES)[np.arange(4)]) / 4
    s = values[last.inputs[2]].astype(np.float64).reshape(-1, 1)
    before = step.values["w4_quantized"]
    assert isinstance(before, np.ndarray)
    gradient_of_codes = error.T @ x * s
    expected = np.clip(np.rint(before.reshape(5, 8) - 2.0 * gradient_of_codes / s**2), -128, 127)
    assert np.abs(expected - before.reshape(5, 8)).max() > 3
    np.testing.assert_array_equal(state["w4_quantized"].reshape(5, 8), expected)
    bias_unit = x_scale * s.ravel()
    b = step.values["b4_quantized"]
    assert isinstance(b, np.ndarray)
    moved = b - 2.0 * (error.sum(0) * bias_unit) / bias_unit**2
    np.testing.assert_allclose(state["b4_quantized"], moved, atol=1)


def test_gradients_are_near_those_of_the_float_model(tmp_path: Path) -> None:
    path = qdq.quantised(tmp_path)
    step, values, _ = trained(path, replace(QAS, fusion=False))
    model = load(tmp_path / "float.onnx")
    floats = run_standard(build(model, TrainingOptions(fusion=False)))
    exact = evaluate(floats, {"x": qdq.images(0), "target": np.arange(4, dtype=np.int32) % qdq.CLASSES})
    for name in ("w1", "w2", "w3", "w4", "b1", "b3"):
        mine, theirs = values[step.gradients[f"{name}_quantized"]].ravel(), exact[floats.gradients[name]].ravel()
        assert mine @ theirs > 0.97 * np.linalg.norm(mine) * np.linalg.norm(theirs), name


@pytest.mark.parametrize("rounding", ["", "update=nearest"])
def test_the_loss_falls(tmp_path: Path, rounding: str) -> None:
    path = qdq.quantised(tmp_path)
    options = TrainingOptions(precision="qas", learning_rate=0.2, rounding=rounding)
    losses = [trained(path, options, n)[1]["loss"] for n in (2, 16)]
    assert losses[1] < 0.5 * losses[0]


def test_a_model_may_be_given_codes(tmp_path: Path) -> None:
    """The same weights as from floats, and the floats need no RAM."""
    path = qdq.quantised(tmp_path, "QInt8")
    step, values, state = trained(path, QAS)
    codes = run_standard(build(model_of(qdq.given_codes(path)), QAS))
    given = next(op.outputs[0] for op in step.operators if op.kind == "QuantizeLinear" and op.inputs[0] == "x")
    found = evaluate(
        codes, {qdq.CODES: values[given], "target": np.arange(4, dtype=np.int32) % qdq.CLASSES}, np.float32
    )
    assert codes.tensors[qdq.CODES].type.size_bytes * 4 == step.tensors["x"].type.size_bytes
    for name, new in codes.updates.items():
        np.testing.assert_array_equal(found[new], state[name], err_msg=name)


def test_codes_beyond_8_bits_are_refused(tmp_path: Path) -> None:
    model = poetc.load(qdq.given_codes(qdq.quantised(tmp_path, "QInt8")), training=QAS)
    solution = model.solve(device="host", budget="100%", time_limit_s=2)
    x = np.zeros((4, 3, 8, 8), np.int32)
    x[1, 2, 0, 3] = 128
    np.savez(tmp_path / "d.npz", codes=x, target=np.zeros(4, np.int32))
    with pytest.raises(UsageError, match=r"codes\[1, 2, 0, 3\] is 128, not from -128 to 127"):
        read_batches(training_program(solution.artifact), tmp_path / "d.npz", 1)


def test_a_share_of_the_channels_moves_alone(tmp_path: Path) -> None:
    options = TrainingOptions(precision="qas", learning_rate=2.0, train="w3_quantized@1/2,bias")
    step, _, state = trained(qdq.quantised(tmp_path), options)
    before, after = step.values["w3_quantized"], state["w3_quantized"]
    assert isinstance(before, np.ndarray)
    assert (after[:, :4] != before[:, :4]).any()
    np.testing.assert_array_equal(after[:, 4:], before[:, 4:])
    assert "w1_quantized" not in state and "b1_quantized" in state


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}, {"train": "last:2,w1_quantized@1/3"}], ids=str)
def test_schedules_have_the_bits_of_keep_all(tmp_path: Path, options: dict[str, Any]) -> None:
    path = qdq.quantised(tmp_path)
    model = poetc.load(path, training=TrainingOptions(precision="qas", **options))
    model.solve(device="qemu-mps2-an386", budget="90%", time_limit_s=2).validate()


@pytest.mark.long
def test_an_exported_file_is_the_trained_model(tmp_path: Path) -> None:
    path = qdq.quantised(tmp_path)
    x, target = qdq.images(3), np.arange(4, dtype=np.int32) % qdq.CLASSES
    model = poetc.load(path, training=TrainingOptions(precision="qas", learning_rate=2.0))
    solution = model.solve(device="qemu-mps2-an386", budget="100%", time_limit_s=2)
    with solution.trainer() as session:
        for _ in range(3):
            session.step(x, target)
        state = session.state_dict()
    solution.export(state, tmp_path / "trained.onnx")
    import_state(solution.save(tmp_path / "first.poetc"), tmp_path / "trained.onnx", tmp_path / "next.poetc")
    started = poetc.open_solution(tmp_path / "next.poetc").artifact.graph
    again = model_of(tmp_path / "trained.onnx")
    assert started is not None
    for name in ("w1_quantized", "w4_quantized", "b2_quantized"):
        np.testing.assert_array_equal(again.values[name], state[name])  # type: ignore[arg-type]
        np.testing.assert_array_equal(started.values[name], state[name])  # type: ignore[arg-type]
    assert [n.op_type for n in onnx.load(tmp_path / "trained.onnx").graph.node] == [
        n.op_type for n in onnx.load(path).graph.node
    ]


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(PoetcError) as error:
        model_of(path, TrainingOptions(precision="qas", **options))
    return str(error.value)


def test_other_models_are_refused_with_a_way_out(tmp_path: Path) -> None:
    operators = qdq.quantised(tmp_path, form="QOperator")
    assert "QuantFormat.QDQ" in refused(operators)
    assert "--precision niti" in refused(tmp_path / "float.onnx")
    assert "quantise to int8" in refused(qdq.given_codes(qdq.quantised(tmp_path)))
    model = onnx.load(qdq.quantised(tmp_path))
    nodes = model.graph.node
    softmax = next(n for n in nodes if n.op_type == "Softmax")
    gemm = next(n for n in nodes if n.op_type == "Gemm")
    softmax.input[0] = gemm.output[0]
    onnx.save(model, tmp_path / "open.onnx")
    message = refused(tmp_path / "open.onnx")
    assert "'MatMul node" not in message
    assert "is not followed by QuantizeLinear" in message and "quantise its result too" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adam"}, "--optimizer"),
        ({"weight_decay": 0.1}, "--weight-decay"),
        ({"lora": ("2",)}, "--lora"),
        ({"rounding": "act=stochastic"}, "rounds activations to nearest"),
        ({"saved": "f16"}, "8 bits already"),
        ({"rescale": "interval"}, "only for niti"),
    ],
)
def test_options_without_a_form(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model_of(qdq.quantised(tmp_path), TrainingOptions(precision="qas", **options))


def changed(model: onnx.ModelProto, name: str, array: Any) -> onnx.ModelProto:
    """With other numbers in an initializer."""
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return model


def reader(model: onnx.ModelProto, op: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == op)


def integers_as_output(model: onnx.ModelProto) -> None:
    last = [n for n in model.graph.node if n.op_type == "QuantizeLinear"][-1]
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(last.output[0], TensorProto.UINT8, None))


def integers_in_flatten(model: onnx.ModelProto) -> None:
    flatten = reader(model, "Flatten")
    before = next(n for n in model.graph.node if n.output[0] == flatten.input[0])
    after = next(n for n in model.graph.node if flatten.output[0] in n.input)
    flatten.input[0] = before.input[0]
    next(n for n in model.graph.node if after.output[0] in n.input).input[0] = flatten.output[0]
    model.graph.node.remove(after)


def no_zero_point(model: onnx.ModelProto) -> None:
    del next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0][:2] == "r1").input[2:]


def axis_beyond_the_last(model: onnx.ModelProto) -> None:
    weight = next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == "w1_quantized")
    del weight.attribute[:]
    weight.attribute.append(helper.make_attribute("axis", 7))


def zero_points_of_two_types(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int8), "signed"))
    next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0][:2] == "r1").input[2] = "signed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (integers_as_output, "holds integers; let DequantizeLinear follow"),
        (integers_in_flatten, "reads the integers"),
        (no_zero_point, "no zero point"),
        (lambda m: changed(m, "r1_scale", np.array(np.nan, np.float32)), "scale is not above 0"),
        (lambda m: changed(m, "w1_scale", np.zeros(8, np.float32)), "'w1_quantized' that is not above 0"),
        (lambda m: changed(m, "r1_zero_point", np.array(0, np.int16)), "activations of int16"),
        (lambda m: changed(m, "b1_quantized", np.full(8, 2**31 - 1, np.int32)), "beyond 2\\^30"),
        (lambda m: changed(m, "w1_scale", np.full(8, 1e-45, np.float32)), "'b1_quantized' beyond 2\\^30"),
        (lambda m: changed(m, "w1_scale", np.full(8, np.inf, np.float32)), "'w1_quantized' holds"),
        (lambda m: changed(m, "w1_scale", np.ones(3, np.float32)), r"3 scales along axis 0 of a tensor \[8, 3, 3, 3\]"),
        (axis_beyond_the_last, r"8 scales along axis 7 of a tensor \[8, 3, 3, 3\]"),
        (zero_points_of_two_types, "another type than that of the QuantizeLinear"),
    ],
)
def test_damaged_models_end_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    model = onnx.load(qdq.quantised(tmp_path))
    change(model)
    onnx.save(model, tmp_path / "damaged.onnx")
    with pytest.raises(PoetcError, match=message):
        model_of(tmp_path / "damaged.onnx")


def test_codes_mean_what_their_reader_says(tmp_path: Path) -> None:
    """A DequantizeLinear may have another scale than the QuantizeLinear before it."""
    path = qdq.quantised(tmp_path)
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.5, np.float32), "other"))
    next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0][:2] == "r3").input[1] = "other"
    onnx.save(model, path)
    mine = evaluate(model_of(path), {"x": qdq.images(9)}, np.float32)
    codes = codes_of_onnxruntime(path, qdq.images(9), fused=False)
    for name in ("g_QuantizeLinear_Output", "h_QuantizeLinear_Output"):
        np.testing.assert_array_equal(mine[name], codes[name])


def test_codes_around_another_zero_are_refused(tmp_path: Path) -> None:
    model = onnx.load(qdq.quantised(tmp_path, per_channel=False))
    for tensor in model.graph.initializer:
        if tensor.name == "w3_zero_point":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(-100, np.int8), tensor.name))
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UnsupportedModelError, match="quantise weights as QInt8, around 0"):
        model_of(tmp_path / "other.onnx")


def test_no_plan_chooses_the_parts_of_a_batch() -> None:
    with pytest.raises(UsageError, match="--micro-batches auto: with --precision qas"):
        replace(QAS, micro_batches="auto")


def test_the_python_of_the_page_makes_such_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With onnxruntime alone, which brings no sympy along."""
    pytest.importorskip("onnxruntime.quantization")
    text = (ROOT / "docs" / "how-to" / "train-quantised-models.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.load(ROOT / "demo" / "digits.onnx"), "model.onnx")
    images = iter(np.random.default_rng(1).random((8, 1, 1, 8, 8), dtype=np.float32))
    samples = ({"image": image} for image in images)
    exec(block, {"reader": SimpleNamespace(get_next=lambda: next(samples, None))})
    model = in_precision(load("model_qdq.onnx", quantized=True, batch=1), QAS)
    assert [op.kind for op in model.operators].count("QLinearConv") == 6  # five convolutions and the dense layer


def test_shares_of_channels_are_among_the_best_updates(tmp_path: Path) -> None:
    rows = "".join(f"- {{parameter: w3_quantized, update: {u}, importance: 1}}\n" for u in ("whole", "1/2", '"lora:2"'))
    path = tmp_path / "importance.yaml"
    path.write_text("format: poetc-importance-1\ncandidates:\n" + rows)
    model = ModelRequest(source=qdq.quantised(tmp_path), device="stm32f746", training=replace(QAS, train="best"))
    choice = choice_of(SolveRequest(model=model, importance=path, budget="50%"))
    assert [c.label for c in choice.importance().candidates] == ["w3_quantized whole", "w3_quantized 1/2"]
    assert choice.notes == ["1 of 3 updates have no integer form, and were left out"]
