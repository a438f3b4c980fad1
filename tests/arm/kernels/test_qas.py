"""Training of a quantised model has the same bits on the host and on every core."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetc.commands import programs
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve as solve_request
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions
from tests.arm.conftest import INSTRUCTIONS, Bits, Solved, bits
from tests.support import qdq

STEPS = 3


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Solved:
    training = TrainingOptions(precision="qas", learning_rate=1.0)
    source = qdq.quantised(tmp_path_factory.mktemp("qdq"))
    model = ModelRequest(source=source, device="qemu-mps2-an386", training=training)
    options = SolveOptions(time_limit_s=3)
    artifact = solve_request(SolveRequest(model=model, budget="90%", state="ram", options=options))
    return Solved(artifact, programs.training_program(artifact))


@pytest.fixture(scope="module")
def on_host(quantised: Solved) -> Bits:
    return quantised.on_host(STEPS)


@pytest.mark.parametrize("board", INSTRUCTIONS)
def test_boards_have_the_bits_of_the_host(board: str, quantised: Solved, on_host: Bits, tmp_path: Path) -> None:
    run = quantised.on_board(board, tmp_path, STEPS, gradients=True)
    assert bits(run) == on_host
    assert run.arena_bytes == quantised.program.high_water_bytes
