"""VGG-small-7 trained in integers: poetc's C beside NITI's formulas in numpy, bit by bit, and beside floats.

    python -m bench.vgg DATA.npz [--divide D] [--batch N] [--steps N] [--seeds N] [--floats-lr RATE]

DATA has the arrays x [samples, 28, 28] of u8 and y. Images are padded to 32 x 32 and repeated for three channels,
as the network is made for CIFAR-10. A fifth of the samples tests. D divides the channels of each layer. The formulas
are tests/support/niti.py. Every 50 steps all weights are compared. docs/results/integer.md has the tables.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import poetc
from bench.integers import networks
from poetc.commands.requests import ModelRequest, load_model
from poetc.training import TrainingOptions, exponents_of
from tests.support import niti

CHANNELS = (128, 128, 256, 256, 512, 512)  # a pool of 2 x 2 follows each second one
COMPARED, SHOWN, CLASSES = 50, 10, 10


def write(divide: int, path: Path) -> Path:
    """VGG-small-7 without biases, as NITI has it."""
    net = networks().Network("vgg-small-7", 32, 3)
    for index, channels in enumerate(CHANNELS):
        net.conv(channels // divide).relu()
        if index % 2:
            net.pool()
    net.dense(CLASSES)
    model = net.model()
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            del node.input[2:]
    weights = [t for t in model.graph.initializer if not t.name.endswith(".bias")]
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    path.write_bytes(model.SerializeToString())
    return path


def layers_of(path: Path, batch: int, options: TrainingOptions) -> tuple[list[str], list[niti.Layer]]:
    """The names of the weights, and the layers of the formulas with the same first weights."""
    model = load_model(ModelRequest(source=path, batch=batch, training=options))
    exponents = exponents_of(model)
    names = [name for name in model.tensors if name in exponents]
    layers = []
    for index, name in enumerate(names):
        weight: Any = model.values[name]
        is_dense = index == len(names) - 1
        w = weight.reshape(len(weight), -1).T if is_dense else weight.transpose(2, 3, 1, 0)
        layers.append(niti.Layer(w.astype(np.int64), exponents[name], has_relu=not is_dense, has_pool=index % 2 == 1))
    return names, layers


def batches(x: Any, y: Any, batch: int, steps: int, seed: int) -> Iterator[tuple[Any, Any]]:
    random, order = np.random.default_rng(seed), np.empty(0, int)
    for _ in range(steps):
        if len(order) < batch:
            order = random.permutation(len(x))
        rows, order = order[:batch], order[batch:]
        yield x[rows], y[rows]


def same(layers: list[niti.Layer], names: list[str], state: Any) -> int:
    """How many weight tensors have the same bits."""
    found = 0
    for name, layer in zip(names, layers, strict=True):
        w = layer.weight.T if layer.is_dense else layer.weight.transpose(3, 2, 0, 1)
        found += bool(np.array_equal(state[name].reshape(w.shape), w))
    return found


def accuracy(trainer: Any, x: Any, y: Any, batch: int) -> float:
    hits = 0
    for at in range(0, len(x) - batch + 1, batch):
        logits = trainer.predict(x[at : at + batch])
        hits += int((np.asarray(logits).reshape(batch, -1).argmax(axis=1) == y[at : at + batch]).sum())
    return 100 * hits / (len(x) // batch * batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--floats-lr", type=float, default=0.02)
    asked = parser.parse_args()
    with np.load(asked.data) as arrays:
        x = np.pad(arrays["x"].astype(np.float32) / 255, ((0, 0), (2, 2), (2, 2)))[:, None].repeat(3, axis=1)
        y = arrays["y"].astype(np.int32)
    order = np.random.default_rng(0).permutation(len(x))
    cut = len(x) * 4 // 5
    train, test = order[:cut], order[cut:]
    every = max(1, asked.steps // SHOWN)
    with tempfile.TemporaryDirectory() as scratch:
        path = write(asked.divide, Path(scratch) / "vgg.onnx")
        for seed in range(asked.seeds):
            integers = TrainingOptions(precision="niti", niti_weights="xavier", learning_rate=0.25, head_seed=seed)
            floats = TrainingOptions(optimizer="momentum", learning_rate=asked.floats_lr)
            names, layers = layers_of(path, asked.batch, integers)
            trainers: list[Any] = [
                poetc.load(path, batch=asked.batch, training=options).solve(budget="100%", time_limit_s=3).trainer()
                for options in (integers, floats)
            ]
            spent, losses = [0.0, 0.0, 0.0], np.zeros((2, 0))
            equal = compared = 0
            for index, (images, target) in enumerate(batches(x[train], y[train], asked.batch, asked.steps, seed)):
                third = asked.steps // 3
                bits = 5 - (index >= third) - (index >= 2 * third)  # NITI's schedule, in thirds of these steps
                trainers[0].learning_rate = 2.0 ** (bits - 7)
                trainers[1].learning_rate = asked.floats_lr * 2.0 ** (bits - 5)  # halved when µ falls by one
                found = []
                for which, trainer in enumerate(trainers):
                    start = time.process_time()
                    found.append(trainer.step(images, target))
                    spent[which] += time.process_time() - start
                losses = np.append(losses, np.array(found)[:, None], axis=1)
                start = time.process_time()
                niti.step(layers, images.transpose(0, 2, 3, 1), target, bits)
                spent[2] += time.process_time() - start
                if (index + 1) % COMPARED == 0 or index + 1 == asked.steps:
                    compared += len(names)
                    equal += same(layers, names, trainers[0].state_dict(names))
                if (index + 1) % every == 0:
                    means = losses[:, -every:].mean(axis=1)
                    print(
                        f"seed {seed} step {index + 1:5}: loss niti {means[0]:.4f}, f32 {means[1]:.4f};"
                        f" weight tensors with equal bits {equal} of {compared}",
                        flush=True,
                    )
            scores = [accuracy(trainer, x[test], y[test], asked.batch) for trainer in trainers]
            per = ", ".join(
                f"{name} {1e3 * s / asked.steps:.0f}" for name, s in zip(("niti", "f32", "numpy"), spent, strict=True)
            )
            print(f"seed {seed}: accuracy niti {scores[0]:.1f} %, f32 {scores[1]:.1f} %; ms a step: {per}", flush=True)
            for trainer in trainers:
                trainer.close()


if __name__ == "__main__":
    main()
