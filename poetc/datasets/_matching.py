"""Which array of a source goes into which slot, and whether it fits there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from poetc.datasets._columns import Column, Samples, chunks, require_equal_lengths
from poetc.datasets._slots import Slot
from poetc.datasets._stored import StoredArray
from poetc.errors import UsageError, printable
from poetc.graph import Array, DType
from poetc.program import RAW_FROM, require_values

INPUT_NAMES = ("x", "X", "input", "inputs", "features", "images", "data")
TARGET_NAMES = ("target", "y", "Y", "targets", "label", "labels")

Note = Callable[[str], None]


class Named(Protocol):
    """The part of a slot that a selection looks at."""

    @property
    def name(self) -> str: ...

    @property
    def is_target(self) -> bool: ...


def parse_selection(text: str, slots: Sequence[Named], source: str) -> dict[str, str]:
    """`INPUT=ARRAY,target=ARRAY`, or arrays alone in the order of the model's inputs and the target: slot to array."""
    if not text:
        return {}
    chosen: dict[str, str] = {}
    assignments = text.split(",")
    for index, word in enumerate(assignments):
        name, equals, array = word.partition("=")
        if not equals:
            if index >= len(slots):
                raise UsageError(f"{source}: {len(assignments)} arrays are named; the model takes {len(slots)}")
            name, array = slots[index].name, word
        slot = next((s for s in slots if s.name == name), None)
        if slot is None and name == "target" and slots[-1].is_target:
            slot = slots[-1]
        if slot is None:
            raise UsageError(f"{source}: the model has no input {name!r}; it takes {_listed(s.name for s in slots)}")
        chosen[slot.name] = array
    return chosen


def match(
    where: str,
    columns: Mapping[str, Column],
    slots: Sequence[Slot],
    selection: Mapping[str, str],
    classes: tuple[str, ...] = (),
) -> Samples:
    """The columns that the slots take, in the shapes of their samples. Raises UsageError, which names the array."""
    taken: dict[str, Column] = {}
    called: dict[str, str] = {}
    for slot in slots:
        name = _array_for(where, columns, slot, slots, selection)
        taken[slot.name], called[slot.name] = _shaped(where, name, columns[name], slot), name
    require_equal_lengths(where, {called[name]: len(column) for name, column in taken.items()})
    return Samples(where=where, columns=taken, called=called, classes=classes)


def samples_of(where: str, source: Mapping[str, Array] | Sequence[Array], slots: Sequence[Slot]) -> Samples:
    """Arrays by name, or in the order of the inputs and the target. UsageError names `where` and the array."""
    if isinstance(source, Mapping):
        arrays, selection = dict(source), {}
    else:
        if len(source) != len(slots):
            names = ", ".join("target" if s.is_target else s.name for s in slots)
            raise UsageError(f"{where}: {len(source)} arrays; needed are {len(slots)}: {names}")
        names_of = [f"array {number}" for number in range(1, len(source) + 1)]
        arrays = dict(zip(names_of, source, strict=True))
        selection = {slot.name: name for slot, name in zip(slots, names_of, strict=True)}
    for name, array in arrays.items():
        if array.ndim == 0:
            raise UsageError(f"{where}: {name} is a single value, not an array of samples")
    return match(where, arrays, slots, selection)


def _array_for(
    where: str, columns: Mapping[str, Column], slot: Slot, slots: Sequence[Slot], selection: Mapping[str, str]
) -> str:
    if slot.name in selection:
        wanted: tuple[str, ...] = (selection[slot.name],)
    elif slot.is_target:
        wanted = (slot.name, *(TARGET_NAMES if slot is slots[-1] else ()))
    else:
        wanted = (slot.name, *(INPUT_NAMES if sum(not s.is_target for s in slots) == 1 else ()))
    name = next((w for w in wanted if w in columns), None)
    if name is None:
        what = f"array {wanted[0]!r}" if slot.name in selection else _purpose(slot)
        hint = "" if slot.name in selection else "; name the arrays after a colon: FILE:INPUT=ARRAY,target=ARRAY"
        raise UsageError(f"{where}: has no {what} (it has {_listed(columns) or 'none'}){hint}")
    return name


def _purpose(slot: Slot) -> str:
    return "array 'target'" if slot.is_target else f"array {slot.name!r}"


def _listed(names: object) -> str:
    return ", ".join(printable(str(n)) for n in sorted(names))  # type: ignore[call-overload]


def _shaped(where: str, name: str, column: Column, slot: Slot) -> Column:
    """The column as [samples, *sample_shape]: axes of length 1 may come and go, all others are as they are."""
    if column.dtype.kind not in "fiub":
        raise UsageError(f"{where}: {name} is of type {column.dtype}; needed are numbers")
    shape = tuple(column.shape)
    if not shape:
        raise UsageError(f"{where}: {name} is a single value, not an array of samples")
    if shape[1:] == slot.sample_shape:
        return column
    if isinstance(column, np.ndarray | StoredArray):
        if shape and _without_ones(shape[1:]) == _without_ones(slot.sample_shape):
            return column.reshape(len(column), *slot.sample_shape)
        rows = slot.sample_shape[0] if len(slot.sample_shape) == len(slot.shape) else 0
        if rows and shape and shape[1:] == slot.sample_shape[1:] and len(column) % rows == 0:
            return column.reshape(len(column) // rows, *slot.sample_shape)
    are_numbers = slot.is_target and slot.dtype is DType.I32 and column.dtype.kind == "f"
    is_larger = are_numbers and len(shape) > len(slot.sample_shape) + 1
    hint = "; numbers for each element of the output need another loss, such as --loss mse" if is_larger else ""
    raise UsageError(f"{where}: {name} has shape {list(shape)}; needed are {slot.shape_text}{hint}")


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def looks_raw(least: float, most: float, is_whole: bool) -> bool:
    """Whether floats of this range look as if nobody had scaled them.

    They go beyond 16, and are whole or of one sign.
    """
    return (least < -RAW_FROM or most > RAW_FROM) and (is_whole or least >= 0 or most <= 0)


def check_values(samples: Samples, slots: Sequence[Slot], *, any_range: bool) -> None:
    """UsageError for a value that no kernel can use, named by its array and index.

    Unless `any_range`, likewise for an input that looks as if nobody had scaled it.
    """
    for slot in slots:
        column, called = samples.columns[slot.name], samples.called[slot.name]
        may_be_raw = slot.dtype is DType.F32 and not (any_range or slot.is_target or slot.takes_any_range)
        if column.dtype == np.uint8 and slot.dtype is DType.F32:
            if may_be_raw:
                _refuse_raw(samples.where, called, "0 to 255")
            continue
        least, most, is_whole = np.inf, -np.inf, True
        ignored = slot.limit.ignored if slot.is_target and slot.limit is not None else 0
        counts = slot.limit is None or slot.limit.least <= ignored <= slot.limit.most or not len(column)
        for first, part in chunks(column):
            require_values(
                np.where(part == -np.inf, slot.hides, part) if slot.hides else part,
                slot.dtype,
                slot.limit,
                samples.where,
                called,
                is_target=slot.is_target,
                first=first,
                lines=samples.lines,
                missing=slot.may_miss,
                boxes=slot.boxes,
            )
            counts = counts or bool((part != ignored).any())
            if may_be_raw and part.size:
                present = part[~np.isnan(part)] if slot.may_miss else part
                if present.size:
                    least, most = min(least, float(present.min())), max(most, float(present.max()))
                is_whole = is_whole and bool((present == np.trunc(present)).all())
        if not counts:
            raise UsageError(f"{samples.where}: each element of {called} is {ignored}, which no loss counts")
        if may_be_raw and looks_raw(least, most, is_whole):
            _refuse_raw(samples.where, called, f"{least:g} to {most:g}")


def _refuse_raw(where: str, called: str, span: str) -> None:
    raise UsageError(
        f"{where}: {called} from {span} looks unscaled: scale it as the model was trained, such as with --normalize"
        " 0..255, or give --any-range"
    )
