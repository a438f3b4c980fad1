"""An arena in two memories of a board: its bits, the peak of each part, and the guard of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poetc import codegen
from poetc.codegen import BOARDS, BoardFault
from poetc.commands import programs
from tests.arm.conftest import Solve, bits, run_host


@pytest.mark.long
@pytest.mark.parametrize("board, budget", [("mps2-an386", "ram=20kB,psram=24kB"), ("mps3-an547", "ram=20kB,dtcm=20kB")])
def test_two_memories(board: str, budget: str, solve: Solve, tmp_path: Path) -> None:
    solved = solve("lenet", 4, f"qemu-{board}", budget)
    program = programs.training_program(solved.artifact, BOARDS[board])
    assert len(program.banks) == 2
    firmware = codegen.build_firmware(program, solved.values, board, tmp_path, memory=solved.memory, gradients=True)
    run = codegen.execute(firmware, solved.batches(2))
    assert run.bank_bytes == codegen.bank_high_water(program)
    with codegen.build_host([solved.program], solved.values) as model:
        assert bits(run) == run_host(model, solved.batches(2))
    path = firmware.directory / "src" / "model.c"
    text = path.read_text()
    last = program.banks[-1]
    for beyond in (program.arena_bytes, program.banks[0].size_bytes):  # of each part
        changed, count = re.subn(
            r"(static const poetc_ref train_refs\[\] = \{\s*)\d+u", rf"\g<1>{2 * (beyond // 16)}u", text
        )
        assert count == 1 and beyond != last.offset_bytes
        path.write_text(changed)
        with pytest.raises(BoardFault, match=board):
            codegen.execute(
                codegen.rebuild(
                    firmware.board, program, solved.values, firmware.directory, checkpoint=firmware.checkpoint_steps
                ),
                solved.batches(1),
            )
