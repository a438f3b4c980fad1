"""Algorithms of mixed precision beside floats: accuracy on the digits of the demonstration, from new weights.

    python -m bench.few_bits [ROW ...]

Each row is trained with three seeds of weights and order. docs/results/few-bits.md has the table. `fp8` takes nine
tenths of the time.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import poetc
from poetc.training import TrainingOptions

DEMO = Path(__file__).resolve().parents[1] / "demo"
SEEDS, EPOCHS, BATCH = (0, 1, 2), 6, 16
ROWS: dict[str, dict[str, Any]] = {
    "f32": {},
    "niti": {"learning_rate": 0.125, "niti_weights": "xavier"},
    "octo": {},
    "afp": {},
    "wageubn": {"learning_rate": 0.25},
    "mls": {},
    "fp8": {},
}
SCHEDULES = {"niti": "step:every={third},factor=0.5"}
RATE = 0.05


def new_weights(path: Path, seed: int) -> None:
    """The digits network with normal weights after He et al. (2015); its norms begin as new ones."""
    model, random = onnx.load(str(DEMO / "digits.onnx")), np.random.default_rng(seed)
    norms = {
        name: k
        for node in model.graph.node
        if node.op_type == "BatchNormalization"
        for k, name in enumerate(node.input)
    }
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype != np.float32:
            continue
        if value.ndim > 1:
            fan_in = value[0].size if value.ndim == 4 else max(value.shape)
            new = random.standard_normal(value.shape) * np.sqrt(2 / fan_in)
        else:
            new = np.ones(value.shape) if norms.get(tensor.name) in (1, 4) else np.zeros(value.shape)
        tensor.CopyFrom(numpy_helper.from_array(new.astype(np.float32), tensor.name))
    onnx.save(model, str(path))


def digits(folder: Path) -> int:
    """Write train.npz and test.npz; returns the samples to train on."""
    with np.load(DEMO / "digits_first_writers.npz") as first, np.load(DEMO / "digits_new_writer.npz") as new:
        parts = {
            "train": ([first["train_x"], new["train_x"]], [first["train_y"], new["train_y"]]),
            "test": ([new["test_x"]], [new["test_y"]]),
        }
        for name, (x, y) in parts.items():
            images = np.concatenate(x)[:, None].astype(np.float32) / 255
            np.savez(folder / f"{name}.npz", x=images, y=np.concatenate(y).astype(np.int32))
        return len(first["train_x"]) + len(new["train_x"])


def accuracies(row: str, folder: Path, samples: int) -> tuple[list[float], int]:
    """Percent of the test set after the last epoch, by seed; and the bytes of a step that keeps everything."""
    found: list[float] = []
    keep_all_bytes = 0
    options = TrainingOptions(**{"learning_rate": RATE, "precision": row, **ROWS[row]})
    third = samples // BATCH * EPOCHS // 3
    for seed in SEEDS:
        new_weights(folder / "new.onnx", seed)
        model = poetc.load(folder / "new.onnx", batch=BATCH, training=options)
        result = poetc.train(
            model,
            data=f"{folder}/train.npz:x,y",
            validation=f"{folder}/test.npz:x,y",
            out=folder / "out.onnx",
            epochs=EPOCHS,
            schedule=SCHEDULES.get(row, "cosine").format(third=third),
            seed=seed,
            force=True,
            time_limit_s=3,
        )
        found.append(100 * result["epochs"][-1]["validation_accuracy"])
        keep_all_bytes = result["peak_predicted_bytes"]
    return found, keep_all_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], default=[])
    rows = parser.parse_args().rows or list(ROWS)
    print("| row | accuracy, % | the three runs | RAM, every tensor kept |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        samples = digits(folder)
        for row in rows:
            found, keep_all_bytes = accuracies(row, folder, samples)
            runs = ", ".join(f"{a:.1f}" for a in found)
            print(f"| `{row}` | {np.mean(found):.1f} | {runs} | {keep_all_bytes / 1e3:,.0f} kB |", flush=True)


if __name__ == "__main__":
    main()
