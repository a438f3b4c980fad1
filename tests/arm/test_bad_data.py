"""Data that cannot be trained on: firmware names file, record, value and range, and does not end with 0."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from poetc import measure
from poetc.measure import Firmware
from tests.program.models import training_case
from tests.support.bad_data import BAD, X, Y, records


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Firmware:
    case = training_case()
    return measure.build_firmware(case.program(), case.graph.values, "mps2-an386", tmp_path_factory.mktemp("firmware"))


def train(firmware: Firmware, data: bytes | None) -> tuple[int, str]:
    """Exit code and log."""
    run = firmware.run_directory
    for name in ("data.bin", "trained.bin"):
        (run / name).unlink(missing_ok=True)
    if data is not None:
        (run / "data.bin").write_bytes(data)
    words = measure.emulator_command(firmware, Path("counts.txt"))
    done = subprocess.run(words, cwd=run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (run / "trained.bin").exists() == (done.returncode == 0), done.stdout
    return done.returncode, done.stdout


def test_bad_data_are_named_by_a_board(firmware: Firmware) -> None:
    for what, (data, message) in BAD.items():
        code, said = train(firmware, data)
        assert code != 0, what
        assert re.search(message, said), f"{what}: {said}"
    assert train(firmware, records(X, Y))[0] == 0
