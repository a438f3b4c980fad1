"""An emulated board in a fleet: firmware of `poetc emit --fleet`, built here, with its serial line on a socket."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from poetc import boards
from poetc.artifact import Artifact
from poetc.boards import command
from poetc.commands.emit import emit
from poetc.commands.programs import training_program
from poetc.graph import Array
from poetc.measure import write_records


def built(directory: Path, out: Path, board: str) -> Path:
    """The folder `out` with the firmware of a solved directory."""
    emit(directory, boards.BOARDS[board].target, out, board=board, fleet=True)
    words = ["make", "-s", "-j2", "-C", str(out)]
    command(words, f"the emitted C does not build for {board}")
    return out


BOARD = "mps2-an386"


@contextmanager
def running(
    solved: Artifact, firmware: Path, board: str, batches: Sequence[Mapping[str, Array]], folder: Path
) -> Iterator[str]:
    """The name of the line to a board that has these batches as its data."""
    write_records(folder / "data.bin", training_program(solved), batches)
    line = os.path.relpath(folder / "line")
    qemu = list(boards.BOARDS[board].qemu)
    qemu[qemu.index("-serial") + 1] = "unix:line,server=on,wait=off"
    qemu += ["-semihosting-config", "enable=on,target=native", "-kernel", str((firmware / "firmware.elf").resolve())]
    with subprocess.Popen(qemu, cwd=folder, stdin=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                if (folder / "line").exists():
                    break
                time.sleep(0.05)
            yield f"unix:{line}"
        finally:
            process.terminate()
