"""onnxruntime's on-device demos and threads, trained by poetc and by onnxruntime-training: `make bench-demos`.

Both train the same ONNX file with AdamW on the same batches. The reference is PyTorch in 64 bits, with the formula of
AdamW that the engine has: onnxruntime adds epsilon before the correction of the bias, poetc as PyTorch does after it.
"""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Annotated

import numpy as np

import poetc
from bench._command import Rows, main

HERE = Path(__file__).resolve().parent
NAMES = {
    "mnist": "MNIST (Python, web)",
    "mobilenetv2": "MobileNetV2 (Android)",
    "wav2vec2": "wav2vec 2.0 (iOS)",
    "mobilevit": "MobileViT (C#)",
    "mobilebert": "MobileBERT, masked words (C#)",
    "distilbert_16": "DistilBERT, opset 16",
    "distilbert_17": "thread 22465: DistilBERT, opset 17",
    "few_bits": "thread 20781: `MatMulNBits` of 4 bits",
    "unet": "thread 16866: U-Net, bilinear `Resize`",
}


def error(found: np.ndarray, reference: np.ndarray) -> str:
    return f"{np.max(np.abs(found / reference - 1)):.1e}"


def train(folder: Path) -> np.ndarray:
    """poetc's losses."""
    task = json.loads((folder / "task.json").read_text())
    training = poetc.TrainingOptions(
        optimizer="adamw",
        learning_rate=task["rate"],
        epsilon=1e-6,
        weight_decay=0.0,
        train="all" if task["all"] else ",".join(task["trained"]),
    )
    solution = poetc.load(folder / "model.onnx", training=training).solve(device="host", gap=0.05, time_limit_s=10)
    batches = np.load(folder / "batches.npz")
    with solution.trainer() as trainer:
        losses = [trainer.step(*rows) for rows in zip(*(batches[n] for n in batches.files), strict=True)]
    return np.array(losses)


def compare(name: str, torch: str, ort: str, folder: Path) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([torch, "-W", "ignore", HERE / "peer_demos.py", name, folder], check=True)
    losses = np.load(folder / "losses.npz")
    done = subprocess.run(
        [ort, "-W", "ignore", HERE / "peer_ort.py", "demo", folder], capture_output=True, text=True, check=False
    )
    theirs = np.array([float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss ")])
    refusal = next((line for line in reversed(done.stderr.splitlines()) if "Error" in line), "")
    mine = train(folder)
    return (
        NAMES[name],
        f"{json.loads((folder / 'task.json').read_text())['parameters']}",
        f"{losses['f64'][0]:.4f}",
        f"{losses['f64'][-1]:.4f}",
        error(losses["f32"], losses["f64"]),
        error(mine, losses["f64"]),
        error(theirs, losses["f64_ort"]) if len(theirs) == len(mine) else refusal,
    )


def table(
    *,
    torch: Annotated[str, "a Python that has PyTorch and transformers"],
    ort: Annotated[str, "a Python that has onnxruntime-training"],
    folder: Path = Path("build/bench-demos"),
    models: Annotated[tuple[str, ...], f"of {', '.join(NAMES)}"] = tuple(NAMES),
) -> Rows:
    heads = ("model", "parameters", "first loss", "last loss", "PyTorch, 32 bits", "poetc", "onnxruntime-training")
    yield heads
    rows: list[tuple[str, ...]] = [heads]
    for name in models:
        rows.append(compare(name, torch, ort, folder / name))
        yield rows[-1]
        with (folder / "losses.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)


if __name__ == "__main__":
    main(table)
