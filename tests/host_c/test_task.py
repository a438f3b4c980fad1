"""The task of `poetc_task.h`: what it refuses. tests/arm/test_task.py has a whole training."""

from __future__ import annotations

import subprocess
from pathlib import Path

from poetc.runtime import runtime_directory

FLAGS = ("-std=c99", "-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-fsanitize=address,undefined")
SOURCES = ("", "_checkpoint", "_data", "_input", "_math", "_session", "_state", "_stream", "_task")


def test_inputs_on_the_store_odd_rows_and_a_step_of_the_caller_are_refused(tmp_path: Path) -> None:
    """No row is copied to an input that has no place, and no state under a step that goes on."""
    runtime, program = runtime_directory(), tmp_path / "task"
    folders = [f"-I{runtime / name}" for name in ("include", "src", "kernels")]
    sources = [Path(__file__).with_name("task.c"), *(runtime / "src" / f"poetc{name}.c" for name in SOURCES)]
    subprocess.run(["gcc", *FLAGS, *folders, *sources, "-lm", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
