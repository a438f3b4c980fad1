"""The example of a sensor that learns on the board: the same lines from an emulated Cortex-M4F and from this host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from poetc.boards import BOARDS
from poetc.commands.emit import emit
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions
from tests.layouts.support import run

SENSOR = Path(__file__).resolve().parents[2] / "demo" / "sensor"
BOARD = BOARDS["mps2-an386"]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]


@pytest.mark.long
def test_a_sensor_learns_its_wearer(tmp_path: Path) -> None:
    """It takes what it has seen for usual and other movements not, and a training that fails changes nothing."""
    run([sys.executable, SENSOR / "make_model.py", "a.onnx"], tmp_path)
    training = TrainingOptions(loss="mse", optimizer="adam", learning_rate=0.003)
    model = ModelRequest(source=tmp_path / "a.onnx", device="qemu-mps2-an386", training=training)
    solve(SolveRequest(model=model, options=SolveOptions(time_limit_s=2, gap=0.5), out=tmp_path / "a.poetc"))
    for target, out in (("host", "host"), ("cortex-m4f", "board")):
        emit(tmp_path / "a.poetc", target, tmp_path / out, numerics="separate")
    run(["make", "-s", "CFLAGS=-O1", "libmodel.a"], tmp_path / "host")
    words = ["gcc", "-std=c99", *WARNINGS, "-ffp-contract=off", "-I.", "-Iruntime/include", SENSOR / "sensor.c"]
    run([*words, "libmodel.a", "-lm", "-o", "sensor"], tmp_path / "host")
    here = run(["./sensor"], tmp_path / "host")
    (tmp_path / "board" / "port" / "train.c").write_text("#define POETC_BOARD\n" + (SENSOR / "sensor.c").read_text())
    run(["make", "-s", "firmware.elf"], tmp_path / "board")
    words = [*BOARD.qemu, "-semihosting-config", "enable=on,target=native", "-kernel", "firmware.elf"]
    done = subprocess.run(words, cwd=tmp_path / "board", capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == here
    counts = [list(map(int, re.findall(r"(\d+)(?=,| of)", line))) for line in here.splitlines() if "unlike" in line]
    (walking, *others), (running, shaking), (after,) = counts
    assert walking + running + after <= 3 and min(*others, shaking) >= 30
    trainings = [line for line in here.splitlines() if line.startswith("training")]
    assert [line.endswith("rolled back") for line in trainings] == [False] * (len(trainings) - 1) + [True]
