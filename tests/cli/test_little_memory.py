"""Every command on a machine of little memory: a file of a few kilobytes takes no gigabytes of address space."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
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
    "check": ("checked.lock",),
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
    "sweep": ("MODEL", *SMALL, "--device", "rpi4", "--budgets", "90%", "-o", "sweep.jsonl"),
    "train": ("MODEL", "--batch", "2", "--data", "data.npz", "--epochs", "1", "-o", "trained.onnx"),
    "validate": (SOLVED,),
}
SLOW = {"analyze", "bundle", "importance", "run", "compare", "sweep"}


# Its commands after one another, as `python -m poetc` runs each: what one leaves behind counts against the next, too.
MANY = """
import sys
from poetc.__main__ import main
for *words, in __import__("json").load(sys.stdin):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        print(f"{words[0]}: {ended.code}", file=sys.stderr)
"""


def _limited(words: Sequence[str], folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    shell = ("sh", "-c", f'ulimit -v {LIMIT_KIB} && exec "$@"', "sh", sys.executable, *words)
    return subprocess.run(shell, cwd=folder, capture_output=True, text=True, timeout=300, input=stdin)


@pytest.fixture(scope="module")
def folder(solved: tuple[Path, Ended], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files that the commands read."""
    folder = tmp_path_factory.mktemp("little")
    random = np.random.Generator(np.random.PCG64(0))
    images, labels = random.random((8, 1, 8, 8), np.float32), random.integers(0, 10, 8).astype(np.int32)
    np.savez(folder / "data.npz", image=images, target=labels)
    (folder / "language").mkdir()
    write_tokenizer(folder / "language")
    write_decoder(folder / "language" / "model.onnx")
    gguf_files.write(folder / "model.gguf", kind="Q4_0")
    with contextlib.chdir(folder):
        assert run("export", str(solved[0]), "-o", "of-start.onnx", "--npz", "start.npz").code == 0
        assert run("lock", *_arguments("lock", solved[0])).code == 0
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path, solved: tuple[Path, Ended]) -> dict[str, str]:
    """The exit code of every quick command, in one process."""
    (folder / "poetc.lock").rename(folder / "checked.lock")
    quick = [[name, *_arguments(name, solved[0])] for name in sorted(set(COMMANDS) - SLOW)]
    said = _limited(("-c", MANY), folder, json.dumps(quick)).stderr.splitlines()
    return dict(line.split(": ", 1) for line in said if line.split(":")[0] in COMMANDS)


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - SLOW))
def test_a_command_runs_within_little_memory(command: str, ended: dict[str, str]) -> None:
    assert ended.get(command) == "0", ended


@pytest.mark.long
@pytest.mark.parametrize("command", sorted(SLOW))
def test_a_long_command_runs_within_little_memory(command: str, folder: Path, solved: tuple[Path, Ended]) -> None:
    ended = _limited(("-m", "poetc", command, *_arguments(command, solved[0])), folder)
    assert ended.returncode == 0, ended.stderr


def _arguments(command: str, solved: Path) -> list[str]:
    words = {"MODEL": str(small_model()), SOLVED: str(solved)}
    return [words.get(word, word) for word in COMMANDS[command]]


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) == set(cli.commands)
