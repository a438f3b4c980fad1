"""Trained weights go back into the user's own ONNX file, and onnxruntime computes with it what `infer` computes."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_node as node

from poetc import artifact, emit, measure
from poetc.artifact import Artifact
from poetc.commands import programs
from poetc.commands.export import ExportRequest, export, export_onnx, initial_weights, training_options
from poetc.commands.reading_weights import read_weights
from poetc.commands.weights import trained_names
from poetc.errors import UnsupportedModelError, UsageError
from poetc.graph import Array
from poetc.program import sample_inputs
from tests.commands.conftest import Trained
from tests.commands.trained import DIGITS, answers, assert_as_inferred, sample, solved_of, trained
from tests.frontend.support import make, normal, save

FIELDS = {"loss": "loss", "optimizer": "optimizer", "precision": "precision", "trained": "train"}


def without_numbers(path: Path) -> onnx.ModelProto:
    model = onnx.load(path, load_external_data=False)
    del model.metadata_props[:]
    for tensor in model.graph.initializer:
        for field in ("raw_data", "float_data", "external_data"):
            tensor.ClearField(field)
    return model


def test_the_users_own_file_with_trained_weights_computes_what_infer_does(digits: Trained, tmp_path: Path) -> None:
    solved, expected = digits.solved, digits.expected
    out = tmp_path / "trained.onnx"
    document = export(digits.directory, ExportRequest(out=out), state=digits.trained_bin)
    assert_as_inferred(out, solved, expected)
    assert without_numbers(out) == without_numbers(DIGITS)
    assert document["changed"] >= document["trained"] - 2 and document["notes"] == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trained.onnx"]


def test_the_file_says_what_trained_it(tmp_path: Path) -> None:
    """In properties, which viewers such as Netron show. Those of the user stay, those of an earlier training go."""
    model = onnx.load(DIGITS)
    onnx.helper.set_model_props(model, {"author": "Ada", "poetc.loss": "another", "poetc.version": "0.1"})
    onnx.save(model, tmp_path / "named.onnx")
    solved = solved_of(tmp_path / "named.onnx", batch=4)
    (tmp_path / "state").mkdir()
    state, _ = trained(solved, tmp_path / "state")
    export_onnx(solved, state, tmp_path / "out.onnx", about={"epochs": 3, "text": "a\nb", "absent": None})
    found = {p.key: p.value for p in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert found.pop("author") == "Ada" and found.pop("poetc.version") == importlib.metadata.version("poetc")
    assert found.pop("poetc.epochs") == "3" and found.pop("poetc.text") == "a\\nb"
    assert found == {f"poetc.{name}": str(getattr(training_options(solved), field)) for name, field in FIELDS.items()}


def test_what_was_not_trained_is_written_byte_by_byte(digits: Trained, tmp_path: Path) -> None:
    document = export(digits.directory, ExportRequest(out=tmp_path / "same.onnx"))
    assert document["changed"] == 0
    assert onnx.load(tmp_path / "same.onnx") == onnx.load(DIGITS)


def test_predictions_may_have_a_batch_of_their_own(tmp_path: Path) -> None:
    model = make([node("Gemm", ["x", "w"], ["y"])], {"x": (4, 6)}, ["y"], {"w": normal(6, 5)})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    solved = solved_of(save(model, tmp_path), batch=4, infer_batch=1)
    state, expected = trained(solved, tmp_path)
    export_onnx(solved, state, tmp_path / "out.onnx")
    assert expected["y"].shape == (1, 5)
    assert_as_inferred(tmp_path / "out.onnx", solved, expected)


def test_arrays_have_the_names_of_initializers_and_can_be_exported_again(digits: Trained, tmp_path: Path) -> None:
    solved, state = digits.solved, digits.state
    where, trained_bin = digits.directory, digits.trained_bin
    npz, tensors = tmp_path / "w.npz", tmp_path / "w.safetensors"
    export(where, ExportRequest(npz=npz, safetensors=tensors), state=trained_bin)
    floats = {t.name for t in onnx.load(DIGITS).graph.initializer if t.data_type == TensorProto.FLOAT}
    for path in (npz, tensors):
        read = read_weights(solved, path)
        assert trained_names(solved) <= set(read) <= floats
        assert all(np.array_equal(read[n], state[n]) for n in trained_names(solved))
        export(where, ExportRequest(out=tmp_path / "again.onnx", force=True), state=path)
        assert_as_inferred(tmp_path / "again.onnx", solved, digits.expected)


def test_state_of_another_schedule_is_read_and_that_of_another_model_refused(digits: Trained, tmp_path: Path) -> None:
    solved = digits.solved
    name = min(trained_names(solved))
    changed = {**digits.step.values, name: np.asarray(digits.step.values[name]) + 1}
    other = solved_of(DIGITS, batch=4, budget="200%", optimizer="momentum")
    assert other.graph is not None
    other = replace(other, graph=replace(other.graph, values=changed))
    state = read_weights(other, digits.trained_bin)
    export_onnx(solved, state, tmp_path / "out.onnx")
    assert_as_inferred(tmp_path / "out.onnx", solved, digits.expected)
    with pytest.raises(UsageError, match=r"trained\.bin: no trained state of this model"):
        read_weights(solved_of(DIGITS, batch=4), digits.trained_bin)


# --- weights that the importer changes --------------------------------------------------------------------------------


def dense(weights: Mapping[str, Array], nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    return make(nodes, {"x": (4, 6)}, ["y"], weights)


def round_trip(model: onnx.ModelProto, folder: Path, **options: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Untrained and trained, each compared with what is expected of it; the trained file."""
    path = save(model, folder)
    solved = solved_of(path)
    (folder / "state").mkdir()
    state, expected = trained(solved, folder / "state")
    export_onnx(solved, initial_weights(solved), folder / "untrained.onnx")
    if not options:
        before, after = (answers(p, sample(solved)) for p in (path, folder / "untrained.onnx"))
        assert all(np.array_equal(before[n], after[n]) for n in before)
    out = folder / "trained.onnx"
    document = export_onnx(solved, state, out, **options)
    if not options:
        assert_as_inferred(out, solved, expected)
    return onnx.load(out, load_external_data=False), document


def names(model: onnx.ModelProto) -> list[str]:
    return [t.name for t in model.graph.initializer]


def test_weights_in_constant_nodes(tmp_path: Path) -> None:
    weight, number = numpy_helper.from_array(normal(6, 5)), [0.5, -0.5, 1.0, 2.0, -1.0]
    nodes = [
        node("Constant", [], ["w"], value=weight),
        node("Constant", [], ["b"], value_floats=number),
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "b"], ["y"]),
    ]
    model, document = round_trip(dense({}, nodes), tmp_path)
    assert document["changed"] == 2 and names(model) == []
    assert [n.op_type for n in model.graph.node] == ["Constant", "Constant", "MatMul", "Add"]


def test_weights_that_a_node_fills_become_constants(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.array([0.25], np.float32))
    nodes = [node("ConstantOfShape", ["shape"], ["w"], value=value), node("MatMul", ["x", "w"], ["y"])]
    model, document = round_trip(dense({"shape": np.array([6, 5], np.int64)}, nodes), tmp_path)
    assert [n.op_type for n in model.graph.node] == ["Constant", "MatMul"]
    assert document["notes"] == ["w: its ConstantOfShape node is a Constant now"]


def test_equal_weights_that_an_exporter_merged_get_initializers_of_their_own(tmp_path: Path) -> None:
    nodes = [
        node("LayerNormalization", ["x", "one.weight", "one.bias"], ["h"], "/one/Norm"),
        node("Relu", ["h"], ["r"]),
        node("LayerNormalization", ["r", "one.weight", "one.bias"], ["y"], "/two/Norm"),
    ]
    weights = {"one.weight": np.ones(6, np.float32), "one.bias": np.zeros(6, np.float32)}
    model, document = round_trip(dense(weights, nodes), tmp_path)
    assert names(model) == ["one.weight", "one.bias", "two.weight", "two.bias"]
    assert list(model.graph.node[2].input) == ["r", "two.weight", "two.bias"]
    assert document["notes"] == [
        "'two.weight', 'two.bias': new in the file, which had one for equal ones, or none for zeros"
    ]


def test_a_tied_weight_stays_tied_with_its_transposed_copy(tmp_path: Path) -> None:
    table = normal(6, 5)
    nodes = [
        node("MatMul", ["x", "table.weight"], ["h"]),
        node("MatMul", ["h", "onnx::MatMul_9"], ["y"]),
    ]
    model, _ = round_trip(dense({"table.weight": table, "onnx::MatMul_9": table.T}, nodes), tmp_path)
    numbers = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert np.array_equal(numbers["table.weight"], numbers["onnx::MatMul_9"].T)
    assert not np.array_equal(numbers["table.weight"], table)
    assert [n.op_type for n in model.graph.node] == ["MatMul", "MatMul"]


def test_a_shift_that_was_repeated_for_a_state_of_zeros_is_repeated_again(tmp_path: Path) -> None:
    shift = normal(5)
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "first"], ["a"]),
        node("MatMul", ["a", "v"], ["p"]),
        node("Add", ["p", "cell.bias"], ["y"]),
    ]
    weights = {"w": normal(6, 5), "v": normal(5, 5), "first": np.tile(shift, (4, 1)), "cell.bias": shift}
    model, _ = round_trip(dense(weights, nodes), tmp_path)
    numbers = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert np.array_equal(numbers["first"], np.tile(numbers["cell.bias"], (4, 1)))


def test_external_data_stay_external(tmp_path: Path) -> None:
    model = dense({"w": normal(6, 300), "b": normal(300)}, [node("Gemm", ["x", "w", "b"], ["y"])])
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights", size_threshold=2000)
    source = tmp_path / "model"
    source.mkdir()
    onnx.save(model, source / "model.onnx")
    solved = solved_of(source / "model.onnx")
    state, expected = trained(solved, tmp_path)
    out = tmp_path / "trained.onnx"
    assert export_onnx(solved, state, out)["external_data"] == f"{out}.data"
    places = {t.name: t.data_location for t in onnx.load(out, load_external_data=False).graph.initializer}
    assert places == {"w": TensorProto.EXTERNAL, "b": TensorProto.DEFAULT}
    shutil.rmtree(source)
    assert_as_inferred(out, solved, expected)


def half(rng: int = 0) -> onnx.ModelProto:
    return dense(
        {"w": normal(6, 5).astype(np.float16)}, [node("Cast", ["w"], ["v"], to=1), node("MatMul", ["x", "v"], ["y"])]
    )


def test_numbers_are_rounded_only_if_asked(tmp_path: Path) -> None:
    nodes = [node("Cast", ["w"], ["v"], to=TensorProto.FLOAT), node("MatMul", ["x", "v"], ["y"])]
    solved = solved_of(save(dense({"w": normal(6, 5).astype(np.float16)}, nodes), tmp_path))
    state, expected = trained(solved, tmp_path)
    out = tmp_path / "trained.onnx"
    with pytest.raises(UnsupportedModelError, match=r"'w \(float16\)': .*--round rounds them"):
        export_onnx(solved, state, out)
    assert not out.exists()
    export_onnx(solved, state, out, rounding=True)
    np.testing.assert_allclose(answers(out, sample(solved))["y"], expected["y"], atol=1e-2)
    assert onnx.load(out).graph.initializer[0].data_type == TensorProto.FLOAT16


def test_quantized_weights_are_float_numbers_in_the_new_file(tmp_path: Path) -> None:
    weights = {"w": np.arange(30).reshape(6, 5).astype(np.int8), "scale": np.array(0.1, np.float32)}
    model = dense(weights, [node("DequantizeLinear", ["w", "scale"], ["v"]), node("MatMul", ["x", "v"], ["y"])])
    solved = solved_of(save(model, tmp_path))
    state, expected = trained(solved, tmp_path)
    export_onnx(solved, state, tmp_path / "out.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node] == ["MatMul"]
    np.testing.assert_allclose(answers(tmp_path / "out.onnx", sample(solved))["y"], expected["y"], rtol=1e-5)


def test_a_quantized_model_is_a_float_model_in_the_new_file(tmp_path: Path) -> None:
    weights = {
        "w": np.arange(30).reshape(6, 5).astype(np.int8),
        "scale": np.array(0.1, np.float32),
        "zero": np.array(3, np.int8),
    }
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        node("QLinearMatMul", ["q", "scale", "zero", "w", "scale", "zero", "scale", "zero"], ["p"]),
        node("DequantizeLinear", ["p", "scale", "zero"], ["y"]),
    ]
    solved = solved_of(save(dense(weights, nodes), tmp_path))
    state, expected = trained(solved, tmp_path)
    export_onnx(solved, state, tmp_path / "out.onnx")
    assert "QLinearMatMul" not in {n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node}
    np.testing.assert_allclose(answers(tmp_path / "out.onnx", sample(solved))["y"], expected["y"], rtol=1e-5)


@pytest.mark.parametrize("kind", ["Trilu", "Det"])
def test_a_matrix_that_is_computed_from_a_trained_weight_is_trained_and_exported(kind: str, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("MatMul", ["h", "v"], ["p"]),
        node("Trilu", ["v"], ["upper"]) if kind == "Trilu" else node("Det", ["v"], ["d"]),
        node("MatMul", ["p", "upper"], ["y"]) if kind == "Trilu" else node("Mul", ["p", "d"], ["y"]),
    ]
    before = {"w": normal(6, 5), "v": normal(5, 5)}
    solved = solved_of(save(dense(before, nodes), tmp_path))
    state, _ = trained(solved, tmp_path)
    export_onnx(solved, state, tmp_path / "out.onnx")
    written = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out.onnx").graph.initializer}
    for name, old in before.items():
        assert np.array_equal(written[name], state[name]) and not np.array_equal(written[name], old)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_batch_norms_in_training_mode_are_pointed_out(tmp_path: Path) -> None:
    names_ = ["scale", "bias", "mean", "var"]
    nodes = [node("BatchNormalization", ["x", *names_], ["h", "m", "v"], training_mode=1), node("Relu", ["h"], ["y"])]
    solved = solved_of(save(dense({n: np.full(6, 0.5, np.float32) for n in names_}, nodes), tmp_path))
    document = export_onnx(solved, initial_weights(solved), tmp_path / "out.onnx")
    assert document["notes"] == [
        "1 BatchNormalization nodes of the file take the statistics of the batch (training_mode), as infer does not:"
        " outputs differ"
    ]


def test_what_does_not_fit_is_named_in_one_line(digits: Trained, tmp_path: Path) -> None:
    solved, state = digits.solved, digits.state
    where, out = digits.directory, tmp_path / "out.onnx"
    first, *_ = sorted(trained_names(solved))
    rest = {n: a for n, a in state.items() if n != first}
    for wrong, message in (
        (rest, f"'{first}' of the model is missing"),
        ({**state, "nobody": state[first]}, "it has 'nobody', which the model has not"),
        ({**rest, first: np.zeros(3)}, rf"{first} is \[3\] instead of "),
        ({**rest, first: np.full_like(state[first], np.nan)}, f"{first} holds numbers that are not finite"),
    ):
        with pytest.raises(UsageError, match=message):
            export_onnx(solved, wrong, out)
    out.write_text("mine")
    with pytest.raises(UsageError, match=r"out\.onnx: exists; .* --force"):
        export_onnx(solved, state, out)
    with pytest.raises(UsageError, match="is the file that is read"):
        export_onnx(solved, state, DIGITS, force=True)
    other = save(dense({"w": normal(6, 5)}, [node("MatMul", ["x", "w"], ["y"])]), tmp_path)
    with pytest.raises(UsageError, match="not the model that was solved"):
        export_onnx(solved, state, out, model=other, force=True)
    moved = {**solved.summary, "source": {**solved.summary["source"], "sha256": "0" * 64}}
    with pytest.raises(UsageError, match=r"digits\.onnx: not as it was when it was solved; .*--model"):
        export_onnx(replace(solved, summary=moved), state, out, force=True)
    with pytest.raises(UsageError, match=r"nothing to write.*--gguf-adapter, --onnx-adapter or --adapter-base"):
        export(where, ExportRequest())
    (tmp_path / "broken.bin").write_bytes(digits.trained_bin.read_bytes()[:-1] + b"?")
    with pytest.raises(UsageError, match=r"broken\.bin: damaged"):
        export(where, ExportRequest(out=out, force=True), state=tmp_path / "broken.bin")
    for size in (0, 20):  # too short for a trailer, and no manifest is there to blame
        (tmp_path / "short.bin").write_bytes(bytes(size))
        with pytest.raises(UsageError, match=r"short\.bin: no trained state of this model, which takes [0-9]+ bytes$"):
            export(where, ExportRequest(out=out, force=True), state=tmp_path / "short.bin")
    assert out.read_text() == "mine"


@dataclass(frozen=True)
class WithCheckpoints:
    """The folder of the host's program and its store.bin after three steps; trained.bin after each of them."""

    solved: Artifact
    folder: Path
    states: list[Path]


@pytest.fixture(scope="module")
def with_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> WithCheckpoints:
    folder = tmp_path_factory.mktemp("checkpoints")
    model = make([node("Gemm", ["x", "w"], ["y"])], {"x": (4, 6)}, ["y"], {"w": normal(6, 5)})
    solved = solved_of(save(model, folder), optimizer="momentum")
    main = programs.all_programs(solved)
    name = programs.graph_of(solved).name.removesuffix(".onnx")
    emit.emit(main, programs.values_of(solved), model=name, target="host", out_dir=folder / "src")
    subprocess.run(["make", "-s", "-C", folder / "src", "CFLAGS=-O1", "train"], check=True)
    batches = [sample_inputs(main[0], step) for step in range(3)]
    measure.write_records(folder / "src" / "data.bin", main[0], batches)
    states = [folder / "src" / f"trained{step}.bin" for step in (1, 2, 3)]
    for step, state in enumerate(states, 1):
        words = ["./train", "-c", "-r", "data.bin", str(step), state.name]
        subprocess.run(words, cwd=folder / "src", capture_output=True, check=True)
    return WithCheckpoints(solved, folder / "src", states)


@pytest.mark.parametrize("beside", [True, False], ids=["with its manifest", "alone"])
def test_a_checkpoint_of_the_c_program_is_exported(
    with_checkpoints: WithCheckpoints, beside: bool, tmp_path: Path
) -> None:
    """The newest whole one of two slots, as the trained.bin of its step."""
    solved, folder, states = with_checkpoints.solved, with_checkpoints.folder, with_checkpoints.states
    store = tmp_path / "store.bin"
    if beside:
        shutil.copy(folder / emit.MANIFEST, tmp_path)
    data = bytearray((folder / "store.bin").read_bytes())
    session = json.loads((folder / emit.MANIFEST).read_text())["session"]
    first = session["store_blocks"] * session["block_bytes"]  # two slots of the same size
    for step in (3, 2):
        store.write_bytes(data)
        notes: list[str] = []
        found = read_weights(solved, store, notes.append)
        expected = read_weights(solved, states[step - 1])
        assert notes == [f"{store}: the checkpoint of step {step}"]
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)
        data[first + (len(data) - first) // 2 * ((step - 1) % 2)] ^= 1
    store.write_bytes(data)
    with pytest.raises(UsageError, match=r"store.bin: neither a trained.bin nor a store with a whole checkpoint"):
        read_weights(solved, store)


def test_constants_may_be_infinite_and_trained_numbers_may_not(tmp_path: Path) -> None:
    """A mask of minus infinity is no sign of a training that diverged."""
    mask = np.where(np.tril(np.ones((4, 4))) > 0, 0, -np.inf).astype(np.float32)
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "mask"], ["b"]),
        node("Softmax", ["b"], ["c"], axis=-1),
        node("MatMul", ["c", "v"], ["y"]),
    ]
    weights = {"w": normal(4, 4), "mask": mask, "v": normal(4, 3)}
    solved = solved_of(save(make(nodes, {"x": (2, 4, 4)}, ["y"], weights), tmp_path), loss="mse")
    state, expected = trained(solved, tmp_path)
    artifact.write(solved, tmp_path / "d.poetc", {})
    export(tmp_path / "d.poetc", ExportRequest(out=tmp_path / "out.onnx"), state=tmp_path / "trained.bin")
    assert_as_inferred(tmp_path / "out.onnx", solved, expected)
    for name, number in (("w", np.inf), ("v", np.nan)):
        with pytest.raises(UsageError, match=rf"{name} holds numbers that are not finite: the training that made it"):
            export_onnx(solved, {**state, name: np.full_like(state[name], number)}, tmp_path / "other.onnx")
