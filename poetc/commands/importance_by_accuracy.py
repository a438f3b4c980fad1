"""`poetc importance --by accuracy`: each update alone is trained for some epochs, and the model evaluated again.

Results go to OUT.jsonl as they come in, so that the same command goes on where it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from poetc.commands.importance import KEEP_ALL_S, UNITS, ImportanceRequest, updates_of, with_batch
from poetc.commands.requests import ModelRequest, SolveRequest, load_model
from poetc.commands.train import TrainRequest, train
from poetc.devices import format_ns
from poetc.errors import PoetcError, UsageError, format_count
from poetc.events import Progress, silent
from poetc.files import read_file, scratch_directory
from poetc.loop import EpochRow
from poetc.output_directory import digest
from poetc.planning.importance import Candidate, Importance, fingerprint, update_text
from poetc.processes import KilledError, in_processes
from poetc.scheduling.schedule import SolveOptions
from poetc.training import Update, Updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """How the importance by accuracy trains with each update alone, and on which data it evaluates the result.

    `validation`, `validation_split`: one of the two, as `poetc train` takes them.
    """

    validation: str | None = None
    validation_split: float | None = None
    epochs: int = 1
    seed: int = 0
    jobs: int | None = None  # None: one a core

    def __post_init__(self) -> None:
        if self.validation is None and self.validation_split is None:
            raise UsageError("--by accuracy: give --validation or --validation-split")


@dataclass(frozen=True, slots=True)
class _Task:
    """One update of one parameter, and the request for its training."""

    key: str
    parameter: str
    update: Update
    request: TrainRequest


class _Silent:
    def on_start(self, epochs: int, batches: int | None) -> None:
        pass

    def on_step(self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float) -> None:
        pass

    def on_epoch(self, row: EpochRow, best: bool) -> None:
        pass

    def on_end(self) -> None:
        pass


def by_accuracy(
    request: ImportanceRequest, trials: Trials, progress: Progress = silent, note: Progress = silent
) -> Importance:
    """The rise of the validation accuracy, or without classes the fall of the loss, of each update alone."""
    progress("reading the model")
    model = replace(with_batch(request.model), device="host")
    graph = load_model(replace(model, training=replace(model.training, train="all", lora=())))
    tasks = [
        _task(request, trials, model, parameter, update)
        for parameter, update in updates_of(request, model, graph, note)
    ]
    place = request.out.with_name(request.out.name + ".jsonl")
    done = _results(place)
    waiting = [task for task in tasks if task.key not in done]
    jobs, started = trials.jobs or os.cpu_count() or 1, time.monotonic()
    with place.open("a") as file:
        for count, (index, answer) in enumerate(in_processes(_measured, waiting, jobs), 1):
            task = waiting[index]
            if isinstance(answer, KilledError):
                raise answer
            if isinstance(answer, str):
                raise UsageError(f"{task.parameter} {update_text(task.update)}: {answer}")
            done[task.key] = answer
            file.write(json.dumps({"key": task.key, **answer}) + "\n")
            file.flush()
            left = format_ns(int((time.monotonic() - started) / count * (len(waiting) - count) * 1e9))
            progress(f"{len(tasks) - len(waiting) + count} of {len(tasks)} updates, about {left} left")
    has_classes = all("accuracy" in done[task.key] for task in tasks)
    name = "accuracy" if has_classes else "loss"
    return Importance(
        candidates=tuple(Candidate(t.parameter, t.update, done[t.key][name]) for t in tasks),
        name=model.source.name,
        model=fingerprint(graph),
        by="accuracy",
        unit=f"{UNITS[name]} after {format_count(trials.epochs, 'epoch')}",
    )


def _task(request: ImportanceRequest, trials: Trials, model: ModelRequest, parameter: str, update: Update) -> _Task:
    train_text, lora = Updates({parameter: update}).options()
    alone = replace(model, training=replace(model.training, train=train_text, lora=lora))
    asked = TrainRequest(
        source=SolveRequest(model=alone, options=SolveOptions(time_limit_s=KEEP_ALL_S)),
        data=request.data,
        out=request.out,
        epochs=trials.epochs,
        validation=trials.validation,
        validation_split=trials.validation_split,
        normalize=request.normalize,
        any_range=request.any_range,
        seed=trials.seed,
    )
    parts = (digest(model.source), request.data, asdict(alone), asdict(trials) | {"jobs": 0}, request.normalize)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return _Task(key, parameter, update, asked)


def _measured(task: _Task) -> dict[str, float] | str:
    """The change of accuracy and of the loss; a fault that the user can mend as text."""
    with scratch_directory("poetc-importance-") as scratch:
        try:
            document = train(replace(task.request, out=scratch / "trained.onnx"), _Silent())
        except PoetcError as error:
            return str(error)
    assert document is not None
    before, after = document["before"], document["epochs"][document["best_epoch"] - 1]
    gains = {"loss": before["loss"] - after["validation_loss"]}
    if after["validation_accuracy"] is not None:
        gains["accuracy"] = after["validation_accuracy"] - before["accuracy"]
    return gains


def _results(place: Path) -> dict[str, dict[str, Any]]:
    """The results of an earlier run, by key; a line that was cut short is passed over."""
    results: dict[str, dict[str, Any]] = {}
    lines: Sequence[bytes] = read_file(place).split(b"\n") if place.exists() else ()
    for line in lines:
        try:
            result = json.loads(line)
            results[result.pop("key")] = result
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return results
