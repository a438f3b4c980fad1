"""An arena in several memories of a board: its bits, the peak of each part, and the guard of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poetc import codegen
from poetc.codegen import BOARDS, BoardFault
from poetc.commands import programs
from tests.arm.conftest import Solve, bits, run_host


@pytest.mark.long
@pytest.mark.parametrize(
    "board, budget",
    [
        ("mps2-an386", "ram=18kB,psram=12kB,bram=12kB"),
        ("mps2-an500", "ram=20kB,psram=24kB"),
        ("mps3-an547", "ram=18kB,dtcm=8kB,sram=8kB,ddr=8kB"),
    ],
)
def test_several_memories(board: str, budget: str, solve: Solve, tmp_path: Path) -> None:
    solved = solve("lenet", 4, f"qemu-{board}", budget)
    program = programs.training_program(solved.artifact, BOARDS[board])
    assert len(program.banks) == budget.count("=")
    firmware = codegen.build_firmware(program, solved.values, board, tmp_path, memory=solved.memory, gradients=True)
    run = codegen.execute(firmware, solved.batches(2))
    assert run.bank_bytes == codegen.bank_high_water(program)
    with codegen.build_host([solved.program], solved.values) as model:
        assert bits(run) == run_host(model, solved.batches(2))
    path = firmware.directory / "src" / "model.c"
    text = path.read_text()
    for part in program.banks:
        beyond = part.offset_bytes + codegen.bank_size(program, part.name)
        changed, count = re.subn(
            r"(static const poetc_ref train_refs\[\] = \{\s*)\d+u", rf"\g<1>{2 * (beyond // 16)}u", text
        )
        assert count == 1
        path.write_text(changed)
        with pytest.raises(BoardFault, match=board):
            codegen.execute(
                codegen.rebuild(
                    firmware.board, program, solved.values, firmware.directory, checkpoint=firmware.checkpoint_steps
                ),
                solved.batches(1),
            )
