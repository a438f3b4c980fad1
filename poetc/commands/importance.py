"""`poetc importance`: the worth of each update on the user's data.

By Fisher information: one pass over the data adds up the squared gradients of every parameter. The step that does so is
that of Adagrad at a learning rate of 0: its state is this sum, and nothing moves. Adapters get a pass for each rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from poetc import training
from poetc.artifact import Artifact
from poetc.artifact import read as read_artifact
from poetc.commands.adapter_files import lora_of
from poetc.commands.programs import graph_of
from poetc.commands.requests import ModelRequest, SolveRequest, load_model, training_graph
from poetc.commands.solve import solve
from poetc.commands.train import TrainRequest, read_data
from poetc.commands.trainer import trainer
from poetc.datasets import Batches, slots_of
from poetc.errors import CheckFailed, UsageError
from poetc.events import Progress, silent
from poetc.graph import Array, Graph, Role, materialize
from poetc.loop import Engine, Loss
from poetc.planning.importance import Candidate, Importance, fingerprint, parse_update
from poetc.scheduling.schedule import SolveOptions
from poetc.training import PRECISIONS, Adapter, Channels, TrainingOptions, Update, Whole

EVERY = 100  # batches, from one line of progress to the next
KEEP_ALL_S = 2.0  # to solve a step that keeps everything
UNITS = {
    "fisher": "sum of squared gradients of the loss, mean of all batches",
    "accuracy": "rise of the validation accuracy",
    "loss": "fall of the validation loss",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceRequest:
    """`shares` and `ranks`: of channels and of adapters, beside whole parameters. `samples`: of the data, at most."""

    model: ModelRequest
    data: str
    out: Path
    shares: tuple[str, ...] = ("1/8:norm", "1/4:norm", "1/2:norm")
    ranks: tuple[int, ...] = (4,)
    normalize: str | None = None
    any_range: bool = False
    samples: int | None = None

    def __post_init__(self) -> None:
        precision = PRECISIONS[self.model.training.precision]
        if precision.narrow or precision.rounds_factors:
            raise UsageError("--precision: importance is measured in floats; leave it out")
        for share in self.shares:
            if not isinstance(parse_update(share), Channels):
                raise UsageError(f"--shares {share}: write shares of channels such as 1/8, or 1/8:norm")


def model_of_directory(directory: Path) -> ModelRequest:
    """The model of a solved directory, and how it was trained there, with all parameters open again."""
    solved = read_artifact(directory)
    source = solved.summary.get("source")
    if not source:
        raise UsageError(f"{directory}: was solved from a problem alone; give the ONNX file")
    if lora_of(solved)[1]:
        raise UsageError(f"{directory}: was solved with adapters; give the ONNX file")
    path = Path(source["path"])
    if not path.is_file():
        raise UsageError(f"{directory}: its model {path} is not there; give the ONNX file")
    options = TrainingOptions.of_record({**graph_of(solved).options, "train": "all"})
    return ModelRequest(source=path, batch=source["batch"], training=options)


def with_batch(model: ModelRequest) -> ModelRequest:
    """The request, at a batch of 1 where the model leaves it open and none is asked for."""
    if model.batch is None:
        try:
            load_model(model)
        except UsageError as error:
            if "--batch" not in str(error):
                raise
            return replace(model, batch=1)
    return model


def fisher(request: ImportanceRequest, progress: Progress = silent, note: Progress = silent) -> Importance:
    """The mean of the squared gradients of the batches, summed over the elements of each update.

    Batch norms keep the model's own statistics. With a batch of 1 this is the diagonal of the empirical Fisher
    information.
    """
    progress("reading the model")
    model = replace(with_batch(request.model), device="host")
    model = replace(model, training=_options_of_importance(model.training))
    graph = load_model(model)
    sums = _squares(request, model, "whole parameters", progress, note)
    of_adapters: dict[int, dict[str, Array]] = {}
    layers = training.layers_of(graph)
    candidates: list[Candidate] = []
    for name, update in updates_of(request, model, graph, note):
        if isinstance(update, Adapter):
            if update.rank not in of_adapters:
                options = replace(model.training, lora=(str(update.rank),))
                which = f"adapters of rank {update.rank}"
                of_adapters[update.rank] = _squares(request, replace(model, training=options), which, progress, note)
            squares = of_adapters[update.rank]
            names = training.adapter_names(graph, [name])[name]
            value = sum(float(squares[n].sum()) for n in names if n in squares)
        elif name not in sums:
            continue
        elif isinstance(update, Channels):
            weight = materialize(graph.values[name], graph.tensors[name].type)
            channels = training.chosen_channels(layers[name], update, weight)
            value = float(sums[name].take(channels, layers[name].axis).sum())
        else:
            value = float(sums[name].sum())
        candidates.append(Candidate(name, update, value))
    return Importance(
        candidates=tuple(candidates),
        name=model.source.name,
        model=fingerprint(graph),
        by="fisher",
        unit=UNITS["fisher"],
    )


def updates_of(
    request: ImportanceRequest, model: ModelRequest, graph: Graph, note: Progress = silent
) -> list[tuple[str, Update]]:
    """Every update that a parameter can have, in the order of the model's parameters."""
    everything = replace(model, training=replace(model.training, train="all", lora=()))
    trainable = training_graph(everything)[1].updates
    shares = [update for update in map(parse_update, request.shares) if isinstance(update, Channels)]
    adapters: dict[str, list[Update]] = {}
    for rank in request.ranks:
        try:
            chosen = training.select_updates(graph, "all", (str(rank),)).adapters
        except UsageError as error:
            note(f"no adapters of rank {rank}: {error}")
            continue
        for weight, adapter in chosen.items():
            adapters.setdefault(weight, []).append(adapter)
    layers = training.layers_of(graph)
    candidates: list[tuple[str, Update]] = []
    for name, tensor in graph.tensors.items():
        if tensor.role is not Role.PARAMETER or name not in trainable:
            continue
        candidates.append((name, Whole()))
        layer = layers.get(name)
        if layer is not None and not layer.no_share:
            candidates += [(name, share) for share in shares if share.count(layer.inputs)]
        candidates += [(name, adapter) for adapter in adapters.get(name, ())]
    return candidates


def _options_of_importance(options: TrainingOptions) -> TrainingOptions:
    """The options of the loss and of the model, with the usual optimizer and all parameters trained."""
    return replace(options.of_groups("loss", "model", "memory"), learning_rate=0.0, dropout=False, micro_batches=1)


def _squares(
    request: ImportanceRequest, model: ModelRequest, label: str, progress: Progress, note: Progress
) -> dict[str, Array]:
    """By trained parameter: the mean of the squared gradients of the batches of the data."""
    options = replace(model.training, optimizer="adagrad", batch_norm="frozen")
    model = replace(model, training=options)
    solved = keep_all(model)
    batches = _batches(request, solved, model, note)
    step = graph_of(solved)
    states = {op.inputs[0]: op.inputs[1] for op in step.operators if op.kind == "Adagrad"}
    progress("compiling for this machine")
    count = 0
    with trainer(solved) as session:
        engine = Engine(session)
        total = batches.count
        if request.samples is not None:
            most = max(1, request.samples // batches.rows)
            total = most if total is None else min(total, most)
        for batch in batches.epoch(1, 0):
            if total is not None and count >= total:
                break
            loss = engine.step(batch)
            if not np.isfinite(loss):
                raise CheckFailed(f"batch {count + 1}: the loss is {loss}; scale the inputs (--normalize)")
            count += 1
            if count % EVERY == 0:
                progress(f"{label}: {count} of {total or '?'} batches")
        sums = engine.read(list(states.values()))
    if not count:
        raise UsageError(f"{batches.source.where}: yields no batches")
    return {name: sums[state].astype(np.float64) / count for name, state in states.items()}


def keep_all(model: ModelRequest) -> Artifact:
    """The training step with every tensor kept, for this machine."""
    return solve(SolveRequest(model=model, options=SolveOptions(time_limit_s=KEEP_ALL_S)))


def _batches(request: ImportanceRequest, solved: Artifact, model: ModelRequest, note: Progress) -> Batches:
    graph, step = training_graph(model)
    slots = slots_of(step, [loss.target for loss in Loss.of(step, graph)])
    asked = TrainRequest(
        source=SolveRequest(model=model),
        data=request.data,
        out=request.out,
        epochs=1,
        shuffle=False,
        normalize=request.normalize,
        any_range=request.any_range,
    )
    return read_data(asked, slots, note).batches(asked)
