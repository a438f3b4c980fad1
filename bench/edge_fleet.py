"""The three protocols of EdgeFlowerTune (arXiv 2605.08636) on Flower clients of poetc: adapters of a language model.

    python -m bench.edge_fleet TEXT... [--rounds 20] [--clients 8] [--device rpi4]

Quality under a budget: the loss when a client's bytes, energy or RAM are used up. Cost to a target: rounds, bytes,
energy and time of a client until a loss is reached. Robustness: the loss after all rounds when clients drop out, stop
early or diverge. Privacy: Flower clips changes at the server and adds noise; epsilon is that of zero-concentrated
differential privacy (Bun and Steinke, 2016). Batches of 8 samples of 64 tokens are those of the benchmark's own code.

Tokens are bytes. A small decoder begins with random weights and learns the first quarter of the texts. The others are
divided among the clients: each has neighbouring texts, so clients differ. The last tenth of each client's samples
tests. Energy and time are modelled, of compute alone. docs/results/federated.md has the tables.
"""

from __future__ import annotations

import logging
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench._command import main
from poetc import artifact, train
from poetc.api import load
from poetc.artifact import Artifact
from poetc.fleet import Participant, read_data
from poetc.training import TrainingOptions

BATCH, LENGTH, LAYERS, VOCABULARY = 8, 64, 2, 128
DIMS = {"batch_size": BATCH, "sequence_length": LENGTH}
STEPS = 6  # of a client in a round, an epoch of so many batches
KNOWN_SAMPLES, KNOWN_EPOCHS = 640, 20
WILD_RATE = 1e30
CLIP, DELTA, NOISES = 5.0, 1e-5, (0.05, 0.2, 1.0)


@dataclass(frozen=True, slots=True)
class Method:
    """`budget`: RAM of a step, as a share of that with every tensor kept."""

    options: TrainingOptions
    budget: str = "100%"


def _adapters(text: str) -> TrainingOptions:
    return TrainingOptions(optimizer="adam", learning_rate=0.02, lora=(text,))


METHODS = {
    "adapters of rank 8": Method(_adapters("8")),
    "adapters of rank 8, 60 % of the RAM": Method(_adapters("8"), "60%"),
    "adapters of rank 2": Method(_adapters("2")),
    "adapters of rank 8, queries and values": Method(_adapters("8:q_proj,v_proj")),
    "all weights": Method(TrainingOptions(optimizer="adam", learning_rate=0.004)),
}
FIRST = next(iter(METHODS))


@dataclass(frozen=True, slots=True)
class Conditions:
    """`share` of the clients takes part in a round. Of `slow` clients each trains one batch; `wild` ones diverge.

    `noise`: times the norm `CLIP`, to which changes are clipped; 0: no privacy.
    """

    share: float = 1.0
    slow: int = 0
    wild: int = 0
    wild_rate: float = WILD_RATE
    most_norm: float | None = None
    noise: float = 0.0


CONDITIONS = {
    "all take part": Conditions(),
    "half of the clients a round, drawn": Conditions(share=0.5),
    "a quarter of the clients a round, drawn": Conditions(share=0.25),
    "half of the clients stop after one batch": Conditions(slow=4),
    "two clients diverge to infinity": Conditions(wild=2),
    "two clients train at a rate of 1": Conditions(wild=2, wild_rate=1.0),
    "the same, changes of a norm above 30 left out": Conditions(wild=2, wild_rate=1.0, most_norm=30.0),
}


def samples(texts: Sequence[Path]) -> Any:
    """Tokens [samples, LENGTH + 1] of all texts in their order."""
    found = []
    for path in texts:
        tokens = np.frombuffer(path.read_bytes(), np.uint8) % VOCABULARY
        count = len(tokens) // (LENGTH + 1)
        found.append(tokens[: count * (LENGTH + 1)].reshape(count, LENGTH + 1).astype(np.int64))
    return np.concatenate(found)


def spread(rows: Any, count: int) -> list[Any]:
    """Inputs and targets of `count` rows, at equal distances."""
    some = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    return [some[:, :-1], some[:, 1:]]


def known_model(rows: Any, folder: Path) -> Path:
    """A random decoder that has learnt rows."""
    from tests.support.language import write_decoder

    fresh, known = folder / "fresh.onnx", folder / "known.onnx"
    write_decoder(fresh, layers=LAYERS, vocabulary=VOCABULARY, seed=1)
    x, y = spread(rows, KNOWN_SAMPLES)
    np.savez(folder / "known.npz", x=x, y=y)
    training = TrainingOptions(optimizer="adam", learning_rate=0.004)
    model = load(fresh, dims=DIMS, training=training)
    train(model, data=f"{folder}/known.npz:x,y", out=known, epochs=KNOWN_EPOCHS, time_limit_s=3)
    return known


def solved_of(model: Path, method: Method, device: str) -> Artifact:
    loaded = load(model, dims=DIMS, training=method.options)
    return loaded.solve(device=device, budget=method.budget, state="ram", time_limit_s=10.0, gap=0.02).artifact


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses of the test samples in nats a token, before the first round and after each, and costs of a client."""

    losses: tuple[float, ...]
    sent_bytes: int
    step_pj: int
    step_ns: int
    ram_bytes: int
    errors: int

    def energy_j(self, rounds: int) -> float:
        return rounds * STEPS * self.step_pj / 1e12

    def rounds_to(self, loss: float) -> int | None:
        return next((k for k, found in enumerate(self.losses) if found <= loss), None)


def curve_of(
    solved: Artifact, folder: Path, parts: list[Any], test: list[Any], rounds: int, conditions: Conditions
) -> Curve:
    """Rounds of Flower's server with a checked average, and clients of poetc on this machine."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

    from poetc.flower import CheckedFedAvg, client_app, initial_arrays, train_config
    from tests.support.flower_grid import InProcessGrid

    directory = folder / "client.poetc"
    artifact.write(solved, directory, {}, force=True)

    def data_of(context: Context) -> Any:
        number = int(context.node_config["partition-id"])
        x, y = parts[number]
        return [x[:BATCH], y[:BATCH]] if number < conditions.slow else [x, y]

    def diverging(message: Message, context: Context, call: Any) -> Message:
        if int(context.node_config["partition-id"]) < conditions.wild:
            for config in message.content.config_records.values():
                config["learning-rate"] = conditions.wild_rate
        answer: Message = call(message, context)
        return answer

    app = client_app(directory, data_of, seed=1, mods=[diverging])
    nodes = {100 + n: {"partition-id": n} for n in range(len(parts))}
    grid = InProcessGrid(dict.fromkeys(nodes, app), {}, nodes)
    participant = Participant(solved)
    judge = read_data(test, participant.slots, validation=test)
    losses = []

    def judged(_: int, arrays: ArrayRecord) -> MetricRecord:
        state = participant.model.state({n: a.numpy() for n, a in arrays.items()}, None)
        losses.append(participant.evaluate(state, judge).loss)
        return MetricRecord({"loss": losses[-1]})

    random.seed(0)  # Flower draws the clients of a round with it
    first = initial_arrays(directory)
    strategy: Any = CheckedFedAvg(
        fraction_train=conditions.share,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=1,
        max_update_norm=conditions.most_norm,
    )
    if conditions.noise:
        strategy = DifferentialPrivacyServerSideFixedClipping(strategy, conditions.noise, CLIP, len(parts))
        np.random.seed(0)  # Flower draws the noise with it
    try:
        strategy.start(
            grid=grid,
            initial_arrays=first,
            num_rounds=rounds,
            train_config=train_config(directory),
            evaluate_fn=judged,
        )
    finally:
        participant.close()
    summary = solved.summary
    return Curve(
        losses=tuple(losses),
        sent_bytes=sum(array.numpy().nbytes for array in first.values()),
        step_pj=int(summary["energy_pj"]),
        step_ns=int(summary["time_ns"]),
        ram_bytes=int(summary["peak_bytes"]),
        errors=len(grid.errors),
    )


def epsilon(rounds: int, noise: float) -> float:
    """Of `rounds` Gaussian mechanisms: rho = rounds / (2 noise^2), epsilon = rho + 2 sqrt(rho ln(1 / delta))."""
    rho = rounds / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))


def quality(curves: dict[str, Curve]) -> list[str]:
    """The loss that each method has when the budget of a client is used up."""
    base = curves[FIRST]
    whole = len(base.losses) - 1
    sent, energy = whole * base.sent_bytes, base.energy_j(whole)
    budgets: list[tuple[str, float | None, float | None]] = [
        ("no limit", None, None),
        ("half the bytes", sent / 2, None),
        ("an eighth of the bytes", sent / 8, None),
    ]
    budgets += [("half the energy", None, energy / 2), ("a quarter of the energy", None, energy / 4)]
    lines = ["| budget of a client | " + " | ".join(curves) + " |", "|" + "---|" * (len(curves) + 1)]
    for name, most_bytes, most_j in budgets:
        cells = []
        for curve in curves.values():
            rounds = len(curve.losses) - 1
            if most_bytes is not None:
                rounds = min(rounds, int(most_bytes / curve.sent_bytes))
            if most_j is not None:
                rounds = min(rounds, int(most_j / curve.energy_j(1)))
            cells.append(f"{curve.losses[rounds]:.3f} ({rounds})")
        amount = f": {most_bytes / 1e3:,.0f} kB" if most_bytes else f": {most_j:.2f} J" if most_j else ""
        lines.append(f"| {name}{amount} | " + " | ".join(cells) + " |")
    return lines


def cost(curves: dict[str, Curve], targets: list[float]) -> list[str]:
    head = "| method | RAM, kB | " + " | ".join(f"to {t:.2f}: rounds, kB, J, s" for t in targets) + " |"
    lines = [head, "|" + "---|" * (len(targets) + 2)]
    for name, curve in curves.items():
        cells = []
        for target in targets:
            k = curve.rounds_to(target)
            if k is None:
                cells.append("not reached")
                continue
            seconds = k * STEPS * curve.step_ns / 1e9
            cells.append(f"{k}, {k * curve.sent_bytes / 1e3:,.0f}, {curve.energy_j(k):.2f}, {seconds:.2f}")
        lines.append(f"| {name} | {curve.ram_bytes / 1e3:,.0f} | " + " | ".join(cells) + " |")
    return lines


def run(texts: tuple[Path, ...], *, rounds: int = 20, clients: int = 8, device: str = "rpi4") -> None:
    from flwr.common import logger

    logger.FLOWER_LOGGER.setLevel(logging.CRITICAL)
    rows = samples(texts)
    cut = len(rows) // 4
    own = np.array_split(rows[cut:], clients)
    parts = [spread(r[: len(r) * 9 // 10], BATCH * STEPS) for r in own]
    tests = [spread(r[len(r) * 9 // 10 :], BATCH) for r in own]
    test = [np.concatenate(arrays) for arrays in zip(*tests, strict=True)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = known_model(rows[:cut], folder)
        solutions = {name: solved_of(model, method, device) for name, method in METHODS.items()}
        curves = {}
        for name, solved in solutions.items():
            curves[name] = curve_of(solved, folder, parts, test, rounds, Conditions())
            print(f"{name}: {', '.join(f'{loss:.3f}' for loss in curves[name].losses)}", flush=True)
        start, end = curves[FIRST].losses[0], min(curves[FIRST].losses)
        print("\nQuality under a budget: loss, and rounds\n", *quality(curves), sep="\n")
        targets = [start - share * (start - end) for share in (0.5, 0.9)]
        print("\nCost to a target, of a client\n", *cost(curves, targets), sep="\n")
        print(f"\nRobustness: {FIRST}\n\n| condition | loss | of the gain | replies with errors |\n|---|---|---|---|")
        for name, conditions in CONDITIONS.items():
            curve = curve_of(solutions[FIRST], folder, parts, test, rounds, conditions)
            share = (start - curve.losses[-1]) / (start - curves[FIRST].losses[-1])
            print(f"| {name} | {curve.losses[-1]:.3f} | {100 * share:.0f} % | {curve.errors} |", flush=True)
        print(f"\nPrivacy, changes clipped to {CLIP:g}: {FIRST}\n\n| noise | epsilon | loss |\n|---|---|---|")
        for noise in NOISES:
            curve = curve_of(solutions[FIRST], folder, parts, test, rounds, Conditions(noise=noise))
            print(f"| {noise:g} | {epsilon(rounds, noise):,.1f} | {curve.losses[-1]:.3f} |", flush=True)


if __name__ == "__main__":
    main(run)
