"""Files that the CI of other projects takes from here: the action of GitHub, the hooks of pre-commit, the container."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import run

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / ".ci/action.yml").read_text())


def check_step() -> dict[str, Any]:
    (step,) = (step for step in ACTION["runs"]["steps"] if "poetc check" in step.get("run", ""))
    return dict(step)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "check poetc.lock --jobs 2 --junit poetc.xml"),
        ({"lock": "a b.lock", "solve": "true", "jobs": "4"}, "check a b.lock --jobs 4 --junit poetc.xml --solve"),
        ({"lock": "$(touch taken)"}, "check $(touch taken) --jobs 2 --junit poetc.xml"),
    ],
)
def test_the_action_checks_the_lock_file(given: dict[str, str], words: str, tmp_path: Path) -> None:
    """Its script as a runner starts it, beside a poetc that shows its arguments and fails."""
    fake = tmp_path / "bin/poetc"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@"\nexit 1\n')
    fake.chmod(0o755)
    inputs = {name: str(about["default"]) for name, about in ACTION["inputs"].items()} | given
    variables = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)
        for name, text in check_step()["env"].items()
    }
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check_step()["run"]]
    environment = {**os.environ, **variables, "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    ended = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (1, words)
    assert not (tmp_path / "taken").exists()


def test_every_option_of_the_action_is_one_of_poetc_check() -> None:
    shown = run("check", "--help").out
    assert all(option in shown for option in re.findall(r"--[a-z]+", check_step()["run"]))


def test_the_hook_takes_profiles_and_nothing_else() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    names = [f"profiles/{path.name}" for path in (ROOT / "profiles").glob("*.yaml")]
    assert {n for n in names if re.search(hook["files"], n)} == {n for n in names if not n.startswith("profiles/_")}
    assert run(*hook["entry"].split()[1:], ROOT / "profiles/rpi4.yaml").code == 0


def test_the_workflow_uses_the_action_and_keeps_its_report() -> None:
    workflow = yaml.safe_load((ROOT / "docs/how-to/ci/poetc.yml").read_text())
    uses = [step["uses"] for step in workflow["jobs"]["schedules"]["steps"]]
    assert "OWNER/poetc/.ci@COMMIT" in uses  # poetc is not on a package index
    (upload,) = (step for step in workflow["jobs"]["schedules"]["steps"] if "upload" in step["uses"])
    assert upload["with"]["path"] == ACTION["inputs"]["junit"]["default"]


def test_the_container_copies_all_that_the_wheel_is_made_of() -> None:
    text = (ROOT / "scripts/Containerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "poetc", "profiles", "solvers"}
    assert all((ROOT / name).exists() for name in copied)
    assert "\nUSER " not in text  # another user may not write into the folder that is mounted
