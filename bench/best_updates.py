"""Ways to choose the trained parameters at one RAM budget: all, last layers, biases, and the best set of updates.

    python -m bench.best_updates MODEL.onnx --importance FILE [--ways all last:1 ...] [--epochs N --data D.npz:x,y ...]

A row a way has the importance of its updates, RAM, energy, and accuracy after `--epochs` on this machine. `best at the
energy of` a way chooses updates and schedule together, with that energy as its limit. `first` has the same limits, but
chooses before it schedules, as TinyEngine does: an update adds its own RAM to that of the cheapest one, with every
tensor kept. docs/results/best-updates.md has the tables.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import poetc
from bench._command import Rows, main
from poetc.commands.best_updates import choice_of
from poetc.commands.requests import ModelRequest, SolveRequest, load_model
from poetc.errors import PoetcError
from poetc.planning.importance import read_importance
from poetc.planning.updates import set_model
from poetc.scheduling import SolveOptions, keep_all_peak_bytes
from poetc.training import BEST, TrainingOptions, Whole, select_updates

HEAD = "trained", "importance", "no set above", "RAM, bytes", "energy, mJ", "bound, mJ", "accuracy"


@dataclass(frozen=True)
class Task:
    """`training`: the options of `poetc.train`; None: nothing is trained."""

    model: Path
    options: TrainingOptions
    importance: Path
    device: str
    budget: str | None
    paging: bool
    time_limit_s: float
    training: dict[str, Any] | None

    def row(self, name: str, train: str, max_energy: str | None = None) -> tuple[tuple[str, ...], str]:
        """A row of the table, and the energy of a step as a limit for others: "" where nothing fits."""
        importance, most = self.importance if train == BEST else None, ""
        share = 0.0 if train == BEST else self.share(train)
        try:
            solution = poetc.load(self.model, batch=1, training=replace(self.options, train=train)).solve(
                device=self.device, budget=self.budget, paging=self.paging, importance=importance,
                max_energy=max_energy, time_limit_s=self.time_limit_s,
            )  # fmt: skip
        except PoetcError as error:
            return (name, f"{share:.1%}", "", str(error).splitlines()[-1], "", "", ""), ""
        found = solution.summary
        if train == BEST:
            share, most = (found[n] / found["importance_total"] for n in ("importance", "importance_bound"))
            most = f"{most:.1%}"
        energy, bound = (f"{found[n] / 1e9:.1f}" for n in ("energy_pj", "energy_bound_pj"))
        cells = name, f"{share:.1%}", most, f"{found['ram_bytes']:,}", energy, bound, self.accuracy(solution)
        return cells, f"{found['energy_pj']}pJ"

    def accuracy(self, solution: poetc.Solution) -> str:
        if self.training is None:
            return ""
        with tempfile.TemporaryDirectory() as scratch:
            solved = solution.save(Path(scratch) / "solved")
            result = poetc.train(solved, out=Path(scratch) / "out.onnx", **self.training)
        return f"{result['epochs'][-1]['validation_accuracy']:.1%}"

    def share(self, train: str) -> float:
        """Of all importance, that which `--train` has."""
        graph = load_model(ModelRequest(source=self.model, batch=1, training=self.options))
        updates = dict(select_updates(graph, train))
        best: dict[str, float] = {}
        value = 0.0
        for c in read_importance(self.importance, graph).candidates:
            best[c.parameter] = max(best.get(c.parameter, 0.0), c.importance)
            update = updates.get(c.parameter)
            value += c.importance * (c.update == (Whole() if isinstance(update, Whole) else update))
        return value / sum(best.values())

    @cached_property
    def _sets(self) -> tuple[Any, Any, float]:
        """All sets, a model of their amounts, and the bytes that the budget leaves beside the cheapest update."""
        options = replace(self.options, train=BEST)
        request = SolveRequest(
            model=ModelRequest(source=self.model, batch=1, device=self.device, training=options), budget=self.budget,
            paging=self.paging, importance=self.importance, options=SolveOptions(time_limit_s=self.time_limit_s),
        )  # fmt: skip
        choice = choice_of(request)
        sets = choice.reduction()
        least = min(keep_all_peak_bytes(sets.step(single).problem) for single in sets.singles)
        return sets, set_model(sets), float(choice.everything.budget_bytes - least)

    def first(self, name: str, max_energy: str = "") -> tuple[str, ...]:
        """The most importance whose RAM of keeping everything, update by update, fits the budget."""
        sets, amounts, room = self._sets
        limits = {"size": room} | ({"energy_pj": float(max_energy.removesuffix("pJ"))} if max_energy else {})
        found = amounts.solve(limits, gap=1e-4, time_limit_s=30.0) if room >= 0 else None
        if found is None or found.chosen is None:
            return name, "0.0%", "", "not even one update fits with every tensor kept", "", "", ""
        return self.row(name, sets.importance.updates(found.chosen).options()[0])[0]


def run(
    model: Path,
    *,
    importance: Annotated[Path, "that poetc importance writes"],
    ways: tuple[str, ...] = ("all", "last:1", "last:3", "bias"),
    epochs: int = 0,
    data: str = "",
    validation: str = "",
    normalize: str | None = None,
    any_range: bool = False,
    new_head: str = "",
    lr: float = TrainingOptions().learning_rate,
    device: str = "host",
    budget: str | None = None,
    no_paging: bool = False,
    time_limit: Annotated[float, "of each search, in seconds"] = 60.0,
) -> Rows:
    training = {
        "data": data, "validation": validation, "normalize": normalize, "any_range": any_range, "epochs": epochs,
    }  # fmt: skip
    options = TrainingOptions(new_head=new_head, learning_rate=lr)
    task = Task(model, options, importance, device, budget, not no_paging, time_limit, training if epochs else None)
    yield HEAD
    for way in ways:
        cells, limit = task.row(way, way)
        yield cells
        if limit:
            yield task.row(f"best at the energy of {way}", BEST, limit)[0]
            yield task.first(f"first, at the energy of {way}", limit)
    yield task.row("best", BEST)[0]
    yield task.first("first")


if __name__ == "__main__":
    main(run)
