"""The compilers and emulators of boards: their presence, and the contents of their files."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poetc.boards._boards import Board
from poetc.boards._files import TARGETS
from poetc.errors import CheckFailed, UsageError
from poetc.files import require_tmpdir
from poetc.runtime import runtime_directory

# Debian's package of each program that a board may need.
PACKAGES = {
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "arm-linux-gnueabihf-gcc": "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
    "qemu-system-arm": "qemu-system-arm",
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-aarch64": "qemu-user",
    "qemu-arm": "qemu-user",
    "make": "make",
    "cc": "gcc libc6-dev",
}


def compiler_prefix(board: Board) -> str:
    return board.cross_compile or TARGETS[board.target].cross_compile


def require(board: Board) -> None:
    """Raises UsageError, with the command that mends it, if something that `board` needs is not installed."""
    needed = (f"{compiler_prefix(board)}gcc", board.qemu[0], "make", "cc")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        packages = dict.fromkeys(p for name in missing for p in PACKAGES[name].split())
        raise UsageError(
            f"{', '.join(missing)} not found, needed for {board.name}: make setup-arm, or"
            f" apt-get install {' '.join(packages)}"
        )


def tool_environment() -> dict[str, str]:
    """The environment, without variables that would choose another compiler or other options."""
    return {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CFLAGS", "CC")}


def command(arguments: Sequence[str | Path], what: str, cwd: Path | None = None) -> str:
    """Standard output of a tool. CheckFailed with its first lines if it fails."""
    completed = subprocess.run(
        [str(w) for w in arguments], capture_output=True, text=True, cwd=cwd, env=tool_environment(), check=False
    )
    if completed.returncode != 0:
        lines = (completed.stderr or completed.stdout).strip().splitlines()
        raise CheckFailed(f"{what}: {' | '.join(telling(lines))}")
    return completed.stdout


def telling(lines: Sequence[str]) -> list[str]:
    """The lines that name the fault, in the linker's and the compiler's words, without the tool's name and path."""
    complaints = [
        re.sub(r"^(\S*/)?\S*ld: |^\S*/", "", line)
        for line in lines
        if re.search(r"error|overflow|does not fit|undefined", line) and not re.match(r"collect2|make", line)
    ]
    return list(dict.fromkeys(complaints or lines))[:4]


@dataclass(frozen=True, slots=True)
class Elf:
    """Addresses of the symbols, the sizes that `size` prints, and those of functions and objects in bytes."""

    symbols: dict[str, int]
    text_bytes: int
    data_bytes: int
    bss_bytes: int
    extents: dict[str, int]

    @property
    def flash_bytes(self) -> int:
        """Code, constants, and the initial values of variables."""
        return self.text_bytes + self.data_bytes


def read_elf(path: Path, prefix: str) -> Elf:
    symbols, extents = {}, {}
    for line in command([f"{prefix}nm", "-S", path], "cannot read the program").splitlines():
        parts = line.split()
        if len(parts) in (3, 4):
            symbols[parts[-1]] = int(parts[0], 16)
        if len(parts) == 4:
            extents[parts[3]] = int(parts[1], 16)
    sizes = command([f"{prefix}size", path], "cannot read the program").splitlines()[1].split()
    return Elf(symbols, int(sizes[0]), int(sizes[1]), int(sizes[2]), extents)


def build_counter(directory: Path) -> Path:
    """The plugin that measures, put into `directory`. A process compiles it once."""
    library, code = directory / "counter.so", _counter()
    if not library.exists() or library.read_bytes() != code:
        library.unlink(missing_ok=True)  # an emulator may have it open
        library.write_bytes(code)
    return library


@functools.cache
def _counter() -> bytes:
    source = runtime_directory() / "ports" / "qemu" / "counter.c"
    require_tmpdir()
    with tempfile.TemporaryDirectory(prefix="poetc-") as directory:
        library = Path(directory) / "counter.so"
        command(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], "the measuring plugin does not build")
        return library.read_bytes()
