"""Integer training against the published formulas, which tests/support/niti.py writes out for themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import poetc
from poetc.errors import PoetcError, UnsupportedModelError, UsageError
from poetc.graph import Array, DType, Graph, Role, TensorType
from poetc.ops import Builder, _integers
from poetc.passes import check_graph, run_standard
from poetc.training import PRECISIONS, TrainingOptions, build, exponents_of, in_precision
from tests.support import niti
from tests.support.graphs import evaluate, random_inputs, small_cnn

NITI = TrainingOptions(precision="niti")
WEIGHTS = ("first", "second", "last")


def plain_cnn() -> Graph:
    """Two convolutions and a dense layer, without biases, as NITI has them."""
    random, b = np.random.default_rng(0), Builder()

    def parameter(name: str, *shape: int) -> str:
        value = (random.standard_normal(shape) * 0.3).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    x = b.add_tensor("x", TensorType((8, 2, 8, 8)), Role.INPUT)
    h = b.emit1("Conv", [x, parameter("first", 6, 2, 3, 3)], {"pads": (1, 1, 1, 1)})
    h = b.emit("MaxPool", [b.emit1("Relu", [h])], {"kernel": (2, 2), "strides": (2, 2)})[0]
    h = b.emit1("Conv", [h, parameter("second", 8, 6, 3, 3)], {"pads": (1, 1, 1, 1), "strides": (2, 2)})
    h = b.emit1("Reshape", [b.emit1("Relu", [h])], {"shape": (8, 32)})
    y = b.emit1("MatMul", [h, parameter("last", 32, 5)], hint="logits")
    return Graph("plain", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def published(model: Graph) -> list[niti.Layer]:
    """The layers of `plain_cnn` from the weights of its integer model."""
    exponents = exponents_of(model)
    first, second, last = (model.values[name] for name in WEIGHTS)
    assert isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and isinstance(last, np.ndarray)
    return [
        niti.Layer(first.transpose(2, 3, 1, 0).astype(np.int64), exponents["first"], has_pool=True),
        niti.Layer(second.transpose(2, 3, 1, 0).astype(np.int64), exponents["second"], stride=2),
        niti.Layer(last.reshape(5, 32).T.astype(np.int64), exponents["last"], has_relu=False),
    ]


def batches(count: int) -> list[tuple[Array, Array]]:
    """Images with a stripe for each class, and noise."""
    random, found = np.random.default_rng(1), []
    for _ in range(count):
        target = random.integers(0, 5, 8).astype(np.int32)
        x = random.standard_normal((8, 2, 8, 8)).astype(np.float32)
        x[np.arange(8), :, target] += 2
        found.append((x, target))
    return found


def require_same(layers: list[niti.Layer], weights: list[Array]) -> None:
    convolutions = [layer.weight.transpose(3, 2, 0, 1) for layer in layers[:2]]
    for mine, theirs in zip(weights, [*convolutions, layers[2].weight.T.reshape(5, 32, 1, 1)], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("rate", "bits"), [(0.25, 5), (0.0625, 3)])
def test_weights_equal_the_published_formulas(rate: float, bits: int) -> None:
    options = TrainingOptions(precision="niti", niti_weights="xavier", learning_rate=rate)
    model = in_precision(plain_cnn(), options)
    step = run_standard(build(model, options))
    check_graph(step)
    layers = published(model)
    state: dict[str, Array] = {}
    for x, target in batches(20):
        values = evaluate(step, {"x": x, "target": target, **state}, np.float32)
        state = {name: values[new] for name, new in step.updates.items()}
        logits = niti.step(layers, x.transpose(0, 2, 3, 1), target, bits)
        np.testing.assert_array_equal(values["logits"], logits)
    require_same(layers, [state[name] for name in WEIGHTS])


def test_xavier_weights_are_drawn_as_niti_draws_them() -> None:
    model = in_precision(plain_cnn(), TrainingOptions(precision="niti", niti_weights="xavier"))
    q = model.values["second"]
    assert isinstance(q, np.ndarray)
    assert np.abs(q).max() == 127
    limit = np.sqrt(6 / ((6 + 8) * 9))
    assert limit / 2 < 2.0 ** (exponents_of(model)["second"] + 7) < 4 * limit


def test_residuals_and_folded_norms_compute_what_the_float_model_does() -> None:
    graph = small_cnn(conv_bias=True)
    inputs = random_inputs(graph)
    expected = evaluate(graph, inputs)["logits"]
    found = evaluate(in_precision(graph, NITI), inputs, np.float32)["logits"]
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    step = run_standard(build(in_precision(graph, NITI), NITI))
    check_graph(step)
    assert sum(op.kind == "IntegerAdd" for op in step.operators) == 2  # of activations, of errors
    assert set(step.gradients) == {f"{n}.weight" for n in ("stem", "block", "fc")} | {"bn0.bias", "bn1.bias", "fc.bias"}


def test_branches_join_under_one_exponent() -> None:
    """Two convolutions of other sizes of numbers, joined as in Inception: close to the floats, and both are trained."""
    random = np.random.default_rng(0)
    b = Builder()
    x = b.add_tensor("x", TensorType((2, 3, 6, 6)), Role.INPUT)
    branches = []
    for name, outputs, size in (("wide", 5, 1.0), ("small", 3, 0.02)):
        weight = (size * random.standard_normal((outputs, 3, 1, 1))).astype(np.float32)
        w = b.add_tensor(name, TensorType(weight.shape), Role.PARAMETER, weight)
        branches.append(b.emit1("Conv", [x, w]))
    joined = b.emit1("Concat", branches, {"axis": 1})
    mean = b.emit1("ReduceMean", [joined], {"axes": (2, 3), "keepdims": 0})
    v = b.add_tensor("v", TensorType((8, 4)), Role.PARAMETER, random.standard_normal((8, 4)).astype(np.float32))
    y = b.emit1("MatMul", [mean, v], hint="logits")
    graph = Graph("joined", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    inputs = random_inputs(graph)
    (logits,) = graph.outputs
    expected, model = evaluate(graph, inputs)[logits], in_precision(graph, NITI)
    found = evaluate(model, inputs, np.float32)[model.outputs[0]]
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    step = run_standard(build(model, NITI))
    check_graph(step)
    assert sum(op.kind == "IntegerAlign" for op in step.operators) == 2
    assert set(step.gradients) == {"wide", "small", "v"}
    sizes = [op.attributes["sizes"] for op in step.operators if op.kind == "Slice"]
    assert sorted(sizes) == [(2, 3, 6, 6), (2, 5, 6, 6)], "each branch has its part of the error"
    evaluate(step, random_inputs(step), np.float32)


def test_folded_weights_unfold() -> None:
    graph = small_cnn(conv_bias=True)
    model = in_precision(graph, NITI)
    state = {n: v for n, v in model.values.items() if isinstance(v, np.ndarray) and v.dtype == np.int8}
    found = PRECISIONS["niti"].file_values(graph, model, state)
    assert set(found) == set(state)
    again = in_precision(replace(graph, values={**graph.values, **found}), NITI)
    assert exponents_of(again) == exponents_of(model)
    for name, q in state.items():
        np.testing.assert_array_equal(again.values[name], q)  # type: ignore[arg-type]


def test_dropout_halves() -> None:
    b = Builder()
    x = b.add_tensor("x", TensorType((4, 6)), Role.INPUT)
    w = b.add_tensor("w", TensorType((6, 3)), Role.PARAMETER, np.ones((6, 3), np.float32))
    v = b.add_tensor("v", TensorType((3, 3)), Role.PARAMETER, np.eye(3, dtype=np.float32))
    h = b.emit1("DropoutSite", [b.emit1("MatMul", [x, w])], {"ratio": 0.5})
    y = b.emit1("MatMul", [h, v], hint="logits")
    graph = Graph("dropout", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    options = TrainingOptions(precision="niti", dropout=True)
    step = run_standard(build(in_precision(graph, options), options))
    check_graph(step)
    kinds = [op.kind for op in step.operators]
    assert (kinds.count("IntegerDropout"), kinds.count("IntegerDropoutGrad")) == (1, 1)
    evaluate(step, random_inputs(step), np.float32)


def _model(middle: Callable[[Builder, str], str]) -> Graph:
    b = Builder()
    x = b.add_tensor("x", TensorType((4, 6)), Role.INPUT)
    w = b.add_tensor("w", TensorType((6, 3)), Role.PARAMETER, np.ones((6, 3), np.float32))
    v = b.add_tensor("v", TensorType((3, 3)), Role.PARAMETER, np.ones((3, 3), np.float32))
    y = b.emit1("MatMul", [middle(b, b.emit1("MatMul", [x, w])), v], hint="logits")
    return Graph("refused", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def test_operators_without_an_integer_form_are_named() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Sigmoid node .* has no integer form, and MatMul .* follows it"):
        in_precision(_model(lambda b, h: b.emit1("Sigmoid", [h])), NITI)
    with pytest.raises(UnsupportedModelError, match=r"MatMul .* shares its weight 'v'"):
        in_precision(_model(lambda b, h: b.emit1("MatMul", [b.emit1("MatMul", [h, "v"]), "v"])), NITI)


def test_a_convolution_along_one_axis_is_told_the_way(tmp_path: Path) -> None:
    """Its weight is a view, and no other layer has it."""
    random = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(random.standard_normal((4, 3, 5)).astype(np.float32), "w")
    x, y = (onnx.helper.make_tensor_value_info(n, 1, [2, c, 16]) for n, c in (("x", 3), ("y", 4)))
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="c1", kernel_shape=[5], pads=[2, 2])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y], [weight])), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModelError, match=r"'c1' .* weight '.*' is computed \(a convolution along one axis"):
        in_precision(poetc.load(tmp_path / "m.onnx").graph, NITI)


@pytest.mark.parametrize(
    ("rows", "taps", "message"),
    [
        (2**30 + 1, 1, r"'dense': sums of 1,073,741,825 products are not certain .*: use a smaller --batch; or train"),
        (1, 65_537, r"'dense': a sum has 65,537 products, more than 65,536"),
    ],
)
def test_sums_that_may_not_fit_name_their_node(rows: int, taps: int, message: str) -> None:
    b = Builder()
    b.source = "dense"
    x = b.add_tensor("x", TensorType((rows, taps)), Role.INPUT)
    w = b.add_tensor("w", TensorType((taps, 2)), Role.PARAMETER, np.ones((taps, 2), np.float32))
    y = b.emit1("MatMul", [x, w], hint="logits")
    graph = Graph("wide", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    with pytest.raises(UnsupportedModelError, match=message):
        build(in_precision(graph, NITI), NITI)


@pytest.mark.parametrize(("size", "kernel", "is_refused"), [(1, 5, True), (1, 3, False), (16, 4, False)])
def test_shares_of_a_pixel_beyond_32_bits_name_their_node(size: int, kernel: int, is_refused: bool) -> None:
    """Windows that count one pixel alone: it gets 25 times 127 · 2^20."""
    b = Builder()
    b.source = "pool"
    x = b.add_tensor("x", TensorType((1, 2, size, size)), Role.INPUT)
    w = b.add_tensor("w", TensorType((2, 2, 1, 1)), Role.PARAMETER, np.ones((2, 2, 1, 1), np.float32))
    attributes = {"kernel": (kernel, kernel), "pads": (kernel - 1,) * 4}
    y = b.emit1("AveragePool", [b.emit1("Conv", [x, w])], attributes)
    y = b.emit1("Reshape", [y], {"shape": (1, b.type(y).elements)}, hint="logits")
    graph = Graph("padded", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    if is_refused:
        with pytest.raises(UnsupportedModelError, match=r"'pool': an average counts too few of its taps"):
            build(in_precision(graph, NITI), NITI)
    else:
        build(in_precision(graph, NITI), NITI)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"precision": "FP16"}, "--precision 'FP16': .*; take f16"),
        ({"precision": "int8"}, "--precision 'int8': .*; integers of 8 bits are niti for a model of floats, and qas"),
        ({"precision": "FP32"}, "--precision 'FP32': .*; take f32"),
        ({"saved": "fp16"}, "--saved 'fp16': .*; take f16"),
        ({"saved": "niti"}, "--saved 'niti': .*; niti is a choice of --precision"),
        ({"loss": "f16"}, "--loss 'f16': choose from auto, .*, contrastive$"),
    ],
)
def test_a_wrong_format_leads_to_the_right_one(option: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingOptions(**option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adam"}, "--optimizer: has no integer form"),
        ({"weight_decay": 0.1}, "--weight-decay: has no"),
        ({"loss": "mse"}, "trains the cross-entropy"),
    ],
)
def test_options_that_integers_do_not_know(options: dict[str, str], message: str) -> None:
    given = TrainingOptions(precision="niti", **options)  # type: ignore[arg-type]
    with pytest.raises(PoetcError, match=message):
        build(in_precision(plain_cnn(), given), given)


def test_numbers_name_choices_too() -> None:
    assert TrainingOptions(precision="niti", weight_bits=24).weight_bits == "24"  # type: ignore[call-arg, arg-type]
    with pytest.raises(UsageError, match="--weight-bits '16': choose from 8, 24"):
        TrainingOptions(precision="niti", weight_bits="16")


def test_roundings_are_read() -> None:
    options = TrainingOptions(precision="niti", rounding="err=stochastic,update=nearest")
    assert options.roundings() == {"activation": "nearest", "error": "stochastic", "update": "nearest"}
    step = build(in_precision(plain_cnn(), options), options)
    found = {op.attributes["rounding"] for op in step.operators if op.kind == "IntegerConvGradInput"}
    assert found == {"stochastic"}
    with pytest.raises(UsageError, match="--rounding 'act=up': write act=HOW"):
        TrainingOptions(precision="niti", rounding="act=up")
    with pytest.raises(UsageError, match="--rounding does nothing for --precision f32"):
        TrainingOptions(rounding="act=nearest")


def _write(path: Path) -> Path:
    """`plain_cnn` as an ONNX file."""
    graph = plain_cnn()
    weights = []
    for name in WEIGHTS:
        array = graph.values[name]
        assert isinstance(array, np.ndarray)
        weights.append(onnx.numpy_helper.from_array(array, name))
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "first"], ["a"], kernel_shape=[3, 3], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "second"], ["d"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["d"], ["e"]),
        node("Flatten", ["e"], ["f"]),
        node("MatMul", ["f", "last"], ["logits"]),
    ]
    value = onnx.helper.make_tensor_value_info
    ends = [value("x", 1, [8, 2, 8, 8])], [value("logits", 1, [8, 5])]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "plain", *ends, weights), ir_version=8)
    onnx.save(model, path)
    return path


def test_small_updates_add_up_in_weights_of_24_bits() -> None:
    """At a rate of 2^-10 no update reaches half a unit of 8 bits: weights of 8 bits stay as they are."""
    moved = {}
    for bits in ("8", "24"):
        options = TrainingOptions(precision="niti", weight_bits=bits, learning_rate=2.0**-10, rounding="update=nearest")
        step = run_standard(build(in_precision(plain_cnn(), options), options))
        check_graph(step)
        state: dict[str, Array] = {}
        for x, target in batches(30):
            values = evaluate(step, {"x": x, "target": target, **state}, np.float32)
            state = {name: values[new] for name, new in step.updates.items()}
        weights = [t for t in step.updates if step.tensors[t].type.dtype is DType.I8]
        assert len(weights) == 3
        moved[bits] = sum(int((state[t] != step.values[t]).sum()) for t in weights)
        for name in weights if bits == "24" else ():
            stored = state[f"{name}:stored"]
            assert (((stored + (1 << 15)) >> 16) == state[name]).all()
    assert moved["8"] == 0 < moved["24"]


def test_scans_become_rare_and_clipped_values_are_counted() -> None:
    options = TrainingOptions(precision="niti", rescale="interval", learning_rate=0.03125)
    step = run_standard(build(in_precision(plain_cnn(), options), options))
    check_graph(step)
    state: dict[str, Array] = {}
    clipped = 0
    for x, target in batches(40):
        values = evaluate(step, {"x": x, "target": target, **state}, np.float32)
        state = {name: values[new] for name, new in step.updates.items()}
        clipped += sum(int(values[t][1]) for t in values if t in step.tensors and t.endswith("grad:1"))
    scans = [int(array[3]) for name, array in state.items() if name.endswith(":history")]
    assert len(scans) == 8  # of three layers, without the error of the first layer's input
    assert sum(scans) < 40 * 8 // 2
    counts = {name: int(array[0]) for name, array in state.items() if name.endswith("s:clipped")}
    assert set(counts) == {"activations:clipped", "errors:clipped", "updates:clipped"}
    assert counts["errors:clipped"] + counts["updates:clipped"] == clipped > 0


def test_sums_that_outgrow_their_history_are_scanned_in_the_same_step() -> None:
    """No more than one value in a thousand is clipped; the bits fall to the most of a window afterwards."""
    sums = np.arange(-4000, 4001, dtype=np.int64) * 9
    history = np.array([12, 3, 0, 1], np.int32)
    scanned, scanned_scale = _integers.rescaled(sums, -5, "nearest")
    q, scale = _integers.rescaled(sums, -5, "nearest", history)
    np.testing.assert_array_equal(q, scanned)
    assert scale[1] == scanned_scale[1] and scale[4] == 1
    kept, kept_scale = _integers.rescaled(sums, -5, "nearest", np.array([17, 3, 0, 1], np.int32))
    assert kept_scale[4] == 0 and np.abs(kept).max() == 35
    update, update_scale = _integers.update_of(sums, np.array([0.25], np.float32), "nearest", history)
    assert update_scale[4] == 1 and np.abs(update).max() == 18


@pytest.mark.long
def test_c_equals_the_published_formulas_after_a_thousand_steps(tmp_path: Path) -> None:
    options = TrainingOptions(precision="niti", niti_weights="xavier", learning_rate=0.25)
    solution = poetc.load(_write(tmp_path / "plain.onnx"), training=options).solve(budget="60%", time_limit_s=3)
    layers = published(in_precision(plain_cnn(), options))
    with solution.trainer() as trainer:
        for index, (x, target) in enumerate(batches(1000)):
            if index in (400, 700):  # NITI goes from 5 bits to 4 and 3
                trainer.learning_rate /= 2
            trainer.step(x, target)
            niti.step(layers, x.transpose(0, 2, 3, 1), target, 5 - (index >= 400) - (index >= 700))
        state = trainer.state_dict()
    require_same(layers, [state[name] for name in WEIGHTS])
    exported = solution.export(state, tmp_path / "trained.onnx")
    assert exported["changed"] == 3
