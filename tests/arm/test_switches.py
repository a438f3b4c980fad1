"""Every switch of a bundle on boards: the same bits, and memory that was given back is fenced off at that moment."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest

import poetc
from poetc.boards import BOARDS
from poetc.commands.programs import switches_of
from poetc.errors import CheckFailed
from tests.cli.conftest import MODEL

pytestmark = pytest.mark.long
MAIN = Path(__file__).with_name("switches.c")
SPARE_BYTES = 4096  # RAM for the variables of the test
TABLES_BYTES = 28672  # the tables of the MMU, and what alignment to a page loses
DEVICES = {"virt-a72": "qemu-virt-a72"}


@functools.cache
def solved(board: str) -> poetc.Solution:
    model = poetc.load(MODEL, batch=4)
    return model.bundle(
        device=DEVICES.get(board, "qemu-mps2-an386"), budgets=("100%", "62%"), paging=False, gap=0.1, time_limit_s=6
    )


def add_ram(script: Path, spare_bytes: int) -> None:
    """Give a board's firmware so many bytes of RAM more, for the variables of a test: they lie below the arena."""
    text = script.read_text()
    length, arena = re.search(r"ram  \(rwx\) : ORIGIN = \w+, LENGTH = (\d+)", text), re.search(r"\.arena (0x\w+)", text)
    assert length is not None and arena is not None
    text = text.replace(f"LENGTH = {length[1]}", f"LENGTH = {int(length[1]) + spare_bytes}")
    moved = (int(arena[1], 16) + spare_bytes) // 32 * 32
    script.write_text(text.replace(arena[0], f".arena {moved:#x}"))


def run(board: str, folder: Path, given_back: int = 0) -> str:
    """The log. `given_back`: bytes below the new arena that are fenced off too."""
    target = BOARDS[board].target
    source = folder / "src"
    solved(board).emit(source, target=target, board=board)
    (source / "port" / "train.c").write_text(MAIN.read_text())
    takes = ",".join(f"{{{s.source}, {s.target}, {s.at}}}" for s in switches_of(solved(board).artifact)[0].switches)
    (source / "port" / "switches.h").write_text(
        f"enum {{ GIVEN_BACK = {given_back} }};\n"
        "static const struct { unsigned char plan, to; unsigned short at; } TAKES[] = {" + takes + "};\n"
    )
    add_ram(source / "link.ld", SPARE_BYTES + (TABLES_BYTES if BOARDS[board].memory_option else 0))
    done = subprocess.run(["make", "-s", "-C", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = [*BOARDS[board].qemu, "-semihosting-config", "enable=on,target=native", "-kernel", source / "firmware.elf"]
    if BOARDS[board].memory_option:
        words += ["-m", "16M", "-nic", "none"]
    ran = subprocess.run(words, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ran.returncode != 0:
        raise CheckFailed(ran.stdout)
    return ran.stdout


@pytest.mark.parametrize("board", ["mps2-an386", "mps2-an500", "virt-a72"])
def test_every_switch_on_a_board(board: str, tmp_path: Path) -> None:
    switches = switches_of(solved(board).artifact)[0].switches
    log = run(board, tmp_path)
    assert "wrong" not in log
    assert f"taken {len(switches):08x}" in log
    assert len(switches) > 100


@pytest.mark.parametrize(("board", "bytes_too_many"), [("mps2-an386", 4096), ("virt-a72", 8192)])
def test_memory_that_is_in_use_cannot_be_given_back(board: str, bytes_too_many: int, tmp_path: Path) -> None:
    """The guard is real: with as much too much behind the fence the board stops with a fault."""
    with pytest.raises(CheckFailed, match="fault"):
        run(board, tmp_path, given_back=bytes_too_many)
