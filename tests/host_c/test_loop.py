"""The loop of the emitted program: epochs, evaluation, the best state, the learning rate; and all of it resumed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from poetc.emit import emit
from poetc.errors import UsageError
from poetc.measure import HostModel, compile_library
from poetc.program import Program, lower_inference, read_state, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions, build, evaluation
from poetc.training.rates import Schedule, parse
from tests.program.models import Case, make_problem, mlp, training_case

RECORDS, EPOCHS = 3, 4
SCHEDULE = "cosine:warmup=2,final=0.001"


@pytest.fixture(scope="module")
def case() -> Case:
    return training_case()


@pytest.fixture(scope="module")
def programs(case: Case) -> list[Program]:
    training, forward = case.program(), evaluation(mlp(), case.graph)
    problem = make_problem(forward)
    schedule = keep_all(problem)
    return [training, lower_inference(forward, problem, schedule, pack(problem, schedule), training, name="evaluate")]


def records(program: Program, seeds: range) -> bytes:
    return b"".join(batch[n].tobytes() for s in seeds for batch in [sample_inputs(program, s)] for n in ("x", "target"))


@pytest.fixture(scope="module")
def built(case: Case, programs: list[Program], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("loop") / "src"
    emit(programs, case.graph.values, model="m", target="host", out_dir=out, schedule=parse(SCHEDULE))
    flags = "CFLAGS=-O1 -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
    subprocess.run(["make", "-s", "-C", out, "CC=gcc", flags, "train"], check=True)
    (out / "data.bin").write_bytes(records(programs[0], range(RECORDS)))
    (out / "validation.bin").write_bytes(records(programs[0], range(50, 52)))
    return out


def train(built: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["./train", *words], cwd=built, capture_output=True, text=True, check=False)


def test_epochs_are_evaluated_and_the_best_state_is_kept(
    case: Case, programs: list[Program], built: Path, tmp_path: Path
) -> None:
    """The same numbers as a loop in Python gives, with the rates of poetc.training.rates."""
    training, evaluate = programs
    schedule, values = parse(SCHEDULE).over(EPOCHS * RECORDS), case.graph.values
    expected, best, kept = [], np.inf, {}
    with HostModel(compile_library(programs, values, tmp_path, model="m"), programs, values, model="m") as model:
        for epoch in range(EPOCHS):
            losses = []
            for k in range(RECORDS):
                rate = schedule.rate(0.05, epoch * RECORDS + k)
                model.set_state("learning_rate", np.array([rate], np.float32))
                losses.append(model.run(sample_inputs(training, k)))
            state = {name: model.state(name).tobytes() for name in model.state_names()}
            model.select(evaluate)
            validation, hits = [], []
            for seed in (50, 51):
                batch = sample_inputs(training, seed)
                validation.append(model.run(batch))
                hits.append((model.output("logits").argmax(axis=1) == batch["target"]).mean())
            model.select(training)
            loss = np.float32(np.mean(validation))
            expected.append((np.mean(losses), loss, np.mean(hits), loss < best))
            if loss < best:
                best, kept = loss, state
    done = train(built, "-e", str(EPOCHS), "-v", "validation.bin", "-o", "best.bin", "data.bin")
    assert done.returncode == 0, done.stderr
    number = r"([\d.e+-]+)"
    line = rf"epoch (\d+) loss {number} validation_loss {number} validation_accuracy {number}( best)?$"
    found = re.findall(line, done.stdout, re.MULTILINE)
    assert [int(epoch) for epoch, *_ in found] == list(range(1, EPOCHS + 1))
    for (_, *numbers, word), (*reference, is_best) in zip(found, expected, strict=True):
        np.testing.assert_allclose([float(n) for n in numbers], reference, rtol=1e-5)
        assert (word == " best") == is_best
    trained = read_state((built / "best.bin").read_bytes(), training, "best.bin")
    assert {name: array.tobytes() for name, array in trained.items()} == kept


def test_a_run_in_pieces_is_the_run_in_one(built: Path) -> None:
    """Killed in the middle of an epoch, and about its end; the best loss, the rates and the records go on."""
    words = ("-c", "-v", "validation.bin", "-e", str(EPOCHS), "-o", "best.bin", "data.bin")
    outcomes = []
    for stops in ((), (4,), (3, 7)):
        for name in ("store.bin", "best.bin"):
            (built / name).unlink(missing_ok=True)
        for stop in stops:
            stopped(built, words, stop)
        done = train(built, *words)
        assert done.returncode == 0, done.stderr
        assert ("resumed step 0" in done.stdout) == (not stops)
        last = done.stdout.splitlines()[-1].partition(" validation_loss")[2]  # the mean of losses is of this run's
        outcomes.append(((built / "best.bin").read_bytes(), last))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    again = train(built, *words)
    assert again.returncode == 0
    assert again.stdout == f"resumed step {EPOCHS * RECORDS}\n"
    other = train(built, *("other.bin" if word == "best.bin" else word for word in words))
    assert other.returncode == 1
    assert "the best state so far was written to another file" in other.stderr and "other.bin" in other.stderr


def stopped(built: Path, words: tuple[str, ...], step: int) -> None:
    """Kill the run when it has printed `step`."""
    with subprocess.Popen(["./train", *words], cwd=built, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(f"step {step} "):
                process.kill()
                break


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("-e", "0", "data.bin"), 2, "EPOCHS is no whole number above 0: 0"),
        (("-e", "2", "data.bin", "7"), 2, "give STEPS or -e EPOCHS, not both"),
        (("-x", "data.bin"), 2, "usage: train"),
        (("-e",), 2, "usage: train"),
        (("-v", "none.bin", "data.bin"), 1, "cannot read: none.bin"),
        ((".",), 1, "cannot read: ."),
        (("-o", "absent/state.bin", "data.bin"), 1, "cannot write: absent/state.bin"),
        (("-o", ".", "data.bin"), 1, "cannot write: ."),
        (("-v", "short.bin", "data.bin"), 1, "short.bin: 50 bytes, no whole number of records of 112"),
        (("-v", "wrong.bin", "data.bin"), 1, "wrong.bin: record 2: target[0] is 9, not 0 to 2"),
    ],
)
def test_wrong_calls_and_data_are_named(built: Path, words: tuple[str, ...], code: int, message: str) -> None:
    good = (built / "validation.bin").read_bytes()
    (built / "short.bin").write_bytes(good[:50])
    (built / "wrong.bin").write_bytes(good[:-16] + np.array([9, 0, 0, 0], np.int32).tobytes())
    done = train(built, *words)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "step" not in done.stdout or not message.startswith("cannot")  # before the training


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("cosine", "cortex-m3", "give the number of steps too, as in cosine:steps=2000"),
        ("plateau", "cortex-m3", "the program of cortex-m3 has no validation losses"),
    ],
)
def test_a_board_is_refused_a_schedule_that_it_cannot_follow(
    case: Case, programs: list[Program], tmp_path: Path, text: str, target: str, message: str
) -> None:
    schedule: Schedule = parse(text)
    with pytest.raises(UsageError, match=message):
        emit(programs, case.graph.values, model="m", target=target, out_dir=tmp_path / "o", schedule=schedule)
    assert not (tmp_path / "o").exists()


def test_the_program_of_boards_follows_the_schedule(case: Case, programs: list[Program], tmp_path: Path) -> None:
    """Its losses are those of the host's program."""
    found = []
    for target, words in (("host", ["data.bin"]), ("cortex-a", [])):
        out = tmp_path / target
        schedule = parse("step:every=1,factor=0.5")
        emit(programs[:1], case.graph.values, model="m", target=target, out_dir=out, schedule=schedule)
        subprocess.run(["make", "-s", "-C", out, "CC=gcc", "CFLAGS=-O1", "train"], check=True)
        (out / "data.bin").write_bytes(records(programs[0], range(RECORDS)))
        done = subprocess.run(["./train", *words], cwd=out, capture_output=True, text=True, check=True)
        found.append([np.float32(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout + done.stderr)])
    assert len(found[0]) == RECORDS
    np.testing.assert_allclose(found[0], found[1], atol=2e-6)


def test_rates_count_updates_where_gradients_are_accumulated(tmp_path: Path) -> None:
    """The losses are those of the trainer's rates, as poetc.loop has them: one for each update."""
    every, values_of_rate = 2, "cosine:warmup=1,final=0.001"
    graph = build(mlp(), TrainingOptions(optimizer="sgd", learning_rate=0.5, accumulate=every))
    program = Case(graph, make_problem(graph)).program()
    out = tmp_path / "src"
    emit([program], graph.values, model="m", target="host", out_dir=out, schedule=parse(values_of_rate))
    subprocess.run(["make", "-s", "-C", out, "CC=gcc", "CFLAGS=-O1", "train"], check=True)
    (out / "data.bin").write_bytes(records(program, range(RECORDS)))
    said = train(out, "-e", str(EPOCHS), "-o", "trained.bin", "data.bin").stdout
    schedule, rates, expected = parse(values_of_rate).over(EPOCHS * RECORDS // every), [], []
    library = compile_library([program], graph.values, tmp_path / "library", model="m")
    with HostModel(library, [program], graph.values, model="m") as model:
        for step in range(EPOCHS * RECORDS):
            rates.append(np.float32(schedule.rate(0.5, step // every)))
            model.set_state("learning_rate", np.array([rates[-1]], np.float32))
            expected.append(np.float32(model.run(sample_inputs(program, step % RECORDS))))
    assert len(set(rates)) == EPOCHS * RECORDS // every
    assert [np.float32(loss) for loss in re.findall(r"^step \d+ loss (\S+)", said, re.M)] == expected
    trained = read_state((out / "trained.bin").read_bytes(), program, "trained.bin")
    assert trained["learning_rate"] == rates[-1]


def test_a_file_that_has_grown_goes_on_with_its_new_records(built: Path, programs: list[Program]) -> None:
    """And other data are an epoch of their own."""
    (built / "store.bin").unlink(missing_ok=True)
    words = ("-c", "-v", "validation.bin", "grown.bin")
    for seeds, steps in ((range(3), [1, 2, 3]), (range(5), [4, 5]), (range(20, 22), [6, 7]), (range(20, 22), [])):
        (built / "grown.bin").write_bytes(records(programs[0], seeds))
        done = train(built, *words)
        assert done.returncode == 0 and [int(n) for n in re.findall(r"^step (\d+)", done.stdout, re.M)] == steps
        assert re.findall(r"^epoch (\d+)", done.stdout, re.M) == ["1"] * bool(steps)
