"""Rounds of a fleet until it reaches an accuracy, on data that differ from client to client.

    python -m bench.federated DATA [--rounds 30] [--seeds 2] [--alphas 0.1 0.5] [--only NAME] [--noise 0 1]

DATA is an .npz file with the arrays x [samples, height, width] of u8 and y. Or it is a folder with the test set in
MNIST's own format, of which the first `--images` are taken. The last fifth tests. Each class is divided among the
clients by shares from a Dirichlet distribution (Hsu et al., 2019); a smaller alpha makes clients differ more. LeNet-5
trains one epoch a round at each client, and the server averages by the number of samples (FedAvg, McMahan et al.,
2017). With `--noise` changes are clipped and noise is added, as Flower's fixed clipping at the server does.
docs/results/federated.md has the tables.
"""

from __future__ import annotations

import gzip
import math
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bench._command import Rows, main
from bench.edge_fleet import epsilon
from bench.precisions import network
from poetc import load, train
from poetc.artifact import Artifact
from poetc.fleet import Participant, read_data
from poetc.training import TrainingOptions

BATCH, CLIP = 25, 1.0
IMAGES, LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
F32 = TrainingOptions(learning_rate=0.05)
NITI = TrainingOptions(precision="niti", weight_bits="24", learning_rate=0.016)
ADAPTERS = TrainingOptions(learning_rate=0.05, lora=("4",))
BEFORE = ", trained before"  # the model has seen the first classes, in floats, as adapters need it
ROWS = {
    "f32": F32,
    "niti 24": NITI,
    f"f32{BEFORE}": F32,
    f"niti 24{BEFORE}": NITI,
    f"adapters of rank 4{BEFORE}": ADAPTERS,
}
Arrays = Mapping[str, Any]


def read(data: Path, images: int) -> tuple[Any, Any]:
    """Images of u8, and their labels."""
    if data.is_dir():
        x, y = (gzip.decompress((data / name).read_bytes()) for name in (IMAGES, LABELS))
        height, width = struct.unpack(">II", x[8:16])
        pixels = np.frombuffer(x, np.uint8, offset=16).reshape(-1, height, width)
        return pixels[:images], np.frombuffer(y, np.uint8, offset=8)[:images]
    with np.load(data) as arrays:
        return arrays["x"], arrays["y"]


def shares(labels: Any, clients: int, alpha: float, seed: int) -> list[Any]:
    """The samples of each client, by number: at least a batch each."""
    random = np.random.default_rng(seed)
    while True:
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in range(labels.max() + 1):
            own = random.permutation(np.flatnonzero(labels == label))
            ends = (np.cumsum(random.dirichlet([alpha] * clients))[:-1] * len(own)).astype(int)
            for part, some in zip(parts, np.split(own, ends), strict=True):
                part.extend(some.tolist())
        if min(map(len, parts)) >= BATCH:
            return [np.array(sorted(part)) for part in parts]


def averaged(before: Arrays, changes: list[tuple[int, Arrays]], noise: float, random: Any) -> dict[str, Any]:
    """The weights after a round. With noise each change is clipped to the norm `CLIP`, and clients count alike."""
    factors, divisor = [count / sum(c for c, _ in changes) for count, _ in changes], 1
    if noise:
        norms = [
            math.sqrt(sum(float(np.square(c, dtype=np.float64).sum()) for c in own.values())) for _, own in changes
        ]
        factors, divisor = [min(1.0, CLIP / norm) for norm in norms], len(changes)
    after = {}
    for name, array in before.items():
        added = random.normal(0, noise * CLIP / len(changes), array.shape) if noise else 0.0
        total = sum(factor * own[name] for factor, (_, own) in zip(factors, changes, strict=True))
        after[name] = (array + total / divisor + added).astype(np.float32)
    return after


def rounds_of(solved: Artifact, parts: list[Any], test: Any, rounds: int, seed: int, noise: float) -> Iterator[float]:
    """The accuracy after each round, in per cent."""
    participant, random = Participant(solved), np.random.default_rng(seed)
    try:
        data = [read_data(part, participant.slots, seed=seed + k) for k, part in enumerate(parts)]
        judge = read_data(test, participant.slots, validation=test)
        state = participant.model.state(participant.model.initial)
        for number in range(1, rounds + 1):
            changes = []
            for own in data:
                trained = participant.fit(state, own, first_epoch=number)
                after = participant.state()
                changes.append((trained.samples, {n: after[n] - state[n] for n in state}))
            state = averaged(state, changes, noise, random)
            yield 100 * (participant.evaluate(state, judge).accuracy or 0.0)
    finally:
        participant.close()


def first_round(accuracies: list[float], target: int) -> str:
    return next((str(k) for k, accuracy in enumerate(accuracies, 1) if accuracy >= target), "-")


def run(
    data: Path,
    *,
    rounds: int = 30,
    clients: int = 10,
    seeds: int = 2,
    alphas: tuple[float, ...] = (0.1, 0.5, 100.0),
    targets: Annotated[tuple[int, ...], "per cent of the test images that are right"] = (80, 85, 90),
    images: Annotated[int, "of a folder"] = 2500,
    only: Annotated[str | None, f"of {', '.join(ROWS)}"] = None,
    noise: Annotated[tuple[float, ...], "deviation, times the norm of a change"] = (0.0,),
) -> Rows:
    yield "numbers", "alpha", *(f"{target} %" for target in targets), f"after {rounds} rounds, %"
    x, y = read(data, images)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order][:, None].astype(np.float32) / 255, y[order].astype(np.int64)
    cut = len(x) * 4 // 5
    test = [x[cut:], y[cut:]]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fresh, known = network("lenet5", folder), folder / "known.onnx"
        some = np.flatnonzero(y[:cut] < 5)[:250]
        np.savez(folder / "some.npz", x=x[some], y=y[some])
        first = load(fresh, batch=BATCH, training=TrainingOptions(optimizer="momentum", learning_rate=0.02))
        train(first, data=f"{folder}/some.npz:x,y", out=known, epochs=5, time_limit_s=3)
        for name, options in ROWS.items():
            if only not in (None, name):
                continue
            loaded = load(known if name.endswith(BEFORE) else fresh, batch=BATCH, training=options)
            solved = loaded.solve(budget="100%", time_limit_s=5.0, gap=0.05).artifact
            for alpha, much in ((alpha, much) for alpha in alphas for much in noise):
                runs = []
                for seed in range(seeds):
                    parts = [[x[own], y[own]] for own in shares(y[:cut], clients, alpha, seed)]
                    runs.append(list(rounds_of(solved, parts, test, rounds, seed, much)))
                reached = (" / ".join(first_round(one, target) for one in runs) for target in targets)
                private = f", noise {much:g}: epsilon {epsilon(rounds, much):,.1f}" if much else ""
                yield f"{name}{private}", f"{alpha:g}", *reached, " / ".join(f"{one[-1]:.1f}" for one in runs)


if __name__ == "__main__":
    main(run)
