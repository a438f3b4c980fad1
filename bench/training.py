"""Losses of `poetc train` beside PyTorch's on the same batches: `make bench-training`.

Both train from the same weights, in the same order, for 200 steps. PyTorch does so in 32 and in 64 bits: the difference
of these two says how far apart two right computations come. A step is one sample of the data file, so that the order
is the file's.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.train import TrainRequest, train
from poetc.loop import EpochRow
from poetc.scheduling import SolveOptions
from poetc.training import TrainingOptions

HERE = Path(__file__).resolve().parent
DIGITS = HERE.parent / "demo" / "digits_first_writers.npz"
STEPS, BATCH = 200, 16
CASES = (
    ("lenet", "sgd", 0.05, "constant"),
    ("lenet", "adam", 0.001, "cosine"),
    ("ds_cnn", "adam", 0.002, "cosine"),
    ("resnet8", "sgd", 0.05, "cosine"),
    ("resnet8", "momentum", 0.02, "constant"),
)
SHOWN = (1, 10, 50, 100, 200)


@dataclass(slots=True)
class Losses:
    """A Watcher that keeps the loss of every step."""

    found: list[float] = field(default_factory=list)

    def on_start(self, epochs: int, batches: int | None) -> None: ...

    def on_step(self, epoch: int, batch: int, loss: float, mean: float) -> None:
        self.found.append(loss)

    def on_epoch(self, row: EpochRow, best: bool) -> None: ...

    def on_end(self) -> None: ...


def batches(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Digits in the size that the network takes: [steps, batch, ...]."""
    data = np.load(DIGITS)
    order = np.random.default_rng(0).integers(0, len(data["train_y"]), STEPS * BATCH)
    pixels = data["train_x"][order].astype(np.float32) / 255
    side, channels = (4, 3) if name == "resnet8" else (3, 1)
    images = np.kron(pixels, np.ones((1, side, side), np.float32))[:, None]
    margin = (28 - 24) // 2 if side == 3 else 0
    images = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    images = np.repeat(images, channels, axis=1)
    labels = data["train_y"][order].astype(np.int32)
    return images.reshape(STEPS, BATCH, *images.shape[1:]), labels.reshape(STEPS, BATCH)


def compare(torch: str, folder: Path, name: str, optimizer: str, rate: float, schedule: str) -> list[str]:
    """Largest relative differences up to some steps: PyTorch's 32 bits, and poetc, from PyTorch's 64 bits."""
    model, given, theirs = folder / f"{name}.onnx", folder / "batches.npz", folder / "losses.npz"
    x, target = batches(name)
    np.savez(given, x=x, target=target, optimizer=optimizer, rate=rate, schedule=schedule)
    peer = HERE / "peer_training.py"
    subprocess.run([torch, peer, "export", name, model], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([torch, peer, "run", name, given, theirs], check=True)
    data = folder / "data.npz"
    np.savez(data, x=x.reshape(-1, *x.shape[2:]), target=target.reshape(-1))
    options = TrainingOptions(optimizer=optimizer, learning_rate=rate)
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
        schedule=schedule,
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
    return [
        *(name, optimizer, schedule, f"{reference['f64'][0]:.4f}", f"{reference['f64'][-1]:.4f}"),
        *(error(reference["f32"], n) for n in SHOWN),
        *(error(found, n) for n in SHOWN),
        *(f"{document['step_ms']:.2f}", f"{document['peak_predicted_bytes']}", "yes" if equal else "NO"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", required=True, help="a Python that has PyTorch")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-training"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    heads = ["network", "optimizer", "schedule", "first loss", "last loss"]
    heads += [f"PyTorch f32, step {n}" for n in SHOWN] + [f"poetc, step {n}" for n in SHOWN]
    heads += ["ms a step", "peak bytes", "peak measured is the same"]
    rows = [heads]
    for case in CASES:
        rows.append(compare(arguments.torch, arguments.folder, *case))
        print("  ".join(rows[-1]), flush=True)
        with (arguments.folder / "losses.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)


if __name__ == "__main__":
    main()
