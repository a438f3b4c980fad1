"""The action of GitHub, run step by step as a runner does, in a repository with a lock file."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.cli.conftest import run
from tests.support.small import small_model

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / "docs/how-to/ci/poetc.yml").read_text())
_PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "poetc", "solvers", "profiles", ".ci")


@dataclass(frozen=True)
class Runner:
    """Steps of a composite action: expressions of inputs are replaced, then each script runs in the shell it names.

    In place of actions/setup-python there is a new environment. It sees the packages of this one, so that nothing is
    downloaded; poetc is installed by the action's own step.
    """

    checkout: Path  # of poetc, as `uses:` has it
    environment: Path

    def run(self, repository: Path, given: Mapping[str, str], *, only_last: bool = False) -> tuple[int, str]:
        """The exit code of the step that failed, or 0; and all that was written."""
        action = yaml.safe_load((self.checkout / ".ci/action.yml").read_text())
        assert given.keys() <= action["inputs"].keys()
        inputs = {name: str(about["default"]) for name, about in action["inputs"].items()} | given
        written = ""
        assert action["runs"]["using"] == "composite"
        for step in action["runs"]["steps"][-1 if only_last else 0 :]:
            if "uses" in step:
                self._set_up_python(step, inputs)
                continue
            assert step["shell"] == "bash" and "${{" not in step["run"], "an expression in a script is code"
            variables = {
                **os.environ,
                "PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}",
                "GITHUB_ACTIONS": "true",
                "GITHUB_ACTION_PATH": str(self.checkout / ".ci"),
                "PIP_NO_DEPS": "1",
                "PIP_NO_BUILD_ISOLATION": "0",  # 0 switches the isolation off
                "PIP_NO_INDEX": "1",
                **{name: _replaced(text, inputs) for name, text in step.get("env", {}).items()},
            }
            variables.pop("PYTHONPATH", None)
            script = repository.parent / "step.sh"
            script.write_text(step["run"])
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", script]
            done = subprocess.run(shell, cwd=repository, env=variables, capture_output=True, text=True, check=False)
            written += done.stdout + done.stderr
            if done.returncode:
                return done.returncode, written
        return 0, written

    def _set_up_python(self, step: dict[str, Any], inputs: Mapping[str, str]) -> None:
        assert step["uses"].startswith("actions/setup-python@")
        assert float(_replaced(step["with"]["python-version"], inputs).partition(".")[2]) >= 11
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.environment], check=True)
        (own,) = self.environment.glob("lib/python3.*/site-packages")
        (own / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")


def _replaced(text: str, inputs: Mapping[str, str]) -> str:
    replaced = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)
    assert "${{" not in replaced
    return replaced


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A team's repository: a model and its lock file."""
    folder = tmp_path_factory.mktemp("team") / "repository"
    folder.mkdir()
    shutil.copy(small_model(), folder / "model.onnx")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        words = ("lock", "model.onnx", "--batch", 4, "--device", "stm32f746", "--budget", "80%", "--quiet")
        assert run(*words).code == 0
    return folder


@pytest.mark.long
def test_the_action_installs_poetc_and_fails_where_a_schedule_became_worse(repository: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "poetc"
    checkout.mkdir()
    for name in _PACKAGED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, checkout / name)
    runner = Runner(checkout, tmp_path / "environment")
    code, written = runner.run(repository, {})
    assert (code, "1 entry, 0 failed" in written) == (0, True), written
    assert list((tmp_path / "environment").glob("lib/python3.*/site-packages/poetc/solvers/registry.py"))
    (upload,) = (s for s in WORKFLOW["jobs"]["schedules"]["steps"] if s["uses"].startswith("actions/upload-artifact@"))
    (suite,) = ElementTree.parse(repository / upload["with"]["path"]).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")

    lock = repository / "poetc.lock"
    text = lock.read_text()
    (energy,) = re.findall(r'"energy_pj": (\d+)', text)
    lock.write_text(text.replace(energy, str(int(energy) * 9 // 10)))  # as if it had been better once
    try:
        code, written = runner.run(repository, {"solve": "true", "junit": "mine.xml"}, only_last=True)
    finally:
        lock.write_text(text)
    assert code == 1, written
    assert re.search(r"^::error file=poetc\.lock,line=\d+", written, re.MULTILINE), written
    (suite,) = ElementTree.parse(repository / "mine.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    code, written = runner.run(repository, {"lock": "absent.lock"}, only_last=True)
    assert code == 2 and "absent.lock" in written, written
