"""Modules loaded before a command begins: the time to the first line on a terminal, counted without a clock."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import poetc.cli
from poetc.cli._commands import COMMANDS

HEAVY = ("numpy", "onnx", "highspy", "networkx", "pulp", "yaml", "rich", "cloup", "poetc.ops", "poetc.training")


def loaded_by(code: str, **environment: str) -> set[str]:
    script = f"import sys\n{code}\nsys.stderr.write(' '.join(sys.modules))"
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_list_of_commands_loads_none_of_them(arguments: list[str]) -> None:
    code = f"from poetc.cli import main\ntry:\n    main({arguments})\nexcept SystemExit:\n    pass"
    loaded = loaded_by(code)
    assert not loaded & {*HEAVY, *(f"poetc.cli.{name.replace('-', '_')}" for name in COMMANDS)}
    assert len(loaded) < 160


def test_completion_of_a_command_loads_none_but_its_own() -> None:
    code = "from poetc.cli import main\ntry:\n    main([])\nexcept SystemExit:\n    pass"
    loaded = loaded_by(code, _POETC_COMPLETE="bash_complete", COMP_LINE="poetc sol", COMP_CWORD="1")
    assert "poetc.cli.completion" in loaded
    assert not loaded & {"numpy", "onnx", "poetc.cli.solve"}


def test_the_package_is_loaded_by_the_names_that_are_used() -> None:
    assert not loaded_by("import poetc") & set(HEAVY)


def test_every_file_of_a_command_is_listed() -> None:
    folder = Path(next(iter(poetc.cli.__path__)))
    files = {path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py")}
    assert files == set(COMMANDS)
    for name in COMMANDS:
        command = poetc.cli.cli.commands[name]
        assert command.name == name
        assert command is getattr(
            importlib.import_module(f"poetc.cli.{name.replace('-', '_')}"), name.replace("-", "_")
        )
