"""Power loss on the boards: the emulator is stopped after a number of instructions, and the board is started again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from poetc import emit, measure
from poetc.errors import UsageError
from poetc.graph import Array
from poetc.measure import Firmware, Run
from poetc.program import sample_inputs
from tests.arm.conftest import Solve, Solved
from tests.program.models import paged_decisions, state_paged_decisions, training_case
from tests.support.power import Power

STEPS = 3
CUT_STEPS = 2
CUTS = int(os.environ.get("POETC_BOARD_CUTS", "0"))  # more than those that are chosen, on each board: `make power-loss`


@pytest.fixture
def solved(solve: Solve) -> Solved:
    return solve("lenet", 2, "qemu-lm3s6965evb", "70%")


def moments(run: Run) -> list[int]:
    """Instructions: within the first step, within checkpoints and later, and just before the end."""
    ends = [*run.step_ends, run.total_instructions]
    parts = ((0, (1, 50, 99)), (len(ends) - 2, (5, 35)))  # in per cent of what follows a step
    inside = [ends[k] + (ends[k + 1] - ends[k]) * part // 100 for k, some in parts for part in some]
    return [ends[0] // 2, *inside, ends[-1] - 200]  # the last checkpoint is whole


@dataclass(frozen=True)
class Board:
    firmware: Firmware
    values: Mapping[str, Array]
    batches: list[dict[str, Array]]

    def resumes(self, power: Power, moments: Callable[[Run], list[int]] = moments) -> int:
        """The step that the second boot goes on from: the last complete one. It ends as the run without a cut did."""
        if power.boot == 0:
            measure.fresh_store(self.firmware, self.values)
        run = power.execute(self.firmware, self.batches, moments)
        assert run.losses == power.whole.losses[run.resumed_step :]
        assert run.state_sha256 == power.whole.state_sha256
        assert power.steps - 1 <= run.resumed_step <= power.steps  # at most the last step is lost
        power.outcomes.add(run.resumed_step)
        return run.resumed_step


@pytest.fixture(params=["lm3s6965evb", "raspi3b", "aarch64"])
def board(request: pytest.FixtureRequest, solved: Solved, tmp_path: Path) -> Board:
    firmware = measure.build_firmware(solved.program, solved.values, request.param, tmp_path, memory=solved.memory)
    assert firmware.checkpoint_steps == 1
    return Board(firmware, solved.values, solved.batches(CUT_STEPS))


@pytest.fixture
def board_of_card(tmp_path: Path) -> Board:
    """Weights and velocities that live on the card have two slots each; the checkpoint says which one counts."""
    names = ("fc1.weight", "fc2.weight", "fc1.weight:velocity", "fc2.weight:velocity")
    case = training_case(on_store=names, block_bytes=512)
    program = case.program(state_paged_decisions(case, [t.name for t in case.problem.tensors if t.initial == "store"]))
    values, memory = case.graph.values, emit.Memory(32768, 4096)
    firmware = measure.build_firmware(program, values, "lm3s6965evb", tmp_path, memory=memory)
    # Without checkpoints nothing says which version the card has: the second boot stops instead of training on.
    with pytest.raises(UsageError, match="every step must be saved"):
        measure.build_firmware(program, values, "lm3s6965evb", tmp_path / "b", checkpoint=2)
    return Board(firmware, values, [dict(sample_inputs(program, step)) for step in range(CUT_STEPS)])


@pytest.mark.power_loss(sample=CUTS, at_least=7, outcomes=range(CUT_STEPS + 1))
def test_cut_anywhere_resumes_at_the_last_complete_step(board: Board, power: Power) -> None:
    board.resumes(power)


@pytest.mark.power_loss(sample=CUTS, at_least=7, outcomes=range(CUT_STEPS + 1))
def test_weights_on_the_card_resume_too(board_of_card: Board, power: Power) -> None:
    board_of_card.resumes(power)


@pytest.mark.long
@pytest.mark.parametrize("board", ["lm3s6965evb"], indirect=True)
@pytest.mark.power_loss(sample=0, at_least=13, outcomes=[0, 1])
def test_cuts_within_a_checkpoint(board: Board, solved: Solved, power: Power) -> None:
    """Along the instructions that save the first step: it counts as soon as the last block is whole, not before."""
    blocks = -(-(solved.program.state_bytes + 16) // 512)
    length = blocks * 25_000  # instructions: 7,500 a block of the card, and the checksum
    earlier = max(power.outcomes, default=0)
    resumed = board.resumes(power, lambda run: [run.step_ends[0] + length * part // 12 for part in range(13)])
    assert earlier <= resumed <= 1


def test_checkpoint_of_another_model_is_passed_over(tmp_path: Path) -> None:
    """One of the same size, whose tensors have other names. Other initial weights make no other model."""
    case, memory = training_case(block_bytes=512), emit.Memory(32768, 4096)
    program, values = case.program(), dict(case.graph.values)
    batches = [dict(sample_inputs(program, step)) for step in range(2)]
    firmware = measure.build_firmware(program, values, "lm3s6965evb", tmp_path / "a", memory=memory)
    measure.execute(firmware, batches)
    first = next(b for b in program.state if b.name == "fc1.weight")
    state = tuple(replace(b, name="another") if b is first else b for b in program.state)
    others = {
        "renamed": (replace(program, state=state), {**values, "another": values["fc1.weight"]}, 0),
        "reset": (program, {**values, "fc1.weight": values["fc1.weight"] * 0.5}, 2),  # type: ignore[operator]
    }
    for name, (changed, its, resumed) in others.items():
        other = measure.build_firmware(changed, its, "lm3s6965evb", tmp_path / name, memory=memory)
        (other.run_directory / "store.bin").write_bytes((firmware.run_directory / "store.bin").read_bytes())
        assert measure.execute(other, batches).resumed_step == resumed


@pytest.mark.long
def test_checkpoints_can_be_asked_for_and_left_out(solved: Solved, tmp_path: Path) -> None:
    """A file of the debugger's machine is a store, too; a board with a card can do without."""
    batches = solved.batches(STEPS)
    board = measure.build_firmware(solved.program, solved.values, "mps2-an385", tmp_path / "a", checkpoint=2)
    assert measure.execute(board, batches).resumed_step == 0
    assert measure.execute(board, solved.batches(STEPS + 2)).resumed_step == 2
    for name, asked in (("mps2-an385", None), ("lm3s6965evb", 0)):
        board = measure.build_firmware(solved.program, solved.values, name, tmp_path / name, checkpoint=asked)
        assert board.checkpoint_steps == 0
        assert "poetc_checkpoint_save" not in board.elf.symbols
        assert measure.execute(board, batches).losses == measure.execute(board, batches).losses


@pytest.mark.parametrize("before", ["paged", "plain", "host"])
@pytest.mark.long_but("host")
def test_an_update_of_the_firmware_goes_on_from_the_card(before: str, tmp_path: Path) -> None:
    """Another schedule, and another place of the arena: the checkpoint is found, and the bits are the same."""
    case = training_case(block_bytes=512)
    plain, paged = case.program(), case.program(paged_decisions(case, "a"))
    earlier, later = (plain, paged) if before == "plain" else (paged, plain)
    values, memory = case.graph.values, emit.Memory(32768, 4096)
    batches = [dict(sample_inputs(plain, step)) for step in range(STEPS)]
    board = "aarch64" if before == "host" else "lm3s6965evb"
    old = measure.build_firmware(earlier, values, board, tmp_path / "old", memory=None if before == "host" else memory)
    whole = measure.execute(old, batches)
    measure.fresh_store(old, values)
    measure.execute(old, batches[:2])
    new = measure.build_firmware(later, values, "lm3s6965evb", tmp_path / "new", memory=memory)
    card = new.run_directory / "store.bin"
    data = (old.run_directory / "store.bin").read_bytes()
    card.write_bytes(data + card.read_bytes()[len(data) :])
    run = measure.execute(new, batches)
    assert run.resumed_step == 2
    assert run.losses == whole.losses[2:]
    assert run.state_sha256 == whole.state_sha256
