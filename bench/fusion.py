"""`make bench-fusion`: what the fusion pass gives on every network of the zoo.

    python -m bench.fusion [--models FOLDER] [--csv FILE] [--rounds N] [NAME ...]

Each network (its `train` file) is built with and without `--no-fusion`: operators, bytes kept from the forward to the
backward pass, keep-all peak, and the time of a keep-all step in C on this machine (one thread, batch of the file, the
two in turns, medians). The rows grow in a CSV file, and an interrupted run goes on where it stopped. NAME: only
networks whose name contains it.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench._command import Rows, Table, main
from poetc import frontend, passes, training
from poetc.devices import build_problem, load_profile
from poetc.devices.saved import saved_bytes
from poetc.graph import Array, TrainingGraph
from poetc.measure import HostModel, compile_library
from poetc.program import Program, all_inputs, lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

SIDES = ("plain", "fused")
COLUMNS = ("network", *(f"{what}_{side}" for what in ("operators", "saved", "peak", "us") for side in SIDES))
FLAGS = "-O3 -march=native"
TURN_S = 0.05


def build(path: Path, fusion: bool) -> tuple[TrainingGraph, Program, dict[str, int]]:
    graph = frontend.load(path, random_weights=0)
    step = passes.run_standard(training.build(graph, TrainingOptions(fusion=fusion)))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 62)
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    figures = {
        "operators": len(problem.operators),
        "saved": saved_bytes(problem),
        "peak": program.high_water_bytes,
    }
    return step, program, figures


def run(path: Path, rounds: int) -> dict[str, Any]:
    row: dict[str, Any] = {"network": path.name.split(".")[0]}
    with tempfile.TemporaryDirectory() as scratch:
        models = []
        for side in SIDES:
            step, program, figures = build(path, side == "fused")
            library = compile_library([program], step.values, Path(scratch) / side, cflags=FLAGS)
            model = HostModel(library, [replace(program, probes={})], step.values)
            model.set_state("learning_rate", np.zeros(1, np.float32))  # weights stay in range however long this takes
            models.append((model, sample_inputs(program)))
            row |= {f"{what}_{side}": value for what, value in figures.items()}
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(rounds + 1):
            for side, (model, inputs) in zip(SIDES, models, strict=True):
                model.run(inputs)  # fills the caches, checks
                steps = max(1, int(TURN_S / _seconds(model, inputs, 1))) if turn else 1
                times[side].append(_seconds(model, inputs, steps) / steps)
        for side, (model, _) in zip(SIDES, models, strict=True):
            model.close()
            row[f"us_{side}"] = round(statistics.median(times[side][1:]) * 1e6)
    return row


def _seconds(model: HostModel, inputs: Mapping[str, Array], steps: int) -> float:
    """Processor time of `steps` steps, without HostModel's checks."""
    runtime = ctypes.byref(model._runtime)
    places = [(model._view(b.operand), inputs[b.name]) for b in all_inputs(model.program)]
    started = time.process_time()
    for _ in range(steps):
        for place, value in places:
            place[...] = value
        if model._dll.poetc_run(runtime):
            raise SystemExit("poetc_run failed")
    return time.process_time() - started


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    plain, fused = (
        {what: int(row[f"{what}_{side}"]) for what in ("operators", "saved", "peak", "us")} for side in SIDES
    )
    changes = []
    for what, unit in (("saved", 1e6), ("peak", 1e6), ("us", 1e3)):
        change = 100 * (fused[what] / plain[what] - 1)
        changes.append(f"{plain[what] / unit:.3f} → {fused[what] / unit:.3f} ({change:+.0f} %)")
    return row["network"], f"{plain['operators']} → {fused['operators']}", *changes


def table(
    names: tuple[str, ...] = (),
    *,
    models: Path = Path("../shared/models/zoo"),
    csv: Path = Path("build/fusion.csv"),
    rounds: int = 9,
) -> Rows:
    paths = {p.name.split(".")[0]: p for p in sorted(models.glob("*.train.*"))}
    paths |= {n: p for p in sorted(models.glob("*.legacy.*")) if (n := p.name.split(".")[0]) not in paths}
    if not paths:
        sys.exit(f"fusion: no models in {models} (--models FOLDER)")
    done = Table(csv, COLUMNS, ("network",))
    yield "network", "operators", "saved MB", "keep-all peak MB", "ms a step"
    for name, path in sorted(paths.items()):
        if not names or any(part in name for part in names):
            yield cells(done.rows.get((name,)) or done.add(run(path, rounds)))


if __name__ == "__main__":
    main(table)
