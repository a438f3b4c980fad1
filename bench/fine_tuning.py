"""Fine-tuning in floats, in integers (niti) and of quantised models (qas), side by side: accuracy before and after.

    python -m bench.fine_tuning CASE DATA.npz [--model FILE.onnx] [--seeds N]

CASE is one of these. DATA has the arrays x [samples, height, width] of u8 and y: MNIST, for ds-cnn digits of 8 x 8.

- `lenet`: LeNet-5 of demo/boards, first trained in floats for 5 epochs on the same images
- `resnet8`: MLPerf's ResNet-8 with its CIFAR-10 weights, on MNIST's digits in three channels of 32 x 32
- `ds-cnn`: MLPerf's DS-CNN with its weights for key words, on digits of 8 x 8, stretched to 49 x 10
- `mobilenet`: MobileNetV2 x 0.35 that knows the UCI digits, on tune.npz: bench/peer_mobilenet.py makes both

The last fifth of the samples tests, of tune.npz the last third. docs/results/integer.md has the tables.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import poetc
from bench.integers import network
from bench.qas import quantised
from poetc.training import TrainingOptions

FINER = 16  # the rate of weights of 24 bits is so much smaller, and follows a cosine
CALIBRATED = 64  # images from which the ranges of activations come
Arrays = Any


@dataclass(frozen=True, slots=True)
class Case:
    """`rate` of floats and qas; `niti_rate` is 2^(bits of the largest update - 7).

    `falls`: the rate of floats and qas follows a cosine, and that of niti is halved after each third of the steps.
    `first`: options and epochs of a training in floats before that, if there is one.
    """

    batch: int
    samples: int
    epochs: int
    rate: float
    niti_rate: float
    falls: bool = False
    first: tuple[TrainingOptions, int] | None = None


CASES = {
    "lenet": Case(25, 2500, 10, 0.02, 0.03125, first=(TrainingOptions(optimizer="momentum", learning_rate=0.02), 5)),
    "resnet8": Case(16, 640, 8, 1e-4, 0.03125, falls=True),
    "ds-cnn": Case(16, 1250, 12, 0.002, 0.03125, falls=True),
    "mobilenet": Case(16, 1500, 8, 0.02, 0.03125, falls=True),
}


def images(name: str, x: Arrays) -> Arrays:
    """The network's input [samples, ...] of pixels [samples, height, width] or [samples, 3, height, width]."""
    if name == "lenet":
        return x[:, None].astype(np.float32) / 255
    if name == "resnet8":  # it takes pixels as they are
        return np.pad(x, ((0, 0), (2, 2), (2, 2))).astype(np.float32)[..., None].repeat(3, axis=3)
    if name == "ds-cnn":
        stretched = np.pad(x.repeat(6, axis=1), ((0, 0), (0, 1), (1, 1)))
        return stretched[..., None].astype(np.float32) / 8 - 1
    if name == "mobilenet":
        return x.astype(np.float32) / 255
    raise ValueError(name)


def samples(path: Path, count: int) -> tuple[Arrays, Arrays, int]:
    """Pixels and labels of at most `count` samples, and how many of them train: four fifths, or train_x of tune.npz."""
    with np.load(path) as arrays:
        if "train_x" in arrays:
            x, y = (np.concatenate([arrays[f"train_{name}"], arrays[f"test_{name}"]]) for name in "xy")
            return x, y.astype(np.int32), len(arrays["train_x"])
        order = np.random.default_rng(0).permutation(len(arrays["x"]))[:count]
        return arrays["x"][order], arrays["y"][order].astype(np.int32), len(order) * 4 // 5


def trained(
    model: Path,
    options: TrainingOptions,
    data: tuple[Path, Path],
    epochs: int,
    seed: int,
    batch: int,
    out: Path,
    schedule: str = "constant",
) -> Mapping[str, Any]:
    loaded = poetc.load(model, batch=batch, training=options)
    return poetc.train(
        loaded, data=f"{data[0]}:x,y", validation=f"{data[1]}:x,y", out=out, epochs=epochs, seed=seed,
        schedule=schedule, force=True, any_range=True, time_limit_s=3,
    )  # fmt: skip


def save(folder: Path, label: str, x: Arrays, y: Arrays, cut: int) -> tuple[Path, Path]:
    """The files for training, with `cut` samples, and for the test."""
    paths = folder / f"{label}-train.npz", folder / f"{label}-test.npz"
    for path, part in zip(paths, (slice(0, cut), slice(cut, None)), strict=True):
        np.savez(path, x=x[part], y=y[part])
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    case = CASES[asked.case]
    x, y, training = samples(asked.data, case.samples)
    steps = training // case.batch
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = network("lenet5", folder) if asked.case == "lenet" else asked.model
        data = save(folder, "all", images(asked.case, x), y, steps * case.batch)
        if case.first is not None:
            options, epochs = case.first
            out = folder / "first.onnx"
            trained(model, options, data, epochs, 100, case.batch, out)
            model = out
        calibrating = images(asked.case, x[:CALIBRATED])
        qdq = quantised(model, folder, [calibrating[i : i + 1] for i in range(CALIBRATED)])
        for label, path, options in (
            ("f32", model, TrainingOptions(learning_rate=case.rate)),
            ("niti", model, TrainingOptions(precision="niti", learning_rate=case.niti_rate)),
            (
                "niti 24",
                model,
                TrainingOptions(precision="niti", learning_rate=case.niti_rate / FINER, weight_bits="24"),
            ),
            ("qas", qdq, TrainingOptions(precision="qas", learning_rate=case.rate)),
        ):
            schedule = "cosine" if label == "niti 24" else "constant"
            if case.falls:
                schedule = f"step:every={steps * case.epochs // 3},factor=0.5" if label == "niti" else "cosine"
            before, after, loss = 0.0, [], []
            start = time.process_time()
            for seed in range(asked.seeds):
                result = trained(path, options, data, case.epochs, seed, case.batch, folder / "out.onnx", schedule)
                before = 100 * result["before"]["accuracy"]
                after.append(100 * result["epochs"][-1]["validation_accuracy"])
                loss.append(result["epochs"][-1]["validation_loss"])
            runs = ", ".join(f"{a:.2f}" for a in after)
            print(
                f"{asked.case} {label:7} before {before:6.2f} %, after {np.mean(after):6.2f} % ({runs});"
                f" validation loss {np.mean(loss):.3f}; {time.process_time() - start:.0f} s of CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
