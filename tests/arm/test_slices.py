"""A training step between the turns of a control loop, on an emulated Cortex-M4F whose SysTick counts late turns."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from poetc.boards import BOARDS
from poetc.commands import programs
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.emit import emit
from poetc.measure import build_host
from poetc.planning.pieces import longest_piece
from poetc.scheduling.schedule import SolveOptions
from tests.arm.conftest import Solved, load_networks
from tests.layouts.support import bits, sample

BOARD = BOARDS["mps2-an386"]
TICK_US, BUDGET_US = 150, 30
LIMIT = "100us"
CLOCK = "shift=0"  # of -icount: an instruction takes 1 ns, as in the profile


def solved(directory: Path, longest: str | None) -> Solved:
    source = load_networks().write("lenet", directory / "lenet.onnx")
    request = SolveRequest(
        model=ModelRequest(source=source, batch=4, device="qemu-mps2-an386"),
        longest_piece=longest,
        options=SolveOptions(time_limit_s=3, gap=0.5),
    )
    artifact = solve(request)
    return Solved(artifact, programs.training_program(artifact))


def run(found: Solved, directory: Path) -> tuple[list[int], int]:
    """Bits of the losses, and the turns that were late."""
    out = emit([found.program], found.values, model="lenet", target="cortex-m4f", out_dir=directory)
    numbers = f"#define TICKS {25 * TICK_US}u\n#define BUDGET_US {BUDGET_US}u\n"
    (out / "port" / "train.c").write_text(numbers + Path(__file__).with_name("slices.c").read_text())
    subprocess.run(["make", "-s", "firmware.elf"], cwd=out, check=True)
    words = [*BOARD.qemu, "-icount", f"{CLOCK},sleep=off"]
    words += ["-semihosting-config", "enable=on,target=native", "-kernel", "firmware.elf"]
    log = subprocess.run(words, cwd=out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout
    count = re.search(r"ticks \w+ missed (\w+)", log)
    assert count is not None, log
    return bits(log), int(count[1], 16)


@pytest.mark.long
def test_no_turn_of_a_control_loop_is_late(tmp_path: Path) -> None:
    """Steps in blocks have the bits of whole ones, and operators that run whole make turns late."""
    whole, pieces = solved(tmp_path, None), solved(tmp_path, LIMIT)
    piece = longest_piece(pieces.artifact.problem, pieces.artifact.schedule)
    assert pieces.program.has_blocks and 0 < piece.time_ns <= 100_000 < 1_000 * TICK_US
    assert longest_piece(whole.artifact.problem, whole.artifact.schedule).time_ns > 1_000 * TICK_US
    with build_host([whole.program], whole.values) as model:
        expected = [int(np.float32(model.run(sample(whole.program))).view(np.uint32)) for _ in range(3)]
    losses, missed = run(pieces, tmp_path / "pieces")
    assert (losses, missed) == (expected, 0)
    losses, missed = run(whole, tmp_path / "whole")
    assert losses == expected and missed > 0
