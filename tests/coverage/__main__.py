"""Run the quick tests and count: python -m tests.coverage [--jobs N] [--write] [ARGUMENTS OF PYTEST ...]

Python is counted by coverage.py, in the workers of pytest and in every process that a test starts. C is counted by
gcc: `counting-cc` comes before it on the PATH. Tests that fail are told, and count. `--write` puts the tables into
docs/results/coverage.md. Work lies in build/coverage; that of an earlier run is removed. Its file missing.txt names
the branches that no test took.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.coverage.counts import (
    by_room,
    c_counts,
    c_missing,
    c_shares,
    counting_compiler,
    python_missing,
    python_shares,
    table,
    worst,
)

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "coverage"
PAGE = ROOT / "docs" / "results" / "coverage.md"
BEGIN, END = "<!-- tables -->", "<!-- end of the tables -->"
SETTINGS = """[run]
branch = true
parallel = true
patch = subprocess
source_pkgs = poetc
data_file = {work}/python/data
[report]
ignore_errors = true
[paths]
solvers =
    solvers
    */poetc/solvers
poetc =
    poetc
    */poetc
"""  # errors: modules that a test wrote and removed; paths: a wheel has the solvers in poetc/solvers


def run(jobs: int, arguments: list[str]) -> None:
    """The tests. Some may fail: they measure the size of a program or its symbols, which counting changes."""
    compilers = WORK / "bin"
    shutil.rmtree(WORK, ignore_errors=True)
    for folder in (compilers, WORK / "python", WORK / "c"):
        folder.mkdir(parents=True)
    for name in ("gcc", "cc"):
        counting_compiler(name, compilers)
    settings = WORK / "coveragerc"
    settings.write_text(SETTINGS.format(work=WORK))
    environment = dict(os.environ, COVERAGE_RCFILE=str(settings), GCOV_PREFIX=str(WORK / "c"))
    environment["PATH"] = f"{compilers}{os.pathsep}{environment['PATH']}"
    chosen = arguments or ["-m", "not long and not conformance"]
    words = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-n", str(jobs), "-p", "no:cacheprovider"]
    # What tests compile once and keep from run to run would not count.
    with tempfile.TemporaryDirectory(prefix="poetc-coverage-") as folder:
        subprocess.run([*words, *chosen], env=dict(environment, TMPDIR=folder), cwd=ROOT, check=False)
    for command in (["combine", "--quiet"], ["json", "--quiet", "-o", str(WORK / "python.json")]):
        subprocess.run([sys.executable, "-m", "coverage", *command], env=environment, cwd=ROOT, check=True)


def report() -> str:
    """Both tables, in markdown; the files with most branches missing go to the standard error."""
    document = json.loads((WORK / "python.json").read_text())
    counted = c_counts(WORK / "c", ROOT / "poetc" / "runtime")
    (WORK / "missing.txt").write_text("".join(f"{line}\n" for line in (*python_missing(document), *c_missing(counted))))
    python, c = python_shares(document), c_shares(counted)
    for share in (*worst(python, 25), *worst(c, 15)):
        print(share, file=sys.stderr)
    return "\n".join([*table("Python", by_room(python, 2)), "", *table("C of the runtime", by_room(c, 2))])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/results/coverage.md")
    asked, arguments = parser.parse_known_args()
    started = time.monotonic()
    run(asked.jobs, arguments)
    text = report()
    print(text)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    if asked.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
