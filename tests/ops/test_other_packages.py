"""An operator of another package: found by its entry point, trained, compared bit by bit, and emitted."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetc.errors import UnsupportedModelError, UsageError
from poetc.ops import load_others

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "add-an-operator.md"


def install(folder: Path) -> Path:
    """The package of the guide, as pip would lay it out."""
    python, c, toml = (
        re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]  # type: ignore[index]
        for language in ("python", "c", "toml")
    )
    (package := folder / "my_package").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "signed_square.py").write_text(python)
    (package / "signed_square.c").write_text(c)
    (information := folder / "my_package-1.0.dist-info").mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    points = toml.replace('"', "").replace("[project.entry-points.poetc.operators]", "[poetc.operators]")
    (information / "entry_points.txt").write_text(points)
    return folder


def network(path: Path) -> Path:
    numbers = np.random.default_rng(0)
    weights = {
        "first": numbers.normal(size=(6, 8)).astype(np.float32),
        "second": numbers.normal(size=(8, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["hidden"]),
        helper.make_node("SignedSquare", ["hidden"], ["squared"], domain="org.example"),
        helper.make_node("MatMul", ["squared", "second"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 3))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_the_package_of_the_guide_trains(tmp_path: Path) -> None:
    """In a process of its own: a kind stays registered for good."""
    model, solved, source = network(tmp_path / "net.onnx"), tmp_path / "net.poetc", tmp_path / "src"
    script = (
        "from poetc.cli import main\n"
        "import sys\n"
        "for words in eval(sys.argv[1]):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as ended:\n"
        "        assert ended.code == 0, words\n"
    )
    commands = [
        ["solve", str(model), "-b", "100%", "-d", "stm32f746", "-o", str(solved), "-q"],
        ["validate", str(solved), "--json"],
        ["emit", str(solved), "--target", "cortex-m4f", "-o", str(source), "-q"],
    ]
    environment = {**os.environ, "PYTHONPATH": str(install(tmp_path / "site"))}
    done = subprocess.run(
        [sys.executable, "-c", script, repr(commands)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("\n}") + 2])
    assert result["bit_identical_to_keep_all"] and result["max_grad_rel_error"] < 1e-5
    assert (source / "runtime" / "kernels" / "others" / "signed_square.c").exists()


def test_without_the_package_the_operator_is_named(tmp_path: Path) -> None:
    from poetc.frontend import load

    with pytest.raises(UnsupportedModelError, match=r"SignedSquare 'squared': operators of domain 'org\.example'"):
        load(network(tmp_path / "net.onnx"))


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("mine", "no_such_package", "poetc.operators")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    load_others.cache_clear()
    try:
        with pytest.raises(UsageError, match="operators 'mine' of a package: no_such_package cannot be imported"):
            load_others()
    finally:
        load_others.cache_clear()
