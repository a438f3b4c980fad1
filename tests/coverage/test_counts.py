"""Counts of a C program that the counting compiler made, and tables of rooms."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.coverage import counts
from tests.coverage.counts import Share

SOURCE = """#include <stdio.h>
int twice(int x) {
    if (x > 2)
        return 2 * x;
    return 0;
}
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
    shutil.copy(Path(__file__).with_name("counting-cc"), compilers / "gcc")
    (sources / "poetc_twice.c").write_text(SOURCE)
    found = tmp_path / "counts"
    environment = dict(os.environ, PATH=f"{compilers}:{os.environ['PATH']}", GCOV_PREFIX=str(found))
    branches = []
    for number, arguments in enumerate(([], ["a", "b"])):
        folder = tmp_path / f"emitted-{number}"
        (folder / "runtime").mkdir(parents=True)
        shutil.copy(sources / "poetc_twice.c", folder / "runtime")
        subprocess.run(
            ["gcc", "-o", "program", "runtime/poetc_twice.c"], cwd=folder, env=environment, check=True, timeout=60
        )
        done = subprocess.run([folder / "program", *arguments], env=environment, capture_output=True, check=True)
        assert done.stdout == (b"6" if arguments else b"0")
        assert sorted(path.name for path in folder.iterdir()) == ["program", "runtime"]
        shutil.rmtree(folder)
        (share,) = counts.c_shares(counts.c_counts(found, tmp_path / "runtime"))
        assert share.name == "src/poetc_twice.c"
        branches.append((share.lines, share.lines_run, share.branches, share.branches_taken))
    assert branches == [(7, 6, 2, 1), (7, 7, 2, 2)]


def test_rooms_are_added_up() -> None:
    shares = [Share("poetc/ops/math.py", 10, 9, 4, 3), Share("poetc/ops/kernels/a.py", 2, 1, 0, 0)]
    shares.append(Share("poetc/api.py", 4, 4, 2, 1))
    assert counts.table("Python", counts.by_room(shares, 2))[2:] == [
        "| poetc | 4 | 100.0 % | 2 | 50.0 % |",
        "| poetc/ops | 12 | 83.3 % | 4 | 75.0 % |",
        "| all | 16 | 87.5 % | 6 | 66.7 % |",
    ]
    assert counts.worst(shares, 1) == ["    1 of     4 branches missing in poetc/ops/math.py"]
