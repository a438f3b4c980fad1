"""Operators of files that people have: forward beside onnxruntime, gradients of all that is trained by differences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc import training
from poetc.errors import UnsupportedModelError
from poetc.frontend import load
from poetc.graph import DType, Graph
from poetc.training import TrainingOptions
from tests.frontend.support import evaluate, make, normal, parameters, save
from tests.frontend.test_node_gradients import disagreements, double, run

MET = Path(__file__).parent / "met"
BATCH = 3


def assert_as_onnxruntime(path: Path, graph: Graph, feeds: Mapping[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    expected = dict(zip(names, session.run(None, dict(feeds)), strict=True))
    for name, value in evaluate(graph, feeds).items():
        np.testing.assert_allclose(value, expected[name], 1e-4, 1e-5, err_msg=name)


def assert_gradients(graph: Graph, feeds: Mapping[str, np.ndarray]) -> None:
    """Of every parameter, along one direction."""
    step = training.build(graph, TrainingOptions(loss="mse", output=graph.outputs[0]))
    draw = np.random.default_rng(3)
    trained = sorted(step.gradients.keys() & set(parameters(graph)))
    assert trained
    at: dict[str, Any] = {name: double(feeds[name]) for name in graph.inputs}
    at[step.target] = draw.standard_normal(step.tensors[step.target].shape)
    weights = {name: double(np.asarray(graph.values[name])) for name in trained}
    held = run(step, {**at, **weights})
    for name in trained:
        direction = draw.standard_normal(weights[name].shape)
        above, below = (
            float(run(step, {**at, **weights, name: weights[name] + e * direction})[step.loss]) for e in (1e-5, -1e-5)
        )
        exact = float(np.sum(held[step.gradients[name]] * direction))
        assert exact == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-8), name


@pytest.mark.parametrize(
    ("file", "trained"),
    [
        ("dft_op", {"W", "b"}),
        ("stft_op", {"c.weight", "f.bias"}),
        ("grid_sample", {"loc.weight", "c.weight", "f.bias"}),
        ("inplace_scatternd", {"a.weight", "a.bias", "b.weight"}),
        ("keras_bidirectional_gru", {"sequential_1/dense_1_1/Cast/ReadVariableOp:0"}),
        ("masked_lstm_lens", {"emb", "W", "R", "B", "fw"}),
        ("onehot_regression", {"LinearRegressor.coefficients"}),
    ],
)
def test_files_that_people_have(file: str, trained: set[str]) -> None:
    path = MET / f"{file}.onnx"
    fixed = file in ("stft_op", "grid_sample", "inplace_scatternd")
    graph = load(path, batch=None if fixed else BATCH)
    draw = np.random.default_rng(1)
    feeds: dict[str, np.ndarray] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        if tensor.dtype is DType.F32:
            feeds[name] = draw.standard_normal(tensor.shape).astype(np.float32)
        else:
            feeds[name] = np.sort(draw.integers(0, 9, tensor.shape), 1)[:, ::-1].copy()  # zeros are last, as padding
    if file == "onehot_regression":
        feeds["X"][:, 2] = [3, 0, 2]
    if file == "masked_lstm_lens":
        feeds["ids"][0, 2:] = 0
    assert_as_onnxruntime(path, graph, feeds)
    assert trained <= parameters(graph)
    assert_gradients(graph, feeds)


def weighted(op: str, inputs: list[str], constants: dict[str, Any], shape: tuple[int, ...], **attributes: Any) -> Any:
    """`op` on x · w (and u, if it reads one, with a shape among the constants)."""
    nodes = [make_node("Mul", ["x", "w"], ["h"]), make_node(op, inputs, ["y"], **attributes)]
    weights = {"w": 1 + 0.1 * normal(*shape), **constants}
    return declared(make(nodes, {"x": shape}, ["y"], weights, opset=20), "w")


def declared(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """With the list of parameters that PyTorch's default exporter writes."""
    text = "\n".join(f"p_{name}: PARAMETER target='{name}'" for name in names)
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=text)
    return model


UPDATES = {
    "elements": ("ScatterElements", {"i": np.array([[2, -1], [0, 1]])}, (2, 2), {"axis": 1}),
    "elements add": ("ScatterElements", {"i": np.array([[2, 2], [0, -4]])}, (2, 2), {"axis": 1, "reduction": "add"}),
    "elements mul": ("ScatterElements", {"i": np.array([[2, 2, 1]])}, (1, 3), {"axis": 1, "reduction": "mul"}),
    "elements max": ("ScatterElements", {"i": np.array([[0, 2, 1, 1]])}, (1, 4), {"reduction": "max"}),
    "slices": ("ScatterND", {"i": np.array([[2], [0]])}, (2, 4), {}),
    "tuples": ("ScatterND", {"i": np.array([[[2, 1], [0, -1]]])}, (1, 2), {}),
    "tuples add": ("ScatterND", {"i": np.array([[2, 1], [2, 1]])}, (2,), {"reduction": "add"}),
    "tuples min": ("ScatterND", {"i": np.array([[2, 1], [2, 1]])}, (2,), {"reduction": "min"}),
}


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("case", UPDATES)
def test_assignment_at_indices(case: str, computed: bool, tmp_path: Path) -> None:
    """Updates are trained too; indices are in the file, or another input."""
    op, constants, shape, attributes = UPDATES[case]
    model = weighted(op, ["h", "i", "u"], {**constants, "u": normal(*shape)}, (3, 4), **attributes)
    model.graph.node[1].input[2] = "v"
    model.graph.node.insert(1, make_node("MatMul" if len(shape) > 1 else "Mul", ["u", "q"], ["v"]))
    square = normal(shape[-1], shape[-1]) if len(shape) > 1 else normal(*shape)
    model.graph.initializer.append(onnx.numpy_helper.from_array(square, "q"))
    declared(model, "u", "q")
    feeds = {"x": normal(3, 4, seed=4)}
    if computed:
        given = next(t for t in model.graph.initializer if t.name == "i")
        feeds["i"] = onnx.numpy_helper.to_array(given)
        model.graph.initializer.remove(given)
        model.graph.input.append(onnx.helper.make_tensor_value_info("i", TensorProto.INT64, feeds["i"].shape))
    path = save(model, tmp_path)
    if computed and op == "ScatterND" and "min" in case:
        with pytest.raises(UnsupportedModelError, match="ScatterND 'y': reduction 'min' at computed places"):
            load(path)
        return
    graph = load(path)
    assert_as_onnxruntime(path, graph, feeds)
    assert {"w", "q"} <= parameters(graph)
    assert_gradients(graph, feeds)


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.BOOL])
def test_assignment_of_integers_and_masks(dtype: int, tmp_path: Path) -> None:
    nodes = [make_node("Cast", ["x"], ["h"], to=dtype), make_node("ScatterND", ["h", "i", "u"], ["y"])]
    nodes += [make_node("Cast", ["y"], ["f"], to=TensorProto.FLOAT), make_node("Mul", ["f", "w"], ["z"])]
    updates = np.array([1, 0], np.int64 if dtype == TensorProto.INT64 else np.bool_)
    model = make(nodes, {"x": (2, 3)}, ["z"], {"i": np.array([[0, 1], [1, 2]]), "u": updates, "w": normal(2, 3)})
    path = save(model, tmp_path)
    feeds = {"x": np.array([[3, 0, 1], [0, 2, 5]], np.float32)}
    assert_as_onnxruntime(path, load(path), feeds)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_images_read_at_computed_places(mode: str, padding: str, align: int, tmp_path: Path) -> None:
    grid = np.random.default_rng(2).uniform(-2.3, 2.3, (2, 3, 4, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    path = save(weighted("GridSample", ["h", "g"], {"g": grid}, (2, 3, 5, 4), **attributes), tmp_path)
    graph, feeds = load(path), {"x": normal(2, 3, 5, 4, seed=4)}
    assert_as_onnxruntime(path, graph, feeds)
    assert_gradients(graph, feeds)
    shapes = {"x": (1, 2, 5, 4), "g": (1, 3, 4, 2)}
    both = make([make_node("GridSample", ["x", "g"], ["y"], **attributes)], shapes, ["y"], opset=20)
    compared, wrong = disagreements(load(save(both, tmp_path)), {"x": normal(1, 2, 5, 4), "g": grid[:1]})
    assert compared == 2
    assert not wrong


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("known", [False, True])
def test_sequences_of_different_lengths(op: str, direction: str, known: bool, tmp_path: Path) -> None:
    ways, gates = (2 if direction == "bidirectional" else 1), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    outputs = ["y", "last", *(["cell"] if op == "LSTM" else [])]
    node = make_node(op, ["x", "w", "r", "b", "lens"], outputs, hidden_size=3, direction=direction)
    weights = {"w": normal(ways, gates * 3, 2), "r": normal(ways, gates * 3, 3), "b": normal(ways, 2 * gates * 3)}
    lens = np.array([4, 1, 3], np.int32)
    inputs: dict[str, Any] = {"x": (4, 3, 2)}
    feeds = {"x": normal(4, 3, 2, seed=5)}
    if known:
        weights["lens"] = lens
    else:
        inputs["lens"], feeds["lens"] = (TensorProto.INT32, (3,)), lens
    path = save(make([node], inputs, outputs, weights), tmp_path)
    graph = load(path)
    assert_as_onnxruntime(path, graph, feeds)
    assert_gradients(graph, feeds)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_sequences_turned_round(axes: tuple[int, int], known: bool, tmp_path: Path) -> None:
    time_axis, batch_axis = axes
    shape = (4, 3, 2) if time_axis == 0 else (3, 4, 2)
    lens = np.array([4, 1, 3])
    model = weighted("ReverseSequence", ["h", "n"], {"n": lens}, shape, time_axis=time_axis, batch_axis=batch_axis)
    feeds = {"x": normal(*shape, seed=3)}
    if not known:
        model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "n"))
        model.graph.input.append(onnx.helper.make_tensor_value_info("n", TensorProto.INT64, (3,)))
        feeds["n"] = lens
    path = save(model, tmp_path)
    graph = load(path)
    assert_as_onnxruntime(path, graph, feeds)
    assert_gradients(graph, feeds)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
def test_reductions_of_integers(op: str, tmp_path: Path) -> None:
    """Exact beyond the 24 bits of a float."""
    axes = {"axes": np.array([1, 2])} if op == "ReduceSum" else {}
    nodes = [make_node(op, ["i", *axes], ["s"], **({} if axes else {"axes": [1, 2]}), keepdims=0)]
    nodes += [make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT), make_node("Mul", ["x", "w"], ["h"])]
    nodes += [make_node("Add", ["h", "f"], ["y"])]
    inputs = {"x": (2,), "i": (TensorProto.INT64, (2, 3, 5))}
    path = save(make(nodes, inputs, ["y", "s"], {"w": normal(2), **axes}), tmp_path)
    given = np.random.default_rng(4).integers(-9, 9, (2, 3, 5))
    if op != "ReduceProd":
        given[0, 0, 0] = 2**24 + 1
    else:
        given[given == 0] = 1
        given[:, :2] = 1
    graph = load(path)
    feeds = {"x": normal(2), "i": given}
    found = evaluate(graph, feeds)["s"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert np.array_equal(found, session.run(["s"], feeds)[0].astype(np.int32))


INVERSE = {"Asin": (-1, 1), "Acos": (-1, 1), "Asinh": (-9, 9), "Acosh": (1, 9), "Atanh": (-1, 1)}


@pytest.mark.parametrize("op", INVERSE)
def test_inverse_functions(op: str, tmp_path: Path) -> None:
    low, high = INVERSE[op]
    path = save(make([make_node(op, ["x"], ["y"])], {"x": (41,)}, ["y"]), tmp_path)
    x = np.linspace(low, high, 41).astype(np.float32) * np.float32(1 if op in ("Asinh", "Acosh") else 0.999)
    graph = load(path)
    assert_as_onnxruntime(path, graph, {"x": x})
    compared, wrong = disagreements(graph, {"x": np.clip(x, low + 0.02, high - 0.02)})
    assert compared == 1
    assert not wrong
    if op == "Asinh":
        step = disagreements(graph, {"x": np.zeros(41, np.float32)})
        assert not step[1]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_determinants(size: int, tmp_path: Path) -> None:
    path = save(make([make_node("Det", ["x"], ["y"])], {"x": (2, size, size)}, ["y"]), tmp_path)
    graph, x = load(path), normal(2, size, size)
    assert_as_onnxruntime(path, graph, {"x": x})
    assert disagreements(graph, {"x": x}) == (1, [])


@pytest.mark.parametrize(
    ("op", "attributes", "element"),
    [
        ("OneHotEncoder", {"cats_int64s": [0, 2, 5], "zeros": 1}, TensorProto.INT64),
        ("OneHotEncoder", {"cats_int64s": [0, 2, 5], "zeros": 1}, TensorProto.FLOAT),
        ("Binarizer", {"threshold": 1.5}, TensorProto.FLOAT),
        (
            "LabelEncoder",
            {"keys_int64s": [5, 0], "values_floats": [0.5, -2], "default_float": 9.0},
            TensorProto.INT64,
        ),
        ("LabelEncoder", {"keys_int64s": [5, 2], "values_int64s": [1, 7]}, TensorProto.INT64),
        ("LabelEncoder", {"keys_floats": [5.0, 2.0], "values_floats": [1.0, 7.0]}, TensorProto.FLOAT),
    ],
)
def test_encoders_of_scikit_learn(op: str, attributes: dict[str, Any], element: int, tmp_path: Path) -> None:
    nodes = [make_node(op, ["x"], ["e"], domain="ai.onnx.ml", **attributes)]
    nodes += [make_node("Cast", ["e"], ["f"], to=TensorProto.FLOAT), make_node("Mul", ["f", "w"], ["y"])]
    columns = 3 if op == "OneHotEncoder" else 1
    model = make(nodes, {"x": (element, (2, 3))}, ["y"], {"w": normal(3, columns) if columns == 3 else normal(2, 3)})
    model.opset_import.add(domain="ai.onnx.ml", version=4 if op == "LabelEncoder" else 1)
    path = save(model, tmp_path)
    x = np.array([[0, 2, 5], [5, 1, 0]], np.int64 if element == TensorProto.INT64 else np.float32)
    assert_as_onnxruntime(path, load(path), {"x": x})


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        ({}, (2, 3, 3, 2, 2)),
        ({"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 0], "output_padding": [1, 0, 1]}, (2, 3, 3, 3, 2)),
        ({"group": 2, "dilations": [2, 1, 1]}, (2, 2, 2, 2, 3)),
        ({"strides": [2, 2, 2], "auto_pad": "SAME_UPPER"}, (2, 1, 3, 3, 3)),
    ],
)
def test_transposed_convolutions_of_volumes(
    attributes: dict[str, Any], weight: tuple[int, ...], tmp_path: Path
) -> None:
    channels = weight[1] * attributes.get("group", 1)
    node = make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)
    path = save(make([node], {"x": (2, 2, 3, 4, 2)}, ["y"], {"w": normal(*weight), "b": normal(channels)}), tmp_path)
    graph, feeds = load(path), {"x": normal(2, 2, 3, 4, 2)}
    assert_as_onnxruntime(path, graph, feeds)
    assert {"w", "b"} <= parameters(graph)
    assert_gradients(graph, feeds)


def test_sequences_of_tensors(tmp_path: Path) -> None:
    """As PyTorch writes hstack: a map over a sequence, whose body asks for the rank."""
    float_info, length = onnx.helper.make_tensor_value_info, np.array([-1])
    then = onnx.helper.make_graph(
        [make_node("Reshape", ["m", "flat"], ["r"])], "then", [], [float_info("r", TensorProto.FLOAT, None)]
    )
    other = onnx.helper.make_graph(
        [make_node("Identity", ["m"], ["s"])], "else", [], [float_info("s", TensorProto.FLOAT, None)]
    )
    nodes = [make_node("Shape", ["m"], ["shape"]), make_node("Size", ["shape"], ["rank"])]
    nodes += [make_node("Equal", ["rank", "none"], ["is_scalar"])]
    nodes += [make_node("If", ["is_scalar"], ["o"], then_branch=then, else_branch=other)]
    constants = [onnx.numpy_helper.from_array(length, "flat"), onnx.numpy_helper.from_array(np.array(0), "none")]
    members = [float_info("m", TensorProto.FLOAT, None)]
    body = onnx.helper.make_graph(nodes, "body", members, [float_info("o", TensorProto.FLOAT, None)], constants)
    listed = [make_node("Tanh", ["x"], ["t"]), make_node("Mul", ["t", "w"], ["h"])]
    listed += [make_node("SequenceEmpty", [], ["e"]), make_node("SequenceInsert", ["e", "h"], ["a"])]
    listed += [
        make_node("SequenceInsert", ["a", "half"], ["b"]),
        make_node("SequenceInsert", ["b", "x", "first"], ["c"]),
    ]
    listed += [make_node("SequenceErase", ["c", "first"], ["d"]), make_node("SequenceMap", ["d"], ["n"], body=body)]
    listed += [make_node("ConcatFromSequence", ["n"], ["y"], axis=0)]
    weights = {"w": normal(3), "half": np.array(0.5, np.float32), "first": np.array(0)}
    path = save(make(listed, {"x": (3,)}, ["y"], weights), tmp_path)
    graph, feeds = load(path), {"x": normal(3)}
    assert_as_onnxruntime(path, graph, feeds)
    assert_gradients(graph, feeds)


def test_random_numbers_are_drawn_in_training_and_are_their_mean_elsewhere(tmp_path: Path) -> None:
    """A variational autoencoder. onnxruntime computes the same function with zeros in place of the numbers."""
    graph = load(MET / "vae_random.onnx")
    assert any("RandomNormalLike" in note and "--dropout-seed" in note for note in graph.notes)
    feeds = {"x": normal(8, 12)}
    model = onnx.load(MET / "vae_random.onnx")
    drawn = next(node for node in model.graph.node if node.op_type == "RandomNormalLike")
    drawn.CopyFrom(make_node("Sub", ["mu", "mu"], list(drawn.output)))
    assert_as_onnxruntime(save(model, tmp_path), graph, feeds)
    assert_gradients(graph, feeds)
    seen = []
    for seed, number in ((1, 0), (1, 0), (1, 1), (2, 0)):
        step = training.build(graph, TrainingOptions(loss="mse", output="recon", dropout_seed=seed))
        counter = next(op.inputs[0] for op in step.operators if op.kind == "StepCount")
        target = np.zeros(step.tensors[step.target].shape)
        seen.append(float(run(step, {**feeds, step.target: target, counter: np.array([number], np.int32)})[step.loss]))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


@pytest.mark.parametrize(
    ("op", "attributes", "mean", "deviation"),
    [
        ("RandomNormal", {"mean": 2.0, "scale": 0.5}, 2.0, 0.5),
        ("RandomUniform", {"low": -1.0, "high": 3.0}, 1.0, 1.1547),
    ],
)
def test_laws(op: str, attributes: dict[str, Any], mean: float, deviation: float, tmp_path: Path) -> None:
    nodes = [make_node(op, [], ["r"], shape=[100, 50], **attributes), make_node("Tanh", ["x"], ["t"])]
    nodes += [make_node("MatMul", ["t", "w"], ["h"]), make_node("Add", ["h", "r"], ["y"])]
    graph = load(save(make(nodes, {"x": (100, 2)}, ["y"], {"w": 0 * normal(2, 50)}), tmp_path))
    feeds = {"x": normal(100, 2)}
    assert np.all(evaluate(graph, feeds)["y"] == np.float32(mean))
    step = training.build(graph, TrainingOptions(loss="mse"))
    drawn = run(step, {**feeds, step.target: np.zeros((100, 50))})["y"]
    assert drawn.mean() == pytest.approx(mean, abs=4 * deviation / 70)
    assert drawn.std() == pytest.approx(deviation, rel=0.05)
    assert len(np.unique(drawn)) > 4900


def test_integers_behind_a_transform_are_refused_by_name() -> None:
    """The transform is a product with constants alone, which stays in floats; the one behind it has no weights."""
    graph = load(MET / "stft_op.onnx")
    with pytest.raises(UnsupportedModelError, match="MatMul node 'node_matmul' has no integer form"):
        training.in_precision(graph, TrainingOptions(precision="niti"))
