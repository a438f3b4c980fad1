"""Counts of a C program that the counting compiler made, and tables of rooms."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.coverage import counts
from tests.coverage.counts import Share

SOURCE = """int twice(int x);
int twice(int x) {
    if (x > 2)
        return 2 * x;
    return 0;
}
"""
MODEL = """#include <stdio.h>
int twice(int x);
int main(int argc, char **argv) {
    (void)argv;
    printf("%d", twice(argc));
    return 0;
}
"""


def test_programs_leave_their_counts(tmp_path: Path) -> None:
    """Also where the folder of the program is gone, and where two programs have the same source."""
    if shutil.which("gcov") is None:
        pytest.skip("gcov is not installed")
    compilers, sources = tmp_path / "bin", tmp_path / "runtime" / "src"
    compilers.mkdir()
    sources.mkdir(parents=True)
    counts.counting_compiler("gcc", compilers)
    (sources / "poetc_twice.c").write_text(SOURCE)
    found = tmp_path / "counts"
    environment = dict(os.environ, PATH=f"{compilers}:{os.environ['PATH']}", GCOV_PREFIX=str(found))
    branches = []
    for number, arguments in enumerate(([], ["a", "b"])):
        folder = tmp_path / f"emitted-{number}"
        (folder / "runtime").mkdir(parents=True)
        shutil.copy(sources / "poetc_twice.c", folder / "runtime")
        (folder / "model.c").write_text(MODEL)
        words = ["gcc", "-o", "program", "runtime/poetc_twice.c", "model.c"]
        subprocess.run(words, cwd=folder, env=environment, check=True, timeout=60)
        done = subprocess.run([folder / "program", *arguments], env=environment, capture_output=True, check=True)
        assert done.stdout == (b"6" if arguments else b"0")
        assert sorted(path.name for path in folder.iterdir()) == ["model.c", "program", "runtime"]
        shutil.rmtree(folder)
        counted = counts.c_counts(found, tmp_path / "runtime")
        assert len(counts.c_missing(counted)) == 1 - number
        (share,) = counts.c_shares(counted)
        assert share.name == "src/poetc_twice.c"
        branches.append((share.lines, share.lines_run, share.branches, share.branches_taken))
    assert branches == [(4, 3, 2, 1), (4, 4, 2, 2)]


def test_missing_branches_of_python_are_named() -> None:
    files = {"poetc/a.py": {"missing_branches": [[3, 5], [7, -1]]}, "poetc/b.py": {"missing_branches": []}}
    assert counts.python_missing({"files": files}) == ["poetc/a.py:3 -> 5", "poetc/a.py:7 -> -1"]


def test_rooms_are_added_up() -> None:
    shares = [Share("poetc/ops/math.py", 10, 9, 4, 3), Share("poetc/ops/losses/a.py", 2, 1, 0, 0)]
    shares.append(Share("poetc/api.py", 4, 4, 2, 1))
    assert counts.table("Python", counts.by_room(shares, 2))[2:] == [
        "| poetc | 4 | 100.0 % | 2 | 50.0 % |",
        "| poetc/ops | 12 | 83.3 % | 4 | 75.0 % |",
        "| all | 16 | 87.5 % | 6 | 66.7 % |",
    ]
    assert counts.worst(shares, 1) == ["    1 of     4 branches missing in poetc/ops/math.py"]
