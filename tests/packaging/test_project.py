"""What holds the project together: licences beside data, scripts that can be run, no path of anybody's machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


SCRIPTS = (
    ".ci/run",
    "scripts/setup",
    "scripts/setup-arm",
    "scripts/setup-browser",
    "scripts/setup-fuzz",
    "scripts/check-versions",
    "scripts/release",
    "scripts/fit_board",
    "bench/setup_peers",
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_run_and_parse(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_benchmarks_are_no_tests() -> None:
    """But for the writer of their tables, which measures nothing."""
    tests, measuring = sorted((ROOT / "tests").rglob("*.py")), r"^\s*(from|import) bench\b(?!\._command)"
    assert not [path for path in tests if re.search(measuring, path.read_text(), re.MULTILINE)]
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(
        r"^(?:test(?:-all)?|conformance|lint|setup-test|setup-arm|setup-browser):.*\n(?:\t.*\n)*",
        makefile,
        re.MULTILINE,
    )
    assert len(targets) == 7 and not [text for text in targets if "bench" in text]


EXPLAINED = """
import contextlib, io, json, runpy, sys
shown = {}
for name in sys.argv[1:]:
    sys.argv, said = [name, "--help"], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)
    shown[name] = said.getvalue()
print(json.dumps(shown))
"""


def test_benchmarks_load_and_explain_themselves() -> None:
    """Nothing else does before somebody measures. Peers need libraries of their own: they only compile.

    All in one process, since most of the time goes to what they import alike.
    """
    names = sorted(p.stem for p in (ROOT / "bench").glob("[!_]*.py") if "peer" not in p.stem)
    command = [sys.executable, "-c", EXPLAINED, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    silent = [name for name in names if not shown[name].startswith("usage: ") or "options:" not in shown[name]]
    assert len(names) > 20 and not silent


def test_peers_of_benchmarks_compile() -> None:
    peers = sorted((ROOT / "bench").glob("peer_*.py"))
    assert len(peers) >= 4
    for path in peers:
        compile(path.read_text(), path, "exec")


def test_benchmarks_that_pages_name_exist() -> None:
    """Or the page says the commit whose checkout has them."""
    makefile, gone = (ROOT / "Makefile").read_text(), []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        files = {name for name in re.findall(r"\bbench[./](\w+)", text) if not list((ROOT / "bench").glob(f"{name}*"))}
        targets = {name for name in re.findall(r"\bmake (bench-[a-z-]+)", text) if f"\n{name}:" not in makefile}
        if not re.search(r"\bof [0-9a-f]{8}\b", text):
            gone += [(page.name, name) for name in sorted(files | targets)]
    assert not gone


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = {name for line in re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE) for name in line.split()}
    shown = subprocess.run(
        ["make", "--no-print-directory", "-C", ROOT], check=True, capture_output=True, text=True
    ).stdout
    listed = set(re.findall(r"^  make ([a-z-]+) +\S", shown, re.MULTILINE))
    assert phony - listed == {"setup-test", "setup-arm64-python", "lint-text", "lint-types"}  # parts of others
    assert {"demo", "test", "conformance", "lint", "format", "clean", "help"} <= listed


def test_every_file_of_the_demo_is_accounted_for() -> None:
    readme = (ROOT / "demo" / "README.md").read_text()
    files = {path.name for path in (ROOT / "demo").iterdir() if path.is_file()} - {"README.md"}
    assert sorted(name for name in files if f"`{name}`" not in readme) == []
    assert "CC BY 4.0" in readme


def test_demo_data_is_what_its_readme_says() -> None:
    with np.load(ROOT / "demo" / "digits_new_writer.npz", allow_pickle=False) as archive:
        data = dict(archive)
    assert data["train_x"].shape == (532, 8, 8)
    assert data["test_x"].shape == (265, 8, 8)
    assert data["train_x"].dtype == np.uint8
    assert sorted(set(data["test_y"].tolist())) == list(range(10))
    assert len(data["train_y"]) == 532
    assert len(data["test_y"]) == 265
