"""The wheel holds what the tree holds, and works without the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as it is now: building in it would leave files behind. Symbolic links are copied as links."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("poetc", "solvers", "profiles"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def expected(copy: Path) -> list[str]:
    return sorted(files_of(copy))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, copy: Path, expected: list[str]) -> Path:
    del expected  # listed before the build adds to the copy
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        out,
        copy,
    ]
    subprocess.run(command, check=True, cwd=out, capture_output=True)
    return next(out.glob("*.whl"))


def files_of(root: Path) -> Iterator[str]:
    """Every file of the package as a wheel names it."""
    for folder, prefix in (("poetc", "poetc"), ("solvers", "poetc/solvers"), ("profiles", "poetc/profiles")):
        for directory, folders, files in os.walk(root / folder):  # does not follow the links
            folders[:] = [name for name in folders if name != "__pycache__"]
            inside = Path(directory).relative_to(root / folder)
            yield from (str(Path(prefix) / inside / name) for name in files if not name.startswith("."))


def test_holds_every_file_of_the_tree_and_no_other(wheel: Path, expected: list[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    assert sorted(shipped) == expected
    assert len(licences) == 1
    assert {"poetc/py.typed", "poetc/solvers/__init__.py", "poetc/runtime/include/poetc.h"} <= shipped


def test_works_installed_somewhere_else(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run(install, check=True, cwd=tmp_path, capture_output=True)
    script = (
        "import poetc, poetc.solvers, poetc.profiles, poetc.commands.solve\n"
        "from poetc.devices import list_profiles, load_profile\n"
        "assert [load_profile(name) for name in list_profiles()]\n"
        "assert poetc.solvers.available()\n"
        "print(poetc.__file__)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert Path(done.stdout.strip()).is_relative_to(target)
    command = [sys.executable, "-m", "poetc", "profile", "list", "--json"]
    done = subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert '"host"' in done.stdout


def test_every_package_is_listed(expected: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {str(Path(name).parent).replace("/", ".") for name in expected if name.endswith("/__init__.py")}
    assert listed == found
