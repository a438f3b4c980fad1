"""The plan of an emitted program follows the memory of a control group, here one of plain files, with the same bits."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

import poetc
from poetc.commands.programs import switches_of
from poetc.commands.trainer import trainer
from poetc.program import Program, all_inputs, sample_inputs
from poetc.runtime.session import SessionError
from tests.cli.conftest import MODEL

pytestmark = pytest.mark.long

STEPS = 5
MANY = 1 << 30  # bytes
LOOKED = 0.15  # seconds: a look is due


class Group:
    """The files of a control group: no limit, nothing stalls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "memory.stat").write_text("anon 1\ninactive_file 4096\n")
        self.write("memory.current", str(MANY + 4096))
        self.write("memory.high", "max")
        self.stall(0)

    def write(self, name: str, text: str) -> None:
        (self.path / f"{name}.new").write_text(f"{text}\n")
        (self.path / f"{name}.new").replace(self.path / name)

    def stall(self, total_us: int) -> None:
        self.write("memory.pressure", f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\nfull total=0")


@pytest.fixture(scope="module")
def solution() -> poetc.Solution:
    return poetc.load(MODEL, batch=4).bundle(device="host", budgets=("100%", "62%"), gap=0.1, time_limit_s=6)


@pytest.fixture(scope="module")
def plans(solution: poetc.Solution) -> tuple[Program, ...]:
    found = switches_of(solution.artifact)[0].programs
    assert len(found) == 2 and found[0].arena_bytes > found[1].arena_bytes
    return found


def records(main: Program) -> list[bytes]:
    batches = (sample_inputs(main, seed) for seed in range(STEPS))
    return [b"".join(batch[b.name].tobytes() for b in all_inputs(main)) for batch in batches]


@pytest.fixture(scope="module")
def built(solution: poetc.Solution, plans: tuple[Program, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pressure") / "src"
    solution.emit(out, target="host")
    flags = "CFLAGS=-O1 -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
    subprocess.run(["make", "-s", "-C", out, "CC=gcc", flags, "train"], check=True)
    (out / "data.bin").write_bytes(b"".join(records(plans[0])))
    return out


def train(built: Path, group: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "POETC_CGROUP": str(group)}
    return subprocess.run(["./train", *words], cwd=built, capture_output=True, text=True, env=environment, check=False)


def losses(said: str) -> list[str]:
    return re.findall(r"^step \d+ loss (\S+)", said, re.M)


def test_the_plan_follows_limit_and_stalls_in_mid_step(plans: tuple[Program, ...], built: Path, tmp_path: Path) -> None:
    most, least = (program.arena_bytes for program in plans)
    alone = train(built, tmp_path, "data.bin", str(STEPS), "alone.bin")
    assert alone.returncode == 0, alone.stderr
    group, fifo = Group(tmp_path / "group"), tmp_path / "fifo"
    os.mkfifo(fifo)
    words = ["./train", "-m", "-r", "-o", "followed.bin", str(fifo)]
    environment = {**os.environ, "POETC_CGROUP": str(group.path)}
    with subprocess.Popen(
        words, cwd=built, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        said: list[str] = []
        assert process.stdout is not None
        with fifo.open("wb", buffering=0) as data:
            for number, record in enumerate(records(plans[0]), 1):
                match number:
                    case 2:
                        group.write("memory.high", str(MANY - 1))  # one byte too much is in use
                    case 3:
                        group.write("memory.high", str(MANY + most))
                    case 4:
                        group.stall(1 << 50)
                time.sleep(LOOKED)
                data.write(record)
                while not said or not said[-1].startswith(f"step {number} "):
                    said.append(process.stdout.readline())
                    assert said[-1], said
        said += process.stdout.readlines()
    assert process.returncode == 0
    text = "".join(said)
    assert re.findall(r"arena (\d+) bytes in step (\d+)", text) == [
        (str(least), "2"),
        (str(most), "3"),
        (str(least), "4"),
    ]
    assert losses(text) == losses(alone.stdout)
    assert (built / "followed.bin").read_bytes() == (built / "alone.bin").read_bytes()


def test_a_limit_below_the_smallest_plan_takes_that_one(
    plans: tuple[Program, ...], built: Path, tmp_path: Path
) -> None:
    group = Group(tmp_path / "group")
    group.write("memory.high", "1")
    done = train(built, group.path, "-m", "data.bin", str(STEPS))
    assert done.returncode == 0, done.stderr
    found = re.findall(r"arena (\d+) bytes in step (\d+)", done.stdout)
    assert found == [(str(plans[-1].arena_bytes), "1")]


def test_no_control_group_is_one_line(built: Path, tmp_path: Path) -> None:
    done = train(built, tmp_path / "none", "-m", "data.bin")
    assert (done.returncode, done.stderr) == (1, f"-m: it tells nothing of memory: {tmp_path / 'none'}\n")


def test_a_session_follows(solution: poetc.Solution, plans: tuple[Program, ...], tmp_path: Path) -> None:
    """As `poetc train --elastic` does."""
    group, found = Group(tmp_path / "group"), {}
    for follows in (False, True):
        with trainer(solution.artifact, elastic=follows) as session:
            if follows:
                session.follow_memory(group.path)
                group.write("memory.high", str(MANY - 1))
            losses = []
            for seed in range(STEPS):
                time.sleep(LOOKED * follows)
                losses.append(session.step(sample_inputs(plans[0], seed)))
            found[follows] = losses, session.state_dict()
            if follows:
                assert session.arena_in_use_bytes == plans[-1].arena_bytes
            else:
                with pytest.raises(SessionError, match="the model has one plan"):
                    session.follow_memory(group.path)
    assert found[True][0] == found[False][0]
    assert all(found[True][1][n].tobytes() == a.tobytes() for n, a in found[False][1].items())


def test_the_program_of_linux_boards_follows(
    solution: poetc.Solution, plans: tuple[Program, ...], built: Path, tmp_path: Path
) -> None:
    group, out = Group(tmp_path / "group"), tmp_path / "src"
    group.write("memory.high", "1")
    solution.emit(out, target="cortex-a", board="aarch64")
    subprocess.run(["make", "-s", "-C", out, "ELASTIC=1", "CC=gcc", "CFLAGS=-O1 -Werror", "train"], check=True)
    (out / "data.bin").write_bytes((built / "data.bin").read_bytes())
    done = train(out, group.path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"arena {plans[-1].arena_bytes} bytes in step 1\n" in done.stdout
    assert train(built, group.path, "data.bin", str(STEPS), "alone.bin").returncode == 0
    assert (out / "trained.bin").read_bytes() == (built / "alone.bin").read_bytes()
