"""Every command on a machine of little memory: a file of a few kilobytes takes no gigabytes of address space."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from poetc.cli import cli
from tests.cli.conftest import Ended, run
from tests.support import gguf_files
from tests.support.language import write_decoder, write_tokenizer
from tests.support.small import small_model

LIMIT_KIB = 700_000  # below the memory of the smallest Raspberry Pi with its swap
SMALL = ("--batch", "2", "--gap", "0.5", "--time-limit", "3")
SOLVED = "SOLVED"
COMMANDS = {
    "analyze": ("MODEL", "--batch", "2"),
    "bundle": ("MODEL", *SMALL, "--budgets", "80%,100%", "-o", "bundle"),
    "check": ("poetc.lock",),
    "compare": ("MODEL", *SMALL, "--budgets", "90%", "--solvers", "keep_all,chen"),
    "completion": ("bash",),
    "diff": (SOLVED, SOLVED),
    "emit": (SOLVED, "--target", "host", "-o", "src"),
    "export": (SOLVED, "-o", "out.onnx", "--npz", "out.npz"),
    "import-state": (SOLVED, "--from", "start.npz", "-o", "other"),
    "generate": ("language/model.onnx", "--prompt", "abc", "--tokens", "2"),
    "import-gguf": ("model.gguf", "-o", "imported.onnx"),
    "importance": (SOLVED, "--shares", "", "--ranks", "", "--data", "data.npz", "-o", "importance.json"),
    "lock": ("MODEL", "--batch", "2", "--gap", "0.9", "-o", "poetc.lock"),
    "profile": ("show", "rpi4"),
    "report": (SOLVED, "--html", "report.html"),
    "run": (SOLVED, "--on", "host", "--steps", "1"),
    "solve": ("MODEL", *SMALL, "--budget", "80%", "-o", "solved"),
    "solvers": (),
    "sweep": ("MODEL", *SMALL, "--device", "rpi4", "--budget", "90%", "-o", "sweep.jsonl"),
    "train": ("MODEL", "--batch", "2", "--data", "data.npz", "--epochs", "1", "-o", "trained.onnx"),
    "validate": (SOLVED,),
}
SLOW = {"analyze", "bundle", "importance", "run", "compare", "sweep"}


@pytest.mark.parametrize("command", [pytest.param(n, marks=[pytest.mark.long] * (n in SLOW)) for n in sorted(COMMANDS)])
def test_a_command_runs_within_little_memory(
    command: str, solved: tuple[Path, Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.Generator(np.random.PCG64(0))
    images, labels = random.random((8, 1, 8, 8), np.float32), random.integers(0, 10, 8).astype(np.int32)
    np.savez(tmp_path / "data.npz", image=images, target=labels)
    if command == "generate":
        (tmp_path / "language").mkdir()
        write_tokenizer(tmp_path / "language")
        write_decoder(tmp_path / "language" / "model.onnx")
    if command == "import-gguf":
        gguf_files.write(tmp_path / "model.gguf", kind="Q4_0")
    before = {"check": "lock", "import-state": "export"}.get(command)
    if before is not None:
        monkeypatch.chdir(tmp_path)
        assert run(before, *_arguments(before, solved[0])).code == 0
        if before == "export":
            (tmp_path / "out.npz").rename(tmp_path / "start.npz")
    words = [sys.executable, "-m", "poetc", command, *_arguments(command, solved[0])]
    shell = ("sh", "-c", f'ulimit -v {LIMIT_KIB} && exec "$@"', "sh", *words)
    ended = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def _arguments(command: str, solved: Path) -> list[str]:
    words = {"MODEL": str(small_model()), SOLVED: str(solved)}
    return [words.get(word, word) for word in COMMANDS[command]]


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) == set(cli.commands)
