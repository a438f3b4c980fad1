"""Both ways of using two cores of this machine: operators side by side, threads in kernels, and both.

    python -m bench.two_cores TORCH FOLDER [--rounds N]

Each way is a process of its own. They take turns, a step each, so that a change of the machine's speed hits all of
them. The least wall time of each counts, since other work on the machine only adds to it; the medians stand beside.
docs/results/processors.md has the table.
"""

from __future__ import annotations

import itertools
import os
import pickle
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import poetc
from bench._command import Rows, main
from bench.kernels import CFLAGS, export
from poetc.commands.programs import graph_of, training_program
from poetc.measure import HostModel, compile_library
from poetc.program import sample_inputs

NETWORKS = ("mobilenetv2", "resnet18", "bert")
BATCHES = (1, 8)
WAYS = {"one core": ("1", False), "threads": ("2", False), "side by side": ("1", True), "both": ("2", True)}
LIMIT_S = 15.0
PROFILE = """title: This machine, two cores
inherits: host
processors:
  core1:
    power: {active_w: {value: 10.0, source: guess}, idle_w: {value: 0.0, source: guess}}
    hand_over_ns: {value: 1000, source: guess}
sources:
  guess: {kind: estimated, text: a wait of another thread}
"""


def prepare(torch: str, name: str, batch: int, folder: Path) -> tuple[Path, float]:
    """A pickle for the workers, and the speed-up that the schedule predicts."""
    profile = folder / "two-cores.yaml"
    profile.write_text(PROFILE)
    model = poetc.load(export(torch, name, batch, folder), batch=batch)
    options = {"device": profile, "paging": False, "time_limit_s": LIMIT_S, "objective": "time"}
    two, one = model.solve(processors="core1", **options), model.solve(processors="main", **options)
    program, values = training_program(two.artifact), graph_of(two.artifact).values
    library = compile_library([program], values, folder / f"{name}-{batch}", cflags=CFLAGS, threads=2)
    path = folder / f"{name}-{batch}.pickle"
    path.write_bytes(pickle.dumps((library, program, dict(values))))
    return path, one.summary["time_ns"] / two.summary["time_ns"]


def work(path: Path, *, queues: bool = False) -> None:
    """A worker: a step for each line that it reads, and its wall and processor time in ms."""
    library, program, values = pickle.loads(path.read_bytes())
    program = program if queues else replace(program, queues=())
    inputs = sample_inputs(program, 0)
    with HostModel(library, [replace(program, probes={})], values) as model:
        for line in sys.stdin:
            wall, busy = time.perf_counter(), time.process_time()
            loss = model.run(inputs)
            wall, busy = time.perf_counter() - wall, time.process_time() - busy
            print(1e3 * wall, 1e3 * busy, loss.hex(), line.strip(), flush=True)


def measure(path: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """By way, the wall and processor time of each step. All ways must give the same losses."""
    workers = {}
    for way, (threads, side_by_side) in WAYS.items():
        words = [sys.executable, "-m", "bench.two_cores", "--worker", str(path), *["--queues"] * side_by_side]
        environment = {**os.environ, "POETC_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}
        workers[way] = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for n in range(rounds + 1):
        losses = set()
        for way, worker in workers.items():
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
            wall, busy, loss, _ = worker.stdout.readline().split()
            losses.add(loss)
            if n:  # the first is not counted
                times[way].append((float(wall), float(busy)))
        if len(losses) != 1:
            raise SystemExit(f"{path.stem}: step {n + 1}: other bits")
    for worker in workers.values():
        worker.communicate()
    return times


def table(torch: str, folder: Path, *, rounds: int = 15) -> Rows:
    folder.mkdir(parents=True, exist_ok=True)
    yield "network (batch)", *WAYS, "predicted, side by side", "load"
    for name, batch in itertools.product(NETWORKS, BATCHES):
        path, predicted = prepare(torch, name, batch, folder)
        found = measure(path, rounds)
        least = {way: min(w for w, _ in times) for way, times in found.items()}
        usual = {way: statistics.median(w for w, _ in times) for way, times in found.items()}
        first, busy = least["one core"], min(b for _, b in found["one core"])
        cells = [f"{first:.1f} ms ({busy:.1f} ms of processor time)"]
        for way in list(WAYS)[1:]:
            cells.append(f"{first / least[way]:.2f} x ({usual['one core'] / usual[way]:.2f} x)")
        yield f"{name} ({batch})", *cells, f"{predicted:.2f} x", f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main(table, worker=work)
