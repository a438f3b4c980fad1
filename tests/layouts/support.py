"""One small model, emitted in a layout, built with the same start-up as the Makefile's firmware, and run in QEMU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from poetc.boards import BOARDS, TARGETS
from poetc.emit import Build, Form, Part, emit, emit_models
from poetc.graph import Array
from poetc.measure import build_host
from poetc.program import Program, all_inputs
from tests.program.models import Case, mlp, training_case

BOARD = BOARDS["mps2-an386"]
TARGET = TARGETS[BOARD.target]
CORE = TARGET.flags.split()
LINK = [
    "-nostartfiles",
    "--specs=nano.specs",
    "-Tlink.ld",
    "-Wl,--gc-sections,--no-warn-rwx-segments,-Map=firmware.map",
    "-lgcc",
]


def run(words: Sequence[object], directory: Path) -> str:
    """Standard output; the test fails with all of it where the command does."""
    done = subprocess.run([str(w) for w in words], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def qemu(elf: Path) -> str:
    """What firmware writes to its log."""
    words = [*BOARD.qemu, "-semihosting-config", "enable=on,target=native", "-kernel", elf]
    done = subprocess.run(
        words, cwd=elf.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return done.stdout


def bits(log: str) -> list[int]:
    """The losses in a log, as their bits."""
    return [int(word, 16) for word in re.findall(r"bits ([0-9a-f]{8})", log)]


@dataclass(frozen=True)
class Model:
    """A network with all state in RAM, and its losses on this machine."""

    case: Case
    program: Program

    def part(self, name: str = "") -> Part:
        return Part([self.program], self.case.graph.values, "mlp", name)

    def losses(self, steps: int) -> list[int]:
        """Bits of the losses of so many steps on `record`."""
        with build_host([self.program], self.case.graph.values) as model:
            return [int(np.float32(model.run(self.record())).view(np.uint32)) for _ in range(steps)]

    def record(self) -> dict[str, Array]:
        return sample(self.program)


def sample(program: Program) -> dict[str, Array]:
    """Inputs that C makes in a loop, too: i % 5 - 2 for floats, i % 3 for classes."""
    found = {}
    for binding in all_inputs(program):
        shape, dtype = binding.operand.type.shape, np.dtype(binding.operand.type.dtype.numpy)
        counted = np.arange(int(np.prod(shape))).reshape(shape)
        found[binding.name] = (counted % 5 - 2 if dtype == np.float32 else counted % 3).astype(dtype)
    return found


def make_model(hidden: int) -> Model:
    case = training_case(mlp(hidden=hidden))
    return Model(case, case.program())


def write(parts: Sequence[Part], form: Form, out: Path, target: str = "cortex-m4f") -> Path:
    return emit_models(parts, form, Build(target=target), out)


def start_up(model: Model, directory: Path) -> list[str]:
    """Start-up, log and linker script of the board, as the Makefile's firmware has them; the sources among them."""
    makefile = emit(
        [model.program], model.case.graph.values, model="mlp", target="cortex-m4f", out_dir=directory / "mk"
    )
    for path in [*(makefile / "port").iterdir(), makefile / "link.ld"]:
        if path.name != "train.c":
            (directory / path.name).write_text(path.read_text())
    return ["startup.c", "semihosting.c", "semihosting_store.c"]
