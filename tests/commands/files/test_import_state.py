"""A solved model starts from other weights: those of a new ONNX file, of arrays, or of another schedule's training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.helper import make_node as node

import poetc
from poetc import artifact, emit, measure
from poetc.commands import programs
from poetc.commands.export import ExportRequest, export
from poetc.commands.import_state import import_state
from poetc.commands.programs import graph_of
from poetc.commands.reading_weights import read_trained
from poetc.errors import UsageError
from poetc.program import sample_inputs
from poetc.training import TrainingOptions
from tests.commands.conftest import Trained
from tests.commands.trained import DIGITS, assert_as_inferred, solved_of
from tests.frontend.support import make, normal, save


def test_a_new_directory_starts_from_each_kind_of_file(digits: Trained, tmp_path: Path) -> None:
    """Its export is the trained model, and nothing else in the directory changes."""
    where, state = digits.directory, digits.trained_bin
    npz, tensors, model = tmp_path / "w.npz", tmp_path / "w.safetensors", tmp_path / "w.onnx"
    export(where, ExportRequest(out=model, npz=npz, safetensors=tensors), state=state)
    written = artifact.read(where).summary["files"]
    for source in (model, npz, tensors, state):
        out = tmp_path / f"{source.suffix[1:]}.poetc"
        document = import_state(where, source, out)
        assert document["taken"] >= 20 and document["state"] >= (40 if source == state else 20)
        files = artifact.read(out).summary["files"]
        changed = {n for n in files if files[n] != written.get(n)} - {"report.html", "report.txt"}
        assert changed <= {"values.npz", "graph.json"}  # which lists tensors of zeros
        export(out, ExportRequest(out=tmp_path / "again.onnx", force=True))
        assert_as_inferred(tmp_path / "again.onnx", digits.solved, digits.expected)


@pytest.mark.long
def test_an_integer_model_starts_from_a_float_file(tmp_path: Path) -> None:
    weights = {"w": normal(4, 3, 3, 3), "v": normal(5, 4)}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "v"], ["y"], transB=1),
    ]
    for name in ("first", "other"):
        (tmp_path / name).mkdir()
    first = save(make(nodes, {"x": (2, 3, 6, 6)}, ["y"], weights), tmp_path / "first")
    other = save(make(nodes, {"x": (2, 3, 6, 6)}, ["y"], {n: -3 * w for n, w in weights.items()}), tmp_path / "other")
    model = poetc.load(first, training=TrainingOptions(precision="niti"))
    solved = model.solve(budget="100%", time_limit_s=2).save(tmp_path / "first.poetc")
    import_state(solved, other, tmp_path / "next.poetc")
    started = artifact.read(tmp_path / "next.poetc").graph
    expected = poetc.load(other, training=TrainingOptions(precision="niti")).graph
    assert started is not None
    for name in ("w", "v", "w:exponent"):
        np.testing.assert_array_equal(started.values[name], expected.values[name])  # type: ignore[arg-type]


def test_training_goes_on_under_another_schedule(digits: Trained, tmp_path: Path) -> None:
    """With the same bits, optimizer state included."""
    values = {**digits.step.values}
    training = programs.training_program(digits.solved)
    emitted = emit.emit([training], values, model="digits", target="host", out_dir=tmp_path / "src")
    library = measure.compile_library([training], values, tmp_path / "one", model="digits")
    with measure.HostModel(library, [training], values, model="digits") as host:
        for step in range(2):
            host.run(sample_inputs(training, step))
        host.save(emitted)
        whole = host.run(sample_inputs(training, 2))
    other = solved_of(DIGITS, batch=4, budget="200%", optimizer="momentum")
    artifact.write(other, tmp_path / "other.poetc", {})
    import_state(tmp_path / "other.poetc", emitted / "trained.bin", tmp_path / "next.poetc")
    moved = artifact.read(tmp_path / "next.poetc")
    assert moved.graph is not None
    again = programs.training_program(moved)
    with measure.build_host([again], moved.graph.values) as host:
        assert host.run(sample_inputs(again, 2)) == whole


def test_a_trained_bin_for_the_emitted_program(digits: Trained, tmp_path: Path) -> None:
    out = tmp_path / "start.bin"
    import_state(digits.directory, digits.trained_bin, out)
    state = read_trained(digits.solved, out)
    assert all(np.array_equal(state[name], array) for name, array in digits.state.items())
    with pytest.raises(UsageError, match=r"start\.bin: exists; .*--force"):
        import_state(digits.directory, digits.trained_bin, out)
    out.write_bytes(b"mine")
    assert import_state(digits.directory, digits.trained_bin, out, force=True)["copies"] == ["start.bin.orig"]
    assert out.with_name("start.bin.orig").read_bytes() == b"mine"
    earlier = json.loads((Path(__file__).parents[2] / "program" / "golden" / "earlier" / emit.MANIFEST).read_text())
    other = {**earlier, "session": {**earlier["session"], "emission": 1}}
    for manifest, says in (
        (other, "its program has other state than this one"),
        (earlier, r"poetc-emit\.json: of an earlier poetc; emit again"),
        ({"state": {}}, r"poetc-emit\.json: damaged; emit again"),
    ):
        (tmp_path / emit.MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(UsageError, match=says):
            import_state(digits.directory, digits.trained_bin, tmp_path / "other.bin")


def test_names_of_another_export_do_not_matter_where_the_graph_is_the_same(tmp_path: Path) -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["h"]), node("Relu", ["h"], ["y"])]
    first = make(nodes, {"x": (4, 6)}, ["y"], {"w": normal(6, 5), "b": normal(5)})
    artifact.write(solved_of(save(first, tmp_path)), tmp_path / "a.poetc", {})
    renamed = [node("Gemm", ["x", "fc.w", "fc.b"], ["h"]), node("Relu", ["h"], ["y"])]
    second = make(renamed, {"x": (4, 6)}, ["y"], {"fc.w": normal(6, 5, seed=1), "fc.b": normal(5, seed=1)})
    (tmp_path / "new").mkdir()
    source = save(second, tmp_path / "new")
    import_state(tmp_path / "a.poetc", source, tmp_path / "b.poetc")
    export(tmp_path / "b.poetc", ExportRequest(out=tmp_path / "out.onnx"))
    arrays = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert np.array_equal(arrays["w"], normal(6, 5, seed=1)) and np.array_equal(arrays["b"], normal(5, seed=1))


def test_what_does_not_fit_is_named_in_one_line_and_nothing_is_written(digits: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out.poetc"
    other = save(make([node("Gemm", ["x", "w"], ["y"])], {"x": (4, 6)}, ["y"], {"w": normal(6, 5)}), tmp_path)
    np.savez(tmp_path / "w.npz", w=np.zeros(3, np.float32))
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    for source, message in (
        (other, r"model\.onnx: not the graph that was solved: it has 'w'; it lacks "),
        (tmp_path / "w.npz", r"w\.npz: not the weights of this model: it has 'w', which the model has not; "),
        (tmp_path / "junk.safetensors", r"junk\.safetensors: not a \.safetensors file"),
        (tmp_path / "nothing.npz", r"nothing\.npz: does not exist"),
        (tmp_path, "is a directory"),
    ):
        with pytest.raises(UsageError, match=message):
            import_state(digits.directory, source, out)
    assert not out.exists()


def test_what_is_tied_in_one_and_not_in_the_other_is_named(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])]
    artifact.write(
        solved_of(save(make(nodes, {"x": (4, 6)}, ["y"], {"w": normal(6, 6)}), tmp_path)), tmp_path / "d", {}
    )
    nodes[1].input[1] = "v"
    (tmp_path / "new").mkdir()
    apart = save(make(nodes, {"x": (4, 6)}, ["y"], {"w": normal(6, 6), "v": normal(6, 6, seed=1)}), tmp_path / "new")
    with pytest.raises(UsageError, match="'w': one weight in the model that was solved, several here"):
        import_state(tmp_path / "d", apart, tmp_path / "out")


def test_magnitudes_follow_the_weights_that_they_are_norms_of(tmp_path: Path) -> None:
    """An untrained DoRA starts as the model whose weights are read; trained magnitudes stay as they are."""
    weights = {"v": normal(5, 4)}
    for name, factor in (("first", 1), ("other", -3)):
        (tmp_path / name).mkdir()
        nodes = [node("MatMul", ["x", "v"], ["y"])]
        save(make(nodes, {"x": (2, 5)}, ["y"], {n: factor * w for n, w in weights.items()}), tmp_path / name)
    first, other = (next((tmp_path / name).iterdir()) for name in ("first", "other"))
    solved = solved_of(first, batch=2, lora=("2:dora",))
    artifact.write(solved, tmp_path / "first.poetc", {})
    import_state(tmp_path / "first.poetc", other, tmp_path / "next.poetc")
    export(tmp_path / "next.poetc", ExportRequest(out=tmp_path / "next.onnx"))
    (start,) = (numpy_helper.to_array(t) for t in onnx.load(tmp_path / "next.onnx").graph.initializer)
    np.testing.assert_allclose(start, -3 * weights["v"], rtol=1e-6)
    squares = (9 * weights["v"].astype(np.float64) ** 2).sum(axis=0)
    values = graph_of(artifact.read(tmp_path / "next.poetc")).values
    np.testing.assert_allclose(np.asarray(values["v.squared_norms"]), squares, rtol=1e-6)

    (named,) = {n.removesuffix("lora_A.weight") for n in values if n.endswith("lora_A.weight")}
    b, magnitudes = np.ones((4, 2), np.float32), np.full(4, 7, np.float32)
    trained = {f"{named}lora_B.weight": b, f"{named}lora_magnitude_vector": magnitudes}
    trained |= {"v": weights["v"], f"{named}lora_A.weight": normal(2, 5)}
    np.savez(tmp_path / "w.npz", **trained)
    import_state(tmp_path / "next.poetc", tmp_path / "w.npz", tmp_path / "trained.poetc")
    values = graph_of(artifact.read(tmp_path / "trained.poetc")).values
    np.testing.assert_allclose(np.asarray(values["v.squared_norms"]), squares / 9, rtol=1e-6)
    import_state(tmp_path / "trained.poetc", other, tmp_path / "last.poetc")
    values = graph_of(artifact.read(tmp_path / "last.poetc")).values
    np.testing.assert_allclose(np.asarray(values["v.squared_norms"]), squares, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(values[f"{named}lora_magnitude_vector"]), magnitudes)
