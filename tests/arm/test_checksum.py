"""CRC-32 on Cortex-A, with the processor's instruction for it and without, is what zlib makes."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

import pytest

from poetc.boards import BOARDS, TARGETS, compiler_prefix
from poetc.boards import require_toolchain as require
from poetc.runtime import runtime_directory

HARNESS = Path(__file__).with_name("crc.c")
ALIGNMENTS, LENGTHS = 17, (*range(200), 983)


def made_up(count: int) -> bytes:
    """As crc.c makes them."""
    random, found = 1, bytearray()
    for _ in range(count):
        random = (random * 1664525 + 1013904223) & 0xFFFFFFFF
        found.append(random >> 24)
    return bytes(found)


@pytest.mark.parametrize(
    ("board", "flags", "by_instruction"),
    [
        ("aarch64", TARGETS["cortex-a"].flags, True),
        ("aarch64", TARGETS["cortex-a-bare"].flags, True),
        ("aarch64", "-O2 -march=armv8-a+nocrc", False),
        ("armhf", BOARDS["armhf"].flags, False),
    ],
)
def test_of_every_length_and_alignment(board: str, flags: str, by_instruction: bool, tmp_path: Path) -> None:
    found = BOARDS[board]
    require(found)
    runtime, prefix, program = runtime_directory(), compiler_prefix(found), tmp_path / "crc"
    sources = [str(HARNESS), str(runtime / "src" / "poetc.c")]
    words = ["-std=c99", "-Wall", "-Wextra", "-Werror", *flags.split(), "-static", f"-I{runtime / 'include'}"]
    words += ["-o", str(program), *sources]
    subprocess.run([f"{prefix}gcc", *words], check=True)
    listing = subprocess.run(
        [f"{prefix}objdump", "-d", "--disassemble=poetc_crc32", program], capture_output=True, text=True, check=True
    )
    assert ("crc32x" in listing.stdout) == by_instruction
    run = subprocess.run([*found.qemu, str(program)], capture_output=True, text=True, check=True)
    data = made_up(ALIGNMENTS + LENGTHS[-1])
    expected = [zlib.crc32(data[begin : begin + n], n) for begin in range(ALIGNMENTS) for n in LENGTHS]
    assert [int(line, 16) for line in run.stdout.split()] == expected
