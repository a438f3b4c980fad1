"""Batch norms that are folded: plain training, `--batch-norm restore`, and PyTorch with real norms.

    python -m bench.batch_norm CASE DATA.npz --model FILE.onnx [--seeds N] [--rates R,R,...] [--epochs N]

CASE and DATA are those of bench/fine_tuning.py; `random` is the network that `bench/peer_batch_norm.py random` makes.
Each form is trained with each rate, by momentum 0.9 and a cosine: the file as it is, with norms put back, and its last
layer alone. Where FILE.norms.onnx and FILE.pt are beside it, the network with its own norms is trained too. PyTorch's
half runs in build/peers/opinfo, which `bench/setup_peers opinfo` makes. docs/results/batch-norm.md has the tables.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import poetc
from bench.fine_tuning import CASES, Case, images, samples, save
from poetc.errors import CheckFailed
from poetc.training import TrainingOptions

PEER = Path("build/peers/opinfo/bin/python")
CASES_HERE = {**CASES, "random": Case(16, 1250, 12, 0.05, 0.0)}


def inputs(case: str, x: Any) -> Any:
    """Pixels as the network takes them."""
    if case == "random":
        return np.pad(x, ((0, 0), (2, 2), (2, 2)))[:, None].astype(np.float32).repeat(3, axis=1) / 255
    return images(case, x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES_HERE)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", default="0.001,0.01")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--samples", type=int)
    asked = parser.parse_args()
    case = CASES_HERE[asked.case]
    epochs = asked.epochs or case.epochs
    own = asked.model.with_suffix(".norms.onnx")  # the same network with its norms, where its maker left them
    x, y, training = samples(asked.data, asked.samples or case.samples)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = save(folder, "all", inputs(asked.case, x), y, training // case.batch * case.batch)
        for rate in map(float, asked.rates.split(",")):
            for label in ("train", "restore", "frozen layers", *(["own norms"] if own.exists() else [])):
                found = []
                for seed in range(asked.seeds):
                    how = {"frozen layers": {"train": "last:1"}, "restore": {"batch_norm": "restore"}}.get(label, {})
                    options = TrainingOptions(optimizer="momentum", learning_rate=rate, **how)  # type: ignore[arg-type]
                    model = own if label == "own norms" else asked.model
                    found.append(_trained(model, options, data, epochs, seed, case.batch, folder / "out.onnx"))
                _say(asked.case, rate, f"poetc, {label}", found)
            for label in ("folded", "restored", *(["own"] if own.exists() else [])):
                command = [PEER, "bench/peer_batch_norm.py", "train", asked.model, *data, label]
                numbers = [rate, epochs, case.batch, asked.seeds]
                made = subprocess.run(
                    [*map(str, command), *map(str, numbers)], capture_output=True, text=True, check=True
                )
                found = [tuple(map(float, line.split())) for line in made.stdout.splitlines()]
                _say(asked.case, rate, f"PyTorch, {label}", found)


def _trained(
    model: Path, options: TrainingOptions, data: tuple[Path, Path], epochs: int, seed: int, batch: int, out: Path
) -> tuple[float, float, float]:
    """Accuracy before and behind the last epoch, %, and the loss of validation there; nan where training diverged."""
    try:
        result = poetc.train(
            poetc.load(model, batch=batch, training=options), data=f"{data[0]}:x,y", validation=f"{data[1]}:x,y",
            out=out, epochs=epochs, seed=seed, schedule="cosine", force=True, any_range=True, time_limit_s=1,
        )  # fmt: skip
    except CheckFailed:  # the loss was no number
        return float("nan"), float("nan"), float("nan")
    last = result["epochs"][-1]
    return 100 * result["before"]["accuracy"], 100 * last["validation_accuracy"], last["validation_loss"]


def _say(case: str, rate: float, label: str, found: list[Any]) -> None:
    before, after, loss = np.array(found, float).T
    runs = ", ".join(f"{a:.1f}" for a in after)
    print(
        f"{case}, rate {rate:g}, {label}: before {before.mean():.1f} %, after {after.mean():.1f} % ({runs}),"
        f" validation loss {loss.mean():.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
