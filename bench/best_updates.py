"""Ways to choose the trained parameters at one RAM budget: all, last layers, biases, and the best set of updates.

    python bench/best_updates.py MODEL.onnx --data D.npz:x,y --validation D.npz:x,y --importance FILE [options]

Prints a row a way: the importance of its updates, RAM, energy and accuracy after some epochs on this machine. `best at
its energy` chooses updates and schedule together, with the energy of the row before as its limit. `first` has the same
limits, but chooses before it schedules, as TinyEngine does: an update adds its own RAM to that of the cheapest one,
with every tensor kept. A way that does not fit has the smallest RAM that is known to work. The rest of the options goes
to `poetc solve`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from poetc.cli import _solving
from poetc.commands.best_updates import choice_of
from poetc.commands.requests import ModelRequest, load_model
from poetc.planning.importance import Candidate, read_importance
from poetc.planning.updates import set_model
from poetc.scheduling import keep_all_peak_bytes
from poetc.training import TrainingOptions, Whole, select_updates


def poetc(*words: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "poetc", *map(str, words), "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def importance_of(model: Path, file: Path, train: str, new_head: str) -> float:
    """The share of all importance that `--train` has."""
    graph = load_model(ModelRequest(source=model, batch=1, training=TrainingOptions(new_head=new_head)))
    found = read_importance(file, graph)
    updates = dict(select_updates(graph, train))
    best: dict[str, float] = {}
    value = 0.0
    for c in found.candidates:
        best[c.parameter] = max(best.get(c.parameter, 0.0), c.importance)
        value += c.importance * _is_in(c, updates)
    return value / sum(best.values())


def chosen_first(given: Any, limit: str, solving: list[str]) -> str:
    """The set of the most importance whose RAM of keeping everything, update by update, fits the budget, as --train."""
    taken: dict[str, Any] = {}

    @click.command()
    @_solving.solve_options
    def read(**options: Any) -> None:
        taken.update(options)

    best = ["--train", "best", "--importance", str(given.importance)]
    head = ["--new-head", given.new_head] if given.new_head else []
    read.main(["--batch", "1", *head, *best, *solving], standalone_mode=False)
    choice = choice_of(_solving.solve_request(given.model, taken))
    reduction = choice.reduction()
    model = set_model(reduction)
    budget_bytes = choice.everything.budget_bytes
    problems = [reduction.step(single).problem for single in reduction.singles]
    room = budget_bytes - min(keep_all_peak_bytes(problem) for problem in problems)
    if room < 0:
        return ""
    limits = {"size": float(room)} | ({"energy_pj": float(limit.removesuffix("pJ"))} if limit else {})
    found = model.solve(limits, gap=1e-4, time_limit_s=30.0)
    return "" if found.chosen is None else reduction.importance.updates(found.chosen).options()[0]


def _is_in(candidate: Candidate, updates: dict[str, Any]) -> bool:
    update = updates.get(candidate.parameter)
    return update is not None and candidate.update == (Whole() if isinstance(update, Whole) else update)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for name in ("--data", "--validation", "--normalize", "--new-head"):
        parser.add_argument(name, default="")
    parser.add_argument("--importance", type=Path, required=True)
    parser.add_argument("--ways", nargs="*", default=["all", "last:1", "last:3", "bias"])
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--any-range", action="store_true")
    given, solving = parser.parse_known_args()
    head = ["--new-head", given.new_head] if given.new_head else []
    common = ["--batch", "1", *head, *solving]
    print("| trained | importance | proven most | RAM, bytes | energy, mJ | bound, mJ | accuracy |")
    with tempfile.TemporaryDirectory() as scratch:
        for number, way in enumerate(given.ways):
            share = importance_of(given.model, given.importance, way, given.new_head)
            out = Path(scratch) / f"{number}"
            found = poetc("solve", given.model, *common, "--train", way, "-o", out)
            row(given, way, found, share, None, out)
            if "error" in found:
                continue
            limit = f"{found['energy_pj']}pJ"
            best = ("--train", "best", "--importance", given.importance, "--max-energy", limit)
            out = Path(scratch) / f"{number}.best"
            found = poetc("solve", given.model, *common, *best, "-o", out)
            total = found.get("importance_total") or 1.0
            most = found.get("importance_bound", 0.0) / total
            row(given, f"best at the energy of {way}", found, found.get("importance", 0.0) / total, most, out)
            first(given, f"first, at the energy of {way}", limit, solving, common, Path(scratch) / f"{number}.first")
        out = Path(scratch) / "best"
        found = poetc("solve", given.model, *common, "--train", "best", "--importance", given.importance, "-o", out)
        total = found.get("importance_total") or 1.0
        row(given, "best", found, found.get("importance", 0.0) / total, found.get("importance_bound", 0.0) / total, out)
        first(given, "first", "", solving, common, Path(scratch) / "first")


def first(given: Any, name: str, limit: str, solving: list[str], common: list[Any], out: Path) -> None:
    text = chosen_first(given, limit, solving)
    share = importance_of(given.model, given.importance, text, given.new_head) if text else 0.0
    found: dict[str, Any] = {"error": "not even one update fits with every tensor kept"}
    if text:
        found = poetc("solve", given.model, *common, "--train", text, "-o", out)
    row(given, name, found, share, None, out)


def row(given: Any, name: str, found: dict[str, Any], share: float, most: float | None, solved: Path) -> None:
    if "error" in found:
        print(f"| {name} | {share:.1%} | | {found['error']} | | | |", flush=True)
        return
    accuracy = ""
    if given.epochs:
        data = ["--data", given.data, "--validation", given.validation]
        data += ["--normalize", given.normalize] if given.normalize else []
        data += ["--any-range"] * given.any_range
        trained = poetc("train", solved, *data, "--epochs", given.epochs, "-o", f"{solved}.onnx")
        last = trained.get("epochs") or [{}]
        accuracy = f"{last[-1]['validation_accuracy']:.1%}" if last[-1] else trained.get("error", "")
    print(
        f"| {name} | {share:.1%} | {'' if most is None else f'{most:.1%}'} | {found['ram_bytes']:,} |"
        f" {found['energy_pj'] / 1e9:.1f} | {found['energy_bound_pj'] / 1e9:.1f} | {accuracy} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
