"""`poetc export`: trained weights back into the user's own ONNX file, or into a file of arrays.

Before an ONNX file gets its name it is imported again and compared with the trained model, number by number. A file
that would compute anything else is not written.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from poetc import artifact, frontend, training
from poetc.artifact import Artifact
from poetc.commands.adapter_files import CONFIG, adapter_bytes, lora_of
from poetc.commands.adapter_formats import base_bytes, gguf_bytes, onnx_adapter_bytes
from poetc.commands.programs import graph_of
from poetc.commands.reading_weights import read_weights
from poetc.commands.requests import new_head
from poetc.commands.weights import (
    by_graph_name,
    file_name,
    model_of,
    npz_bytes,
    safetensors_bytes,
    trained_names,
    weight_names,
    weights,
)
from poetc.errors import UnsupportedModelError, UsageError, printable
from poetc.events import Progress, silent
from poetc.files import new_files, require_free
from poetc.graph import Array, DType, Graph, TensorType, differing, matching, materialize
from poetc.ops import bind, spec
from poetc.output_directory import digest
from poetc.training import TrainingOptions, Updates

ROUNDED_TOLERANCE = 1e-3  # of outputs, where every layer is rounded anew: merged adapters, folded norms
TOLERANCE = 1e-5  # of outputs, where the file's operators come in another form than the trained model's
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The files to write: an ONNX file, arrays by name, or adapters for peft, llama.cpp or onnxruntime.

    `adapter_base`: the untrained ONNX file, with inputs for the factors of `onnx_adapter`.
    """

    out: Path | None = None  # the ONNX file
    npz: Path | None = None
    safetensors: Path | None = None
    adapter: Path | None = None
    gguf_adapter: Path | None = None
    onnx_adapter: Path | None = None
    adapter_base: Path | None = None
    model: Path | None = None  # the ONNX file that was solved, where it is not at the place that was recorded
    rounding: bool = False
    force: bool = False

    @property
    def reads_model(self) -> bool:
        """Whether the ONNX file that was solved is needed."""
        return any(path is not None for path in (self.out, self.gguf_adapter, self.adapter_base))

    def outputs(self) -> list[Path]:
        """The files that it names. Raises UsageError for none, and for one that is named twice."""
        config = None if self.adapter is None else self.adapter.with_name(CONFIG)
        others = (self.gguf_adapter, self.onnx_adapter, self.adapter_base)
        paths = [p for p in (self.out, self.npz, self.safetensors, self.adapter, config, *others) if p is not None]
        if not paths:
            raise UsageError(
                "nothing to write: give -o OUT.onnx, or a file with --npz, --safetensors, --adapter, --gguf-adapter,"
                " --onnx-adapter or --adapter-base"
            )
        if len(paths) > len({path.absolute() for path in paths}):
            raise UsageError(f"{paths[0]}: named twice; the files must have different names")
        return paths


def export(
    directory: Path, request: ExportRequest, *, state: Path | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Write the weights of `state` (None: those that training starts from) to each file that is given; a summary."""
    solved = artifact.read(directory)
    if request.reads_model:
        request = replace(request, model=find_model(solved, request.model, directory))
    progress("reading the weights")
    notes: list[str] = []
    arrays = {} if state is None else read_weights(solved, state, notes.append)
    document = export_arrays(solved, arrays, request, progress)
    return {**document, "notes": [*notes, *document["notes"]], "state": None if state is None else str(state)}


def export_arrays(
    solved: Artifact, arrays: Mapping[str, Array], request: ExportRequest, progress: Progress = silent
) -> dict[str, Any]:
    """The same with weights that were read: `arrays` as `by_graph_name` gives them, empty for those at the start."""
    outputs, out, adapter = request.outputs(), request.out, request.adapter
    source = find_model(solved, request.model) if request.reads_model else None
    require_free(outputs, source, request.force)
    graph = model_of(solved)
    document: dict[str, Any] = {
        **dict.fromkeys(("out", "external_data", "model", "changed", "npz", "safetensors", "adapter")),
        **dict.fromkeys(("gguf_adapter", "onnx_adapter", "adapter_base", "rounding_error_of_change")),
        "tensors": len(weight_names(graph)),
        "trained": len(trained_names(solved)),
        "notes": [],
    }
    packed: dict[str, tuple[Path, bytes]] = {}
    if request.safetensors is not None:
        packed["safetensors"] = request.safetensors, safetensors_bytes(weights(graph, arrays))
    if request.npz is not None:
        packed["npz"] = request.npz, npz_bytes(weights(graph, arrays))
    if adapter is not None:
        data, text = adapter_bytes(solved, arrays)
        packed["adapter"] = adapter, data
        packed["adapter_config"] = adapter.with_name(CONFIG), text
    if request.gguf_adapter is not None and source is not None:
        packed["gguf_adapter"] = request.gguf_adapter, gguf_bytes(solved, arrays, source)
    if request.onnx_adapter is not None:
        packed["onnx_adapter"] = request.onnx_adapter, onnx_adapter_bytes(solved, arrays)
    if request.adapter_base is not None and source is not None:
        packed["adapter_base"] = request.adapter_base, base_bytes(solved, source)
    if out is not None:
        progress("writing the model")
        state = arrays or initial_weights(solved)
        document |= export_onnx(solved, state, out, model=source, rounding=request.rounding, force=request.force)
    for kind, (path, data) in packed.items():
        with new_files(path, force=request.force) as staged:
            staged.write_bytes(data)
        document[kind] = str(path)
    return document


def initial_weights(solved: Artifact) -> dict[str, Array]:
    """The weights that training starts from, by the graph's names: the untrained state for `export_onnx`."""
    graph = model_of(solved)
    return {n: materialize(graph.values[n], graph.tensors[n].type) for n in trained_names(solved)}


def export_onnx(
    solved: Artifact,
    state: Mapping[str, Array],
    out: Path,
    *,
    model: Path | None = None,
    rounding: bool = False,
    force: bool = False,
    about: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Write the model that was solved with the weights in `state` to `out`; returns the answer for `--json`.

    `state` holds every trained weight, by the name of the graph or of the ONNX file; optimizer state in it is passed
    over. `model`: the ONNX file, where it is not at the place that was recorded. `rounding`: weights that the file
    keeps in a narrower type than float32 are rounded. `about`: facts about the training for the file's properties;
    weights as they were leave the file as it was. UsageError: a file is in the way (and not `force`), the model is
    not found or another one, `state` does not fit. UnsupportedModelError names weights that cannot be put back.
    """
    source = find_model(solved, model)
    data = out.with_name(out.name + frontend.DATA_SUFFIX)
    require_free([out], source, force)
    graph = model_of(solved)
    import_options = imported_with(solved)
    original = frontend.load(source, **import_options)
    updates, options = _adapters_of(solved, original), training_options(solved)
    precision = training.PRECISIONS[options.precision]
    lowered = training.in_precision(training.with_adapters(original, updates), options)
    names = matching(graph, lowered)
    if names is None:
        raise UsageError(f"{source}: not the model that was solved: its graph is another one; give that with --model")
    trained = by_graph_name(solved, state, "the trained state")
    if precision.file_values is not None:
        recorded = {names.get(n, n): value for n, value in graph.values.items()}
        recorded = {n: value for n, value in recorded.items() if n in lowered.values}
        trained = {names[n]: a for n, a in trained.items() if n in names}
        trained = precision.file_values(original, replace(lowered, values={**lowered.values, **recorded}), trained)
        graph, names = original, {name: name for name in original.tensors}
    wanted = replace(graph, values={**graph.values, **{n: a for n, a in trained.items() if n in graph.values}})
    untied: list[frontend.Untied] = []
    if options.batch_norm == "restore":
        wanted = _folded(wanted, original, options, names, source)
        names = {n: n for n in wanted.values}
        others = differing(wanted, original) or ()
    elif updates.adapters:
        wanted, untied = _merged(wanted, original, updates, names, source)
        names = {n: n for n in wanted.values}
        others = differing(replace(original, values={n: wanted.values[n] for n in original.values}), original) or ()
    else:
        others = differing(wanted, original) or ()
    changed = {names[n]: _array(wanted, n) for n in others if _is_given(original, names[n])}
    with new_files(out, data, force=force) as staged:
        written = frontend.write_back(
            source,
            staged,
            original,
            changed,
            rounding=rounding,
            random_weights=import_options["random_weights"],
            new_head=import_options["new_head"],
            quantized=import_options["quantized"],
            untied=untied,
            about=_properties(options, about or {}) if changed else None,
        )
        rounded = {n: written.values[m] for n, m in names.items() if m in written.values}
        _require_same(replace(wanted, values={**wanted.values, **rounded}), staged, source, import_options)
        has_data = staged.with_name(data.name).exists()
    return {
        "out": str(out),
        "external_data": str(data) if has_data else None,
        "model": str(source),
        "changed": len(changed),
        "rounding_error_of_change": written.rounding_error_of_change,
        "notes": written.notes,
    }


def _properties(options: TrainingOptions, about: Mapping[str, object]) -> dict[str, str]:
    """The training, for viewers such as Netron: no date, no machine, so that equal runs write equal files."""
    properties: dict[str, object] = {
        "version": importlib.metadata.version("poetc"),
        "loss": options.loss,
        "optimizer": options.optimizer,
    }
    properties |= {"precision": options.precision, "trained": options.train, **about}
    return {f"poetc.{name}": printable(str(value)) for name, value in properties.items() if value is not None}


def _adapters_of(solved: Artifact, original: Graph) -> Updates:
    """The trained updates of the model `original`, which has no adapters; no update where none were put in."""
    train, lora = lora_of(solved)
    return training.select_updates(original, train, lora) if lora else Updates()


def _merged(
    adapted: Graph, original: Graph, updates: Updates, names: Mapping[str, str], source: Path
) -> tuple[Graph, list[frontend.Untied]]:
    """`original` with the adapters of the trained model added to its weights, and those that are tied no longer.

    UnsupportedModelError where it computes anything else than the model with adapters.
    """
    held = {names[n]: n for n in adapted.values if n in names}
    values = {m: adapted.values[n] if m in original.values else _array(adapted, n) for m, n in held.items()}
    whole = training.merged(original, updates, values)
    if not _computes_alike(adapted, whole, ROUNDED_TOLERANCE):
        raise UnsupportedModelError(f"{source}: with merged adapters it would be another model; write --adapter")
    untied = []
    for weight, own in training.untied_by_merging(original, updates).items():
        layer = training.layers_of(original)[weight]
        nodes = tuple(dict.fromkeys(op.source for op in layer.operators))
        untied.append(frontend.Untied(own, _array(whole, own), layer.axis == 1, nodes))
    return whole, untied


def _folded(
    restored: Graph, original: Graph, options: TrainingOptions, names: Mapping[str, str], source: Path
) -> Graph:
    """`original` with the norms of the trained model, which it does not have, folded into its layers.

    UnsupportedModelError where it computes anything else than the model with norms.
    """
    values = {names[n]: _array(restored, n) for n in restored.values if n in names}
    whole = training.folded(original, training.restored_norms(original, options), values)
    if not _computes_alike(restored, whole, ROUNDED_TOLERANCE):
        raise UnsupportedModelError(f"{source}: with its norms folded again it would be another model; write --npz")
    return whole


def training_options(solved: Artifact) -> TrainingOptions:
    """The options that the training step was made with."""
    return TrainingOptions.of_record(graph_of(solved).options)


def _is_given(original: Graph, name: str) -> bool:
    """Whether the file holds it; values computed at import are checked when the new file is read again."""
    return name in original.origins


def _array(graph: Graph, name: str) -> Array:
    return materialize(graph.values[name], graph.tensors[name].type)


def imported_with(solved: Artifact) -> dict[str, Any]:
    """The arguments of `frontend.load` besides the path.

    A directory of before has no record: the batch of the inputs.
    """
    recorded = solved.summary.get("source") or {}
    quantized = training.PRECISIONS[training_options(solved).precision].reads_codes
    if recorded:
        head = new_head(recorded.get("new_head", ""), recorded.get("output", ""), recorded.get("head_seed", 0))
        sizes = frontend.Sizes.parse(
            None, recorded.get("dim", ()), recorded.get("shape", ()), None, recorded.get("constant", ())
        )
        read = {"rows": recorded.get("batch"), "dims": sizes.dims, "shapes": sizes.shapes, "constants": sizes.constants}
        return {**read, "random_weights": recorded.get("random_weights"), "new_head": head, "quantized": quantized}
    graph = model_of(solved)
    shapes = [graph.tensors[i].shape for i in graph.inputs]
    return {
        "rows": shapes[0][0] if shapes and shapes[0] else None,
        "random_weights": None,
        "new_head": None,
        "quantized": quantized,
    }


def find_model(solved: Artifact, model: Path | None, directory: Path | None = None) -> Path:
    """The ONNX file: `model`, else the one that was solved, if it has not changed since. UsageError otherwise."""
    if model is not None:
        if not model.is_file():
            raise UsageError(f"--model {model}: no such file")
        return model
    recorded = solved.summary.get("source") or {}
    typed = str(solved.summary.get("model", ""))
    places = [Path(p) for p in (recorded.get("path"), typed) if p]
    if directory is not None and typed:
        places += [directory.absolute().parent / typed, directory.absolute().parent / Path(typed).name]
    there = [p for p in dict.fromkeys(places) if p.is_file()]
    if not there:
        raise UsageError(f"{typed or 'the model'}: not found any more; say where the ONNX file is with --model")
    expected = recorded.get("sha256")
    for place in there:
        if expected is None or digest(place) == expected:
            return place
    raise UsageError(f"{there[0]}: not as it was when it was solved; give that file with --model, or solve again")


# --- the written file is read again -----------------------------------------------------------------------------------


def _require_same(wanted: Graph, staged: Path, source: Path, import_options: Mapping[str, Any]) -> None:
    """UnsupportedModelError where the new file, imported again, is not the model that was trained."""
    options = ("rows", "dims", "shapes", "constants", "quantized")
    reread = frontend.load(staged, **{k: import_options[k] for k in options if k in import_options})
    others = differing(wanted, reread)
    if others is None and not _computes_alike(wanted, reread):
        raise UnsupportedModelError(
            f"{source}: holds numbers that were computed at import from weights that were trained since: the file would"
            " be another model"
        )
    if others:
        shown = ", ".join(repr(file_name(wanted, n)) for n in others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise UnsupportedModelError(
            f"{source}: {shown}{more}: computed at import from weights that were trained since, or not stored apart"
            " from them: the file cannot hold the trained numbers"
        )


def _computes_alike(a: Graph, b: Graph, tolerance: float = TOLERANCE) -> bool:
    """Whether two models give the same outputs on random inputs, with the reference numerics."""
    random = np.random.Generator(np.random.PCG64(0))
    if [(i, a.tensors[i].type) for i in a.inputs] != [(i, b.tensors[i].type) for i in b.inputs]:
        return False
    inputs = {i: _sample(random, a.tensors[i].type) for i in a.inputs}
    x, y = _evaluate(a, inputs), _evaluate(b, inputs)
    return x.keys() == y.keys() and all(
        np.allclose(x[n], y[n], rtol=tolerance, atol=tolerance * float(np.abs(x[n]).max(initial=1))) for n in x
    )


def _sample(random: np.random.Generator, type: TensorType) -> Array:
    if type.dtype is DType.F32:
        return random.standard_normal(type.shape).astype(np.float32)
    return random.integers(0, 2, type.shape).astype(type.dtype.numpy)


def _evaluate(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    values: dict[str, Array] = {**inputs}
    last = {name: op for op in graph.operators for name in op.inputs}
    for op in graph.operators:
        # Weights are there for one operator, since all of them may be codes here.
        operands = [values[t] if t in values else _array(graph, t) for t in op.inputs]
        with np.errstate(all="ignore"):
            results = spec(op.kind).evaluate(bind(op, graph.tensors), operands)
        values.update(zip(op.outputs, results, strict=True))
        for name in {*op.inputs, *op.outputs} - set(graph.outputs):
            if last.get(name, op) is op:
                values.pop(name, None)
    return {name: np.asarray(values[name]) for name in graph.outputs}
