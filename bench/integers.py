"""Integer training beside float training: accuracy on digits, RAM, and instructions of a step.

    python -m bench.integers accuracy NETWORK DATA.npz      arrays x [samples, h, w] of u8 and y; the last fifth tests
    python -m bench.integers size NETWORK DEVICE [BATCH]    smallest RAM, and instructions of a step in QEMU
    python -m bench.integers time MODEL.onnx [BATCH]        processor time of a step on this machine

NETWORK is one of demo/boards/networks.py. docs/results/integer.md has the tables. `time` takes turns between integers
and floats in one process on one thread, so that other work on the machine disturbs both.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import poetc
from bench.instructions import training_step
from poetc import measure
from poetc.commands.run import RunRequest, run
from poetc.events import silent
from poetc.program import all_inputs, sample_inputs
from poetc.training import TrainingOptions

ROOT = Path(__file__).resolve().parents[1]
BOARDS = ("mps2-an385-m0", "mps2-an385", "mps2-an386", "mps3-an547", "aarch64")
CFLAGS = "-O3 -march=native"
SEEDS, EPOCHS, BATCH = (0, 1, 2), 15, 25
RUNS: dict[str, tuple[TrainingOptions, str]] = {
    "f32, momentum": (TrainingOptions(optimizer="momentum", learning_rate=0.02), "cosine"),
    "niti": (
        TrainingOptions(precision="niti", niti_weights="xavier", learning_rate=0.125),
        "step:every={third},factor=0.5",
    ),
    "niti, nearest updates": (
        TrainingOptions(precision="niti", niti_weights="xavier", learning_rate=0.125, rounding="update=nearest"),
        "step:every={third},factor=0.5",
    ),
    "niti, weights of 24 bits": (
        TrainingOptions(precision="niti", niti_weights="xavier", learning_rate=0.0625, weight_bits="24"),
        "cosine",
    ),
    "niti, rescale interval": (
        TrainingOptions(precision="niti", niti_weights="xavier", learning_rate=0.125, rescale="interval"),
        "step:every={third},factor=0.5",
    ),
}


def networks() -> ModuleType:
    """The module demo/boards/networks.py."""
    spec = importlib.util.spec_from_file_location("networks", ROOT / "demo" / "boards" / "networks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def network(name: str, folder: Path) -> Path:
    """The ONNX file of one of its networks."""
    path: Path = networks().write(name, folder / f"{name}.onnx")
    return path


def accuracy(name: str, data: Path) -> None:
    with np.load(data) as arrays, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        x, y = arrays["x"][:, None].astype(np.float32) / arrays["x"].max(), arrays["y"].astype(np.int32)
        order = np.random.default_rng(0).permutation(len(x))
        cut = len(x) * 4 // 5 // BATCH * BATCH
        for part, rows in (("train", order[:cut]), ("test", order[cut:])):
            np.savez(folder / f"{part}.npz", x=x[rows], y=y[rows])
        steps = cut // BATCH * EPOCHS
        for label, (options, schedule) in RUNS.items():
            found: list[float] = []
            for seed in SEEDS:
                model = poetc.load(network(name, folder), batch=BATCH, training=options)
                result = poetc.train(
                    model,
                    data=f"{folder}/train.npz:x,y",
                    validation=f"{folder}/test.npz:x,y",
                    out=folder / "out.onnx",
                    epochs=EPOCHS,
                    schedule=schedule.format(third=steps // 3),
                    seed=seed,
                    force=True,
                    time_limit_s=3,
                )
                found.append(100 * result["epochs"][-1]["validation_accuracy"])
            print(f"{label:24} {np.mean(found):6.2f}  ({', '.join(f'{a:.2f}' for a in found)})", flush=True)


def size(name: str, device: str, batch: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for precision in ("f32", "niti"):
            options = TrainingOptions(precision=precision)
            solution = poetc.load(network(name, folder), batch=batch, training=options).solve(
                device=device, budget="100%", time_limit_s=10
            )
            summary: dict[str, Any] = dict(solution.summary)
            counts = []
            directory = solution.save(folder / precision)
            for board in BOARDS:
                outcome = run(RunRequest(directory=directory, on=f"qemu:{board}", steps=1), silent, lambda *_: None)
                counts.append(f"{board} {outcome['instructions'] / 1e6:.2f} M")
            ram = f"keep-all {summary['keep_all_peak_bytes']:,}, smallest {summary['min_budget_bytes']:,}"
            print(f"{precision:5} {ram}; {', '.join(counts)}", flush=True)


def run_once(model: measure.HostModel, inputs: list[tuple[Any, Any]]) -> None:
    """A step without HostModel's checks."""
    for place, value in inputs:
        place[...] = value
    if model._dll.poetc_run(ctypes.byref(model._runtime)):
        raise SystemExit("poetc_run failed")


def time_steps(source: Path, batch: int, turns: int) -> None:
    """Keep-all steps of floats, without and with fused multiply-adds, and of integers: the quickest and the median."""
    options = {"f32": TrainingOptions(learning_rate=1e-4), "niti": TrainingOptions(precision="niti")}
    times: dict[str, list[float]] = {}
    with contextlib.ExitStack() as models:
        runs: dict[str, Callable[[], None]] = {}
        for label, precision, flags in (
            ("f32", "f32", CFLAGS),
            ("f32 fused", "f32", f"{CFLAGS} -DPOETC_FUSED"),
            ("niti", "niti", CFLAGS),
        ):
            step, program = training_step(source, batch, options[precision])
            model = models.enter_context(measure.build_host([program], step.values, cflags=flags))
            inputs = sample_inputs(program, 0)
            model.run(inputs)
            places = [(model._view(b.operand), inputs[b.name]) for b in all_inputs(program)]
            runs[label] = functools.partial(run_once, model, places)
            times[label] = []
        for _ in range(turns):
            for label, run_step in runs.items():
                start = time.process_time()
                run_step()
                times[label].append(1e3 * (time.process_time() - start))
    floats = times["f32"]
    for label, found in times.items():
        least, middle = min(found), statistics.median(found)
        ratios = f"{min(floats) / least:.2f} x and {statistics.median(floats) / middle:.2f} x the speed of f32"
        print(f"{source.stem} batch {batch} {label:14} {least:8.2f} ms, median {middle:8.2f} ms: {ratios}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    of_accuracy = parts.add_parser("accuracy")
    of_accuracy.add_argument("network")
    of_accuracy.add_argument("data", type=Path)
    of_size = parts.add_parser("size")
    of_size.add_argument("network")
    of_size.add_argument("device")
    of_size.add_argument("batch", type=int, nargs="?", default=8)
    of_time = parts.add_parser("time")
    of_time.add_argument("model", type=Path)
    of_time.add_argument("batch", type=int, nargs="?", default=1)
    of_time.add_argument("--turns", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.part == "accuracy":
        accuracy(arguments.network, arguments.data)
    elif arguments.part == "time":
        time_steps(arguments.model, arguments.batch, arguments.turns)
    else:
        size(arguments.network, arguments.device, arguments.batch)
