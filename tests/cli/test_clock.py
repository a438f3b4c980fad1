"""The wall clock jumps ahead, back and to 1970 while commands run, as on a board without a battery for its clock.

`jumping_clock.c` is preloaded, and changes what processes read of it, and the times of files that they write.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.small import small_model

ROOT = Path(__file__).resolve().parents[2]
DATA = f"{ROOT / 'demo' / 'digits_new_writer.npz'}:train_x,train_y"
SOURCE = ROOT / "tests" / "support" / "jumping_clock.c"
AHEAD, _, BACK, EPOCH = map(str, range(4))


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("clock") / "jumping_clock.so"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(library)], check=True)
    return library


def with_clock(preloaded: Path, folder: Path, to: str | None = None) -> dict[str, str]:
    """The environment of processes whose clock jumps, or is at `to`."""
    added = {"LD_PRELOAD": str(preloaded), "POETC_JUMPS_FROM": str(int(time.time()))}
    added |= {"POETC_JUMPS_LOG": str(folder / "jumps"), "PYTHONDONTWRITEBYTECODE": "1"}
    return added if to is None else {**added, "POETC_JUMPS_TO": to}


def run(environment: dict[str, str], folder: Path, *words: str) -> str:
    """Standard output. Compilers run: nothing is kept from an earlier run."""
    folder.mkdir(exist_ok=True)
    every = {**os.environ, **environment, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(words, cwd=ROOT, env=every, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def poetc(environment: dict[str, str], folder: Path, *words: str) -> str:
    return run(environment, folder, sys.executable, "-m", "poetc", *words)


def trained(environment: dict[str, str], folder: Path) -> bytes:
    """The model after an epoch, and one more that is a resumption."""
    out = str(folder / "m.onnx")
    how = ["--normalize", "0..255", "--batch", "16", "--lr", "0.03", "--epochs", "1", "--budget", "100%", "-o", out]
    poetc(environment, folder, "train", str(small_model()), "--data", DATA, *how)
    poetc(environment, folder, "train", "--resume", "--epochs", "2", "-o", out)
    return Path(out).read_bytes()


@pytest.mark.long
def test_training_has_the_same_bytes_whatever_the_clock_does(preloaded: Path, tmp_path: Path) -> None:
    expected = trained({}, tmp_path / "usual")
    jumping = with_clock(preloaded, tmp_path)
    assert trained(jumping, tmp_path / "jumping") == expected
    assert (tmp_path / "jumps").exists(), "a process read the clock before and after a jump"
    for to in (AHEAD, EPOCH):
        assert trained(with_clock(preloaded, tmp_path, to), tmp_path / to) == expected


@pytest.mark.long
def test_programs_are_built_anew_whatever_the_clock_does(preloaded: Path, tmp_path: Path) -> None:
    """Solved and emitted ten years ahead, then for other options in 1970: make must not keep the older objects."""
    solved, sources = str(tmp_path / "solved"), str(tmp_path / "src")

    def made(environment: dict[str, str], rate: str) -> bytes:
        how = ["--batch", "4", "--lr", rate, "--time-limit", "2", "--force", "-o", solved]
        poetc(environment, tmp_path, "solve", str(small_model()), *how)
        poetc(environment, tmp_path, "emit", solved, "-o", sources)
        run(environment, tmp_path, "make", "-s", "-C", sources)
        return (tmp_path / "src" / "train").read_bytes()

    ahead = made(with_clock(preloaded, tmp_path, AHEAD), "0.01")
    at_epoch = made(with_clock(preloaded, tmp_path, EPOCH), "0.02")
    assert "yes" in poetc(with_clock(preloaded, tmp_path), tmp_path, "validate", solved)
    subprocess.run(["make", "-s", "-C", sources, "clean"], check=True)
    assert at_epoch == made({}, "0.02") != ahead
