"""Encodings of saved tensors: smallest RAM, energy, and the accuracy of what is trained with them.

    python -m bench.saved ram DEVICE BATCH SECONDS MODEL...   a table row a model: smallest RAM found by encoding
    python -m bench.saved errors BATCH MODEL                  relative errors of gradients, all saved tensors encoded
    python -m bench.saved keep-all DEVICE BATCH MODEL...      keep-all's peak with every encoding made
    python -m bench.saved accuracy NETWORK DATA.npz           arrays x [samples, h, w] of u8 and y; the last fifth tests

NETWORK is one of demo/boards/networks.py, or an ONNX file. docs/results/saved.md has the tables.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import poetc
from bench.integers import BATCH, EPOCHS, SEEDS, network
from poetc import artifact, passes
from poetc.commands.encodings import encodings_of, offers_of
from poetc.commands.requests import ModelRequest, SolveRequest, read_problem, training_graph, with_any_weights
from poetc.commands.solve import solve
from poetc.devices import build_problem, load_profile
from poetc.errors import PoetcError
from poetc.scheduling import keep_all, keep_all_peak_bytes, pack
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions

FORMATS = ("off", "exact", "f16", "int8")


def smallest_ram(model: Path, device: str, batch: int, seconds: float, options: TrainingOptions) -> tuple[int, int]:
    """Keep-all's peak, and the least RAM that is found, of the problem that probably needs the least."""
    request = SolveRequest(
        model=with_any_weights(ModelRequest(source=model, batch=batch, device=device, training=options)),
        options=SolveOptions(time_limit_s=seconds),
    )
    _, step, profile, problem = read_problem(request)
    found = request.planner(seconds, offers=offers_of(step, profile, problem, None)).search_ram(problem, seconds).found
    return keep_all_peak_bytes(problem), found.ram_bytes or 0


def ram(device: str, batch: int, seconds: float, models: list[Path]) -> None:
    print(f"| {device}, batch {batch} | keep-all | " + " | ".join(FORMATS) + " | niti |")
    for model in models:
        least = 1 << 60
        cells = []
        for form in FORMATS:
            peak, found = smallest_ram(model, device, batch, seconds, TrainingOptions(saved=form))
            least = min(least, found)  # a schedule with fewer encodings is one for more
            cells.append(least)
        try:
            niti = f"{smallest_ram(model, device, batch, seconds, TrainingOptions(precision='niti'))[1]:,}"
        except PoetcError as error:
            niti = str(error).splitlines()[0][:60]
        row = " | ".join(f"{found:,}" for found in cells)
        print(f"| {model.stem} | {peak:,} | {row} | {niti} |", flush=True)


def peaks(device: str, batch: int, models: list[Path]) -> None:
    """Keep-all's peak with every encoding made, which no planner chose."""
    print(f"| {device}, batch {batch} | " + " | ".join(FORMATS) + " | niti |")
    profile = load_profile(device)
    for model in models:
        cells = []
        for form in (*FORMATS, "niti"):
            options = TrainingOptions(precision="niti") if form == "niti" else TrainingOptions(saved=form)
            request = with_any_weights(ModelRequest(source=model, batch=batch, device=device, training=options))
            try:
                _, step = training_graph(request)
            except PoetcError:
                cells.append("-")
                continue
            step = passes.encoded(step, () if form == "niti" else encodings_of(step))
            cells.append(f"{keep_all_peak_bytes(build_problem(step, profile, budget_bytes=1)):,}")
        print(f"| {model.stem} | {' | '.join(cells)} |", flush=True)


def forced(path: Path, batch: int, options: TrainingOptions, folder: Path) -> poetc.Solution:
    """A solved directory in which every tensor that can be encoded is, and kept."""
    request = ModelRequest(source=path, batch=batch, training=options)
    solved = solve(SolveRequest(model=with_any_weights(request), options=SolveOptions(time_limit_s=5)))
    assert solved.graph is not None and solved.profile is not None
    step = passes.encoded(solved.graph, encodings_of(solved.graph))
    problem = build_problem(step, solved.profile, budget_bytes=solved.problem.budget_bytes)
    schedule = keep_all(problem)
    made = replace(
        solved,
        graph=step,
        problem=problem,
        schedule=schedule,
        plan=pack(problem, schedule),
        inference_problem=None,
        inference_schedule=None,
        inference_plan=None,
    )
    artifact.write(made, folder, {}, force=True)
    return poetc.open_solution(folder)


def errors(batch: int, model: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for form in ("f16", "bf16", "int8"):
            found = forced(model, batch, TrainingOptions(saved=form), Path(scratch) / form).validate()
            sizes = sorted(e["rel_error"] for e in found["saved_errors"])
            bits = found["bit_identical_to_keep_all"]
            print(
                f"{form}: median {np.median(sizes):.2e}, largest {sizes[-1]:.2e} of {len(sizes)}; bits {bits}",
                flush=True,
            )


def accuracy(name: str, data: Path) -> None:
    with np.load(data) as arrays, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        x, y = arrays["x"][:, None].astype(np.float32) / arrays["x"].max(), arrays["y"].astype(np.int32)
        order = np.random.default_rng(0).permutation(len(x))
        cut = len(x) * 4 // 5 // BATCH * BATCH
        for part, rows in (("train", order[:cut]), ("test", order[cut:])):
            np.savez(folder / f"{part}.npz", x=x[rows], y=y[rows])
        path = Path(name) if name.endswith(".onnx") else network(name, folder)
        for form in ("off", "f16", "int8"):
            options = TrainingOptions(optimizer="momentum", learning_rate=0.02, saved=form)
            forced(path, BATCH, options, folder / form)
            found: list[float] = []
            for seed in SEEDS:
                result: Any = poetc.train(
                    folder / form,
                    data=f"{folder}/train.npz:x,y",
                    validation=f"{folder}/test.npz:x,y",
                    out=folder / f"out-{form}-{seed}.onnx",
                    epochs=EPOCHS,
                    schedule="cosine",
                    seed=seed,
                    force=True,
                )
                found.append(100 * result["epochs"][-1]["validation_accuracy"])
            print(f"{form:6} {np.mean(found):6.2f}  ({', '.join(f'{a:.2f}' for a in found)})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    for name in ("ram", "keep-all"):
        task = tasks.add_parser(name)
        task.add_argument("device")
        task.add_argument("batch", type=int)
        if name == "ram":
            task.add_argument("seconds", type=float)
        task.add_argument("models", type=Path, nargs="+")
    task = tasks.add_parser("errors")
    task.add_argument("batch", type=int)
    task.add_argument("model", type=Path)
    task = tasks.add_parser("accuracy")
    task.add_argument("network")
    task.add_argument("data", type=Path)
    asked = parser.parse_args()
    if asked.task == "ram":
        ram(asked.device, asked.batch, asked.seconds, asked.models)
    elif asked.task == "keep-all":
        peaks(asked.device, asked.batch, asked.models)
    elif asked.task == "errors":
        errors(asked.batch, asked.model)
    else:
        accuracy(asked.network, asked.data)


if __name__ == "__main__":
    main()
