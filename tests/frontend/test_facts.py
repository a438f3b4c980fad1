"""Facts that the importer finds out: outputs that are probabilities, the axis of classes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from poetc.commands.advice import of_model, of_training
from poetc.datasets import slots_of
from poetc.errors import UsageError
from poetc.frontend import load, parameter_decisions
from poetc.frontend.facts import fixed_tensors
from poetc.graph import Graph, Role, graph_from_json, graph_to_json
from poetc.training import TrainingOptions, build, plan_losses, select_parameters
from tests.frontend.support import make, normal, save
from tests.support.cases import CASES


def _classifier(tmp_path: Path, *behind: object, axis: int = 1) -> Graph:
    """Four scores a row, and operators behind them that make `y`."""
    nodes = [make_node("MatMul", ["x", "w"], ["s"]), *behind]
    weights = {"w": normal(3, 4), "wide": np.array([0.0], np.float32), "one": np.array([1], np.int64)}
    weights |= {"low": np.array(1e-7, np.float32), "high": np.array(1 - 1e-7, np.float32), "two": np.array([2])}
    return load(save(make(nodes, {"x": (5, 3)}, ["y"], weights), tmp_path))


def test_outputs_behind_a_softmax_are_probabilities_by_their_operators(tmp_path: Path) -> None:
    softmax, sigmoid = make_node("Softmax", ["s"], ["p"], axis=1), make_node("Sigmoid", ["s"], ["p"])
    sums = make_node("ReduceSum", ["q", "one"], ["t"], keepdims=1)
    for nodes in (
        [softmax, make_node("Clip", ["p", "low", "high"], ["y"])],
        [softmax, make_node("Clip", ["p", "low", "high"], ["q"]), sums, make_node("Div", ["q", "t"], ["y"])],
        [softmax, make_node("Mul", ["p", "p"], ["q"]), sums, make_node("Div", ["q", "t"], ["y"])],
        [make_node("Exp", ["s"], ["q"]), sums, make_node("Div", ["q", "t"], ["y"])],
    ):
        (fact,) = _classifier(tmp_path, *nodes).facts
        assert (fact.kind, fact.value, fact.confidence) == ("distribution", 1, "certain")
    (fact,) = _classifier(tmp_path, sigmoid, make_node("Clip", ["p", "low", "high"], ["y"])).facts
    assert fact.kind == "probability"


def test_numbers_that_are_no_probabilities_are_not_taken_for_them(tmp_path: Path) -> None:
    softmax = make_node("Softmax", ["s"], ["p"], axis=1)
    for nodes in (
        [make_node("Relu", ["s"], ["y"])],
        [make_node("Clip", ["s", "low", "high"], ["y"])],
        [softmax, make_node("Add", ["p", "p"], ["y"])],
        [softmax, make_node("Slice", ["p", "one", "two", "one"], ["q"]), make_node("Neg", ["q"], ["y"])],
    ):
        assert _classifier(tmp_path, *nodes).facts == ()


def test_a_run_shows_what_the_operators_do_not() -> None:
    """A linear classifier with two sigmoids of opposite scores."""
    graph = load(CASES / "sk_lr2.onnx", batch=8)
    (fact,) = [f for f in graph.facts if f.kind == "distribution"]
    assert (fact.subject, fact.value, fact.confidence) == ("probabilities", 1, "likely")
    assert plan_losses(graph, TrainingOptions())[0].of_probabilities


def test_facts_survive_in_a_solved_directory() -> None:
    graph = load(CASES / "sk_lr2.onnx", batch=8)
    arrays: dict[str, np.ndarray] = {}
    assert graph_from_json(graph_to_json(graph, arrays), arrays).facts == graph.facts != ()


def test_the_units_of_the_last_layer_are_the_classes(tmp_path: Path) -> None:
    for name, batch in (("ncl_logits", 5), ("ncl_logits_equal", 5)):
        graph = load(CASES / f"{name}.onnx")
        (fact,) = graph.facts
        assert (fact.kind, fact.value) == ("class axis", 1)
        (plan,) = plan_losses(graph, TrainingOptions(loss="cross-entropy"))
        assert plan.attributes["axis"] == 1
        assert plan.target.shape == (batch, graph.tensors["logits"].shape[2])
        assert "classes along axis 1, the channels of '/b/Conv'" in plan.note
    nodes = [make_node("MatMul", ["x", "w"], ["s"]), make_node("Transpose", ["s"], ["y"], perm=[0, 2, 1])]
    graph = load(save(make(nodes, {"x": (2, 5, 3)}, ["y"], {"w": normal(3, 4)}), tmp_path))
    assert graph.fact("class axis", "y").value == 1  # type: ignore[union-attr]
    nodes = [make_node("Conv", ["x", "w"], ["s"]), make_node("Transpose", ["s"], ["y"], perm=[0, 2, 3, 1])]
    graph = load(save(make(nodes, {"x": (2, 5, 3, 3)}, ["y"], {"w": normal(4, 5, 1, 1)}), tmp_path))
    assert graph.fact("class axis", "y").value == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(("shape", "steps", "axis"), [((6, 3, 2), 0, 1), ((4, 4, 2), 0, 1), ((4, 4, 2), 1, 0)])
def test_the_samples_of_the_output_tell_their_axis_in_sequences(
    tmp_path: Path, shape: tuple[int, ...], steps: int, axis: int
) -> None:
    """A batch of [steps, samples, ...] was cut along the steps, without a word where there are as many samples."""
    nodes = [make_node("ReduceMean", ["x", "steps"], ["m"], keepdims=0), make_node("MatMul", ["m", "w"], ["y"])]
    weights = {"w": normal(2, 3), "steps": np.array([steps])}
    graph = load(save(make(nodes, {"x": shape}, ["y"], weights), tmp_path))
    x, target = slots_of(build(graph, TrainingOptions(loss="cross-entropy")))
    assert (x.batch_axis, x.sample_shape) == (axis, (shape[steps], 2))
    assert (x.rows, target.rows) == (shape[axis], shape[axis])


def test_the_option_overrides_the_axis() -> None:
    graph = load(CASES / "ncl_logits.onnx")
    (plan,) = plan_losses(graph, TrainingOptions(loss="cross-entropy", class_axis=-1))
    assert (plan.attributes["axis"], plan.target.shape) == (2, (5, 4))
    with pytest.raises(UsageError, match=r"--class-axis 3: output 'logits' has the shape \[5, 4, 10\]"):
        plan_losses(graph, TrainingOptions(loss="cross-entropy", class_axis=3))
    with pytest.raises(UsageError, match="--class-axis does nothing for --loss mse"):
        TrainingOptions(loss="mse", class_axis=1)


def test_fixed_transforms_are_not_trained_unless_they_are_named(tmp_path: Path) -> None:
    for name, fixed in (("conv_stft_legacy", {"basis", "mel"}), ("yolo_dfl", {"dfl.conv.weight"})):
        graph = load(CASES / f"{name}.onnx")
        assert {f.subject for f in graph.facts if f.kind == "fixed tensor"} == fixed
        trained = select_parameters(graph, "all")
        assert trained
        assert not trained & fixed
        assert not select_parameters(graph, "*") & fixed
        assert not select_parameters(graph, "last:9") & fixed
        for tensor in fixed:
            assert select_parameters(graph, f"all,{tensor}") == trained | {tensor}
            assert any(note.startswith(f"not trained: {tensor!r}, ") for note in graph.notes)
        assert {d.name for d in parameter_decisions(graph) if d.name in fixed and d.decision is Role.CONSTANT} == fixed


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (np.arange(12), "ramp"),
        (np.eye(6), "one 1 among zeros"),
        (np.cos(np.pi / 16 * (np.arange(16) + 0.5) * np.arange(6)[:, None]).T, "cosine transform"),
        (np.maximum(0, 1 - np.abs(np.arange(20)[:, None] - np.array([2, 6, 10, 15])) / 4), "filter bank"),
        (np.stack(np.meshgrid(np.arange(5) + 0.5, np.arange(5) + 0.5)).reshape(2, 25), "anchors"),
        # that a spatial transformer multiplies
        (np.stack([*np.meshgrid(np.arange(4), np.arange(5)), np.ones((5, 4))], -1).reshape(20, 3), "anchors"),
        (2.0 ** -np.array([2, 4, 6, 8, 1, 3]), "ALiBi"),  # of six heads
        (2.0 ** -np.array([4, 8, 2]), "ALiBi, 0.0625, 0.00390625, 0.25"),
        (-(2.0 ** -np.array([4, 8])), "ALiBi, -0.0625, -0.00390625"),
        (-np.abs(np.arange(6)[:, None] - np.arange(6)) / 4, "distance"),
        (np.arange(8) / 2.0 ** np.array([[4], [8]]), "each row is an arithmetic ramp"),
        (np.arange(-7, 1) / 2.0 ** np.array([[2], [4], [6], [8]]), "each row is an arithmetic ramp"),
    ],
)
def test_numbers_that_no_training_ends_in(tmp_path: Path, value: np.ndarray, word: str) -> None:
    value = np.asarray(value, np.float32)
    matrix = value.reshape(-1, 1) if value.ndim == 1 else value
    nodes = [make_node("MatMul", ["x", "t"], ["s"]), make_node("MatMul", ["s", "w"], ["y"])]
    weights = {"t": matrix, "w": normal(matrix.shape[1], 3)}
    graph = load(save(make(nodes, {"x": (2, matrix.shape[0])}, ["y"], weights), tmp_path))
    (fact,) = [f for f in graph.facts if f.kind == "fixed tensor"]
    assert fact.subject == "t"
    assert word in fact.evidence
    for seed in range(3):
        noisy = {**weights, "t": matrix + normal(*matrix.shape, seed=seed) * 0.05}
        other = load(save(make(nodes, {"x": (2, matrix.shape[0])}, ["y"], noisy), tmp_path))
        assert not [f for f in other.facts if f.kind == "fixed tensor"]


def test_a_bias_by_distance_has_one_note(tmp_path: Path) -> None:
    """Slopes of four heads times distances, added to the scores: no doubt is left, so none is told."""
    slopes, distance = 0.25 ** np.arange(1, 5), -np.abs(np.arange(5)[:, None] - np.arange(5))
    weights = {"slopes": slopes.reshape(4, 1, 1).astype(np.float32), "distance": distance.astype(np.float32)}
    nodes = [
        make_node("Mul", ["slopes", "distance"], ["bias"]),
        make_node("Transpose", ["x"], ["k"], perm=[0, 1, 3, 2]),
        make_node("MatMul", ["x", "k"], ["raw"]),
        make_node("Add", ["raw", "bias"], ["scores"]),
        make_node("Softmax", ["scores"], ["p"], axis=-1),
        make_node("MatMul", ["p", "x"], ["a"]),
        make_node("MatMul", ["a", "w"], ["y"]),
    ]
    graph = load(save(make(nodes, {"x": (2, 4, 5, 3)}, ["y"], weights | {"w": normal(3, 2)}), tmp_path))
    assert select_parameters(graph, "all") == {"w"}
    told = [note for note in graph.notes if "slopes" in note or "distance" in note]
    assert len(told) == 2
    assert all(note.startswith("not trained: ") for note in told)


def test_a_few_rows_tell_of_most_weights_that_they_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty matrices of one shape: their pairs are not compared whole, and no copy of all is made."""
    weights = {f"w{k}": normal(64, 64, seed=k) for k in range(30)}
    nodes = [make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(30)]
    graph = load(save(make(nodes, {"x0": (2, 64)}, ["x30"], weights), tmp_path))
    looked, power = [], fixed_tensors._power
    monkeypatch.setattr(fixed_tensors, "_power", lambda a, b: looked.append(a.size) or power(a, b))
    tracemalloc.start()
    assert not list(fixed_tensors.find(graph))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(looked) >= 30 * 29 and max(looked) == 4 * 64
    assert peak_bytes < sum(a.nbytes for a in weights.values()) // 2


@pytest.mark.parametrize("value", [(0.0625, 0.00390626), (0.25, 0.0625), (1, 1), (1, 2, 3), (0.5, 0.25, 0.125)])
def test_two_or_three_numbers_are_weights_unless_all_bits_are_those_of_slopes(
    tmp_path: Path, value: tuple[float, ...]
) -> None:
    weights = {"t": np.array(value, np.float32).reshape(-1, 1), "w": normal(1, 3)}
    nodes = [make_node("MatMul", ["x", "t"], ["s"]), make_node("MatMul", ["s", "w"], ["y"])]
    graph = load(save(make(nodes, {"x": (2, len(value))}, ["y"], weights), tmp_path))
    assert not [f for f in graph.facts if f.kind == "fixed tensor"] and graph.tensors["t"].role is Role.PARAMETER


@pytest.mark.parametrize("levels", [3, 16])
def test_weights_in_few_bits_are_no_grid(tmp_path: Path, levels: int) -> None:
    """A head of three classes: its numbers are equally spaced, and each is there again and again."""
    head = (np.random.default_rng(1).integers(levels, size=(256, 3)) - levels // 2).astype(np.float32) * 0.03
    assert all(np.unique(column).size == levels for column in head.T)
    graph = load(save(make([make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, 256)}, ["y"], {"w": head}), tmp_path))
    assert not [f for f in graph.facts if f.kind == "fixed tensor"]


def test_copied_layers_of_the_older_exporter_are_told_apart_by_their_numbers() -> None:
    graph = load(CASES / "transformer_encoder_legacy.onnx")
    assert not [note for note in graph.notes if "tied weight" in note]
    matrices = [n for n, t in graph.tensors.items() if t.role is Role.PARAMETER and n.startswith("onnx::")]
    assert len(matrices) == 6


@pytest.mark.parametrize(("name", "output"), [("lstm", "h"), ("", "h"), ("", "last")])
def test_a_recurrent_layer_is_one_layer(name: str, output: str, tmp_path: Path) -> None:
    """A node without a name is named by the first output that is read."""
    nodes = [
        make_node("LSTM", ["x", "w", "r"], ["h", "last"], name=name, hidden_size=3),
        make_node("Squeeze", [output, "one"], ["s"]),
        make_node("MatMul", ["s", "v"], ["y"], name="head"),
    ]
    weights = {
        "w": normal(1, 12, 2),
        "r": normal(1, 12, 3),
        "v": normal(3, 2),
        "one": np.array([1 if output == "h" else 0]),
    }
    graph = load(save(make(nodes, {"x": (4, 2, 2)}, ["y"], weights), tmp_path))
    assert select_parameters(graph, "last:1") == {"v"}
    assert select_parameters(graph, "last:2") == {"v", "w", "r"}
    step = build(graph, TrainingOptions(loss="mse", train="last:2"))
    assert f"--train last:2: the layers 'head', '{name or output}'" in step.notes


def test_folded_norms_are_a_fact(tmp_path: Path) -> None:
    nodes, weights = [], {}
    for k in range(9):
        nodes.append(make_node("Conv", [f"h{k}", f"w{k}", f"b{k}"], [f"h{k + 1}"]))
        weights |= {f"w{k}": normal(2, 2, 1, 1, seed=k), f"b{k}": normal(2, seed=k)}
    graph = load(save(make(nodes, {"h0": (1, 2, 4, 4)}, ["h9"], weights), tmp_path))
    (fact,) = [f for f in graph.facts if f.kind == "folded norms"]
    assert fact.confidence == "likely"
    (warning,) = of_model(graph, {})
    assert not of_model(graph, {"batch_norm": "restore"})
    assert "each of 9 convolutions has a bias, and there is no norm" in warning
    assert "optimize=False" in warning


def test_a_validation_that_never_improved_is_told() -> None:
    rows = [{"validation_loss": 1.5}, {"validation_loss": 1.25}]
    (warning,) = of_training({"before": {"loss": 1.0}, "epochs": rows})
    assert "its loss was 1.0000 before the training and 1.2500 at best" in warning
    assert not of_training({"before": {"loss": 1.3}, "epochs": rows})
    assert not of_training({"before": None, "epochs": [{"validation_loss": None}]})
