"""`poetc train`: from a model and data to a better model; and what it refuses."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetc import TrainingOptions, load, train
from poetc.cli._text import train_text
from poetc.loop import read_checkpoint
from tests.cli.conftest import MODEL, Ended

DATA = MODEL.parent / "digits_new_writer.npz"
LINE = "poetc: error: "
Run = Callable[..., Ended]


def _small(path: Path, *, norm: bool = True) -> Path:
    """A perceptron on the digits; `norm`: with a batch-norm, so that there are running statistics."""
    draw = np.random.default_rng(1).standard_normal
    weights = {
        "w1": (draw((64, 12)) / 8).astype(np.float32),
        "w2": (draw((12, 10)) / 4).astype(np.float32),
        "b": np.zeros(10, np.float32),
        **{f"bn_{name}": np.full(12, value, np.float32) for name, value in zip("sbmv", (1, 0, 0, 1), strict=True)},
    }
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w1"], ["h"]),
        helper.make_node("BatchNormalization", ["h", "bn_s", "bn_b", "bn_m", "bn_v"], ["n"]),
        helper.make_node("Relu", ["n" if norm else "h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b"], ["logits"]),
    ]
    graph = helper.make_graph(
        [node for node in nodes if norm or node.op_type != "BatchNormalization"],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(a, name) for name, a in weights.items() if norm or name[:2] != "bn"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def _options(**changed: object) -> list[str]:
    options = {
        "batch": 16,
        "optimizer": "adam",
        "lr": 0.01,
        "data": f"{DATA}:train_x,train_y",
        "validation": f"{DATA}:test_x,test_y",
        "normalize": "0..255",
        "epochs": 3,
        "schedule": "cosine:warmup=10",
        "ema": 0.9,
        "lr_for": "w1=0.5",
        **changed,
    }
    return [w for k, v in options.items() if v is not None for w in (f"--{k.replace('_', '-')}", str(v))]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _small(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module")
def trained(small: Path, tmp_path_factory: pytest.TempPathFactory, poetc: Run) -> tuple[Path, dict[str, Any], str]:
    """A training without interruptions: its output, its answer and its messages."""
    out = tmp_path_factory.mktemp("trained") / "out.onnx"
    ended = poetc("train", small, *_options(), "-o", out, "--json")
    assert ended.code == 0, ended.err
    return out, ended.json, ended.err


@pytest.mark.long
def test_onnxruntime_finds_the_accuracy_that_was_printed(trained: tuple[Path, dict[str, Any], str]) -> None:
    out, document, _ = trained
    with np.load(DATA) as archive:
        data = dict(archive)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": (data["test_x"].astype(np.float32) / 255)[:, None]})
    accuracy = float((np.asarray(logits).argmax(axis=1) == data["test_y"]).mean())
    best = document["epochs"][document["best_epoch"] - 1]
    assert best["validation_accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert accuracy > 0.7 > document["before"]["accuracy"]


def test_a_log_has_every_step_and_epoch(small: Path, tmp_path: Path, poetc: Run) -> None:
    out, log = tmp_path / "t.onnx", tmp_path / "log"
    ended = poetc("train", small, *_options(epochs=2, log=log), "-o", out, "--json")
    lines = [json.loads(line) for line in (log / "log.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    assert [e["validation_loss"] for e in epochs] == [e["validation_loss"] for e in ended.json["epochs"]]
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, ended.json["steps"] + 1))
    assert list(log.glob("events.out.tfevents.*"))


def test_the_answer_says_how_it_went(trained: tuple[Path, dict[str, Any], str]) -> None:
    out, document, err = trained
    assert [row["epoch"] for row in document["epochs"]] == [1, 2, 3]
    assert document["epochs"][0]["loss"] > document["epochs"][-1]["loss"]
    assert document["steps"] == 3 * 34
    assert document["peak_measured_bytes"] == document["peak_predicted_bytes"] <= document["budget_bytes"]
    assert document["output"] == str(out)
    assert "532 samples make 34 batches of 16 an epoch; the last has 4 of them and 12 again" in err
    rows = [line for line in err.splitlines() if line[:2] in ("1/", "2/", "3/")]
    assert len(rows) == 3
    assert json.loads((out.with_name("out.onnx.train") / "training.json").read_text()) == document
    first, *_, last = document["epochs"]
    losses = f"training loss    {first['loss']:.4f}  ->  {last['loss']:.4f}\n"
    assert losses in train_text({**document, "best_epoch": 3})
    assert f"training loss    {first['loss']:.4f}\n" in train_text({**document, "best_epoch": 1}), "nothing changed"


@pytest.mark.long
def test_the_accuracy_of_training_steps_is_that_of_the_model(tmp_path: Path, poetc: Run) -> None:
    model = _small(tmp_path / "model.onnx", norm=False)
    for parts in (1, 2):
        nearly_frozen = {"optimizer": "sgd", "lr": 1e-30, "lr_for": None, "schedule": "constant", "ema": None}
        same = {"batch": 4, "validation": f"{DATA}:train_x,train_y", "epochs": 1, "micro_batches": parts}
        options = [*_options(**nearly_frozen, **same), "-o", tmp_path / f"{parts}.onnx", "--json"]
        ended = poetc("train", model, *options)
        assert ended.code == 0, ended.err
        assert 0 < ended.json["before"]["accuracy"] == pytest.approx(ended.json["epochs"][0]["accuracy"], abs=1e-12)


def test_what_is_there_is_not_replaced_unasked(small: Path, trained: tuple[Path, Any, str], poetc: Run) -> None:
    out = trained[0]
    before = out.read_bytes()
    ended = poetc("train", small, *_options(), "-o", out)
    assert (ended.code, ended.err) == (
        2,
        f"{LINE}{out}: exists; write to another file with -o, or replace it with --force\n",
    )
    assert out.read_bytes() == before


def test_python_trains_to_the_same_file_and_the_command_line_goes_on(
    small: Path, trained: tuple[Path, dict[str, Any], str], tmp_path: Path, poetc: Run
) -> None:
    out, rows = tmp_path / "out.onnx", []
    training = TrainingOptions(optimizer="adam", learning_rate=0.01, lr_for=("w1=0.5",))
    document = train(
        load(small, batch=16, training=training),
        data=f"{DATA}:train_x,train_y",
        validation=f"{DATA}:test_x,test_y",
        normalize="0..255",
        epochs=3,
        schedule="cosine:warmup=10",
        ema=0.9,
        out=out,
        on_epoch=rows.append,
    )
    assert out.read_bytes() == trained[0].read_bytes()
    assert [row.to_json() for row in rows] == document["epochs"]
    ended = poetc("train", "--resume", "-o", out, "--epochs", "4", "--json")
    assert ended.code == 0, ended.err
    assert [row["epoch"] for row in ended.json["epochs"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": "absent.npz"}, "--data absent.npz: does not exist"),
        ({"data": f"{DATA}:train_x,train_z"}, f"{DATA}: has no array 'train_z'"),
        ({"data": f"{DATA}:test_x,train_y"}, "its arrays have different numbers of samples: 265 of test_x, 532 of"),
        ({"validation_split": 0.5}, "--validation and --validation-split exclude each other"),
        ({"validation_split": 1.5, "validation": None}, "1.5 is no finite number above 0 and below 1"),
        ({"validation_split": 0.001, "validation": None}, "leaves none for validation"),
        ({"schedule": "cosine:steps=0"}, "--schedule"),
        ({"metrics": "f1"}, "--metrics f1"),
        ({"metrics": "mse", "validation": None}, "--metrics mse: is of a validation; give"),
        ({"epochs": None}, "--epochs is missing"),
        ({"lr": "nan"}, "--lr"),
        ({"augment": "twist"}, "--augment twist"),
        ({"accumulate": 103}, "--accumulate 103: the training has 102 steps, and none would update a weight"),
        ({"head_seed": 1}, "--head-seed 1 does nothing without --new-head"),
        ({"device": "nopi"}, "unknown device 'nopi'"),
        ({"micro_batches": 3}, "--micro-batches 3: does not divide the batch"),
        ({"patience": 2, "epochs": 3}, "--patience 2: cannot end a training of 3 epochs; give --epochs 4 or more"),
    ],
)
def test_bad_options_and_data_are_one_line(
    small: Path, tmp_path: Path, poetc: Run, changed: dict[str, Any], message: str
) -> None:
    ended = poetc("train", small, *_options(**changed), "-o", tmp_path / "out.onnx", "--quiet")
    assert ended.code == 2, ended.err
    assert ended.err.startswith(LINE)
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not [*tmp_path.glob("out.onnx*")]


def test_a_budget_that_nothing_fits_leaves_no_directory(small: Path, tmp_path: Path, poetc: Run) -> None:
    ended = poetc("train", small, *_options(budget="2kB"), "-o", tmp_path / "out.onnx", "--quiet")
    assert ended.code == 4 and "no schedule fits in 2000 bytes" in ended.err
    assert not [*tmp_path.glob("out.onnx*")]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ema": 0.9999}, "--ema 0.9999: after 34 updates 100% of the average are still the untrained weights"),
        ({"schedule": "cosine:warmup=34"}, "--schedule cosine:warmup=34: the warm-up outlasts the training"),
        ({"schedule": "step:every=34"}, "--schedule step:every=34: the rate never falls in the 34 updates"),
        ({"schedule": "plateau:patience=0"}, "the rate never falls in a training of 1 epoch"),
        ({"validation": f"{DATA}:train_x,train_y"}, "the validation samples are the training samples"),
        ({"schedule": "step:every=33", "ema": 0.97}, ""),
    ],
)
def test_options_that_come_to_nothing_are_warned_of(
    small: Path, tmp_path: Path, poetc: Run, changed: dict[str, Any], message: str
) -> None:
    ended = poetc("train", small, *_options(epochs=1, **changed), "-o", tmp_path / "out.onnx", "--json")
    assert ended.code == 0, ended.err
    said = [warning for warning in ended.json["warnings"] if "validation never improved" not in warning]
    assert [message in warning for warning in said] == ([True] if message else [])


def test_an_output_that_can_never_be_written_is_refused_first(small: Path, tmp_path: Path, poetc: Run) -> None:
    for out, says in ((small, "is the file that is read"), (tmp_path, "is a directory")):
        ended = poetc("train", small, *_options(), "-o", out, "--force", "--quiet")
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
        assert says in ended.err
        assert not out.with_name(out.name + ".train").exists()


def test_a_loss_of_labels_is_validated(tmp_path: Path, poetc: Run) -> None:
    """Its target has another shape than the output, of which three of four samples count in the last batch."""
    random = np.random.default_rng(0)
    weight = numpy_helper.from_array(random.standard_normal((6, 5)).astype(np.float32), "w")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n, size in (("x", 6), ("y", 5))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    file, data = tmp_path / "embed.onnx", tmp_path / "d.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    np.savez(data, x=random.standard_normal((7, 6)).astype(np.float32), target=np.arange(7) % 2)
    options = ("--batch", "4", "--data", data, "--validation", data, "--loss", "triplet", "--epochs", "1")
    ended = poetc("train", file, *options, "-o", tmp_path / "out.onnx", "--json")
    assert ended.code == 0, ended.err
    assert np.isfinite(ended.json["epochs"][0]["validation_loss"])
    assert "val. loss" in ended.err and "acc." not in ended.err  # which this loss has not


def test_several_targets_are_trained_and_validated(tmp_path: Path, poetc: Run) -> None:
    """A class and a number from one layer: onnxruntime's outputs of the trained file give the losses that were said."""
    random = np.random.default_rng(0)
    shapes = {"w": (6, 8), "kind": (8, 3), "size": (8, 1)}
    weights = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32) / 3, n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "kind"], ["y"]),
        helper.make_node("MatMul", ["r", "size"], ["z"]),
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n, size in (("x", 6), ("y", 3), ("z", 1))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    file, data, out = tmp_path / "two.onnx", tmp_path / "d.npz", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    x = random.standard_normal((14, 6)).astype(np.float32)
    kinds, sizes = x[:, :3].argmax(axis=1), x.sum(axis=1, keepdims=True)
    np.savez(data, **{"x": x, "target": kinds, "target.z": sizes})
    options = ("--batch", "4", "--data", data, "--validation", data, "--epochs", "8", "--lr", "0.05")
    ended = poetc("train", file, *options, "--loss", "y=cross-entropy*0.75,z=mse*2", "-o", out, "--json")
    assert ended.code == 0, ended.err
    best = ended.json["epochs"][ended.json["best_epoch"] - 1]
    y, z = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    entropy = (np.log(np.exp(y).sum(axis=1)) - y[np.arange(14), kinds]).mean()
    assert best["validation_loss"] == pytest.approx(0.75 * entropy + 2 * np.square(z - sizes).mean(), rel=1e-5)
    assert best["validation_accuracy"] == pytest.approx((y.argmax(axis=1) == kinds).mean())
    assert best["validation_loss"] < 0.5 * ended.json["before"]["loss"]
    assert best["accuracy"] * 16 in range(1, 17)  # of four batches of four


def test_what_scaling_makes_infinite_is_one_line(small: Path, tmp_path: Path, poetc: Run) -> None:
    ended = poetc("train", small, *_options(normalize="0,1e-38"), "-o", tmp_path / "out.onnx", "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert "a batch, after scaling and augmentation: x[" in ended.err


def test_a_training_that_fails_in_its_first_steps_leaves_nothing(small: Path, tmp_path: Path, poetc: Run) -> None:
    out = ("-o", tmp_path / "out.onnx")
    ended = poetc("train", small, *_options(lr=1e30, schedule=None, ema=None, epochs=1, optimizer="sgd"), *out, "-q")
    assert (ended.code, ended.err.count("\n")) == (1, 1), ended.err
    assert "the loss is" in ended.err
    assert not list(tmp_path.glob("out.onnx*"))
    assert poetc("train", small, *_options(epochs=1), *out, "-q").code == 0
    assert "the only epoch is done, in 34 steps; --epochs 2 or more trains on" in poetc("train", "--resume", *out).err
    assert poetc("train", "--resume", "--epochs", 3, *out, "-q").code == 0
    told = poetc("train", "--resume", "--epochs", 1, *out).err
    assert "note: 3 epochs are done, in 102 steps; --epochs 4 or more trains on" in told


def test_pixels_that_nobody_scaled_are_refused(small: Path, tmp_path: Path, poetc: Run) -> None:
    options = (*_options(normalize=None, epochs=1), "-o", tmp_path / "out.onnx")
    ended = poetc("train", small, *options, "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert "train_x from 0 to 255 looks unscaled" in ended.err
    assert not (tmp_path / "out.onnx.train").exists()
    assert poetc("train", small, *options, "--any-range").code == 0


def test_a_machine_without_a_compiler_is_told(
    small: Path, tmp_path: Path, poetc: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = poetc("train", small, *_options(), "-o", tmp_path / "out.onnx", "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert "install" in ended.err
    assert not list(tmp_path.glob("out.onnx*"))  # it was told before the model was solved


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        ("false", "CC=false does not compile C: exit code 1"),
        ("true", "CC=true does not compile C: it writes no object"),
        ("gcc --nonsense", "CC=gcc --nonsense does not compile C: .*nonsense"),
    ],
)
def test_a_compiler_that_does_not_compile_is_named(
    small: Path, tmp_path: Path, poetc: Run, monkeypatch: pytest.MonkeyPatch, compiler: str, says: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    ended = poetc("train", small, *_options(), "-o", tmp_path / "out.onnx", "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert re.search(says, ended.err), ended.err


def test_an_empty_name_of_a_compiler_is_none(
    small: Path, tmp_path: Path, poetc: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", " ")
    ended = poetc("train", small, *_options(epochs=1), "-o", tmp_path / "out.onnx", "--quiet")
    assert ended.code == 0, ended.err


# --- going on ---------------------------------------------------------------------------------------------------------


def _killed(arguments: list[str], at_step: int, directory: Path) -> bool:
    """Train in a process and kill it when its checkpoints have come so far; whether it was killed before its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "poetc", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        if _newest(directory) >= at_step:
            time.sleep(random.random() * 0.02)
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.001)
    assert process.returncode == 0
    return False


def _newest(directory: Path) -> int:
    """The number of the newest checkpoint; -1 before there is one."""
    return max([-1, *map(_number, directory.glob("checkpoint.?"))])


def _number(path: Path) -> int:
    data = path.read_bytes()
    number = json.loads(data[16 : 16 + int.from_bytes(data[8:16], "little")])["progress"]["number"]
    return int(number)


def _resumed(small: Path, tmp_path: Path, trained: tuple[Path, Any, str], poetc: Run, moments: list[int]) -> None:
    out = tmp_path / "out.onnx"
    directory = tmp_path / "out.onnx.train"
    begin = ["train", str(small), *_options(save_every=2), "-o", str(out)]
    for number, moment in enumerate(moments):
        _killed([*begin, *(["--resume"] if number else [])], moment, directory)
    ended = poetc("train", "--resume", "-o", out, "--json")
    assert ended.code == 0, ended.err
    assert re.search(r"going on after step \d+, in epoch \d of 3|all 3 epochs are done, in 102 steps", ended.err)
    assert out.read_bytes() == trained[0].read_bytes()
    timeless = [{k: v for k, v in row.items() if k != "seconds"} for row in ended.json["epochs"]]
    assert timeless == [{k: v for k, v in row.items() if k != "seconds"} for row in trained[1]["epochs"]]
    assert not list(directory.glob(".checkpoint-*"))


def test_a_training_that_was_killed_ends_with_the_same_file(
    small: Path, tmp_path: Path, trained: tuple[Path, Any, str], poetc: Run
) -> None:
    _resumed(small, tmp_path, trained, poetc, [3, 20])


@pytest.mark.long
def test_a_training_that_was_killed_many_times_ends_with_the_same_file(
    small: Path, tmp_path: Path, trained: tuple[Path, Any, str], poetc: Run
) -> None:
    _resumed(small, tmp_path, trained, poetc, sorted(random.sample(range(60), 8)))


def test_a_training_that_was_killed_before_its_first_file_begins_again(small: Path, tmp_path: Path, poetc: Run) -> None:
    out = tmp_path / "out.onnx"
    directory = out.with_name("out.onnx.train")
    directory.mkdir()
    (directory / ".run.json.abc").write_text("{")  # it got its name after it was written
    ended = poetc("train", "--resume", "-o", out, "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert poetc("train", small, *_options(), "-o", out, "--quiet").code == 0
    assert out.exists() and not list(directory.glob(".run.json*"))
    for damaged in ("[]", "null", "{"):
        (directory / "run.json").write_text(damaged)
        ended = poetc("train", "--resume", "-o", out, "--epochs", "3")
        assert ended.code == 2 and "run.json: damaged; begin anew" in ended.err
    (directory / "run.json").unlink()
    ended = poetc("train", small, *_options(), "-o", out, "--force", "--quiet")
    assert "is in the way and no earlier training" in ended.err


def test_only_the_same_training_goes_on(
    small: Path, tmp_path: Path, trained: tuple[Path, Any, str], poetc: Run
) -> None:
    out = tmp_path / "out.onnx"
    shutil.copytree(trained[0].with_name("out.onnx.train"), tmp_path / "out.onnx.train")
    other = _small(tmp_path / "other.onnx")
    model = onnx.load(other)
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, other)
    for arguments, message in (
        ([other], "other.onnx is not the model that the training of"),
        (["--weight-decay", "0.1"], "--weight-decay 0.1: the training of"),
        (["--data", f"{DATA}:test_x,test_y"], "was begun with"),
        (["--patience", "3"], "was begun without it; leave it out"),
    ):
        ended = poetc("train", *arguments, "--resume", "-o", out, "--quiet")
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
        assert message in ended.err
    ended = poetc("train", "--resume", "-o", tmp_path / "never.onnx", "--quiet")
    assert "holds no training that was begun" in ended.err


def test_data_that_has_changed_does_not_go_on(small: Path, tmp_path: Path, poetc: Run) -> None:
    data, out = tmp_path / "d.npz", tmp_path / "out.onnx"
    arrays = {"x": np.zeros((16, 1, 8, 8), np.float32), "target": np.arange(16) % 10}
    np.savez(data, **arrays)
    changed = {"data": data, "validation": None, "normalize": None, "epochs": 1}
    assert poetc("train", small, *_options(**changed), "-o", out, "--quiet").code == 0
    np.savez(data, x=arrays["x"] + 1, target=arrays["target"])
    ended = poetc("train", "--resume", "-o", out, "--epochs", "2", "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert f"--data {data}: not the data that the training of" in ended.err


def test_a_checkpoint_is_exported(trained: tuple[Path, dict[str, Any], str], tmp_path: Path, poetc: Run) -> None:
    directory, out = trained[0].with_name("out.onnx.train"), tmp_path / "out.onnx"
    newest = max(directory.glob("checkpoint.?"), key=_number)
    ended = poetc("export", directory / "solved", "--state", newest, "-o", out)
    assert ended.code == 0, ended.err
    assert f"{newest}: the checkpoint of step 102, with the average of the weights" in ended.err
    checkpoint = read_checkpoint(newest)
    assert checkpoint is not None
    weights = {i.name: numpy_helper.to_array(i) for i in onnx.load(out).graph.initializer}
    assert np.array_equal(weights["w1"], checkpoint.arrays["average"]["w1"])
    assert np.array_equal(weights["bn_m"], checkpoint.arrays["state"]["bn_m"])
    damaged = tmp_path / "checkpoint.b"
    damaged.write_bytes(newest.read_bytes()[:-1])
    ended = poetc("export", directory / "solved", "--state", damaged, "-o", out, "--force", "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert f"{damaged}: a damaged checkpoint" in ended.err


def test_a_training_that_is_over_is_written_without_a_compiler(
    tmp_path: Path, trained: tuple[Path, dict[str, Any], str], poetc: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.onnx"
    shutil.copytree(trained[0].with_name("out.onnx.train"), tmp_path / "out.onnx.train")
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = poetc("train", "--resume", "-o", out, "--json")
    assert ended.code == 0, ended.err
    assert out.read_bytes() == trained[0].read_bytes()
    named = ("output", "files", "directory", "report")
    assert {**ended.json, **{n: trained[1][n] for n in named}} == trained[1]
    ended = poetc("train", "--resume", "-o", out, "--epochs", "4", "--quiet")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err


@pytest.mark.long
def test_a_full_disk_stops_at_the_last_good_checkpoint(
    small: Path, tmp_path: Path, trained: tuple[Path, Any, str], poetc: Run
) -> None:
    out, directory = tmp_path / "out.onnx", tmp_path / "out.onnx.train"
    arguments = [sys.executable, "-m", "poetc", "train", str(small), *_options(save_every=1), "-o", str(out), "-q"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while _newest(directory) < 3 and process.poll() is None:
            time.sleep(0.002)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, 1024))  # as if no block were free
        err = process.communicate()[1].decode()
    assert (process.returncode, err.count("\n")) == (2, 1), err
    assert "the last good checkpoint is kept" in err
    assert sorted(p.name for p in directory.glob("*checkpoint*")) == ["checkpoint.a", "checkpoint.b"]
    assert not out.exists()
    ended = poetc("train", "--resume", "-o", out, "-q")
    assert ended.code == 0, ended.err
    assert out.read_bytes() == trained[0].read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("columns", "shown_besides"), [(120, r"\d/34"), (48, r"acc\. \d+\.\d% \d+:\d\d left")])
def test_a_terminal_shows_progress_and_a_row_an_epoch(
    small: Path, tmp_path: Path, columns: int, shown_besides: str
) -> None:
    options = _options(epochs=200, schedule=None)  # long enough for a bar on a fast machine
    command = [sys.executable, "-m", "poetc", "train", str(small), *options, "-o", str(tmp_path / "out.onnx")]
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    environment = {**os.environ, "COLUMNS": str(columns)}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = bytearray()
        while True:
            try:
                data = os.read(screen, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            shown += data
    os.close(screen)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert process.returncode == 0, text
    for epoch in (1, 2, 3):
        assert re.search(rf"{epoch}/200 +\d\.\d+ +\d\.\d+ +\d+\.\d+%", text), text
    assert re.search(shown_besides, text), text
    assert re.search(r"loss \d\.\d{4}  acc\. \d+\.\d%", text), text
    assert "Traceback" not in text


@pytest.mark.long
def test_ctrl_c_ends_at_a_checkpoint(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    arguments = [sys.executable, "-m", "poetc", "train", str(small), *_options(epochs=100_000, save_every=1)]
    with subprocess.Popen([*arguments, "-o", str(out)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while _newest(tmp_path / "out.onnx.train") < 2 and process.poll() is None:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        err = process.communicate()[1].decode()
    assert process.returncode == 130, err
    assert f"go on with: poetc train --resume -o {out}" in err


def test_adapters_are_trained_merged_and_kept(small: Path, tmp_path: Path, poetc: Run) -> None:
    out = tmp_path / "out.onnx"
    ended = poetc("train", small, *_options(epochs=1, lr_for=None, lora="2:w1"), "-o", out, "--json")
    assert ended.code == 0, ended.err
    before, after = ({t.name: numpy_helper.to_array(t) for t in onnx.load(p).graph.initializer} for p in (small, out))
    changed = [n for n in before if not np.array_equal(before[n], after[n])]
    assert changed == ["w1"] and np.linalg.matrix_rank(after["w1"] - before["w1"], 1e-4) == 2
    folder = out.with_name("out.onnx.train") / "adapter"
    assert {p.name for p in folder.iterdir()} == {"adapter_model.safetensors", "adapter_config.json"}


def test_a_training_goes_on_with_another_rate_and_schedule_and_from_python(
    small: Path, tmp_path: Path, poetc: Run
) -> None:
    """Python resumes what the command line began without --lr; then the rates are those that were asked for."""
    out = tmp_path / "out.onnx"
    options = {"lr": None, "ema": None, "lr_for": None, "validation": None, "schedule": "cosine", "epochs": 1}
    # Nobody asks for the time of the search from Python: the schedule is there.
    assert poetc("train", small, *_options(**options), "--time-limit", 7, "-o", out, "--quiet").code == 0
    model = load(small, batch=16, training=TrainingOptions(optimizer="adam"))
    same = {"data": f"{DATA}:train_x,train_y", "normalize": "0..255", "schedule": "cosine", "resume": True}
    notes: list[str] = []
    train(model, out=out, epochs=2, **same, note=notes.append)
    assert any("cosine lasts as long as the training, so its curve is stretched from 1 epoch," in n for n in notes)
    ended = poetc("train", "--resume", "-o", out, "--epochs", "3", "--schedule", "cosine:steps=34", "--json")
    assert ended.code == 0 and "begins anew at step 68" in ended.err, ended.err
    rate = float(TrainingOptions(optimizer="adam").learning_rate or 0)
    last = rate * (1 + np.cos(np.pi * 33 / 34)) / 2
    assert ended.json["epochs"][-1]["rate"] == pytest.approx(last, rel=1e-5)
    ended = poetc("train", "--resume", "-o", out, "--epochs", "4", "--schedule", "constant", "--lr", "0.002", "--json")
    assert ended.json["epochs"][-1]["rate"] == pytest.approx(0.002), ended.err
    ended = poetc("train", "--resume", "-o", out, "--epochs", "5", "--json")  # keeps what the last one changed
    assert ended.json["epochs"][-1]["rate"] == pytest.approx(0.002), ended.err
