"""A model's weights by name: which there are, the state of a training among them, and the files that hold them.

A weight has the name of its initializer in the ONNX file, and in the graph the same with few exceptions; both are
understood. Optimizer state is not a weight.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from poetc import passes
from poetc.artifact import Artifact
from poetc.commands.programs import graph_of
from poetc.errors import UsageError
from poetc.files import open_file, write_npz
from poetc.graph import Array, DType, Graph, Role, TrainingGraph, materialize
from poetc.training import STORED, codes_of, exponents_of

NUMBERS = ":numbers"  # after the name of an integer weight: the floats that it stands for, as its layer has them
_WEIGHTS = (Role.PARAMETER, Role.STATISTIC)
_SHOWN = 3


def model_of(solved: Artifact) -> Graph:
    """The model that was solved, as its file has it, with the weights that training starts from."""
    if solved.inference is None:
        raise UsageError("solved from a problem alone: there is no model in it; solve the ONNX file itself")
    return passes.model_as_it_was(solved.inference)


def file_name(graph: Graph, name: str) -> str:
    """The ONNX file's name of a tensor of the graph."""
    origin = graph.origins.get(name)
    return name if origin is None else origin.tensor


def trained_names(solved: Artifact) -> set[str]:
    """The weights that training changes."""
    tensors = model_of(solved).tensors
    return {n for n in graph_of(solved).updates if n in tensors}


def require_floats(solved: Artifact, where: str) -> None:
    """UsageError, which names `where`, where a training on a board of a fleet would change integers."""
    tensors = model_of(solved).tensors
    name = next((n for n in sorted(trained_names(solved)) if graph_of(solved).tensors[n].dtype is not DType.F32), None)
    if name is not None and tensors[name].role in _WEIGHTS:
        raise UsageError(
            f"{where}: a board in a fleet trains floats, and {file_name(model_of(solved), name)} is of integers here;"
            " solve with --precision f32"
        )


def weights(graph: Graph, values: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Every parameter and statistic by the file's name; `values` by the graph's name replace the graph's own."""
    own = values or {}
    arrays: dict[str, Array] = {}
    for named, name in weight_names(graph).items():
        array = own[name] if name in own else materialize(graph.values[name], graph.tensors[name].type)
        arrays[named] = np.asarray(array)
    return dict(sorted(arrays.items()))


def weight_names(graph: Graph) -> dict[str, str]:
    """The graph's name of every parameter and statistic, by the file's name."""
    named = (n for n, t in graph.tensors.items() if t.role in _WEIGHTS and n in graph.values)
    return {file_name(graph, n): n for n in named}


def by_graph_name(solved: Artifact, state: Mapping[str, Any], where: str) -> dict[str, Array]:
    """Weights and optimizer state by the names of the graph. Raises UsageError, which names `where`.

    It refuses an unknown name, another shape, and a weight that training changes where it is missing or not finite.
    A constant of the model may be infinite, as masks of attention are.
    """
    model, step = model_of(solved), graph_of(solved)
    names = {file_name(model, n): n for n, t in model.tensors.items() if t.role in _WEIGHTS and n in model.values}
    names |= {n: n for n in (*names.values(), *step.values)}  # trained.bin holds optimizer state too
    state = _from_numbers(state, {f"{name}{NUMBERS}": n for name, n in names.items()}, step, where)
    unknown = [n for n in state if n not in names]
    arrays = {names[n]: np.asarray(a) for n, a in state.items() if n in names}
    missing = [file_name(model, n) for n in sorted(trained_names(solved) - set(arrays))]
    if unknown or missing:
        parts = [f"it has {some(unknown)}, which the model has not"] if unknown else []
        parts += [f"{some(missing)} of the model {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
        raise UsageError(f"{where}: not the weights of this model: {'; '.join(parts)}")
    tensors = {**step.tensors, **model.tensors}
    wrong = [
        f"{n} is {list(a.shape)} instead of {list(tensors[n].shape)}"
        for n, a in arrays.items()
        if a.shape != tensors[n].shape
    ]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise UsageError(f"{where}: weights of other shapes: {'; '.join(wrong[:_SHOWN])}{more}")
    return {n: _as_numbers(n, a, tensors[n].dtype.numpy, where, n in step.updates) for n, a in arrays.items()}


def _from_numbers(
    state: Mapping[str, Any], names: Mapping[str, str], step: TrainingGraph, where: str
) -> Mapping[str, Any]:
    """The state with the codes of integer weights in place of their numbers (NAME:numbers), as fleets average them."""
    exponents, numbered = exponents_of(step), dict(state)
    for key in state:
        name = names.get(key, "")
        if name in exponents and f"{name}{STORED}" in step.values:
            numbers = _as_numbers(key, np.asarray(numbered.pop(key)), np.dtype(np.float64), where, True)
            w, stored = codes_of(numbers, exponents[name])
            numbered |= {name: w, f"{name}{STORED}": stored}
    return numbered


def _as_numbers(name: str, array: Array, dtype: np.dtype[np.generic], where: str, is_trained: bool) -> Array:
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        raise UsageError(f"{where}: {name} is of type {array.dtype}; needed are numbers")
    if dtype.kind == "i" and array.dtype.kind not in "iub":
        raise UsageError(f"{where}: {name} is of type {array.dtype}; the model trains it in integers, of {dtype}")
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(array.shape)
    if is_trained and dtype.kind == "f" and not np.isfinite(result).all():
        raise UsageError(f"{where}: {name} holds numbers that are not finite: the training that made it diverged")
    return result


# --- files ------------------------------------------------------------------------------------------------------------


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """An .npz file, as `write_npz` makes it."""
    file = io.BytesIO()
    write_npz(file, arrays)
    return file.getvalue()


def read_safetensors(path: Path) -> dict[str, Array]:
    """The arrays of a .safetensors file by its own names."""
    from safetensors.numpy import load_file  # loaded where it is needed: the command line starts faster

    with open_file(path):
        pass  # A file that is no regular one is refused here.
    try:
        return dict(load_file(path))
    except OSError:
        raise
    except Exception as error:  # SafetensorError, and KeyError for element types that numpy does not have
        raise UsageError(f"{path}: not a .safetensors file whose arrays numpy can read ({error})") from None


def safetensors_bytes(arrays: Mapping[str, Array]) -> bytes:
    """The contents of a .safetensors file with these arrays."""
    from safetensors.numpy import save

    return bytes(save({n: np.ascontiguousarray(a) for n, a in arrays.items()}))


def some(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    each = list(names)
    return ", ".join(repr(n) for n in each[:_SHOWN]) + (f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else "")
