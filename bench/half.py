"""Floats of 16 bits beside those of 32: RAM, and the accuracy of a training.

    python -m bench.half ram DEVICE BATCH SECONDS MODEL...   keep-all's peak and the smallest RAM found, by precision
    python -m bench.half accuracy MODEL DATA.npz             arrays x [samples, h, w] of u8 and y; the last fifth tests

docs/results/half.md has the tables.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import poetc
from bench.saved import smallest_ram
from poetc.training import TrainingOptions

PRECISIONS = ("f32", "bf16", "f16")
SEEDS, EPOCHS, BATCH = (0, 1, 2), 4, 16


def ram(device: str, batch: int, seconds: float, models: list[Path]) -> None:
    """f16 needs as much as bf16."""
    for model in models:
        cells = [smallest_ram(model, device, batch, seconds, TrainingOptions(precision=p)) for p in PRECISIONS[:2]]
        numbers = (found[i] for i in (0, 1) for found in cells)
        print(f"| {model.stem}, {batch} | {' | '.join(f'{n:,}' for n in numbers)} |", flush=True)


def accuracy(model: Path, data: Path) -> None:
    with np.load(data) as arrays, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        x, y = arrays["x"][:, None].astype(np.float32) / arrays["x"].max(), arrays["y"].astype(np.int32)
        cut = len(x) * 4 // 5 // BATCH * BATCH
        for part, rows in (("train", slice(cut)), ("test", slice(cut, None))):
            np.savez(folder / f"{part}.npz", x=x[rows], y=y[rows])
        for precision in PRECISIONS:
            options = TrainingOptions(precision=precision, optimizer="momentum", learning_rate=0.01)
            found: list[float] = []
            for seed in SEEDS:
                result = poetc.train(
                    poetc.load(model, batch=BATCH, training=options),
                    data=f"{folder}/train.npz:x,y",
                    validation=f"{folder}/test.npz:x,y",
                    out=folder / "out.onnx",
                    epochs=EPOCHS,
                    seed=seed,
                    force=True,
                )
                found.append(100 * result["epochs"][-1]["validation_accuracy"])
            print(f"{precision:5} {np.mean(found):6.2f}  ({', '.join(f'{a:.2f}' for a in found)})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("ram")
    task.add_argument("device")
    task.add_argument("batch", type=int)
    task.add_argument("seconds", type=float)
    task.add_argument("models", type=Path, nargs="+")
    task = tasks.add_parser("accuracy")
    task.add_argument("model", type=Path)
    task.add_argument("data", type=Path)
    asked = parser.parse_args()
    if asked.task == "ram":
        ram(asked.device, asked.batch, asked.seconds, asked.models)
    else:
        accuracy(asked.model, asked.data)


if __name__ == "__main__":
    main()
