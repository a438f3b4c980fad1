"""Losses of `poetc train` beside PyTorch's on the same batches: `make bench-training`.

Both train from the same weights, in the same order, for 200 steps. PyTorch does so in 32 and in 64 bits: the difference
of these two says how far apart two right computations come. A third run in 64 bits starts from weights that differ in
their last place. Its difference is that of the training alone, without rounding.
"""

from __future__ import annotations

import csv
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from bench._command import Rows, main
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.train import TrainRequest, train
from poetc.loop import EpochRow
from poetc.scheduling import SolveOptions
from poetc.training import TrainingOptions

HERE = Path(__file__).resolve().parent
DIGITS = HERE.parent / "demo" / "digits_first_writers.npz"
TEXT = HERE.parent / "LICENSE"
STEPS, BATCH, CONTEXT = 200, 16, 32


@dataclass(frozen=True, slots=True)
class Case:
    network: str
    optimizer: str
    rate: float
    schedule: str
    clip_norm: float | None = None  # of all gradients together


CASES = (
    Case("lenet", "sgd", 0.05, "constant"),
    Case("lenet", "adam", 0.001, "cosine"),
    Case("ds_cnn", "adam", 0.002, "cosine"),
    Case("resnet8", "sgd", 0.05, "cosine"),
    Case("resnet8", "momentum", 0.02, "constant"),
    Case("mobilenetv2_035", "sgd", 0.05, "cosine"),
    Case("mobilenetv2_035", "adam", 0.001, "constant"),
    Case("nanogpt", "sgd", 0.1, "cosine", clip_norm=1.0),
    Case("nanogpt", "adam", 0.001, "cosine", clip_norm=1.0),
    Case("gru", "sgd", 0.5, "constant"),
    Case("gru", "adam", 0.005, "cosine", clip_norm=0.5),
)
SHOWN = (1, 10, 50, 100, 200)


@dataclass(slots=True)
class Losses:
    """A Watcher that keeps the loss of every step."""

    found: list[float] = field(default_factory=list)

    def on_start(self, epochs: int, batches: int | None) -> None: ...

    def on_step(self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float) -> None:
        self.found.append(loss)

    def on_epoch(self, row: EpochRow, best: bool) -> None: ...

    def on_end(self) -> None: ...


def batches(network: str) -> tuple[np.ndarray, np.ndarray]:
    """Digits in the size that the network takes, or characters and those that follow: [steps, batch, ...]."""
    random = np.random.default_rng(0)
    if network == "nanogpt":
        text = np.frombuffer(TEXT.read_bytes(), np.uint8).astype(np.int64)
        windows = random.integers(0, len(text) - CONTEXT, (STEPS, BATCH, 1)) + np.arange(CONTEXT)
        return text[windows], text[windows + 1].astype(np.int32)
    data = np.load(DIGITS)
    order = random.integers(0, len(data["train_y"]), STEPS * BATCH)
    images = data["train_x"][order].astype(np.float32) / 255
    if network != "gru":  # which reads rows of 8 pixels
        side, channels = (3, 1) if network in ("lenet", "ds_cnn") else (4, 3)
        margin = 2 if side == 3 else 0
        images = np.kron(images, np.ones((1, side, side), np.float32))[:, None]
        images = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
        images = np.repeat(images, channels, axis=1)
    labels = data["train_y"][order].astype(np.int32)
    return images.reshape(STEPS, BATCH, *images.shape[1:]), labels.reshape(STEPS, BATCH)


def compare(torch: str, folder: Path, case: Case) -> list[str]:
    """Largest relative differences up to some steps: PyTorch's 32 bits, and poetc, from PyTorch's 64 bits."""
    name = case.network
    model, given, theirs = folder / f"{name}.onnx", folder / "batches.npz", folder / "losses.npz"
    x, target = batches(name)
    settings = {"optimizer": case.optimizer, "rate": case.rate, "schedule": case.schedule}
    np.savez(given, x=x, target=target, clip_norm=case.clip_norm or 0.0, **settings)
    peer = HERE / "peer_training.py"
    subprocess.run([torch, peer, "export", name, model], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([torch, peer, "run", name, given, theirs], check=True)
    data = folder / "data.npz"
    np.savez(data, x=x.reshape(-1, *x.shape[2:]), target=target.reshape(-1, *target.shape[2:]))
    options = TrainingOptions(optimizer=case.optimizer, learning_rate=case.rate, clip_norm=case.clip_norm)
    request = TrainRequest(
        source=SolveRequest(
            model=ModelRequest(source=model, batch=BATCH, training=options),
            budget="80%",
            options=SolveOptions(time_limit_s=10.0, gap=0.05),
        ),
        data=str(data),
        out=folder / "trained.onnx",
        epochs=1,
        shuffle=False,
        schedule=case.schedule,
        force=True,
    )
    mine = Losses()
    document = train(request, mine)
    assert document is not None
    reference = np.load(theirs)
    found = np.array(mine.found)

    def error(losses: np.ndarray, steps: int) -> str:
        return f"{np.max(np.abs(losses[:steps] / reference['f64'][:steps] - 1)):.1e}"

    equal = document["peak_measured_bytes"] == document["peak_predicted_bytes"]
    clip = "" if case.clip_norm is None else f"{case.clip_norm:g}"
    first, last = reference["f64"][[0, -1]]
    return [
        *(name, case.optimizer, case.schedule, clip, f"{first:.4f}", f"{last:.4f}"),
        *(error(reference["f64_moved"], n) for n in SHOWN),
        *(error(reference["f32"], n) for n in SHOWN),
        *(error(found, n) for n in SHOWN),
        *(f"{document['step_ms']:.2f}", f"{document['peak_predicted_bytes']}", "yes" if equal else "NO"),
    ]


def table(
    *,
    torch: Annotated[str, "a Python that has PyTorch"],
    folder: Path = Path("build/bench-training"),
    networks: Annotated[tuple[str, ...], "only these"] = (),
) -> Rows:
    folder.mkdir(parents=True, exist_ok=True)
    heads = ["network", "optimizer", "schedule", "clip norm", "first loss", "last loss"]
    heads += [f"{engine}, step {n}" for engine in ("64 bits, moved", "PyTorch f32", "poetc") for n in SHOWN]
    rows = [[*heads, "ms a step", "peak bytes", "peak measured is the same"]]
    yield rows[0]
    for case in CASES:
        if networks and case.network not in networks:
            continue
        rows.append(compare(torch, folder, case))
        yield rows[-1]
        with (folder / "losses.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)


if __name__ == "__main__":
    main(table)
