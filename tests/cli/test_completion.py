"""Completion as a shell asks for it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import run


def completed(folder: Path, line: str) -> list[str]:
    """What bash offers at the end of `line`, with its usual word breaks."""
    program = folder / "poetc"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m poetc "$@"\n')
    program.chmod(0o755)
    source = run("completion", "bash").out.replace("complete -o nosort", ": complete -o nosort")
    call = f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}; _poetc_completion {shlex.quote(str(program))}"
    script = f'{source}\ncompopt() {{ COMPREPLY=("$*"); }}\n{call}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("poetc sol", ["solve", "solvers"]),
        ("poetc sweep a.onnx -d stm32h", ["stm32h743", "stm32h745", "stm32h7b3"]),
        ("poetc solve a.onnx --device mine", ["-o", "default"]),  # no device's name: files
        ("poetc run d --on qemu:mic", ["microbit"]),  # bash replaces what is behind the colon
        ("poetc profile bench --target mic", ["microbit"]),
        ("poetc solve a.onnx --objective ", ["energy", "time"]),
    ],
)
@pytest.mark.long_but("poetc sol-expected0", "poetc run d --on qemu:mic-expected3")
def test_bash(tmp_path: Path, line: str, expected: list[str]) -> None:
    assert completed(tmp_path, line) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell: str) -> None:
    ended = run("completion", shell)
    assert ended.code == 0
    assert f"_POETC_COMPLETE={shell}_complete" in ended.out
