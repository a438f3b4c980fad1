"""Training for another number of classes: from the option to an ONNX file with the new head in the user's graph."""

from __future__ import annotations

from pathlib import Path

import onnx

from poetc import artifact
from poetc.commands.export import ExportRequest, export, export_onnx
from tests.cli.conftest import run
from tests.commands.trained import DIGITS, assert_as_inferred, solved_of, trained


def test_the_exported_file_has_the_new_head_and_trained_weights(tmp_path: Path) -> None:
    solved = solved_of(DIGITS, batch=4, new_head="5", train="last:1", head_seed=3)
    state, expected = trained(solved, tmp_path)
    assert expected["logits"].shape == (4, 5)
    assert solved.graph is not None and any("makes 5 outputs instead of 10" in note for note in solved.graph.notes)
    out = tmp_path / "five.onnx"
    export_onnx(solved, state, out)
    assert_as_inferred(out, solved, expected)
    before, after = onnx.load(DIGITS).graph, onnx.load(out).graph
    assert [n.name for n in after.node] == [n.name for n in before.node]
    assert after.output[0].type.tensor_type.shape.dim[-1].dim_value == 5
    artifact.write(solved, tmp_path / "five.poetc", {})
    assert export(tmp_path / "five.poetc", ExportRequest(out=tmp_path / "start.onnx"))["changed"] == 0


def test_the_option(tmp_path: Path) -> None:
    ended = run("analyze", DIGITS, "--batch", 2, "--new-head", "3:logits", "--json")
    assert ended.code == 0 and any("makes 3 outputs instead of 10" in note for note in ended.json["notes"])
    ended = run("analyze", DIGITS, "--batch", 2, "--new-head", "3:scores")
    assert ended.code == 2 and ended.err.count("\n") == 1 and "no output 'scores'" in ended.err
