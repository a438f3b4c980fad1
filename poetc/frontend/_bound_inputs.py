"""Inputs that the user binds to a value: each becomes a constant of the model, so that an If or a Loop on it folds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from poetc.errors import UsageError
from poetc.frontend._reading import element_dtype


def bind_inputs(model: onnx.ModelProto, constants: Mapping[str, int]) -> list[str]:
    """Replace scalar inputs of integers or bools by constants of the file. Returns a note on each.

    UsageError: no such input, another element type or shape, or a value that the type does not hold.
    """
    graph, notes = model.graph, []
    for name, value in constants.items():
        option = f"--constant {name}={value}"
        info = next((i for i in graph.input if i.name == name), None)
        if info is None:
            has = ", ".join(repr(i.name) for i in graph.input)
            raise UsageError(f"{option}: the model has no input of that name; it has {has or 'none'}")
        tensor = info.type.tensor_type
        dtype = element_dtype(tensor.elem_type, f"input {name!r}")
        lengths = [d.dim_value for d in tensor.shape.dim]
        if dtype.kind not in "biu" or not tensor.HasField("shape") or any(length != 1 for length in lengths):
            raise UsageError(f"{option}: only an input of one integer or truth value can be bound")
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype.name).min, np.iinfo(dtype.name).max)
        if not low <= value <= high:
            raise UsageError(f"{option}: the input holds {dtype}, from {low} to {high}")
        graph.input.remove(info)
        default = next((t for t in graph.initializer if t.name == name), None)
        if default is not None:
            graph.initializer.remove(default)
        graph.initializer.append(numpy_helper.from_array(np.full(lengths, value, dtype), name))
        notes.append(f"input {name!r} is the constant {value}")
    return notes
