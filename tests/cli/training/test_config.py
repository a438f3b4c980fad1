"""Options of `poetc train`: a file of them, that which a training writes beside its result, and one that is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from poetc.cli import cli
from poetc.cli._config import keys_of
from poetc.commands.training_directory import directory_of
from tests.cli.conftest import Ended
from tests.cli.training.test_train import DATA, small  # noqa: F401  a fixture

Run = Callable[..., Ended]


def test_a_training_is_repeated_from_the_file_that_it_wrote(
    poetc: Run,
    small: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(small.parent)
    config = tmp_path / "asked.yaml"
    text = f"model: {small}\nepochs: 5\nlr: 0.25\noptimizer: momentum\nloss: [cross-entropy]\nsaved: off\n"
    config.write_text(f"{text}batch: 16\nnormalize: 0..255\n")
    first = tmp_path / "first.onnx"
    data = ("--data", f"{DATA}:train_x,train_y", "--epochs", 2)  # flags win
    assert poetc("train", "--config", config, *data, "-o", first, "-q").code == 0
    written = directory_of(first) / "run.yaml"
    values = yaml.load(written.read_text(), Loader=yaml.BaseLoader)
    assert (values["epochs"], values["lr"], values["optimizer"], values["momentum"]) == ("2", "0.25", "momentum", "0.9")
    assert values["saved"] == "off" and "beta1" not in values and values["output"] == str(first)
    assert values["model"] == small.name  # given as a whole path, in this folder
    second = tmp_path / "second.onnx"
    assert poetc("train", "--config", written, "-o", second, "-q").code == 0
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epoch: 3\n", "asked.yaml: 'epoch' is no option of poetc train"),
        ("resume: true\n", "asked.yaml: 'resume' is no option of poetc train"),
        ("lr: fast\n", "asked.yaml: lr: fast is no finite number"),
        ("lr: {a: 1}\n", "asked.yaml: lr must be a value"),
        ("- lr\n", "asked.yaml:1: a file of options is a mapping of keys to values"),
        ("lr: [", "asked.yaml:1: not valid YAML"),
        ("lr: 1\nepochs: 2\nlr: 2\n", "asked.yaml:3: key 'lr' is given twice"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(poetc: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "asked.yaml").write_text(text)
    ended = poetc("train", tmp_path / "m.onnx", "--config", tmp_path / "asked.yaml", "-o", tmp_path / "o.onnx")
    assert ended.code == 2 and says in ended.err and ended.err.count("\n") == 1


def test_a_file_takes_every_option_of_training() -> None:
    keys = keys_of(cli.commands["train"])
    flags = {name[2:] for p in cli.commands["train"].params for name in p.opts if name.startswith("--")}
    assert flags - set(keys) == {"resume", "config", "json", "debug"}


def test_the_number_of_epochs_is_asked_for_behind_the_data(poetc: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    ended = poetc("train", model, "--batch", 4, "--data", tmp_path / "none.npz", "-o", out)
    assert ended.code == 2 and ended.err.splitlines()[-1].endswith("none.npz: does not exist")
    np.savez(tmp_path / "d.npz", x=np.zeros((9, 1, 8, 8), np.float32), y=np.arange(9))
    ended = poetc("train", model, "--batch", 4, "--data", tmp_path / "d.npz", "-o", out)
    assert ended.code == 2
    assert ended.err.splitlines()[-1] == "poetc: error: --epochs is missing; an epoch of these data is 3 steps of 4"
    ended = poetc("train", model, "-o", out)
    assert ended.err.splitlines()[-1].startswith("poetc: error: --data and --epochs are missing")
