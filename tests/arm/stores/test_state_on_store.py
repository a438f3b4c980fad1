"""Parameters that live on the store (`poetc solve --state store`): the bits of keep-all, and the predicted peak."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetc import measure
from poetc.boards import BOARDS as ALL_BOARDS
from poetc.boards import TARGETS
from poetc.commands import programs
from poetc.emit import checkpoint_steps
from poetc.errors import UsageError
from poetc.measure import Firmware
from poetc.program import PageOut
from poetc.scheduling import movable_state, stored_state
from tests.arm.conftest import Solve, Solved, run_host
from tests.support.power import Power

STEPS = 3
BOARDS = ["lm3s6965evb", "mps2-an500"]  # the first has an SD card on its SPI bus


@pytest.fixture(scope="module")
def solved(solve: Solve) -> Solved:
    """More weights than the first board has RAM."""
    solved = solve("deep", 2, "qemu-lm3s6965evb", "32KiB", "store")
    state = stored_state(solved.artifact.problem)
    assert sum(solved.artifact.problem.tensors[chain[0]].size_bytes for chain in state) > 65536
    return solved


@pytest.mark.parametrize("board", BOARDS)
def test_bits_are_those_of_keep_all_and_the_peak_is_the_predicted_one(
    board: str, solved: Solved, tmp_path: Path
) -> None:
    with measure.build_host([programs.keep_all_program(solved.artifact)], solved.values) as model:
        kept = run_host(model, solved.batches(STEPS))
    firmware = measure.build_firmware(solved.program, solved.values, board, tmp_path, memory=solved.memory)
    run = measure.execute(firmware, solved.batches(STEPS))
    assert (run.losses, run.state_sha256) == (kept.losses, kept.state_sha256)
    assert len(set(run.losses)) == STEPS
    assert run.arena_bytes == solved.program.high_water_bytes
    problem = solved.artifact.problem
    trained = [chain for chain in stored_state(problem) if len(chain) > 1]
    written = sum(isinstance(i, PageOut) for i in solved.program.instructions)
    assert trained and not movable_state(problem)
    assert run.page_outs == STEPS * written >= STEPS * len(trained)


@pytest.mark.parametrize("steps", [0, 2])
def test_checkpoints_of_several_steps_or_none_name_the_way_out(steps: int, solved: Solved, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"--checkpoint {steps}: .* --state ram"):
        measure.build_firmware(
            solved.program, solved.values, "lm3s6965evb", tmp_path, memory=solved.memory, checkpoint=steps
        )


@pytest.fixture
def empty_card(solved: Solved, tmp_path: Path) -> Firmware:
    return measure.build_firmware(solved.program, solved.values, "lm3s6965evb", tmp_path, memory=solved.memory)


def test_state_on_the_store_is_saved_on_every_board(solved: Solved) -> None:
    board = ALL_BOARDS["mps2-an500"]  # without a store of its own
    assert checkpoint_steps(solved.program, TARGETS[board.target], board, None) == 1
    assert checkpoint_steps(solved.program, TARGETS[board.target], board, 0) == 0  # for a measurement


@pytest.mark.power_loss(sample=0, at_least=1)
def test_an_empty_card_is_set_up_by_the_firmware(empty_card: Firmware, solved: Solved, power: Power) -> None:
    """Nobody copies an image, and power may fail in the middle: the same bits."""
    card, batches = empty_card.run_directory / "store.bin", solved.batches(STEPS)
    if power.whole is None:
        power.whole = measure.execute(empty_card, batches)  # of the card with an image
    if power.boot == 0:
        card.write_bytes(bytes(card.stat().st_size))
    assert power.boot == 0 or any(card.read_bytes())
    run = power.execute(empty_card, batches, lambda run: [(run.step_ends[0] - sum(run.step_instructions)) // 2])
    assert (run.losses, run.state_sha256, run.resumed_step) == (power.whole.losses, power.whole.state_sha256, 0)
    assert run.stack_bytes is not None and run.stack_bytes <= solved.memory.stack_bytes
