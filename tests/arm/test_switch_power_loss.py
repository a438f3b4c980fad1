"""Power that goes in the middle of a switch, on an emulated board: training goes on from the last whole step."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import poetc
from poetc.boards import BOARDS
from poetc.commands.programs import switches_of
from poetc.program import PageIn, PageOut
from tests.arm.test_switches import SPARE_BYTES, add_ram
from tests.cli.conftest import MODEL
from tests.support.power import Power

BOARD = "mps2-an386"
MAIN = Path(__file__).with_name("switch_power_loss.c")


@pytest.mark.long
@pytest.mark.power_loss(at_least=6)
@pytest.mark.parametrize("budget", ["62%", "71%"])  # each bundle ends by its gap, whatever the machine does besides
def test_every_cut_in_a_switch_resumes_at_the_last_whole_step(budget: str, tmp_path: Path, power: Power) -> None:
    """Two switches whose transitions write to the card are cut at the first, the middle and the last block."""
    solution = poetc.load(MODEL, batch=4).bundle(
        device="qemu-mps2-an386", budgets=("100%", budget), state="ram", gap=0.1, time_limit_s=60
    )
    bundle = switches_of(solution.artifact)[0]
    takes = []
    for switch in bundle.switches:
        program = bundle.programs[switch.source]
        outs = [i for i in switch.instructions if isinstance(i, PageOut)]
        if outs and not isinstance(program.instructions[switch.at - 1], PageIn | PageOut):
            blocks = sum(program.pages[out.page].block_count for out in outs)
            takes.append((switch.source, switch.target, switch.at, blocks))
    assert len(takes) > 1
    takes = [takes[0], takes[-1]]
    source = tmp_path / "src"
    solution.emit(source, target=BOARDS[BOARD].target, board=BOARD)
    (source / "port" / "train.c").write_text(MAIN.read_text())
    rows = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in takes)
    (source / "port" / "switches.h").write_text(
        f"static const struct {{ unsigned plan, to, at, blocks; }} TAKES[] = {{{rows}}};\n"
    )
    add_ram(source / "link.ld", SPARE_BYTES)
    done = subprocess.run(["make", "-s", "-C", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = [*BOARDS[BOARD].qemu, "-semihosting-config", "enable=on,target=native", "-kernel", source / "firmware.elf"]
    ran = subprocess.run(words, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "wrong" not in ran.stdout
    cuts = re.search(r"cuts ([0-9a-f]{8})", ran.stdout)
    assert cuts is not None, ran.stdout
    power.cuts = int(cuts[1], 16)
