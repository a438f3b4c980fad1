"""Data that cannot be trained on: the emitted programs name file, record, value and remedy, and do not end with 0."""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from poetc.emit import emit
from poetc.measure import HostModel, StepError, compile_library
from poetc.program import sample_inputs
from poetc.runtime import runtime_directory
from tests.program.models import state_paged_decisions, training_case
from tests.support.bad_data import BAD, X, Y, records

TARGETS = {"host": ("./train", "data.bin", "0", "trained.bin"), "cortex-a": ("./train",)}


@dataclass(frozen=True)
class Built:
    directory: Path
    target: str

    def train(self, data: bytes | None) -> tuple[int, str]:
        """Exit code and what it said."""
        for name in ("data.bin", "store.bin", "trained.bin"):
            (self.directory / name).unlink(missing_ok=True)
        if data is not None:
            (self.directory / "data.bin").write_bytes(data)
        words = TARGETS[self.target]
        done = subprocess.run(words, cwd=self.directory, capture_output=True, text=True, check=False)
        assert (self.directory / "trained.bin").exists() == (done.returncode == 0)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module", params=TARGETS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A weight lives on the store."""
    directory = tmp_path_factory.mktemp("data")
    case = training_case(on_store=["fc1.weight"], block_bytes=512)
    program = case.program(state_paged_decisions(case, ["fc1.weight"]))
    emit([program], case.graph.values, model="mlp", target=request.param, out_dir=directory)
    flags = "-O1 -Werror -fsanitize=address,undefined -fno-sanitize-recover=all" if request.param == "host" else "-O1"
    subprocess.run(["make", "-s", "-C", directory, "CC=gcc", f"CFLAGS={flags}", "train"], check=True)
    return Built(directory, request.param)


@pytest.mark.parametrize("what", BAD)
def test_bad_data_are_named(what: str, built: Built) -> None:
    data, message = BAD[what]
    code, said = built.train(data)
    assert code == 1
    assert re.search(message, said), said


def test_ranges_are_shown(built: Built) -> None:
    code, said = built.train(records(X, Y))
    assert code == 0
    first = X[0].ravel()
    shown = re.search(r"input x from (\S+) to (\S+)", said)
    assert shown is not None
    np.testing.assert_allclose([float(v) for v in shown.groups()], [first.min(), first.max()], rtol=1e-5)
    assert "unscaled" not in said


WIDE = X / np.abs(X).max() * 120
RAW = {"bytes": np.abs(np.round(WIDE)), "means of bytes": np.abs(WIDE), "whole": np.round(WIDE), "far off": WIDE - 300}


@pytest.mark.parametrize("what", RAW)
def test_inputs_that_nobody_scaled_are_refused(what: str, built: Built) -> None:
    code, said = built.train(records(RAW[what].astype(np.float32), Y))
    assert code == 1
    assert re.search(r"data.bin: record 1: x.* looks unscaled: scale it as the model was trained, or ", said)


def test_inputs_of_a_wide_range_that_are_centred_are_not_refused(built: Built) -> None:
    code, said = built.train(records(WIDE.astype(np.float32), Y))
    assert "unscaled" not in said and (code == 0 or "the loss is" in said)


def test_weights_that_are_not_kept_are_told(built: Built) -> None:
    """Without an output that the call names, they are gone with the process."""
    (built.directory / "data.bin").write_bytes(records(X, Y))
    for more in ([], ["-o", "kept.bin"]) if built.target == "host" else ([],):
        for name in ("store.bin", "trained.bin"):
            (built.directory / name).unlink(missing_ok=True)
        done = subprocess.run(
            ["./train", *more, "data.bin"], cwd=built.directory, capture_output=True, text=True, check=True
        )
        kept = any((built.directory / name).exists() for name in ("kept.bin", "trained.bin"))
        assert kept == ("note: the trained weights are not kept; -o" not in done.stderr)
        assert kept == (more != [] or built.target != "host")


def test_any_range_is_trained_on_if_asked_for(built: Built, tmp_path: Path) -> None:
    """And a first loss far above that of guessing is pointed out."""
    data = records(RAW["bytes"].astype(np.float32), np.zeros_like(Y))
    if built.target == "host":
        (tmp_path / "data.bin").write_bytes(data)
        (tmp_path / "store.img").write_bytes((built.directory / "store.img").read_bytes())
        words = [built.directory / "train", "-r", "data.bin", "1"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        first = re.search(r"step 1 loss (\S+)", said)
        assert first is not None and "unscaled" not in said
        assert ("more than three times that of guessing" in said) == (float(first[1]) > 3 * np.log(3) * 0.98)
    else:
        assert "ANY_RANGE ?=" in (built.directory / "Makefile").read_text()


def test_a_loss_that_rises_is_pointed_out(built: Built) -> None:
    """Trained as asked for; a line says that the result is worse than what it began from."""
    falling, said = built.train(records(np.repeat(X[:1], 18, 0), np.repeat(Y[:1], 18, 0)))
    assert falling == 0 and "the loss rose" not in said
    x, y = np.repeat(X[:1], 18, 0), np.repeat(Y[:1], 18, 0)
    x[14:] *= 50
    y[14:] = (y[14:] + 1) % 3
    code, said = built.train(records(x, y))
    assert code == 0 and "the loss rose" in said


def test_a_store_without_its_image_is_named(built: Built) -> None:
    image = (built.directory / "store.img").read_bytes()
    (built.directory / "store.img").unlink()
    try:
        code, said = built.train(records(X, Y))
    finally:
        (built.directory / "store.img").write_bytes(image)
    assert code == 1
    assert "store.img" in said
    if built.target != "host":
        assert "code -84: a page of the store is damaged" in said


def test_every_code_has_a_sentence(tmp_path: Path) -> None:
    case = training_case()
    program = case.program()
    header = (runtime_directory() / "include" / "poetc.h").read_text()
    codes = [int(code) for code in re.findall(r"POETC_E\w+ = (-\d+)", header)]
    assert len(codes) >= 7
    with HostModel(compile_library([program], case.graph.values, tmp_path), [program], case.graph.values) as model:
        text = model._dll.poetc_error_text
        unknown = text(-9999)
        sentences = {text(ctypes.c_int(code)) for code in (0, *codes)}
        assert len(sentences) == len(codes) + 1 and unknown not in sentences
        inputs = sample_inputs(program)
        inputs["target"] = np.full(4, 3, np.int32)
        with pytest.raises(StepError, match=r"code -34 in CrossEntropy .*: a class or an index out of range"):
            model.run(inputs)


def test_a_damaged_image_is_named_in_place_of_the_data(built: Built) -> None:
    """A program that has just copied it to the store does not blame the copy, and no step's data."""
    image = (built.directory / "store.img").read_bytes()
    (built.directory / "store.img").write_bytes(bytes(byte ^ 255 for byte in image))
    try:
        code, said = built.train(records(X, Y))
    finally:
        (built.directory / "store.img").write_bytes(image)
    assert code == 1 and "code -84" in said
    if built.target == "host":
        assert "step 1 stopped: store.img, or store.bin, its copy: a page of the store is damaged" in said
