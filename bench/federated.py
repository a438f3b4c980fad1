"""Rounds of a fleet until it reaches an accuracy, on data that differ from client to client.

    python -m bench.federated DATA.npz [--rounds 30] [--clients 10] [--seeds 2] [--only NAME] [--noise 0 0.5 1]

DATA has the arrays x [samples, height, width] of u8 and y: MNIST. The last fifth tests. Each class is divided among the
clients by shares from a Dirichlet distribution (Hsu et al., 2019); a smaller alpha makes clients differ more. LeNet-5
trains one epoch a round at each client, and the server averages by the number of samples (FedAvg, McMahan et al.,
2017). With `--noise` changes are clipped and noise is added, as Flower's fixed clipping at the server does. Epsilon is
that of zero-concentrated differential privacy (Bun and Steinke, 2016). docs/results/federated.md has the tables.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.integers import network
from poetc import train
from poetc.api import load
from poetc.artifact import Artifact
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.fleet import Data, Participant, read_data
from poetc.scheduling import SolveOptions
from poetc.training import TrainingOptions

BATCH, TARGETS = 25, (80, 85, 90)
ALPHAS = (0.1, 0.5, 100.0)
CLIP, DELTA = 1.0, 1e-5
Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """`knows`: the model has seen the first classes, in floats, as adapters need it."""

    options: TrainingOptions
    knows: bool = False


ROWS = {
    "f32": Row(TrainingOptions(learning_rate=0.05)),
    "niti 24": Row(TrainingOptions(precision="niti", weight_bits="24", learning_rate=0.016)),
    "f32, trained before": Row(TrainingOptions(learning_rate=0.05), knows=True),
    "niti 24, trained before": Row(
        TrainingOptions(precision="niti", weight_bits="24", learning_rate=0.016), knows=True
    ),
    "adapters of rank 4": Row(TrainingOptions(learning_rate=0.05, lora=("4",)), knows=True),
}


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


def epsilon(rounds: int, noise: float) -> float:
    """Of `rounds` Gaussian mechanisms: rho = rounds / (2 noise^2), epsilon = rho + 2 sqrt(rho ln(1 / delta))."""
    rho = rounds / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))


def averaged(before: Arrays, changes: list[tuple[int, Arrays]], noise: float, random: Any) -> dict[str, Any]:
    """The weights after a round. With noise each change is clipped to the norm `CLIP`, and clients count alike."""
    if not noise:
        total = sum(count for count, _ in changes)
        return {
            n: (a + sum(count / total * c[n] for count, c in changes)).astype(np.float32) for n, a in before.items()
        }
    clipped = []
    for _, change in changes:
        norm = math.sqrt(sum(float(np.square(c, dtype=np.float64).sum()) for c in change.values()))
        clipped.append({n: c * min(1.0, CLIP / norm) for n, c in change.items()})
    deviation = noise * CLIP / len(changes)
    return {
        n: (a + sum(c[n] for c in clipped) / len(changes) + random.normal(0, deviation, a.shape)).astype(np.float32)
        for n, a in before.items()
    }


def rounds_of(solved: Artifact, parts: list[Any], test: Any, rounds: int, seed: int, noise: float) -> Iterator[float]:
    """The accuracy after each round, in per cent."""
    participant, random = Participant(solved), np.random.default_rng(seed)
    try:
        data: list[Data] = [read_data(part, participant.slots, seed=seed + k) for k, part in enumerate(parts)]
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


def solved_of(model: Path, options: TrainingOptions) -> Artifact:
    request = ModelRequest(source=model, batch=BATCH, device="host", training=options)
    return solve(SolveRequest(model=request, budget="100%", options=SolveOptions(time_limit_s=5.0, gap=0.05)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--noise", type=float, nargs="*", default=[])
    asked = parser.parse_args()
    with np.load(asked.data) as arrays:
        order = np.random.default_rng(0).permutation(len(arrays["x"]))
        x = arrays["x"][order][:, None].astype(np.float32) / 255
        y = arrays["y"][order].astype(np.int64)
    cut = len(x) * 4 // 5
    test = [x[cut:], y[cut:]]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fresh, known = network("lenet5", folder), folder / "known.onnx"
        some = np.flatnonzero(y[:cut] < 5)[:250]
        np.savez(folder / "some.npz", x=x[some], y=y[some])
        train(
            load(fresh, batch=BATCH, training=TrainingOptions(optimizer="momentum", learning_rate=0.02)),
            data=f"{folder}/some.npz:x,y", out=known, epochs=5, time_limit_s=3,
        )  # fmt: skip
        for name, row in ROWS.items():
            if asked.only not in (None, name):
                continue
            solved = solved_of(known if row.knows else fresh, row.options)
            for alpha in ALPHAS:
                for noise in asked.noise or [0.0]:
                    runs = []
                    for seed in range(asked.seeds):
                        parts = [[x[some], y[some]] for some in shares(y[:cut], asked.clients, alpha, seed)]
                        runs.append(list(rounds_of(solved, parts, test, asked.rounds, seed, noise)))
                    print(_line(name, alpha, noise, asked.rounds, runs), flush=True)


def _line(name: str, alpha: float, noise: float, rounds: int, runs: list[list[float]]) -> str:
    reached = []
    for target in TARGETS:
        first = [next((k for k, a in enumerate(run, 1) if a >= target), None) for run in runs]
        reached.append(" / ".join("-" if k is None else str(k) for k in first))
    last = " / ".join(f"{run[-1]:.1f}" for run in runs)
    private = f"; noise {noise:g}: epsilon {epsilon(rounds, noise):.1f} at delta {DELTA:g}" if noise else ""
    return f"| {name} | {alpha:g} | {' | '.join(reached)} | {last} |{private}"


if __name__ == "__main__":
    main()
