"""`poetc import-state`: a solved model starts from other weights, without being solved again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import UNSET

from poetc import artifact, emit, frontend, reporting
from poetc.artifact import Artifact
from poetc.commands.adapter_files import lora_of
from poetc.commands.export import imported_with, training_options
from poetc.commands.programs import graph_of, training_program
from poetc.commands.reading_weights import read_weights
from poetc.commands.requests import adapted
from poetc.commands.weights import model_of, some, weights
from poetc.errors import UsageError
from poetc.events import Progress, silent
from poetc.files import new_files
from poetc.graph import Array, Graph, Value, differing, matching
from poetc.program import manifest_of, state_identity
from poetc.training import in_precision, is_adapter, restored_norms, squares_of_norms, untrained_magnitudes

TRAINED = ".bin"  # an output that ends so is a trained.bin, any other a directory


def import_state(
    directory: Path, source: Path, out: Path, *, force: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """Write the problem in `directory`, with the weights in `source`, to `out`: a directory, or a trained.bin."""
    to_file = out.suffix == TRAINED
    if to_file and out.exists() and not force:
        raise UsageError(f"{out}: exists; write to another file, or replace it with --force")
    if not to_file:
        artifact.check_out(out, force=force)
    solved = artifact.read(directory)
    progress("reading the weights")
    values = read_values(solved, source)
    changed = with_values(solved, values, str(source))
    copies: list[str] = []
    progress("writing")
    if to_file:
        _check_beside(solved, out)
        data = trained_bin(changed)
        with new_files(out, force=force, copies=copies) as staged:
            staged.write_bytes(data)
    else:
        changed = replace(changed, summary={**changed.summary, "out": str(out)})
        copies = artifact.write(changed, out, reporting.reports(changed), force=force)
    state = [n for n, t in graph_of(solved).tensors.items() if t.role.is_state and n in graph_of(solved).values]
    return {
        "out": str(out),
        "from": str(source),
        "tensors": len(weights(model_of(solved))),
        "taken": sum(n in values for n in model_of(solved).values),
        "state": sum(n in values for n in state),
        "copies": copies,
    }


def read_values(solved: Artifact, source: Path) -> dict[str, Value]:
    """The values of the graph's tensors that `source` holds.

    It is an ONNX file of the same graph, a trained.bin, an .npz or a .safetensors file. UsageError names tensors that
    do not fit.
    """
    if source.suffix == ".onnx":
        return _read_model(solved, source)
    return dict(read_weights(solved, source))


def with_values(solved: Artifact, values: Mapping[str, Value], source: str) -> Artifact:
    """The same solution with other initial values, which `source` held."""
    step, model = graph_of(solved), model_of(solved)
    values = {**values, **squares_of_norms(model, values)}

    def put(graph: Graph) -> dict[str, Value]:
        return {name: values.get(name, value) for name, value in graph.values.items()}

    return replace(
        solved,
        summary={**solved.summary, "state_from": source},
        graph=replace(step, values=put(step)),
        inference=replace(model, values=put(model)),
    )


def trained_bin(solved: Artifact) -> bytes:
    """The initial state of the training program as a trained.bin, after 0 steps."""
    return emit.initial_state(training_program(solved), graph_of(solved).values)


def _check_beside(solved: Artifact, out: Path) -> None:
    """UsageError where `out` lies in an emission whose state is another."""
    manifest_path = out.parent / emit.MANIFEST
    if not manifest_path.is_file():
        return
    manifest = manifest_of(manifest_path)
    if manifest.session.emission is UNSET:  # whose C reads another form of trained.bin
        raise UsageError(f"{manifest_path}: of an earlier poetc; emit again")
    if manifest.state.identity != state_identity(training_program(solved)):
        raise UsageError(f"{manifest_path}: its program has other state than this one: names, types or shapes differ")


def _read_model(solved: Artifact, source: Path) -> dict[str, Value]:
    """Every value of a model with the same operators, whatever its tensors are called."""
    graph = model_of(solved)
    import_options, adapters, options = imported_with(solved), lora_of(solved)[1], training_options(solved)
    loaded = frontend.load(source, **{**import_options, "new_head": None})
    norms = restored_norms(loaded, options) if options.batch_norm == "restore" else ()
    restored = {name for norm in norms for name in norm.vectors}
    norms_of_weights = untrained_magnitudes(graph) if adapters else frozenset[str]()

    def is_new(name: str) -> bool:
        return (bool(adapters) and is_adapter(name) and name not in norms_of_weights) or name in restored

    model = in_precision(adapted(loaded, *lora_of(solved)), options)
    names = matching(graph, model)
    if names is None:
        raise UsageError(f"{source}: not the graph that was solved: {_difference(weights(graph), weights(model))}")
    values = {name: model.values[names[name]] for name in graph.values if name in names and not is_new(name)}
    others = differing(replace(graph, values={**graph.values, **values}), model) or ()
    split = [n for n in others if not is_new(n)]
    if split:
        raise UsageError(f"{source}: {some(split)}: one weight in the model that was solved, several here")
    return values


def _difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> str:
    missing, unknown = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    shapes = {n: (list(a.shape), list(ours[n].shape)) for n, a in theirs.items() if n in ours}
    other = [f"{n} is {its} instead of {our}" for n, (its, our) in shapes.items() if its != our]
    parts = [f"it has {some(unknown)}"] if unknown else []
    parts += [f"it lacks {some(missing)}"] if missing else []
    parts += ["; ".join(other[:3])] if other else []
    return "; ".join(parts) or "its operators are others"
