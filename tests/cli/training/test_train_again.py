"""`poetc train` beside an earlier training: one that is over, one that runs, one whose checkpoints are gone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import poetc as api
from poetc.errors import UsageError
from poetc.loop import read_checkpoint
from poetc.training import TrainingOptions
from tests.cli.conftest import Ended
from tests.cli.training.test_train import DATA, _killed, _newest, _small

Run = Callable[..., Ended]
OPTIONS = ("--batch", "16", "--data", f"{DATA}:train_x,train_y", "--normalize", "0..255", "--lr", "0.01")


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory, poetc: Run) -> Path:
    """A training that is over: its output."""
    folder = tmp_path_factory.mktemp("over")
    ended = poetc("train", _small(folder / "small.onnx"), *OPTIONS, "--epochs", 2, "-o", folder / "out.onnx", "-q")
    assert ended.code == 0, ended.err
    return folder / "out.onnx"


def _state(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def test_a_resumption_without_a_step_to_do_changes_no_file(over: Path, poetc: Run) -> None:
    before = _state(over.parent)
    record = json.loads((over.with_name("out.onnx.train") / "training.json").read_text())
    for more in ((), ("--epochs", 1), ("--epochs", 2)):
        ended = poetc("train", "--resume", "-o", over, *more, "--json")
        assert (ended.code, ended.json) == (0, record), ended.err
        assert "2 epochs are done" in ended.err
    for more in (("--lr", 9.0), ("--schedule", "plateau"), ("--save-every", 3), ("--log", over.parent / "log")):
        ended = poetc("train", "--resume", "-o", over, *more, "-q")
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
        assert f"{more[0]} {more[1]} does nothing: all 2 epochs are done" in ended.err
    assert _state(over.parent) == before


def test_a_result_that_is_gone_or_changed_is_written_again_as_it_was(over: Path, tmp_path: Path, poetc: Run) -> None:
    shutil.copytree(over.parent, tmp_path / "copy")
    out = tmp_path / "copy" / "out.onnx"
    for damage in (b"", None):
        if damage is None:
            out.unlink()
        else:
            out.write_bytes(damage)
        assert poetc("train", "--resume", "-o", out, "-q").code == 0
        assert out.read_bytes() == over.read_bytes()
    assert poetc("train", "--resume", "-o", out, "--epochs", 3, "-q").code == 0
    assert out.read_bytes() != over.read_bytes()


def test_python_resumes_with_the_options_of_the_command_line(tmp_path: Path, poetc: Run) -> None:
    """Options that nobody gives in Python go on as begun; those given do as on the command line."""
    model, first = _small(tmp_path / "small.onnx"), tmp_path / "first" / "out.onnx"
    begun = (*OPTIONS[:-1], 0.05, "--optimizer", "momentum", "--schedule", "cosine", "--seed", 3, "--epochs", 1)
    assert poetc("train", model, *begun, "--validation-split", 0.2, "-o", first, "-q").code == 0
    source: dict[str, Any] = {"data": f"{DATA}:train_x,train_y", "epochs": 2, "resume": True}
    other = api.load(model, batch=16, training=TrainingOptions(learning_rate=0.02))
    for k, (more, loaded, run) in enumerate(
        (((), model, {}), (("--lr", 0.02, "--schedule", "constant"), other, {"schedule": "constant"}))
    ):
        there, here = tmp_path / f"there{k}", tmp_path / f"here{k}"
        for folder in (there, here):
            shutil.copytree(first.parent, folder)
        ended = poetc("train", "--resume", "-o", there / "out.onnx", "--epochs", 2, *more, "-q")
        assert ended.code == 0, ended.err
        api.train(loaded, out=here / "out.onnx", **source, **run)
        assert (here / "out.onnx").read_bytes() == (there / "out.onnx").read_bytes()
    for run, message in (({"seed": 4}, "--seed 4: the training"), ({"normalize": "auto"}, "--normalize auto: the tr")):
        with pytest.raises(UsageError, match=f"^{message}.* was begun with (3|0..255); leave it out"):
            api.train(model, out=here / "out.onnx", **source, **run)


def test_checkpoints_that_are_gone_are_no_beginning(over: Path, tmp_path: Path, poetc: Run) -> None:
    shutil.copytree(over.parent, tmp_path / "copy")
    directory, out = tmp_path / "copy" / "out.onnx.train", tmp_path / "copy" / "out.onnx"
    for path in directory.glob("checkpoint.?"):
        path.unlink()
    ended = poetc("train", "--resume", "-o", out, "--epochs", 3, "-q")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert f"{directory}: its checkpoints are gone; begin anew with --force" in ended.err
    (directory / "training.json").unlink()  # as if it had been killed before its first checkpoint
    ended = poetc("train", "--resume", "-o", out, "--epochs", 1)
    assert ended.code == 0 and "has no checkpoint yet; the training begins with its first step" in ended.err


@pytest.mark.parametrize("more", [("--frozen", "int8"), ("--device", "rpi4", "--budget", "least")])
def test_checkpoints_hold_no_frozen_weights_and_end_with_the_same_bits(
    more: tuple[str, ...], over: Path, tmp_path: Path, poetc: Run
) -> None:
    """Adapters, moments and counters alone: the base is in the solution beside the checkpoints."""
    whole, out = tmp_path / "whole.onnx", tmp_path / "killed.onnx"
    begun = ("train", over.with_name("small.onnx"), *OPTIONS, "--lora", "2:w1", "--optimizer", "adam", *more)
    begun = (*begun, "--epochs", "3", "--save-every", "2", "--validation-split", "0.2")
    assert poetc(*begun, "-o", whole, "-q").code == 0
    _killed([*map(str, begun), "-o", str(out)], 5, out.with_name("killed.onnx.train"))
    assert poetc("train", "--resume", "-o", out, "-q").code == 0
    assert out.read_bytes() == whole.read_bytes()
    checkpoint = read_checkpoint(out.with_name("killed.onnx.train") / "checkpoint.a")
    assert checkpoint is not None
    large = {name for name, array in checkpoint.arrays["state"].items() if array.size > 1}
    factors = {name for name in large if name.endswith((".lora_A.weight", ".lora_B.weight"))}
    assert len(factors) == 2 and large == factors | {f"{name}:{moment}" for name in factors for moment in "mv"}


@pytest.mark.long
def test_two_trainings_do_not_share_an_output(over: Path, tmp_path: Path, poetc: Run) -> None:
    model, out = over.with_name("small.onnx"), tmp_path / "new" / "out.onnx"
    arguments = ("train", model, *OPTIONS, "--epochs", "100000", "--save-every", "1", "-o", out, "-q")
    first = subprocess.Popen([sys.executable, "-m", "poetc", *map(str, arguments)])
    try:
        while _newest(out.with_name("out.onnx.train")) < 2 and first.poll() is None:
            time.sleep(0.01)
        for more in ((), ("--force",), ("--resume",)):
            ended = poetc(*arguments, *more)
            assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
            assert "another training goes on in it; choose another output with -o" in ended.err
        assert first.poll() is None
    finally:
        first.kill()  # which leaves no lock behind
        first.wait()
    ended = poetc("train", "--resume", "-o", out, "--epochs", 1)
    assert ended.code == 0, ended.err
    assert "going on after step" in ended.err or "are done" in ended.err or "is done" in ended.err


def test_a_refused_training_leaves_no_folder(over: Path, tmp_path: Path, poetc: Run) -> None:
    options = ("--data", tmp_path / "absent.npz", "--epochs", 1)
    ended = poetc("train", over.with_name("small.onnx"), *options, "-o", tmp_path / "a" / "b" / "out.onnx", "-q")
    assert ended.code == 2
    assert not list(tmp_path.iterdir())
