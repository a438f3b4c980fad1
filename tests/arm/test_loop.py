"""Boards run the loop of the host's program: the same losses, hits, best epoch and bytes of trained.bin."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from poetc import measure
from poetc.boards import BOARDS
from poetc.emit import emit
from poetc.program import Program, lower_inference, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import evaluation
from poetc.training.rates import parse
from tests.program.models import Case, make_problem, mlp, training_case

EPOCHS, RECORDS = 4, 3
SCHEDULE = parse(f"cosine:warmup=2,final=0.001,steps={EPOCHS * RECORDS}")


@pytest.fixture(scope="module")
def case() -> Case:
    return training_case()


@pytest.fixture(scope="module")
def programs(case: Case) -> list[Program]:
    forward = evaluation(mlp(), case.graph)
    problem, training = make_problem(forward), case.program()
    schedule = keep_all(problem)
    return [training, lower_inference(forward, problem, schedule, pack(problem, schedule), training, name="evaluate")]


def write_data(folder: Path, program: Program, first: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    measure.write_records(folder / "data.bin", program, [sample_inputs(program, first + k) for k in range(RECORDS)])
    measure.write_records(folder / "validation.bin", program, [sample_inputs(program, 50 + k) for k in range(2)])


Row = tuple[bytes, int, bool]  # of an epoch: bits of the validation loss, hits, whether it is the best so far


@pytest.fixture(scope="module")
def on_host(case: Case, programs: list[Program], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Path]:
    folder = tmp_path_factory.mktemp("host") / "src"
    emit(programs, case.graph.values, model="m", target="host", out_dir=folder, schedule=SCHEDULE)
    subprocess.run(["make", "-s", "-C", folder, "CFLAGS=-O1", "train"], check=True)
    write_data(folder, programs[0])
    words = ["./train", "-e", str(EPOCHS), "-v", "validation.bin", "-o", "trained.bin", "data.bin"]
    said = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout
    samples = 2 * programs[0].target.operand.type.elements  # type: ignore[union-attr]
    rows = [
        (np.float32(loss).tobytes(), round(float(share) * samples), bool(best))
        for loss, share, best in re.findall(r"validation_loss (\S+) validation_accuracy (\S+)( best)?\n", said)
    ]
    return rows, folder / "trained.bin"


def rows_of(log: str) -> list[Row]:
    found = re.findall(r"validation_loss [\d.]+ bits (\w{8}) validation_hits (\d+) of \d+( best)?\n", log)
    return [(int(bits, 16).to_bytes(4, "little"), int(hits), bool(best)) for bits, hits, best in found]


def log_of(words: list[str], run: Path) -> str:
    """An emulated board logs to stderr, a program of Linux to stdout."""
    done = subprocess.run(words, cwd=run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("board", ["aarch64", "mps2-an500", pytest.param("virt-a72", marks=pytest.mark.long)])
def test_a_board_trains_as_the_host_does(
    case: Case,
    programs: list[Program],
    on_host: tuple[list[Row], Path],
    board: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EPOCHS", str(EPOCHS))
    monkeypatch.setenv("VALIDATION", "1")
    target = BOARDS[board].target
    source = tmp_path / "src"
    emit(programs, case.graph.values, model="m", target=target, board=board, out_dir=source, schedule=SCHEDULE)
    firmware = measure.rebuild(BOARDS[board], programs[0], case.graph.values, tmp_path, checkpoint=1)
    run = firmware.run_directory
    write_data(run, programs[0])
    words = measure.emulator_command(firmware, tmp_path / "counts.txt")
    expected, trained = on_host
    done = log_of(words, run)
    assert len(expected) == EPOCHS and expected[0][2]
    assert rows_of(done) == expected
    assert (run / "trained.bin").read_bytes() == trained.read_bytes()

    assert f"resumed step {EPOCHS * RECORDS}\ndone" in log_of(words, run)

    measure.fresh_store(firmware, case.graph.values)  # stopped in the third epoch
    log = ""
    with subprocess.Popen(words, cwd=run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log += line
            if line.startswith("step 8 "):
                process.kill()
                break
    rest = log_of(words, run)
    assert re.search(r"resumed step ([789]|1[012])\n", rest), rest  # a busy machine kills it later
    assert rows_of(log + rest) == expected
    assert (run / "trained.bin").read_bytes() == trained.read_bytes()

    write_data(run, programs[0], first=20)
    fresh = log_of(words, run)
    assert "other data than before: from their first record\n" in fresh
    assert fresh.count("\nstep ") == EPOCHS * RECORDS
    assert len(rows_of(fresh)) == EPOCHS
