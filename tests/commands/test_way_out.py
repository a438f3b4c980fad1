"""The way out of a training, and of other long work, is tried before the first step."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.numpy
from onnx.helper import make_node as node

from poetc.commands import rehearsal
from tests.cli.conftest import MODEL, run
from tests.frontend.support import make, normal, save

CLASSES, WIDTH = 12, 6


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Path, Path]:
    """A model whose head is the table of its embedding, and data for it."""
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        node("MatMul", ["x", "middle"], ["h"]),
        node("Transpose", ["table"], ["across"], perm=[1, 0]),
        node("MatMul", ["h", "across"], ["y"]),
    ]
    values = {"table": normal(CLASSES, WIDTH), "middle": normal(WIDTH, WIDTH)}
    model = save(make(nodes, {"ids": (onnx.TensorProto.INT64, (4,))}, ["y"], values), tmp_path)
    ids = np.arange(32, dtype=np.int64) % CLASSES
    np.savez(tmp_path / "data.npz", ids=ids, target=(ids + 1) % CLASSES)
    return model, tmp_path / "data.npz"


def test_bare_lora_leaves_a_tied_table_alone(tied: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = tied
    out = tmp_path / "better.onnx"
    ended = run("train", model, "--data", data, "--lora", "2", "--epochs", "1", "--batch", "4", "-o", out)
    assert ended.code == 0, ended.err
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(out).graph.initializer}
    before = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(model).graph.initializer}
    assert np.array_equal(weights["table"], before["table"])
    assert not np.array_equal(weights["middle"], before["middle"])


def test_a_tied_table_with_an_adapter_is_untied(tied: tuple[Path, Path], tmp_path: Path) -> None:
    """The head gets a matrix of its own, and the embedding keeps its table."""
    model, data = tied
    out = tmp_path / "better.onnx"
    options = ["--lora", "2:table", "--epochs", "2", "--batch", "4", "--lr", "0.1", "-o", out]
    ended = run("train", model, "--data", data, *options)
    assert ended.code == 0 and "'table.merged': new in the file" in ended.err + ended.out, ended.err
    graph = onnx.load(out).graph
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
    before = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(model).graph.initializer}
    adapter = safetensors.numpy.load_file(tmp_path / "better.onnx.train" / "adapter" / "adapter_model.safetensors")
    a, b = (next(v for n, v in adapter.items() if f".lora_{x}." in n) for x in "AB")
    assert np.array_equal(weights["table"], before["table"]) and np.abs(b).max() > 0
    np.testing.assert_allclose(weights["table.merged"], before["table"].T + (4 * b @ a).T, rtol=1e-5, atol=1e-6)
    assert [n.op_type for n in graph.node] == ["Gather", "MatMul", "MatMul"]  # nothing reads the turned table


def test_a_note_before_the_first_step_says_why_nothing_could_be_written(
    tied: tuple[Path, Path], tmp_path: Path
) -> None:
    """A weight in a body of a loop has no node of its own in the file."""
    model, data = tied
    out = tmp_path / "better.onnx"
    whole = onnx.load(model)
    head = [n for n in whole.graph.node if n.op_type in ("Transpose",) or n.output[0] == "y"]
    for n in head:
        whole.graph.node.remove(n)
    body = onnx.helper.make_graph(head, "body", [], [onnx.helper.make_tensor_value_info("y", 1, (4, CLASSES))])
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    whole.graph.initializer.append(yes)
    head_if = node("If", ["yes"], ["z"], then_branch=body, else_branch=body)
    whole.graph.node.append(head_if)
    whole.graph.output[0].name = "z"
    onnx.save(whole, model)
    ended = run("train", model, "--data", data, "--lora", "2:table", "--epochs", "1", "--batch", "4", "-o", out)
    assert ended.code == 3 and "cannot be given a weight of its own" in ended.err.strip().splitlines()[-1], ended.err
    assert "epoch" not in ended.out and not out.exists() and not out.with_name("better.onnx.train").exists()


def test_a_disk_without_room_for_the_end_is_said_before_the_first_step(
    tied: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = tied
    out = tmp_path / "better.onnx"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(rehearsal.shutil, "disk_usage", lambda _: usage._replace(free=4 << 20))
    ended = run("train", model, "--data", data, "--epochs", "1", "--batch", "4", "-o", out)
    said = ended.err.strip().splitlines()[-1]
    assert ended.code == 2 and "writes 4.197 MB, and 4.194 MB of the disk are free; make room" in said, said
    assert "epoch" not in ended.out and not out.exists() and not out.with_name("better.onnx.train").exists()
    monkeypatch.setattr(rehearsal.shutil, "disk_usage", lambda _: usage._replace(free=(4 << 20) + 5000))
    assert run("train", model, "--data", data, "--epochs", "1", "--batch", "4", "-o", out).code == 0


@pytest.mark.parametrize(
    ("arguments", "work"),
    [
        (["importance", MODEL, "--data", "digits.npz", "-o", "no/out.yaml"], "poetc.commands.importance.fisher"),
        (["importance", MODEL, "--data", "digits.npz", "--html", "no/out.html"], "poetc.commands.importance.fisher"),
        (["lock", MODEL, "--device", "stm32f746", "-o", "no/poetc.lock"], "poetc.commands.locking._lock.solve_entry"),
        (["sweep", MODEL, "-d", "stm32f746", "--html", "no/out.html"], "poetc.commands.sweep.sweep"),
        (["check", "--junit", "no/out.xml"], "poetc.commands.locking.check"),
        (["profile", "bench", "-o", "no/out.csv"], "poetc.benchmark.bench"),
        (["profile", "fit", "--cycles", "--like", "rpi4", "-o", "no/out.yaml"], "poetc.benchmark.fit_cycles"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_result_that_cannot_be_written_is_no_work_for_nothing(
    arguments: Sequence[str], work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is absent, or read-only, is said before the first step of long work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, lambda *_, **__: pytest.fail("the work has begun"))
    ended = run(*arguments)
    assert ended.code == 2 and re.match(
        r"poetc: error: \S*/no/(out|poetc)\.\w+: no such file or directory", ended.err
    ), ended
    assert ended.err.count("\n") == 1 and not list(tmp_path.iterdir())
