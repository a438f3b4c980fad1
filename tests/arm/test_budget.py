"""The budget is enforced: the linker refuses what does not fit, the hardware traps what goes past it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from poetc import measure
from poetc.boards import BOARDS
from poetc.emit import Memory
from poetc.errors import CheckFailed
from poetc.measure import BoardFault, Firmware
from tests.arm.conftest import Solve, Solved

TRAPPING = sorted(set(BOARDS) - {"mps2-an385-m0"})  # but for the one that is there to count: the micro:bit traps


def zero_slack(solved: Solved) -> Memory:
    """What the plan says is needed, to the byte: runtime, stack, arena."""
    needed = solved.artifact.problem.base_bytes + solved.artifact.plan.arena_bytes
    return Memory(-(-needed // 32) * 32, solved.memory.stack_bytes)  # the protection unit's granularity


@pytest.fixture
def solved(solve: Solve) -> Solved:
    return solve("mlp", 4, "qemu-microbit", "16KiB")


def tampered(firmware: Firmware, solved: Solved) -> Firmware:
    """The same program with one operand moved past the arena: what a wrong plan would do."""
    path = firmware.directory / "src" / "model.c"
    text = path.read_text()
    outside = 2 * (solved.program.arena_bytes // 16)
    changed, count = re.subn(r"(static const poetc_ref train_refs\[\] = \{\s*)\d+u", rf"\g<1>{outside}u", text)
    assert count == 1
    path.write_text(changed)
    return measure.rebuild(
        firmware.board,
        solved.program,
        solved.values,
        firmware.directory,
        checkpoint=firmware.checkpoint_steps,
    )


@pytest.mark.parametrize("board", TRAPPING)
def test_runs_with_no_slack_and_traps_past_it(board: str, solved: Solved, tmp_path: Path) -> None:
    memory = zero_slack(solved)
    firmware = measure.build_firmware(solved.program, solved.values, board, tmp_path, memory=memory)
    run = measure.execute(firmware, solved.batches(2))
    assert run.arena_bytes == solved.program.high_water_bytes
    if firmware.board.code is not None:  # under Linux the arena alone is enforced
        assert firmware.elf.bss_bytes + firmware.elf.data_bytes <= memory.budget_bytes
    with pytest.raises(BoardFault, match=board):
        measure.execute(tampered(firmware, solved), solved.batches(2))


@pytest.mark.parametrize("board", ["microbit", "mps2-an386"])
def test_arena_that_does_not_fit_fails_at_link_time(board: str, solved: Solved, tmp_path: Path) -> None:
    memory = replace(zero_slack(solved), budget_bytes=zero_slack(solved).budget_bytes - 128)
    arena = solved.program.arena_bytes
    with pytest.raises(CheckFailed, match=f"the arena of {arena} bytes does not fit"):
        measure.build_firmware(solved.program, solved.values, board, tmp_path, memory=memory)


def test_stack_that_overflows_is_trapped(solved: Solved, tmp_path: Path) -> None:
    """The stack is at the bottom of RAM: it cannot grow into variables or the arena."""
    memory = replace(solved.memory, stack_bytes=256)
    firmware = measure.build_firmware(solved.program, solved.values, "mps2-an386", tmp_path, memory=memory)
    with pytest.raises(BoardFault):
        measure.execute(firmware, solved.batches(1))


def test_no_heap(solved: Solved, tmp_path: Path) -> None:
    firmware = measure.build_firmware(solved.program, solved.values, "mps2-an385", tmp_path, memory=solved.memory)
    assert not {"malloc", "_malloc_r", "sbrk", "_sbrk", "free"} & firmware.elf.symbols.keys()
