"""The loop on a small engine of numpy: best epoch, patience, averages, and going on after an interruption."""

from __future__ import annotations

import hashlib
import math
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from poetc.datasets import Augmentations, Batches, Evaluation, Normalization, Samples, Slot, open_source
from poetc.errors import CheckFailed, UsageError
from poetc.graph import Array, DType
from poetc.loop import Checkpoint, CheckpointStore, EpochRow, Loop, LoopOptions, Loss, Outcome, read_checkpoint
from poetc.loop.engine import Engine
from poetc.runtime.session import Session, SessionError
from poetc.training import rates

X = Slot(name="x", shape=(4, 3), dtype=DType.F32, is_target=False, sample_shape=(3,))
T = Slot(name="t", shape=(4, 1), dtype=DType.F32, is_target=True, sample_shape=(1,))
LOSS = Loss("MeanSquaredError", {}, "y", (4, 1), target="t")


class Linear:
    """y = x w, trained by momentum on the mean squared error."""

    def __init__(self) -> None:
        self.w = {"w": np.zeros((3, 1), np.float32), "w:velocity": np.zeros((3, 1), np.float32)}
        self.w["learning_rate"] = np.array([0.05], np.float32)
        self.rates: list[float] = []

    def step(self, batch: Mapping[str, Array]) -> float:
        w, v, rate = (self.w[n] for n in ("w", "w:velocity", "learning_rate"))
        self.rates.append(float(rate[0]))
        error = batch["x"] @ w - batch["t"]
        v[...] = np.float32(0.9) * v + batch["x"].T @ error / np.float32(2)
        w -= rate * v
        return float(np.square(error).mean())

    def hits(self) -> tuple[int, int]:
        return 0, 0

    def evaluate(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": batch["x"] @ self.w["w"]}

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        return {name: self.w[name].copy() for name in names}

    def write(self, state: Mapping[str, Array]) -> None:
        for name, array in state.items():
            self.w[name][...] = array

    def set_rate(self, rate: float) -> None:
        self.w["learning_rate"][...] = rate


class Quiet:
    def __init__(self) -> None:
        self.rows: list[EpochRow] = []
        self.steps = 0

    def on_start(self, epochs: int, batches: int | None) -> None: ...

    def on_step(self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float) -> None:
        self.steps += 1

    def on_epoch(self, row: EpochRow, best: bool) -> None:
        self.rows.append(row)

    def on_end(self) -> None: ...


OPTIONS = LoopOptions(epochs=4, learning_rate=0.05, schedule=rates.parse("cosine:warmup=3"), metrics=("mae",))


def _samples(seed: int, count: int = 22) -> Samples:
    x = np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)
    t = x @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    return Samples(where="d", columns={"x": x, "t": t}, called={"x": "x", "t": "t"})


def _loop(
    store: CheckpointStore | None, options: LoopOptions = OPTIONS, *, stop_after: float = math.inf, noisy: bool = False
) -> tuple[Loop, Linear, Quiet]:
    engine, watcher = Linear(), Quiet()
    source = _samples(0)
    if noisy:  # validation gets worse the more is learnt
        validation = replace(_samples(1), columns={**_samples(1).columns, "t": np.zeros((22, 1), np.float32)})
    else:
        validation = _samples(1)
    loop = Loop(
        engine,
        Batches(
            source=source,
            slots=(X, T),
            normalization=Normalization(),
            augmentation=Augmentations.parse("noise:0.01"),
            seed=3,
        ),
        Evaluation(source=validation, slots=(X, T), normalization=Normalization()),
        [LOSS],
        options,
        trained=["w"],
        kept=["w"],
        changed=["w", "w:velocity"],
        store=store,
        watcher=watcher,
        stopping=lambda: watcher.steps >= stop_after,
        identity={"--data": "d"},
    )
    return loop, engine, watcher


def _timeless(outcome: Outcome) -> list[EpochRow]:
    return [replace(row, seconds=0) for row in outcome.epochs]


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return one.keys() == other.keys() and all(one[n].tobytes() == other[n].tobytes() for n in one)


def _run(loop: Loop) -> Outcome:
    outcome = loop.run()
    assert outcome is not None
    return outcome


@pytest.mark.parametrize("schedule", ["cosine:warmup=3", "plateau:patience=0,threshold=0.9"])
@pytest.mark.parametrize("ema", [None, 0.8])
def test_a_training_that_was_stopped_ends_with_the_same_bits(tmp_path: Path, schedule: str, ema: float | None) -> None:
    options = replace(OPTIONS, schedule=rates.parse(schedule), ema=ema)
    uncut, engine, _ = _loop(None, options)
    whole = _run(uncut)
    for stop in range(1, 24, 5):
        store = CheckpointStore(tmp_path / f"{stop}")
        store.directory.mkdir()
        assert _loop(store, options, stop_after=stop)[0].run() is None
        loop, going_on, _ = _loop(store, options)
        checkpoint = store.load()
        assert checkpoint is not None
        assert checkpoint.progress["step"] == stop
        loop.restore(checkpoint)
        outcome = _run(loop)
        assert _same(outcome.state, whole.state)
        assert _same(going_on.w, engine.w)
        assert _timeless(outcome) == _timeless(whole)


@pytest.mark.parametrize("part", ["training", "validation"])
def test_data_that_are_cut_off_lose_nothing(tmp_path: Path, part: str) -> None:
    """A mapped file would end the process with SIGBUS."""
    source = _samples(0 if part == "training" else 1)
    path = tmp_path / "d.npz"
    np.savez(path, x=source.columns["x"], t=source.columns["t"])
    uncut, engine, _ = _loop(None)
    whole, content = _run(uncut), path.read_bytes()
    (store := CheckpointStore(tmp_path / "run")).directory.mkdir()

    def reading(stop: float) -> Loop:
        loop, _, watcher = _loop(store)
        samples = open_source(str(path), (X, T), str)
        assert isinstance(samples, Samples)
        if part == "training":
            loop.batches = replace(loop.batches, source=samples)
        else:
            assert loop.evaluation is not None
            loop.evaluation = replace(loop.evaluation, source=samples)

        def cut() -> bool:
            if watcher.steps == stop:
                path.write_bytes(content[: len(content) // 3])
            return False

        loop._stopping = cut
        return loop

    with pytest.raises(UsageError, match=r"d\.npz: was cut off or written to .* then --resume goes on after step"):
        reading(stop=8).run()
    path.write_bytes(content)
    checkpoint = store.load()
    assert checkpoint is not None and checkpoint.progress["step"] >= 8
    loop = reading(stop=math.inf)
    loop.restore(checkpoint)
    outcome = _run(loop)
    assert _timeless(outcome) == _timeless(whole) and _same(loop.engine.read(list(engine.w)), engine.w)


def test_schedule_and_average_count_updates() -> None:
    options = replace(OPTIONS, epochs=2, accumulate=3, ema=0.5, schedule=rates.parse("step:every=1,factor=0.5"))
    loop, engine, _ = _loop(None, options)
    seen: list[np.float32] = []
    step = engine.step

    def recording(batch: Mapping[str, Array]) -> float:
        loss = step(batch)
        seen.append(engine.w["w"].copy())
        return loss

    engine.step = recording  # type: ignore[method-assign]
    outcome = _run(loop)
    steps = len(engine.rates)
    assert engine.rates == [float(np.float32(0.05 * 0.5 ** (k // 3))) for k in range(steps)]
    average = np.zeros((3, 1), np.float32)
    for weights in seen[2::3]:
        average += np.float32(0.5) * (weights - average)
    assert outcome.best_epoch == 2
    assert outcome.state["w"].tobytes() == average.tobytes()
    cosine = _loop(None, replace(options, schedule=rates.parse("cosine")))
    _run(cosine[0])
    updates = [rates.parse(f"cosine:steps={steps // 3}").rate(0.05, k // 3) for k in range(steps)]
    assert cosine[1].rates == [float(rate) for rate in updates]


def test_the_best_epoch_is_kept_and_patience_ends_the_training() -> None:
    options = replace(OPTIONS, epochs=30, patience=2, schedule=rates.parse("constant"))
    loop, engine, watcher = _loop(None, options, noisy=True)
    outcome = _run(loop)
    losses = [row.validation_loss for row in outcome.epochs]
    assert outcome.best_epoch == 1 + int(np.argmin(losses))  # type: ignore[arg-type]
    assert outcome.stopped_early
    assert len(losses) == outcome.best_epoch + 2
    assert not _same(outcome.state, engine.read(["w"]))
    assert watcher.rows == list(outcome.epochs)


def test_rates_follow_the_schedule_over_all_steps() -> None:
    loop, engine, _ = _loop(None)
    outcome = _run(loop)
    schedule = OPTIONS.schedule.over(24)
    assert engine.rates == [float(schedule.rate(0.05, step)) for step in range(24)]
    assert outcome.epochs[-1].rate == engine.rates[-1]


def test_an_average_of_the_weights_is_evaluated_and_exported() -> None:
    options = replace(OPTIONS, ema=0.5, epochs=1, schedule=rates.parse("constant"))
    loop, engine, _ = _loop(None, options)
    seen: list[Array] = []
    step = engine.step
    engine.step = lambda batch: (step(batch), seen.append(engine.w["w"].copy()))[0]  # type: ignore[method-assign]
    outcome = _run(loop)
    expected = np.zeros((3, 1))
    for weights in seen:
        expected = 0.5 * expected + 0.5 * weights
    np.testing.assert_allclose(outcome.state["w"], expected, rtol=1e-5)
    assert _same(engine.read(["w"]), {"w": seen[-1]})
    validation = _samples(1).columns
    error = np.asarray(validation["x"][:]) @ expected - validation["t"][:]
    assert outcome.epochs[0].validation_loss == pytest.approx(float(np.square(error).mean()), rel=1e-5)
    assert outcome.epochs[0].validation["mae"] == pytest.approx(float(np.abs(error).mean()), rel=1e-5)


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    options = replace(OPTIONS, learning_rate=1e30, schedule=rates.parse("constant"), epochs=20)
    with pytest.raises(CheckFailed, match=r"epoch 1, step \d+: the loss is .*lower --lr"), np.errstate(all="ignore"):
        _loop(None, options)[0].run()


def _checkpoint(number: int, size: int = 10) -> Checkpoint:
    return Checkpoint({"number": number, "step": number}, {"state": {"w": np.full(size, number, np.float32)}})


def test_the_newer_checkpoint_counts_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.load() is None
    for number in (1, 2, 3):
        store.save(_checkpoint(number))
        found = store.load()
        assert found is not None
        assert found.progress["number"] == number
        assert (found.arrays["state"]["w"] == number).all()
    assert len(list(tmp_path.iterdir())) == 2
    newest = tmp_path / "checkpoint.a"  # 1, then 3
    data = bytearray(newest.read_bytes())
    data[-40] ^= 1
    newest.write_bytes(data)
    found = store.load()
    assert found is not None
    assert found.progress["number"] == 2
    (tmp_path / "checkpoint.b").write_bytes(b"poetc ck")
    with pytest.raises(UsageError, match="its checkpoints are damaged"):
        store.load()


@pytest.mark.parametrize(
    "header",
    [
        b'{"progress": {}, "arrays": []\xa4}',
        b'{"progress": 1, "arrays": []}',
        b'{"progress": {}, "arrays": [{"group": "state", "name": "w", "type": "<f4", "shape": [-1]}]}',
        b'{"progress": {}, "arrays": [{"group": "state", "name": "w", "type": "<f4", "shape": [99]}]}',
        b'{"progress": {}, "arrays": [{"group": "state", "name": "w", "type": "O", "shape": [1]}]}',
        b'{"progress": {}, "arrays": [{"group": "state", "name": "w", "type": "?!", "shape": [1]}]}',
        b'{"progress": {}, "arrays": [{"group": "state", "name": "w", "type": "f4,(", "shape": [1]}]}',
    ],
)
def test_a_digest_that_fits_a_damaged_header(header: bytes, tmp_path: Path) -> None:
    body = b"poetc ck" + len(header).to_bytes(8, "little") + header + bytes(64)
    (tmp_path / "damaged").write_bytes(body + hashlib.sha256(body).digest())
    assert read_checkpoint(tmp_path / "damaged") is None


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(_checkpoint(1))
    store.save(_checkpoint(2))
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(UsageError, match="file too large; the last good checkpoint is kept"):
            store.save(_checkpoint(3, 10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    found = store.load()
    assert found is not None
    assert found.progress["number"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.a", "checkpoint.b"]


def test_a_step_that_fails_while_its_memory_is_measured_ends_in_one_line() -> None:
    """Its exponent may be beyond what integers have, before the first step of the loop."""

    class Failing:
        programs = ("train", "evaluate")

        def count_hits(self, scores: object) -> None: ...

        def inputs(self, program: str) -> dict[str, object]:
            return {}

        def measure_peak(self, batch: object) -> int:
            raise SessionError("step 1: an exponent beyond 100", -75)

    with pytest.raises(CheckFailed, match="step 1: an exponent beyond 100"):
        Engine(cast(Session, Failing())).measure_peak({})
