"""`make decoders`: language models of transformers beside PyTorch and onnxruntime, one training step each.

    python -m bench.decoders FOLDER

FOLDER holds the files of bench/peer_decoders.py. A row has the largest difference of the output from onnxruntime's, and
of the gradients of all parameters from PyTorch's, as parts of the largest number. poetc computes in its reference
numerics. An exporter turns and renames weights. So a gradient is compared with those of its shape, and the nearest
counts; of a table of places the rows that the model reads count. Exit code 1 if a file is refused, a gradient is
missing, or a difference is above 1e-4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from bench._command import Rows, main
from poetc import training
from poetc.errors import PoetcError
from poetc.frontend import load
from poetc.graph import Array, Graph, materialize
from poetc.ops import bind, spec
from poetc.training import TrainingOptions

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Row:
    """One file. `why`: the reason of a refusal."""

    name: str
    exporter: str
    output: float = np.inf
    loss: float = np.inf
    gradient: float = np.inf
    parameters: int = 0
    missing: int = 0
    why: str = ""

    @property
    def is_right(self) -> bool:
        return not self.why and not self.missing and max(self.output, self.loss, self.gradient) <= TOLERANCE

    def cells(self) -> tuple[str, ...]:
        if self.why:
            return self.name, self.exporter, self.why, "", "", ""
        found = f"{self.parameters - self.missing} of {self.parameters}"
        return self.name, self.exporter, f"{self.output:.1e}", f"{self.loss:.1e}", found, f"{self.gradient:.1e}"


def evaluated(graph: Graph, given: Mapping[str, Array]) -> dict[str, Array]:
    """All tensors of a graph, by the reference numerics of its operators."""
    values: dict[str, Array] = dict(given)
    for op in graph.operators:
        for name in op.inputs:
            if name not in values:
                values[name] = materialize(graph.values[name], graph.tensors[name].type)
        with np.errstate(all="ignore"):
            results = spec(op.kind).evaluate(bind(op, graph.tensors), [values[t] for t in op.inputs])
        values.update(zip(op.outputs, (np.asarray(r) for r in results), strict=True))
    return values


def _difference(found: Array, wanted: Array) -> float:
    return float(np.abs(found - wanted).max()) / (float(np.abs(wanted).max()) or 1.0)


def row_of(path: Path) -> Row:
    """The comparison of one file with NAME.npz beside it."""
    name, exporter = path.name.removesuffix(".onnx").rsplit(".", 1)
    held = np.load(path.with_name(f"{name}.npz"))
    arrays = [held[f"input{k}"] for k in range(sum(key.startswith("input") for key in held.files))]
    try:
        graph = load(path)
        step = training.build(graph, TrainingOptions())
    except PoetcError as error:
        return Row(name, exporter, why=str(error).replace("\n", " "))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    (peer,) = session.run(None, dict(zip(names, arrays, strict=True)))[:1]
    given = {n: a.astype(graph.tensors[n].dtype.numpy) for n, a in zip(graph.inputs, arrays, strict=True)}
    output = evaluated(graph, given)[graph.outputs[0]]
    target = held["target"].reshape(step.tensors[step.target].shape).astype(np.int32)
    values = evaluated(step, {**given, step.target: target})
    loss = abs(float(values[step.outputs[0]].reshape(-1)[0]) - float(held["loss"]))
    own = [values[g] for g in step.gradients.values()]
    wanted = [held[key] for key in held.files if key.startswith("grad.")]
    largest, worst, missing = max(float(np.abs(a).max()) for a in wanted), 0.0, 0
    for array in wanted:
        read = np.any(array.reshape(len(array), -1) != 0, axis=1)
        forms = [form for a in own for form in (a, a.T) if form.shape == array.shape]
        if not read.all():  # an exporter keeps the rows of a table of places that the model reads
            rows = array[read]
            forms = [*(f[read] for f in forms), *(a.reshape(rows.shape) for a in own if a.size == rows.size)]
            forms += [a.sum(axis=0) for a in own if a.shape[1:] == rows.shape]  # a copy for each sample
            array = rows
        if forms:
            worst = max(worst, min(float(np.abs(form - array).max()) for form in forms) / largest)
        missing += not forms
    return Row(name, exporter, _difference(output, np.asarray(peer)), loss, worst, len(wanted), missing)


def table(folder: Path) -> Rows:
    yield "model", "exporter", "output", "loss", "gradients", "worst gradient"
    rows = []
    for path in sorted(folder.glob("*.onnx")):
        rows.append(row_of(path))
        yield rows[-1].cells()
    for path in sorted(folder.glob("*.failed")):
        name, exporter = path.name.removesuffix(".failed").rsplit(".", 1)
        yield name, exporter, "the exporter fails", "", "", ""
    if not rows or not all(row.is_right for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main(table)
