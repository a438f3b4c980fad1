"""Power loss on the boards: the emulator is stopped after a number of instructions, and the board is started again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from poetc import emit, measure
from poetc.errors import UsageError
from poetc.measure import Firmware, PowerCut, Run
from poetc.program import sample_inputs
from tests.arm.conftest import Solve, Solved
from tests.program.models import paged_actions, state_paged_actions, training_case

STEPS = 3
CUT_STEPS = 2
CUTS = int(os.environ.get("POETC_BOARD_CUTS", "0"))  # more than those that are chosen, on each board: `make power-loss`


@pytest.fixture
def solved(solve: Solve) -> Solved:
    return solve("lenet", 2, "qemu-lm3s6965evb", "70%")


def cut_and_resume(firmware: Firmware, solved: Solved, cut: int, whole: Run) -> int:
    """The step that the second boot goes on from; it must end as `whole`, the run without a cut, did."""
    measure.fresh_store(firmware, solved.values)
    batches = solved.batches(len(whole.losses))
    with pytest.raises(PowerCut) as lost:
        measure.execute(firmware, batches, cut_at=cut)
    run = measure.execute(firmware, batches)
    assert run.losses == whole.losses[run.resumed_step :]
    assert run.state_sha256 == whole.state_sha256
    assert lost.value.steps - 1 <= run.resumed_step <= lost.value.steps  # at most the last step is lost
    return run.resumed_step


def moments(run: Run) -> list[int]:
    """Instructions: within the first step, within checkpoints and later, and just before the end."""
    ends = [*run.step_ends, run.total_instructions]
    parts = ((0, (1, 50, 99)), (len(ends) - 2, (5, 35)))  # in per cent of what follows a step
    inside = [ends[k] + (ends[k + 1] - ends[k]) * part // 100 for k, some in parts for part in some]
    return [ends[0] // 2, *inside, ends[-1] - 200]  # the last checkpoint is whole


@pytest.mark.parametrize("board", ["lm3s6965evb", "raspi3b", "aarch64"])
def test_cut_anywhere_resumes_at_the_last_complete_step(board: str, solved: Solved, tmp_path: Path) -> None:
    firmware = measure.build_firmware(solved.program, solved.values, board, tmp_path, memory=solved.memory)
    assert firmware.checkpoint_steps == 1
    whole = measure.execute(firmware, solved.batches(CUT_STEPS))
    assert whole.resumed_step == 0
    assert {cut_and_resume(firmware, solved, cut, whole) for cut in moments(whole)} == set(range(CUT_STEPS + 1))
    random = Random(board)
    for _ in range(CUTS):
        cut_and_resume(firmware, solved, random.randrange(1, whole.total_instructions), whole)


@pytest.mark.long
def test_cuts_within_a_checkpoint(solved: Solved, tmp_path: Path) -> None:
    """Along the instructions that save the first step: it counts as soon as the last block is whole, not before."""
    board = "lm3s6965evb"
    firmware = measure.build_firmware(solved.program, solved.values, board, tmp_path, memory=solved.memory)
    whole = measure.execute(firmware, solved.batches(2))
    blocks = -(-(solved.program.state_bytes + 16) // 512)
    length = blocks * 25_000  # instructions: 7,500 a block of the card, and the checksum
    cuts = [whole.step_ends[0] + length * part // 12 for part in range(13)]
    resumed = [cut_and_resume(firmware, solved, cut, whole) for cut in cuts]
    assert resumed == sorted(resumed)
    assert set(resumed) == {0, 1}


def test_weights_on_the_card_resume_too(tmp_path: Path) -> None:
    """Weights and velocities that live on the card have two slots each; the checkpoint says which one counts."""
    names = ("fc1.weight", "fc2.weight", "fc1.weight:velocity", "fc2.weight:velocity")
    case = training_case(on_store=names, block_bytes=512)
    program = case.program(state_paged_actions(case, [t.name for t in case.problem.tensors if t.initial == "store"]))
    values = case.graph.values
    firmware = measure.build_firmware(program, values, "lm3s6965evb", tmp_path, memory=emit.Memory(32768, 4096))
    batches = [dict(sample_inputs(program, step)) for step in range(CUT_STEPS)]
    whole = measure.execute(firmware, batches)
    resumed = set()
    for cut in moments(whole):
        measure.fresh_store(firmware, values)
        with pytest.raises(PowerCut):
            measure.execute(firmware, batches, cut_at=cut)
        run = measure.execute(firmware, batches)
        assert run.state_sha256 == whole.state_sha256
        resumed.add(run.resumed_step)
    assert resumed == set(range(CUT_STEPS + 1))
    # Without checkpoints nothing says which version the card has: the second boot stops instead of training on.
    with pytest.raises(UsageError, match="every step must be saved"):
        measure.build_firmware(program, values, "lm3s6965evb", tmp_path / "b", checkpoint=2)


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
    plain, paged = case.program(), case.program(paged_actions(case, "a"))
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
