"""Adapters from the option to the files that leave: peft's, and the user's ONNX file with them added to its weights."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.numpy

from poetc import artifact, training
from poetc.commands import weights
from poetc.commands.adapter_files import adapter_bytes
from poetc.commands.export import ExportRequest, _computes_alike, export, initial_weights
from poetc.commands.import_state import import_state, read_values
from poetc.commands.reading_weights import read_weights
from poetc.errors import UnsupportedModelError, UsageError
from poetc.graph import encode
from tests.cli.conftest import run
from tests.commands.trained import DIGITS, assert_as_inferred, solved_of, trained
from tests.support.language import write_decoder

LORA = ("2:alpha=6:dropout=0.1", "4:13")


def test_the_merged_file_computes_what_the_trained_program_does(tmp_path: Path) -> None:
    solved = solved_of(DIGITS, batch=4, lora=LORA, train="last:1")
    state, expected = trained(solved, tmp_path)
    factors = {n for n in state if "lora_" in n}
    assert factors and all(np.abs(state[n]).max() > 0 for n in factors if ".lora_B." in n)
    artifact.write(solved, tmp_path / "d.poetc", {})
    out, adapter = tmp_path / "merged.onnx", tmp_path / "lora" / "adapter_model.safetensors"
    adapter.parent.mkdir()
    document = export(tmp_path / "d.poetc", ExportRequest(out=out, adapter=adapter), state=tmp_path / "trained.bin")
    assert_as_inferred(out, solved, expected)
    before, after = onnx.load(DIGITS).graph, onnx.load(out).graph
    assert [n.name for n in after.node] == [n.name for n in before.node]
    assert [t.name for t in after.initializer] == [t.name for t in before.initializer]
    assert document["adapter"] == str(adapter) and document["changed"] > len(factors) // 2

    arrays = safetensors.numpy.load_file(adapter)
    assert {n.removeprefix("base_model.model.") for n in arrays} == factors | {"18.weight", "18.bias"}
    config = json.loads((adapter.parent / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 6, 0.1)
    assert config["modules_to_save"] == ["18"] and config["rank_pattern"] == {"13": 4}
    assert set(config["target_modules"]) == {n.removesuffix(".lora_A.weight") for n in factors if "lora_A" in n}
    for name in factors:
        np.testing.assert_array_equal(arrays[f"base_model.model.{name}"], state[name])

    again = read_weights(solved, adapter)
    assert all(np.array_equal(again[n], state[n]) for n in factors | {"18.weight", "18.bias"})
    import_state(tmp_path / "d.poetc", adapter, tmp_path / "further.poetc")
    further = artifact.read(tmp_path / "further.poetc")
    assert further.graph is not None
    np.testing.assert_array_equal(further.graph.values["18.bias"], state["18.bias"])
    assert (
        export(tmp_path / "further.poetc", ExportRequest(out=tmp_path / "same.onnx"))["changed"] == document["changed"]
    )
    assert (tmp_path / "same.onnx").read_bytes() == out.read_bytes()

    base = read_values(solved, DIGITS)
    assert "13.weight" in base and not factors & base.keys()

    (adapter.parent / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 1.0}))
    with pytest.raises(UsageError, match=r"scales the adapter of .* by 0.5, the solved one by 3; solve with --lora"):
        read_weights(solved, adapter)


def test_what_a_file_of_adapters_cannot_hold_is_named(tmp_path: Path) -> None:
    solved = solved_of(DIGITS, batch=2, lora=("2",), train="bias")
    artifact.write(solved, tmp_path / "d.poetc", {})
    with pytest.raises(UnsupportedModelError, match=r"--adapter: '18.bias'"):
        export(tmp_path / "d.poetc", ExportRequest(adapter=tmp_path / "a.safetensors"))
    assert not list(tmp_path.glob("a*"))
    solved = solved_of(DIGITS, batch=2, train="last:1")
    artifact.write(solved, tmp_path / "plain.poetc", {})
    ended = run("export", tmp_path / "plain.poetc", "--adapter", tmp_path / "a.safetensors")
    assert ended.code == 2 and "solved without adapters" in ended.err and ended.err.count("\n") == 1


def test_the_files_of_the_end_take_little_work_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of a model are listed once for a file, not once a weight; outputs need the weights one by one."""
    solved = solved_of(
        write_decoder(tmp_path / "m.onnx", layers=12, vocabulary=64),
        lora=("2",),
        dim=("batch_size=1", "sequence_length=4"),
    )
    listed, layers_of = [], training.layers_of
    monkeypatch.setattr(training, "layers_of", lambda graph: listed.append(graph) or layers_of(graph))
    restored, model_of = [], weights.model_of
    monkeypatch.setattr(weights, "model_of", lambda made: restored.append(made) or model_of(made))
    adapter_bytes(solved, {})
    assert len(listed) == 2  # for the numbers, and for the configuration
    weights.by_graph_name(solved, initial_weights(solved), "the state")
    assert len(restored) < 6 and len(initial_weights(solved)) > 48

    graph = weights.model_of(solved)
    coded = {
        n: encode(v, "int8") for n, v in graph.values.items() if isinstance(v, np.ndarray) and v.ndim == 2 and v.size
    }
    decoded_bytes = sum(4 * c.shape[0] * c.shape[1] for c in coded.values())
    graph = replace(graph, values={**graph.values, **coded})
    tracemalloc.start()
    assert _computes_alike(graph, graph)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < decoded_bytes // 2
