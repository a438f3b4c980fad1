"""Training data of `poetc run`: one batch a step, of an .npz file or made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from poetc.datasets import looks_raw, parse_selection
from poetc.errors import UsageError, format_count
from poetc.events import silent
from poetc.files import exists, read_arrays
from poetc.graph import Array, DType
from poetc.program import Binding, Program, all_inputs, require_usable, sample_inputs, scales_itself

DEFAULT_STEPS = 10
STORED_TARGET = "target"  # the name under which a data file holds the target


def read_batches(
    program: Program,
    data: Path | None,
    steps: int | None,
    note: Callable[[str], None] = silent,
    *,
    any_range: bool = False,
) -> list[dict[str, Array]]:
    """One batch a step: of the data, round and round, or random.

    A data file is an `.npz` with an array for each input of the model, by name, and `target`. Or behind a colon are
    the names of its arrays, inputs first. The first axis runs over samples, or over whole batches. Raises
    UsageError for anything else, and for values that no kernel can use. Unless `any_range`, it refuses inputs that
    look as if nobody had scaled them. `note` gets the range of each input, and how many samples are left out.
    """
    if data is None:
        return [dict(sample_inputs(program, step)) for step in range(steps or DEFAULT_STEPS)]
    data, selected = _selected(data, program)
    arrays = _load(data)
    chosen, called = {}, {}
    for binding in all_inputs(program):
        is_target = program.target is not None and binding.name == program.target.name
        key = STORED_TARGET if is_target and binding.name not in arrays else binding.name
        key = selected.get(binding.name, key)
        if key not in arrays:
            raise UsageError(f"{data}: has no array {key!r} (it has {', '.join(sorted(arrays)) or 'none'})")
        if arrays[key].dtype.kind not in "fiub":
            raise UsageError(f"{data}: {key} is of type {arrays[key].dtype}; needed are numbers")
        chosen[binding.name], called[binding.name] = arrays[key], key
    require_usable(program, chosen, str(data), called)
    columns = _columns(program, str(data), chosen, called, note)
    count = min(len(column) for column in columns.values())
    if count == 0:
        raise UsageError(f"{data}: holds less than one batch")
    for binding in all_inputs(program):
        if binding.operand.type.dtype is not DType.F32 or binding is program.target:
            continue
        array = chosen[binding.name]
        least, most, is_whole = array.min(), array.max(), bool((array == np.trunc(array)).all())
        span = f"{data}: {called[binding.name]} from {least:g} to {most:g}"
        if not any_range and looks_raw(least, most, is_whole) and not scales_itself(program, binding):
            raise UsageError(f"{span} looks unscaled: scale it as the model was trained, or give --any-range")
        note(span)
    return [{name: column[step % count] for name, column in columns.items()} for step in range(steps or count)]


def _selected(data: Path, program: Program) -> tuple[Path, dict[str, str]]:
    """The file, and by input the arrays of it that are named behind a colon, as `poetc train` has them."""
    place, colon, selection = str(data).rpartition(":")
    if not colon or not place or exists(data):
        return data, {}
    slots = [_Slot(b.name, program.target is not None and b.name == program.target.name) for b in all_inputs(program)]
    return Path(place), parse_selection(selection, slots, str(data))


@dataclass(frozen=True, slots=True)
class _Slot:
    name: str
    is_target: bool


def _load(data: Path) -> dict[str, Array]:
    try:
        return read_arrays(data)
    except FileNotFoundError as error:
        raise UsageError(f"--data {data}: does not exist") from error
    except IsADirectoryError as error:
        raise UsageError(f"--data {data}: is a directory, not an .npz file of arrays") from error


def _columns(
    program: Program,
    data: str,
    chosen: Mapping[str, Array],
    called: Mapping[str, str],
    note: Callable[[str], None],
) -> dict[str, Array]:
    """Each array as [steps, *shape]; all have as many samples. Samples of a last batch that is not whole are noted."""
    columns: dict[str, Array] = {}
    samples: dict[str, int] = {}  # of arrays that run over samples
    for binding in all_inputs(program):
        name, array = binding.name, chosen[binding.name]
        columns[name] = _cut(data, called[name], array, binding)
        if array.shape[1:] != binding.operand.type.shape:
            samples[called[name]] = len(array)
    if len(set(samples.values())) > 1:
        counts = ", ".join(f"{count} of {name}" for name, count in samples.items())
        raise UsageError(f"{data}: its arrays have different numbers of samples: {counts}")
    if len({len(column) for column in columns.values()}) > 1:
        counts = ", ".join(f"{len(column)} of {called[name]}" for name, column in columns.items())
        raise UsageError(f"{data}: its arrays have different numbers of batches: {counts}")
    steps = len(next(iter(columns.values()))) if columns else 0
    for count in set(samples.values()):
        batch = max(b.operand.type.shape[0] for b in all_inputs(program) if b.operand.type.shape)
        if steps and count > steps * batch:
            rest, batches = count - steps * batch, format_count(steps, "batch", "batches")
            note(f"{data}: {format_count(count, 'sample')} make {batches} of {batch}; unused at the end: {rest}")
    return columns


def _cut(data: str, key: str, array: Array, binding: Binding) -> Array:
    """`array` as [steps, *shape]. A last batch that is not whole is left out."""
    shape = binding.operand.type.shape
    if array.shape[1:] == shape:
        return array
    if shape and array.ndim == len(shape) and array.shape[1:] == shape[1:]:
        whole = len(array) // shape[0]
        return array[: whole * shape[0]].reshape(whole, *shape)
    raise UsageError(
        f"{data}: {key} has shape {list(array.shape)}; needed are [samples, {', '.join(map(str, shape[1:]))}]"
    )
