"""`poetc emit --package`: a folder that trains where there is no poetc, with the bits of `poetc run`."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Ended, run

ARM64_PYTHON = Path(__file__).resolve().parents[2] / "build" / "arm64-python" / "python"
STEPS = 4
SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:3]
import digits, numpy
manifest, data = sys.argv[3:]
import json
record = json.load(open(manifest))["record"]
data = numpy.fromfile(data, numpy.uint8).reshape(-1, record["size_bytes"])
losses = []
with digits.trainer() as trainer:
    for row in data:
        arrays = [row[t["offset_bytes"]:][:t["size_bytes"]].view(t["dtype"]).reshape(t["shape"])
                  for t in record["tensors"]]
        losses.append(trainer.step(*arrays))
    before = trainer.state_dict()
    evaluated, after = trainer.evaluate(*arrays), trainer.outputs()
    predicted = trainer.predict(*arrays[:-1])
    assert all((before[n] == a).all() for n, a in trainer.state_dict().items())
    assert any((predicted == a).all() for a in after.values()), "evaluation has the outputs of prediction"
    logs = predicted - numpy.log(numpy.exp(predicted).sum(1, keepdims=True))
    numpy.testing.assert_allclose(evaluated, -logs[range(len(logs)), arrays[-1]].mean(), rtol=1e-4)
    trainer.save("trained.bin")
    losses.append(trainer.step(*arrays))
    trainer.load("trained.bin")
    assert trainer.step(*arrays) == losses[-1]
assert "poetc" not in sys.modules
print(json.dumps(losses[:-1]))
"""


@pytest.fixture(scope="module")
def measured(solved: tuple[Path, Ended], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], Path]:
    """The losses of `poetc run --on host`, and the records that it used."""
    kept = tmp_path_factory.mktemp("kept") / "run"
    ended = run("run", solved[0], "--on", "host", "--steps", STEPS, "--keep", kept, "--json")
    assert ended.code == 0, ended.err
    return ended.json["losses"], kept / "run" / "data.bin"


@pytest.mark.long  # it compiles a whole package, twice
def test_a_package_needs_numpy_alone(
    solved: tuple[Path, Ended], measured: tuple[list[float], Path], tmp_path: Path
) -> None:
    package = tmp_path / "digits"
    ended = run("emit", solved[0], "--target", "host", "--package", "-o", package, "--json")
    assert ended.code == 0, ended.err
    assert ended.json["library"] == str(package / "libmodel.so")
    assert ended.json["makes"] == "libmodel.so"
    assert not (package / "build").exists() and not (package / "main.c").exists()
    only = tmp_path / "only"
    only.mkdir()
    site = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            os.symlink(site / name, only / name)
    words = [sys.executable, "-I", "-S", "-c", SCRIPT, only, tmp_path, package / "poetc-emit.json", measured[1]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == measured[0]
    # Again, with what Python and make left there.
    assert run("emit", solved[0], "--target", "host", "--package", "-o", package, "--quiet").code == 0


@pytest.mark.long
def test_a_package_for_linux_on_arm(
    solved: tuple[Path, Ended], measured: tuple[list[float], Path], tmp_path: Path
) -> None:
    """Its library is used from C, which needs no Python for the emulator."""
    package = tmp_path / "digits"
    words = ("emit", solved[0], "--target", "cortex-a", "--board", "aarch64", "--package", "-o", package, "--json")
    ended = run(*words)
    assert ended.code == 0, ended.err
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no aarch64-linux-gnu-gcc: make setup-arm")
    header = (package / "libmodel.so").read_bytes()[:20]
    assert header[:5] == b"\x7fELF\x02" and struct.unpack_from("<HH", header, 16) == (3, 183)
    program = tmp_path / "losses"
    includes = [f"-I{package / folder}" for folder in (".", "port", "runtime/include")]
    source = Path(__file__).with_name("session_losses.c")
    compiler = ["aarch64-linux-gnu-gcc", "-std=c99", "-Wall", "-Werror", *includes]
    subprocess.run([*compiler, "-o", program, source, package / "libmodel.so"], check=True)
    shutil.copy(measured[1], tmp_path / "data.bin")
    if (package / "store.img").exists():
        shutil.copy(package / "store.img", tmp_path / "store.bin")
    emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={package}", program]
    done = subprocess.run(emulator, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{np.float32(loss).view(np.uint32):08x}" for loss in measured[0]]


@pytest.mark.long  # Python starts slowly in the emulator
def test_python_on_arm_trains_with_a_package(
    solved: tuple[Path, Ended], measured: tuple[list[float], Path], tmp_path: Path
) -> None:
    if not ARM64_PYTHON.exists():
        pytest.skip("no Python for aarch64: scripts/setup-arm64-python")
    package = tmp_path / "digits"
    words = ("emit", solved[0], "--target", "cortex-a", "--board", "aarch64", "--package", "-o", package, "--json")
    ended = run(*words)
    assert ended.code == 0, ended.err
    packages = ARM64_PYTHON.parent / "root" / "usr" / "lib" / "python3" / "dist-packages"
    python = [ARM64_PYTHON, "-I", "-S", "-c", SCRIPT, packages, tmp_path, package / "poetc-emit.json", measured[1]]
    done = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == measured[0]


def test_without_a_compiler_the_folder_says_how_to_build(
    solved: tuple[Path, Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    words = ("emit", solved[0], "--target", "cortex-a", "--board", "aarch64", "--package", "-o", tmp_path / "p")
    ended = run(*words, "--json")
    assert ended.code == 0
    assert ended.json["library"] is None
    assert any("libmodel.so is not built; run `make` in" in note for note in ended.json["notes"])
    assert {p.name for p in (tmp_path / "p").iterdir()} >= {"__init__.py", "session.py", "Makefile", "model.h"}


def test_a_target_without_python_has_no_package(solved: tuple[Path, Ended], tmp_path: Path) -> None:
    ended = run("emit", solved[0], "--target", "cortex-m7", "--package", "-o", tmp_path / "p")
    assert ended.code == 2
    assert "--package is for a target with Python, cortex-a or host, not cortex-m7" in ended.err
    assert not (tmp_path / "p").exists()
