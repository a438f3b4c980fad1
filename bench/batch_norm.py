"""Batch norms that are folded: plain training, `--batch-norm restore`, and PyTorch with real norms.

    python -m bench.batch_norm CASE DATA.npz --model FILE.onnx [--seeds N] [--rates R ...] [--epochs N]

CASE is one of these. DATA has the arrays x [samples, height, width] of u8 and y: MNIST, for ds-cnn digits of 8 x 8.

- `resnet8`: MLPerf's ResNet-8 with its CIFAR-10 weights, on MNIST's digits in three channels of 32 x 32
- `ds-cnn`: MLPerf's DS-CNN with its weights for key words, on digits of 8 x 8, stretched to 49 x 10
- `random`: a fresh network on MNIST's digits; `python -m bench.peer_batch_norm random` makes it
- `mobilenet`: MobileNetV2 x 0.35 on tune.npz; `python -m bench.peer_batch_norm mobilenet` makes both

The last fifth of the samples tests, of tune.npz the last third. Each form is trained by momentum 0.9 and a cosine.
Where FILE.norms.onnx and FILE.pt are beside FILE, the network with its own norms is trained too. PyTorch's half runs
in build/peers/opinfo, which `bench/setup_peers opinfo` makes. A cell has the accuracy after the last epoch in per cent.
docs/results/batch-norm.md has the tables.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import poetc
from bench._command import Rows, main
from poetc.errors import CheckFailed
from poetc.training import TrainingOptions

BATCH = 16
CASES = {"resnet8": (640, 8), "ds-cnn": (1250, 12), "random": (1250, 12), "mobilenet": (1500, 8)}  # samples, epochs
FORMS = {
    "plain": TrainingOptions(optimizer="momentum"),
    "restore": TrainingOptions(optimizer="momentum", batch_norm="restore"),
    "last layer": TrainingOptions(optimizer="momentum", train="last:1"),
    "own norms": TrainingOptions(optimizer="momentum"),
}
PEER_FORMS = {"plain": "folded", "put back": "restored", "own norms": "own"}
Run = tuple[float, float]  # accuracy in per cent, and the loss of validation


def inputs(case: str, x: Any) -> Any:
    """The network's input [samples, ...] of pixels [samples, height, width] or [samples, 3, height, width]."""
    if case == "mobilenet":
        return x.astype(np.float32) / 255
    if case == "ds-cnn":
        stretched = np.pad(x.repeat(6, axis=1), ((0, 0), (0, 1), (1, 1)))
        return stretched[..., None].astype(np.float32) / 8 - 1
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2))).astype(np.float32)
    # MLPerf's network takes pixels as they are, channels last.
    return padded[..., None].repeat(3, axis=3) if case == "resnet8" else padded[:, None].repeat(3, axis=1) / 255


def split(case: str, path: Path, count: int, folder: Path) -> list[Path]:
    """The files for training, of whole batches, and for the test."""
    with np.load(path) as arrays:
        if "train_x" in arrays:
            x, y = (np.concatenate([arrays[f"train_{name}"], arrays[f"test_{name}"]]) for name in "xy")
            cut = len(arrays["train_x"])
        else:
            order = np.random.default_rng(0).permutation(len(arrays["x"]))[:count]
            x, y, cut = arrays["x"][order], arrays["y"][order], len(order) * 4 // 5
    x, y, cut = inputs(case, x), y.astype(np.int32), cut // BATCH * BATCH
    paths = [folder / "train.npz", folder / "test.npz"]
    for out, part in zip(paths, (slice(0, cut), slice(cut, None)), strict=True):
        np.savez(out, x=x[part], y=y[part])
    return paths


def trained(model: Path, options: TrainingOptions, data: list[Path], epochs: int, seed: int, out: Path) -> Run:
    try:
        result = poetc.train(
            poetc.load(model, batch=BATCH, training=options), data=f"{data[0]}:x,y", validation=f"{data[1]}:x,y",
            out=out, epochs=epochs, seed=seed, schedule="cosine", force=True, any_range=True, time_limit_s=1,
        )  # fmt: skip
    except CheckFailed:  # the loss was no number
        return math.nan, math.nan
    last = result["epochs"][-1]
    return 100 * last["validation_accuracy"], last["validation_loss"]


def cell(runs: list[Run]) -> str:
    if not runs:
        return ""
    each = f" ({', '.join(f'{a:.1f}' for a, _ in runs)})" if len(runs) > 1 else ""
    lost = ", loss NaN" if any(math.isnan(loss) > math.isnan(a) for a, loss in runs) else ""
    return f"{np.mean([a for a, _ in runs]):.1f}{each}{lost}".replace("nan", "NaN")


def run(
    case: Literal["resnet8", "ds-cnn", "random", "mobilenet"],
    data: Path,
    *,
    model: Path,
    seeds: int = 1,
    rates: tuple[float, ...] = (0.001, 0.01),
    epochs: int | None = None,
    samples: int | None = None,
    peer: Path = Path("build/peers/opinfo/bin/python"),
) -> Rows:
    usual_samples, usual_epochs = CASES[case]
    epochs = epochs or usual_epochs
    own = model.with_suffix(".norms.onnx")
    yield "rate", *(f"poetc, {form}" for form in FORMS), *(f"PyTorch, {form}" for form in PEER_FORMS)
    with tempfile.TemporaryDirectory() as scratch:
        files = split(case, data, samples or usual_samples, Path(scratch))
        for rate in rates:
            cells = []
            for form, options in FORMS.items():
                path, settings = own if form == "own norms" else model, replace(options, learning_rate=rate)
                out = Path(scratch) / "out.onnx"
                cells.append(
                    cell(
                        [trained(path, settings, files, epochs, s, out) for s in range(seeds)] if path.exists() else []
                    )
                )
            for form in PEER_FORMS.values():
                words = ["train", model, *files, form, rate, epochs, BATCH, seeds]
                command = [peer, "-m", "bench.peer_batch_norm", *words]
                lines = []
                if form != "own" or own.exists():
                    lines = subprocess.run(
                        [*map(str, command)], capture_output=True, text=True, check=True
                    ).stdout.splitlines()
                cells.append(cell([(float(a), float(loss)) for a, loss in map(str.split, lines)]))
            yield f"{rate:g}", *cells


if __name__ == "__main__":
    main(run)
