"""`poetc train`: from a model and data to a better model.

Beside its output lies everything that a training needs to go on:

    OUT.train/run.json       the options, the model and the data
    OUT.train/solved/        the solved directory
    OUT.train/checkpoint.*   see `poetc.loop.checkpoint`
    OUT.train/training.json  the answer of `--json`, and report.html
    OUT.train/adapter/       with `--lora`: the trained adapters, as the package peft reads them, and llama.cpp
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from poetc import artifact, measure
from poetc.artifact import Artifact
from poetc.commands import advice
from poetc.commands.adapter_files import lora_of
from poetc.commands.export import export_onnx, find_model
from poetc.commands.facts import decided
from poetc.commands.norm_statistics import with_statistics
from poetc.commands.programs import graph_of, training_program
from poetc.commands.rehearsal import ADAPTER, rehearse, write_adapter
from poetc.commands.requests import ModelRequest, SolveRequest, load_model, training_graph
from poetc.commands.sample_text import Sample
from poetc.commands.solve import solve
from poetc.commands.trainer import follow_memory, quick_trainer
from poetc.commands.training_directory import (
    DOCUMENT,
    PAGE,
    SOLVED,
    alone,
    begin,
    directory_of,
    go_on,
    position,
    removed_if_no_step_ran,
    require_same_data,
    take_up,
    write_record,
    written_result,
)
from poetc.commands.weights import model_of
from poetc.datasets import (
    Augmentations,
    Batches,
    BatchFunction,
    Evaluation,
    Normalization,
    Samples,
    Settings,
    Slot,
    check_values,
    open_source,
    require_no_idle,
    slots_of,
    split,
)
from poetc.errors import UsageError, format_count
from poetc.events import Progress, silent
from poetc.files import finite, require_free, write_text
from poetc.graph import Graph, Role, TrainingGraph
from poetc.loop import (
    Checkpoint,
    CheckpointStore,
    Engine,
    Log,
    Loop,
    LoopOptions,
    Loss,
    Watcher,
    default_metrics,
    outcome_of,
    parse_metrics,
)
from poetc.program import class_scores, sample_inputs
from poetc.reporting import Solved, reports
from poetc.reporting.training import page
from poetc.training import CLIPPED, rates


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """`source`: a model to solve, or a directory that is solved.

    `data` and `validation` as `datasets.open_source` takes them. `ema`, `patience`, `save_every`: see `LoopOptions`.
    `options` is recorded for a resumption: the caller's options, as JSON.
    """

    source: SolveRequest | Path
    data: str
    out: Path
    epochs: int | None  # None: the data are looked at, and the number is asked for
    validation: str | None = None
    validation_split: float | None = None
    seed: int = 0
    shuffle: bool = True
    augment: str = ""
    normalize: str | None = None
    any_range: bool = False  # train on inputs that look as if nobody had scaled them
    schedule: str = "constant"
    patience: int | None = None
    ema: float | None = None
    metrics: str | None = None
    save_every: int | None = None
    texts: Mapping[str, Any] = field(default_factory=dict)  # the options of texts, by name
    sample: str | None = None  # a prompt
    log: str | None = None  # a folder for events and JSON lines
    elastic: bool = False  # the plan of a bundle follows the memory that is left to this process
    resume: bool = False
    force: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.validation is not None and self.validation_split is not None:
            raise UsageError("--validation and --validation-split exclude each other")
        if self.metrics is not None and not (self.resume or self.validation or self.validation_split):
            raise UsageError(f"--metrics {self.metrics}: is of a validation; give --validation or --validation-split")
        for option, number, low, high in (
            ("--validation-split", self.validation_split, 0.0, 1.0),
            ("--ema", self.ema, 0.0, 1.0),
        ):
            if number is not None and not low < number < high:
                raise UsageError(f"{option} {number!r}: must be above {low:g} and below {high:g}")
        if not self.resume and self.patience is not None and self.epochs is not None:
            least = max(1, self.patience) + 2  # the first epoch, those that are waited for, and one that is saved
            if self.epochs < least:
                raise UsageError(
                    f"--patience {self.patience}: cannot end a training of {format_count(self.epochs, 'epoch')}; give"
                    f" --epochs {least} or more, or leave it out"
                )
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed {self.seed}: must be at least 0 and below 2^32")

    @property
    def directory(self) -> Path:
        return directory_of(self.out)

    @property
    def model_file(self) -> Path:
        """The model, or the directory that is solved."""
        return self.source if isinstance(self.source, Path) else self.source.model.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The training data, opened and checked."""

    training: Samples | BatchFunction
    validation: Samples | BatchFunction | None
    slots: tuple[Slot, ...]
    normalization: Normalization
    augmentation: Augmentations

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the target's classes, if the source has them."""
        return self.training.classes if isinstance(self.training, Samples) else ()

    @property
    def has_tokens(self) -> bool:
        """Whether the training samples are tokenised texts."""
        return isinstance(self.training, Samples) and self.training.tokens is not None

    def identity(self) -> dict[str, str]:
        """The identity of samples by their content, and of a function by its name."""
        parts = {"--data": self.training, "--validation": self.validation}
        return {
            option: part.name if isinstance(part, BatchFunction) else "" if part is None else part.digest()
            for option, part in parts.items()
        }

    def batches(self, request: TrainRequest) -> Batches:
        return Batches(
            source=self.training,
            slots=self.slots,
            normalization=self.normalization,
            augmentation=self.augmentation,
            seed=request.seed,
            shuffle=request.shuffle,
        )

    def evaluation(self) -> Evaluation | None:
        if self.validation is None:
            return None
        return Evaluation(source=self.validation, slots=self.slots, normalization=self.normalization)


def train(
    request: TrainRequest,
    watcher: Watcher,
    progress: Progress = silent,
    note: Progress = silent,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Solve, build, train, evaluate, export; returns the answer for `--json`.

    None where `stopping` ended it after a checkpoint.

    Raises the errors of `poetc.errors`. The output appears whole, when training is over.
    """
    solved = artifact.read(request.source) if isinstance(request.source, Path) else None
    if request.elastic and not (solved and solved.others):
        raise UsageError(f"--elastic: {request.out}: give a directory of poetc bundle, which has several plans")
    model = request.model_file if solved is None else find_model(solved, None)
    require_free([request.out], model, force=True)  # before hours of training, not after them
    with alone(request.directory):
        checkpoint = take_up(request, CheckpointStore(request.directory), note)
        done = written_result(request, checkpoint)
        if done is not None:
            assert checkpoint is not None
            note(position(request, checkpoint))
            if request.sample not in (None, (done.get("sample") or {}).get("prompt")):
                sample = Sample(request.sample, model, request.texts, progress, note)
                done["sample"] = sample.to_json(request.out)
            return done
        if request.log is None:
            return _train(request, solved, model, checkpoint, watcher, progress, note, stopping)
        log = Log(Path(request.log), watcher, note, resume=request.resume, force=request.force)
        try:
            return _train(request, solved, model, checkpoint, log, progress, note, stopping)
        finally:
            log.close()


def _train(
    request: TrainRequest,
    solved_before: Artifact | None,
    model: Path,
    checkpoint: Checkpoint | None,
    watcher: Watcher,
    progress: Progress,
    note: Progress,
    stopping: Callable[[], bool],
) -> dict[str, Any] | None:
    schedule, store = rates.parse(request.schedule), CheckpointStore(request.directory)
    progress("reading the data")
    asked, asked_step = _graph_to_train(request, solved_before)
    request, asked_step = _with_facts_of_data(request, asked, asked_step, note)
    losses = Loss.of(asked_step, asked)
    warnings = advice.of_model(asked, asked_step.options)
    for warning in warnings:
        note(f"warning: {warning}")
    slots = slots_of(asked_step, [loss.target for loss in losses])
    accumulate = int(asked_step.options.get("accumulate") or 1)  # type: ignore[arg-type]
    del asked, asked_step  # which hold the weights
    data = read_data(request, slots, note)
    metrics = default_metrics(losses[0], of_tokens=data.has_tokens)
    if request.metrics is not None:
        metrics = parse_metrics(request.metrics, losses[0])
    batches = data.batches(request)
    if batches.remark():
        note(f"{batches.source.where}: {batches.remark()}")
    if request.epochs is None:
        steps = format_count(batches.count or 0, "step")
        of = "" if batches.count is None else f"; an epoch of these data is {steps} of {batches.rows}"
        raise UsageError(f"--epochs is missing{of}")
    identity = data.identity()
    if batches.count is not None:
        of_all = request.epochs * batches.count
        more = advice.of_length(schedule, request.ema, accumulate, request.epochs, of_all)
        if identity["--data"] == identity["--validation"]:
            more.append("the validation samples are the training samples: their loss says nothing about others")
        for warning in more:
            note(f"warning: {warning}")
        warnings += more
    sample = None if request.sample is None else Sample(request.sample, model, request.texts, progress, note)
    if not request.resume:
        measure.require_compiler()  # before hours of solving, not after them
        begin(request)
    schedule_from = 0
    if checkpoint is not None:
        require_same_data(request, checkpoint, identity)
        note(position(request, checkpoint))
        schedule_from = go_on(request, checkpoint, batches.count, note)
    with removed_if_no_step_ran(request, store):
        solved = solved_before or _solved(request, progress, note)
    step, program = graph_of(solved), training_program(solved)
    options = LoopOptions(
        epochs=request.epochs,
        learning_rate=_rate(request, step),
        schedule=schedule,
        schedule_from=schedule_from,
        patience=request.patience,
        ema=request.ema,
        save_every=request.save_every,
        accumulate=int(step.options.get("accumulate") or 1),  # type: ignore[arg-type]
        metrics=metrics,
    )
    if checkpoint is None and step.options["batch_norm"] == "restore":
        progress("measuring the layers' outputs")
        solved = with_statistics(solved, batches)
        if solved_before is None:  # so that it can be emitted for a board
            artifact.write(solved, request.directory / SOLVED, reports(solved), force=True)
    if checkpoint is None:
        progress("trying the way out")
        with removed_if_no_step_ran(request, store):
            rehearse(solved, request.directory, request.out, note, has_average=request.ema is not None)
    outcome = None if checkpoint is None else outcome_of(checkpoint, options)
    clipped: dict[str, int] = {}
    if outcome is None:
        progress("compiling for this machine")
        build = quick_trainer(solved, elastic=request.elastic)
        with removed_if_no_step_ran(request, store), build as (session, successor):
            one_target = losses[0].target if len(losses) > 1 else None  # of several, that of the metrics
            engine = Engine(session, class_scores(program, one_target), successor)
            kept = [n for n in step.updates if step.tensors[n].role in (Role.PARAMETER, Role.STATISTIC)]
            loop = Loop(
                engine,
                batches,
                data.evaluation(),
                losses,
                options,
                trained=[n for n in kept if step.tensors[n].role is Role.PARAMETER],
                kept=kept,
                changed=list(step.updates),
                store=store,
                watcher=watcher,
                stopping=stopping,
                identity=identity,
                peak_bytes=engine.measure_peak(sample_inputs(program)),
            )
            if request.elastic:
                follow_memory(session)
            if checkpoint is not None:
                loop.restore(checkpoint)
            progress("training")
            outcome = loop.run()
            counts = [n for n in step.updates if n.endswith(CLIPPED)]
            clipped = {n.removesuffix(CLIPPED): int(a[0]) for n, a in engine.read(counts).items()}
        del build, session, successor, engine, loop  # and with them the arena, before the model is read and written
    if outcome is None:
        return None
    progress("writing the model")
    base_bytes = solved.problem.base_bytes
    if lora_of(solved)[1]:  # first: they are small, and the model can be made from them
        write_adapter(solved, outcome.state, request.directory / ADAPTER, note)
    about = {"loss": ", ".join(loss.kind for loss in losses), "epochs": len(outcome.epochs), "batch": batches.rows}
    of_run = {"steps": outcome.steps, "best_epoch": outcome.best_epoch, "learning_rate": options.learning_rate}
    written = export_onnx(
        solved, outcome.state, request.out, force=request.force or request.resume, about=about | of_run
    )
    for text in written["notes"]:
        note(text)
    document = {
        "model": str(solved.summary["model"]),
        "output": str(request.out),
        "files": written,
        "directory": str(request.directory),
        "report": str(request.directory / PAGE),
        "loss": losses[0].kind if len(losses) == 1 else [loss.kind for loss in losses],
        "samples": None if isinstance(data.training, BatchFunction) else len(data.training),
        "validation_samples": len(data.validation) if isinstance(data.validation, Samples) else None,
        "batch": batches.rows,
        "classes": list(data.classes) or None,
        "normalization": data.normalization.to_json(),
        "last_batch": batches.remark() or None,
        "before": outcome.before or None,
        "epochs": [row.to_json() for row in outcome.epochs],
        "best_epoch": outcome.best_epoch,
        "stopped_early": outcome.stopped_early,
        "steps": outcome.steps,
        "step_ms": outcome.step_ms,
        "clipped": clipped or None,
        "peak_predicted_bytes": base_bytes + program.high_water_bytes,
        "peak_measured_bytes": base_bytes + outcome.peak_bytes,
        "budget_bytes": solved.problem.budget_bytes,
        "sample": sample and sample.to_json(request.out),
    }
    document["warnings"] = [*warnings, *advice.of_training(document)]
    write_text(request.directory / PAGE, page(Solved.from_artifact(solved), document))
    write_text(request.directory / DOCUMENT, json.dumps(finite(document), indent=1, allow_nan=False) + "\n")
    write_record(request, schedule_from, is_written=True)
    return document


# --- model and data ---------------------------------------------------------------------------------------------------


def _rate(request: TrainRequest, step: TrainingGraph) -> float:
    """The learning rate: that of the request, which a resumption may change, or that of a solved directory."""
    if isinstance(request.source, Path):
        return float(step.options["learning_rate"])  # type: ignore[arg-type]
    return float(request.source.model.training.learning_rate)


def _graph_to_train(
    request: TrainRequest, solved_before: Artifact | None, load: Callable[[ModelRequest], Graph] = load_model
) -> tuple[Graph, TrainingGraph]:
    """The model and its training step, before anything is solved, so that a fault of the data is reported at once."""
    if solved_before is not None:
        return model_of(solved_before), graph_of(solved_before)
    assert not isinstance(request.source, Path)
    model = request.source.model
    train = "all" if request.source.is_best else model.training.train  # which set is the best is not known yet
    return training_graph(replace(model, training=replace(model.training, micro_batches=1, train=train)), load)


def _with_facts_of_data(
    request: TrainRequest, graph: Graph, step: TrainingGraph, note: Progress
) -> tuple[TrainRequest, TrainingGraph]:
    """The request and its training step, with the loss, class axis and ignored class that the data imply."""
    if isinstance(request.source, Path):
        return request, step
    model = request.source.model
    options = decided(request.data, request.normalize, graph, step, model.training, note)
    if options == model.training:
        return request, step
    request = replace(request, source=replace(request.source, model=replace(model, training=options)))
    return request, _graph_to_train(request, None, lambda _: graph)[1]


def _solved(request: TrainRequest, progress: Progress, note: Progress) -> Artifact:
    """As it was solved before the interruption, or now."""
    assert not isinstance(request.source, Path)
    place = request.directory / SOLVED
    if (place / artifact.KIND.manifest).exists():
        with suppress(UsageError):  # solving was cut: again
            return artifact.read(place)
    solved = solve(replace(request.source, out=place, force=True, smallest=False), progress)
    for text in solved.summary["notes"]:
        note(text)
    return solved


def _settings(request: TrainRequest) -> Settings:
    """The options of the kinds of data, and the model's file, beside which a tokenizer may lie."""
    source = request.model_file
    if source.is_dir():
        source = find_model(artifact.read(source), None)
    return Settings(values=request.texts, model=source)


def read_data(request: TrainRequest, slots: tuple[Slot, ...], note: Progress) -> Data:
    """Data as it was asked for, all of its values looked at. Raises UsageError."""
    if not slots or not any(not s.is_target for s in slots):
        raise UsageError(f"{request.model_file}: takes no input with an axis of samples")
    augmentation = Augmentations.parse(request.augment)
    augmentation.require_inputs(slots)
    settings = _settings(request)
    training = open_source(request.data, slots, note, settings=settings)
    validation: Samples | BatchFunction | None = None
    if request.validation is not None:
        like = training if isinstance(training, Samples) else None
        validation = open_source(request.validation, slots, note, option="--validation", like=like, settings=settings)
    for part in (training, validation):
        if isinstance(part, Samples):
            check_values(part, slots, any_range=request.any_range or request.normalize is not None)
    if not request.resume:
        used = ("chat_template",) if request.sample is not None else ()  # its prompt is of a chat
        require_no_idle([part for part in (training, validation) if isinstance(part, Samples)], used)
    if request.validation_split is not None:
        if isinstance(training, BatchFunction):
            raise UsageError("--validation-split: a function yields batches, not samples to split; give --validation")
        training, validation = split(training, slots, request.validation_split, request.seed)
    normalization = Normalization()
    if request.normalize is not None:
        samples = training if isinstance(training, Samples) else None
        normalization = Normalization.parse(request.normalize, slots, samples)
    return Data(
        training=training, validation=validation, slots=slots, normalization=normalization, augmentation=augmentation
    )
