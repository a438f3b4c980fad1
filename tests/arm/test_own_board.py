"""A board of the user's own: a folder beside the plan, and nothing in the installed package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from poetc import artifact, boards, emit, measure
from poetc.cli import cli
from poetc.commands.emit import emit as emit_command
from poetc.errors import UsageError
from poetc.runtime import runtime_directory
from tests.arm.conftest import Solve
from tests.commands.trained import DIGITS, solved_of

BOARD = """\
title: Our board (Cortex-M4F)
target: cortex-m4f
code: {origin: 0, size: 1MiB}
ram: {origin: 0x20000000, size: 96KiB}
sources: [device/semihosting_store.c]
trap: mpu
qemu: mps2-an386
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Its log and data are in a file of its own, and its start-up in one that takes the place of poetc's."""
    (folder := tmp_path / "our-board").mkdir()
    (folder / "board.yaml").write_text(BOARD)
    ports = runtime_directory() / "ports"
    port = (ports / "device" / "semihosting.c").read_text()
    (folder / "our_port.c").write_text(port + "\nvoid our_pins(void);\nvoid our_pins(void)\n{\n}\n")
    shutil.copy(ports / "device" / "semihosting.h", folder)
    start = (ports / "cortex-m" / "startup.c").read_text()
    assert "    poetc_port_stop(main());" in start
    declared = "void our_pins(void);\n" + start.replace(
        "    poetc_port_stop(main", "    our_pins();\n    poetc_port_stop(main"
    )
    (folder / "startup.c").write_text(declared)
    return folder


def test_it_trains_as_a_board_of_poetc_does(folder: Path, solve: Solve, tmp_path: Path) -> None:
    solved = solve("mlp", 4, "qemu-microbit", "16KiB")
    firmware = measure.build_firmware(
        solved.program, solved.values, str(folder), tmp_path / "ours", memory=solved.memory
    )
    assert "our_pins" in firmware.elf.symbols, "a file of the folder is there in place of poetc's"
    assert firmware.board.title in (firmware.directory / "src" / "link.ld").read_text()
    run = measure.execute(firmware, solved.batches(2))
    assert run.arena_bytes == solved.program.high_water_bytes
    usual = solved.on_board("mps2-an386", tmp_path / "usual", 2)
    assert (run.losses, run.state_sha256) == (usual.losses, usual.state_sha256)


def test_the_linker_script_may_be_its_own(folder: Path, solve: Solve, tmp_path: Path) -> None:
    (folder / "link.ld").write_text("/* ours */\n")
    solved = solve("mlp", 4, "qemu-microbit", "16KiB")
    source = tmp_path / "src"
    emit.emit([solved.program], solved.values, model="m", target="cortex-m4f", out_dir=source, board=str(folder))
    assert (source / "link.ld").read_text() == "/* ours */\n"
    assert not emit.is_measured(boards.find_board(str(folder))), "no size is predicted for files of others"


@pytest.mark.parametrize("link", [False, True], ids=["poetc's link.ld", "its own link.ld"])
@pytest.mark.parametrize(
    ("flash", "ram", "said"),
    [
        ("1MiB", "96KiB", r"^our-board has 98304 bytes of RAM; the arena of \d+ with \d+ .*--budget 98304 or"),
        ("1KiB", "1MiB", r"^our-board has 1024 bytes of flash; constants and initial state alone are \d+"),
    ],
)
def test_a_board_without_room_is_refused(
    flash: str, ram: str, said: str, link: bool, folder: Path, tmp_path: Path
) -> None:
    """By emit and by run, before anything is written, whoever made the linker script."""
    if link:
        (folder / "link.ld").write_text("/* ours */\n")
    (folder / "board.yaml").write_text(
        BOARD.replace("96KiB", ram).replace("origin: 0, size: 1MiB", f"origin: 0, size: {flash}")
    )
    artifact.write(solved_of(DIGITS, batch=4), tmp_path / "digits.poetc", {})
    with pytest.raises(UsageError, match=said) as error:
        emit_command(tmp_path / "digits.poetc", "cortex-m4f", tmp_path / "src", board=str(folder))
    assert "\n" not in str(error.value) and not (tmp_path / "src").exists()
    words = ["run", str(tmp_path / "digits.poetc"), "--on", f"qemu:{folder}", "--steps", "1"]
    assert str(CliRunner().invoke(cli, words).exception) == str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("target: cortex-m4f", "target: z80", "board.yaml:2: target: 'z80' is none of"),
        ("trap: mpu", "trap: mouse", "board.yaml:6: trap: 'mouse' is neither"),
        ("0x20000000, size", "0x80000, size", "board.yaml:4: ram: it overlaps the code"),
        ("size: 96KiB", "size: 0", "board.yaml:4: ram: 0 bytes from 0x20000000 on"),
        ("semihosting_store.c", "../../secret.c", "board.yaml:5: sources: 'device/../../secret.c' is no file"),
        ("trap:", "banks: {ram: {origin: 0x24000000, size: 1}}\ntrap:", "banks: 'ram' is the name of the memory 'ram'"),
        ("trap:", "banks: {axi: {origin: 0x20010000, size: 1}}\ntrap:", "board.yaml:6: banks: 'axi' overlaps another"),
        ("mps2-an386", '"\'an386"', 'board.yaml:7: qemu: "\'an386": no closing quotation'),
        ("trap:", "traps:", "unknown field `traps`"),
        ("size: 1MiB", "size: many", "board.yaml:3: code: size 'many'"),
        ("qemu: mps2-an386", "", None),
    ],
)
def test_mistakes_are_named(folder: Path, old: str, new: str, said: str | None) -> None:
    (folder / "board.yaml").write_text(BOARD.replace(old, new))
    if said is None:
        result = CliRunner().invoke(cli, ["run", "nothing", "--on", f"qemu:{folder}"])
        assert isinstance(result.exception, UsageError) and "no `qemu`" in str(result.exception)
        return
    with pytest.raises(UsageError) as error:
        boards.find_board(str(folder))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_a_description_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a board of your own is a folder with board\.yaml"):
        boards.find_board(str(tmp_path))
