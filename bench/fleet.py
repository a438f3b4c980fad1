"""Rounds of Flower's example embedded-devices: ten clients of PyTorch, and nine of poetc with one emulated Cortex-M.

`--write` writes the tables of docs/results/fleet.md; its date and its text are for a person. Needs `bench/setup_peers`,
the extra `flower`, and scripts/setup-arm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bench._command import Rows, main, with_tables
from poetc import artifact
from poetc.artifact import Artifact
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.fleet import Data, Participant, read_data
from poetc.scheduling import SolveOptions
from poetc.training import TrainingOptions

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "fleet.md"
CLIENTS, BATCH, STEPS, RATE = 10, 32, 6, 0.1
BOARD, CLIENT_ON_BOARD = "mps2-an386", 9
Arrays = Mapping[str, Any]

ONE_CLIENT = """
import json, resource, sys
from pathlib import Path
import numpy as np
from poetc import artifact
from poetc.fleet import Participant, read_data
participant = Participant(artifact.read(Path(sys.argv[1])))
arrays = np.load(sys.argv[2])
data = read_data([arrays["x"], arrays["y"]], participant.slots)
participant.fit({w.tensor: participant.model.initial[w.name] for w in participant.model.weights}, data)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def part(images: Any, labels: Any, client: int) -> tuple[list[Any], list[Any]]:
    """Training and held-out samples of a client, scaled as the example does: (x / 255 - 0.5) / 0.5."""
    x = ((images[client::CLIENTS].astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5))[:, None]
    y = labels[client::CLIENTS].astype(np.int64)
    count = BATCH * STEPS
    return [x[:count], y[:count]], [x[count:], y[count:]]


def solved(model: Path, out: Path, device: str, budget: str) -> Artifact:
    training = TrainingOptions(optimizer="momentum", learning_rate=RATE)
    request = SolveRequest(
        model=ModelRequest(source=model, batch=BATCH, device=device, training=training),
        budget=budget,
        state="ram",
        options=SolveOptions(time_limit_s=20.0, gap=0.05),
    )
    found = solve(request)
    artifact.write(found, out, {})
    return found


class Peer:
    """The process with the PyTorch clients."""

    def __init__(self, python: Path, folder: Path, job: str = "train") -> None:
        self._folder, self.peak_bytes, self.gap = folder, 0, 0.0
        command = [str(python), str(ROOT / "bench" / "peer_fleet.py"), job]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def train(self, weights: Arrays, batches: list[Arrays], dtype: str = "float32") -> dict[str, Any]:
        source, target = self._folder / "peer_in.npz", self._folder / "peer_out.npz"
        image, label = batches[0]
        np.savez(source, **weights, x=np.stack([b[image] for b in batches]), y=np.stack([b[label] for b in batches]))
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{source} {target} {RATE} {dtype}\n")
        self._process.stdin.flush()
        self.peak_bytes = 1024 * int(self._process.stdout.readline())
        with np.load(target) as arrays:
            found = dict(arrays)
        self.gap = float(found.pop("gap"))
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def peer_app(peer: Peer, data: Data) -> Any:
    """A Flower client of PyTorch that takes the same batches as the client of poetc with these data."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        number = int(message.content["config"]["server-round"])
        weights = {n: a.numpy() for n, a in message.content["arrays"].items()}
        found = peer.train(weights, list(data.batches.epoch(number)))
        metrics = MetricRecord({"train_loss": float(found.pop("loss")), "num-examples": data.samples})
        arrays = ArrayRecord({n: Array(np.ascontiguousarray(found[n])) for n in weights})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def rounds(apps: Mapping[int, Any], start: Arrays, count: int, configs: Any) -> tuple[list[dict[str, Any]], Any]:
    """The weights after each round of Flower's FedAvg, and the grid that counted bytes."""
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from tests.support.flower_grid import InProcessGrid

    after: list[dict[str, Any]] = []

    def keep(number: int, arrays: Any) -> None:
        if number:
            after.append({n: a.numpy().astype(np.float32) for n, a in arrays.items()})

    grid = InProcessGrid(apps)
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord({n: Array(np.ascontiguousarray(a)) for n, a in start.items()}),
        num_rounds=count,
        train_config=configs,
        evaluate_fn=keep,
    )
    if grid.errors:
        raise SystemExit(f"a client failed: {grid.errors[0]}")
    return after, grid


def torch_round(peer: Peer, data: list[Data], weights: Arrays, number: int, dtype: str) -> dict[str, Any]:
    """The average of the clients of PyTorch after round `number` from these weights; all have as many samples."""
    found = [peer.train(weights, list(d.batches.epoch(number)), dtype) for d in data]
    kind = "float64" if dtype == "float64" else "float32"
    return {n: np.mean([f[n] for f in found], axis=0, dtype=np.float64).astype(kind) for n in weights}


def torch_rounds(peer: Peer, data: list[Data], start: Arrays, count: int, dtype: str) -> list[dict[str, Any]]:
    """The weights after each round of PyTorch's clients."""
    after = [{n: a.astype("float64" if dtype == "float64" else "float32") for n, a in start.items()}]
    for number in range(1, count + 1):
        after.append(torch_round(peer, data, after[-1], number, dtype))
    return after[1:]


def choices(
    peer: Peer, participant: Participant, data: list[Data], begins: list[dict[str, Any]]
) -> list[tuple[float, float]]:
    """For each round of each client that is no board: PyTorch's least gap, and the difference from PyTorch after it."""
    found = []
    for number, begin in enumerate(begins, 1):
        for client, own in enumerate(data):
            if client == CLIENT_ON_BOARD:
                continue
            batches = list(own.batches.epoch(number))
            expected = peer.train({n: a.astype(np.float64) for n, a in begin.items()}, batches, "float64")
            participant.fit(participant.model.state(begin), own, first_epoch=number)
            found.append((peer.gap, apart(participant.model.arrays(participant.state()), expected)))
    return found


def smooth(python: Path, count: int, folder: Path, parts: list[Any], start: Arrays) -> list[float]:
    """The difference after each round where the network has tanh and average pools: no choices in it."""
    from poetc.flower import client_app, train_config

    folder.mkdir()
    model, out = folder / "net.onnx", folder / "net.poetc"
    command = [python, ROOT / "bench" / "peer_fleet.py", "export-smooth", model]
    subprocess.run(command, check=True, capture_output=True)
    participant = Participant(solved(model, out, "host", "70%"))
    mine = [read_data(own, participant.slots, seed=c) for c, (own, _) in enumerate(parts)]
    peer = Peer(python, folder, "train-smooth")
    try:
        of_torch = torch_rounds(peer, mine, start, count, "float32")
    finally:
        peer.close()
    apps = {c: client_app(out, parts[c][0], seed=c) for c in range(CLIENTS)}
    of_poetc, _ = rounds(apps, start, count, train_config(out))
    return [apart(a, b) for a, b in zip(of_torch, of_poetc, strict=True)]


def apart(a: Arrays, b: Arrays) -> float:
    """The largest difference of a weight."""
    return max(float(np.abs(a[n] - b[n]).max()) for n in a)


def accuracy(participant: Participant, weights: Arrays, held_out: list[Any]) -> float:
    data = read_data(held_out, participant.slots, validation=held_out)
    return participant.evaluate(participant.model.state(weights), data).accuracy or 0.0


def measure(data: Path, python: Path, count: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    from poetc.flower import client_app, gateway_app, train_config
    from tests.support.fleet_board import built, running

    model = folder / "net.onnx"
    subprocess.run([python, ROOT / "bench" / "peer_fleet.py", "export", model], check=True, capture_output=True)
    with np.load(data) as arrays:
        parts = [part(arrays["x"], arrays["y"], client) for client in range(CLIENTS)]
    held_out = [np.concatenate([p[1][i] for p in parts]) for i in range(2)]
    say("solving")
    host, board = folder / "host.poetc", folder / "board.poetc"
    on_host, on_board = solved(model, host, "host", "70%"), solved(model, board, f"qemu-{BOARD}", "70%")
    firmware = built(board, folder / "firmware", BOARD)
    participant, found = Participant(on_host), {}
    mine = [
        read_data(own, participant.slots, seed=client, shuffle=client != CLIENT_ON_BOARD)
        for client, (own, _) in enumerate(parts)
    ]
    start = participant.model.initial
    with ExitStack() as stack:
        say("PyTorch")
        peer = Peer(python, folder)
        stack.callback(peer.close)
        of_torch, grid = rounds({c: peer_app(peer, mine[c]) for c in range(CLIENTS)}, start, count, train_config(host))
        found["torch_bytes"] = grid.sent_bytes, grid.received_bytes
        say("poetc, and a board")
        (folder / "run").mkdir()
        line = stack.enter_context(
            running(on_board, firmware, BOARD, list(mine[CLIENT_ON_BOARD].batches.epoch(1)), folder / "run")
        )
        apps = {c: client_app(host, parts[c][0], seed=c) for c in range(CLIENTS)}
        apps[CLIENT_ON_BOARD] = gateway_app(board, firmware, line)
        of_poetc, grid = rounds(apps, start, count, train_config(host))
        found["poetc_bytes"] = grid.sent_bytes, grid.received_bytes
        say("PyTorch from the weights of poetc's rounds, and in 64 bits")
        begins = [dict(start), *of_poetc[:-1]]
        alone = [torch_round(peer, mine, begin, i + 1, "float32") for i, begin in enumerate(begins)]
        exact = torch_rounds(peer, mine, start, count, "float64")
        plain = torch_rounds(peer, mine, start, count, "plain")
        choice = choices(peer, participant, mine, begins)
    say("without choices")
    found["smooth"] = smooth(python, count, folder / "smooth", parts, start)
    near = sorted(choice)
    found["gaps"] = near
    found["torch_plain"] = [apart(a, b) for a, b in zip(plain, of_torch, strict=True)]
    found["one_round"] = [apart(a, b) for a, b in zip(alone, of_poetc, strict=True)]
    found["error"] = [apart(a, b) for a, b in zip(of_torch, of_poetc, strict=True)]
    found["torch_rounding"] = [apart(a, b) for a, b in zip(exact, of_torch, strict=True)]
    found["poetc_rounding"] = [apart(a, b) for a, b in zip(exact, of_poetc, strict=True)]
    found["moved"] = [max(float(np.abs(a[n] - start[n]).max()) for n in a) for a in of_torch]
    found["accuracy"] = [
        [accuracy(participant, weights, held_out) for weights in each] for each in (of_torch, of_poetc)
    ]
    found["elements"] = participant.model.elements
    found["arena_bytes"], found["torch_peak_bytes"] = participant.measure_peak(), peer.peak_bytes
    np.savez(folder / "one.npz", x=parts[0][0][0], y=parts[0][0][1])
    command = [sys.executable, "-c", ONE_CLIENT, str(host), str(folder / "one.npz")]
    found["poetc_peak_bytes"] = 1024 * int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    sizes = subprocess.run(
        ["arm-none-eabi-size", firmware / "firmware.elf"], check=True, capture_output=True, text=True
    ).stdout.split()
    code, variables, zeros = (int(n) for n in sizes[6:9])
    found["board_flash_bytes"], found["board_ram_bytes"] = code + variables, variables + zeros
    found["held_out"] = len(held_out[0])
    return found


def round_rows(found: dict[str, Any]) -> Rows:
    yield (
        "round", "one round", "all rounds", "PyTorch from 64 bits", "poetc from 64 bits", "PyTorch without oneDNN",
        "without choices", "accuracy of both",
    )  # fmt: skip
    columns = ("one_round", "error", "torch_rounding", "poetc_rounding", "torch_plain", "smooth")
    for i in range(len(found["error"])):
        both = ", ".join(f"{accuracies[i]:.1%}" for accuracies in found["accuracy"])
        yield i + 1, *(f"{found[name][i]:.1e}" for name in columns), both


def gap_rows(found: dict[str, Any]) -> Rows:
    yield "least gap", "client rounds", "up to 1e-6 from PyTorch in 64 bits", "largest difference"
    for name, is_near in (("below 1e-7", True), ("1e-7 and more", False)):
        of = [d for g, d in found["gaps"] if (g < 1e-7) is is_near]
        yield name, len(of), sum(d <= 1e-6 for d in of), f"{max(of):.1e}" if of else "-"


def client_rows(found: dict[str, Any]) -> Rows:
    yield "client", "to the client, a round", "to the server, a round", "memory"
    each, mib = CLIENTS * len(found["error"]), 1 << 20
    poetc_memory = f"{found['poetc_peak_bytes'] / mib:.0f} MiB of the process, {found['arena_bytes']:,} B of it arena"
    board_memory = f"{found['board_ram_bytes']:,} B of RAM, {found['board_flash_bytes']:,} B of flash"
    for name, engine, memory in (
        ("PyTorch", "torch", f"{found['torch_peak_bytes'] / mib:.0f} MiB of the process"),
        ("poetc in Python", "poetc", poetc_memory),
        ("the board", "poetc", board_memory),
    ):
        yield name, *(f"{sent // each:,} B" for sent in found[f"{engine}_bytes"]), memory


def run(
    *,
    data: Annotated[Path, "an .npz with images x (uint8) and labels y of MNIST"],
    rounds: int = 3,
    python: Path = ROOT / "build" / "peers" / "torch" / "bin" / "python",
    write: Annotated[bool, "write the tables of docs/results/fleet.md"] = False,
) -> None:
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="poetc-fleet-") as folder:
        found = measure(data, python, rounds, Path(folder), lambda text: print(text, file=sys.stderr))
    print(json.dumps(found, indent=1))
    if write:
        tables = {"rounds": round_rows(found), "gaps": gap_rows(found), "clients": client_rows(found)}
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main(run)
