"""An arena in several memories of a board: its bits, the peak of each part, and the guard of each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from poetc import artifact, measure
from poetc.boards import BOARDS
from poetc.commands import programs
from poetc.commands.emit import emit
from poetc.emit import bank_size
from poetc.measure import BoardFault
from poetc.program import bank_high_water
from tests.arm.conftest import Solve, bits, run_host
from tests.layouts.support import CORE, LINK, make_model, qemu, run, sample, start_up
from tests.layouts.support import bits as losses_in
from tests.layouts.test_layouts import MAIN


@pytest.mark.long
def test_a_library_in_sections_of_the_users_linker_script(solve: Solve, tmp_path: Path) -> None:
    """It trains as on one memory; where the linker puts a part elsewhere, the runtime refuses the arena."""
    solved = solve("mlp", 4, "qemu-mps2-an386", "ram=9kB,psram=12kB")
    artifact.write(solved.artifact, tmp_path / "solved", {})
    source = tmp_path / "library"
    sections = ["ram=.near@0x20300000", "psram=.far@0x20200000"]  # SRAM, which the start-up of the board allows
    made = emit(tmp_path / "solved", "cortex-m", source, sections=sections)
    assert made["makes"] == "libmodel.a" and made["arena_bytes"] < 21_000
    run(["make", "-s"], source)
    port = start_up(make_model(4), tmp_path)
    (tmp_path / "main.c").write_text(MAIN.replace("mlp_model.h", "model.h"))
    usual = (tmp_path / "link.ld").read_text()
    script = usual.replace("    /DISCARD/", "    INCLUDE library/mlp_banks.ld\n    /DISCARD/")
    record = sample(solved.program)
    with measure.build_host([solved.program], solved.values) as model:
        expected = [int(np.float32(model.run(record)).view(np.uint32)) for _ in range(2)]
    words = [*CORE, "-std=c99", *(f"-I{p}" for p in {h.parent for h in source.rglob("*.h")}), "-I.", "main.c", *port]
    (tmp_path / "link.ld").write_text(script)
    link = ["arm-none-eabi-gcc", *words, "library/libmodel.a", "-o", "library.elf", *LINK]
    run(link, tmp_path)
    assert losses_in(qemu(tmp_path / "library.elf")) == expected
    path = source / "mlp_banks.ld"
    path.write_text(path.read_text().replace("0x20300000", "0x20300010"))
    run(link, tmp_path)
    with pytest.raises(subprocess.CalledProcessError):  # the program ends with poetc_init's code
        qemu(tmp_path / "library.elf")


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
    firmware = measure.build_firmware(program, solved.values, board, tmp_path, memory=solved.memory, gradients=True)
    run = measure.execute(firmware, solved.batches(2))
    assert run.bank_bytes == bank_high_water(program)
    with measure.build_host([solved.program], solved.values) as model:
        assert bits(run) == run_host(model, solved.batches(2))
    path = firmware.directory / "src" / "model.c"
    text = path.read_text()
    for part in program.banks:
        beyond = part.offset_bytes + bank_size(program, part.name)
        changed, count = re.subn(
            r"(static const poetc_ref train_refs\[\] = \{\s*)\d+u", rf"\g<1>{2 * (beyond // 16)}u", text
        )
        assert count == 1
        path.write_text(changed)
        with pytest.raises(BoardFault, match=board):
            measure.execute(
                measure.rebuild(
                    firmware.board, program, solved.values, firmware.directory, checkpoint=firmware.checkpoint_steps
                ),
                solved.batches(1),
            )
