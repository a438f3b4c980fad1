"""Tables of features (CSV, Parquet): columns side by side are the model's input; the target is another column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from poetc.datasets._columns import Samples
from poetc.datasets._matching import TARGET_NAMES, match
from poetc.datasets._slots import Slot
from poetc.errors import UsageError, format_count, printable
from poetc.graph import Array, DType

Cells = Sequence[Any] | Array
Lines = Sequence[int] | None
_DECIMAL_COMMA = re.compile(r"([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)")


def from_table(
    where: str,
    table: Mapping[str, Cells],
    slots: Sequence[Slot],
    selection: Mapping[str, str],
    like: Samples | None,
    *,
    lines: Lines = None,
) -> Samples:
    """Samples of a table.

    `like`: the training data of a validation, whose columns and classes are found here by their names. `lines` are
    those of the file in which the samples begin, counted from 1; None: it has none, and rows are counted from 0.
    UsageError names the file, and the column or the line.
    """
    inputs = [s for s in slots if not s.is_target]
    if all(slot.name in table for slot in slots):
        numbers = {name: _numbers(where, name, cells, lines) for name, cells in table.items()}
        return replace(match(where, numbers, slots, selection), lines=lines)
    if len(inputs) != 1:
        raise UsageError(f"{where}: a table has one input; the model has {len(inputs)}: give an .npz file")
    if len(slots) > 2:
        raise UsageError(f"{where}: a table has one target; the step takes {len(slots) - 1}: give an .npz file")
    target = next((s for s in slots if s.is_target), None)
    targets = _target_columns(where, table, target, selection, like)
    columns: dict[str, Array] = {}
    classes: tuple[str, ...] = ()
    if target is not None:
        _require_fit(where, table, targets, target, inputs[0], lines)
        columns[target.name], classes = _target(where, table, targets, target, like, lines)
    features = [name for name in table if name not in targets]
    if not features:
        raise UsageError(f"{where}: has no columns besides the target")
    if like is not None and like.features:
        features = _as_in(where, features, like)
    parts = [_numbers(where, name, table[name], lines).reshape(len(table[name]), -1) for name in features]
    columns[inputs[0].name] = np.concatenate(parts, axis=1)
    wide = columns[inputs[0].name].shape[1]
    if wide != inputs[0].elements:
        raise UsageError(
            f"{where}: {wide} columns are left for input {inputs[0].name!r}, which takes {inputs[0].elements};"
            f" the target is {', '.join(map(repr, targets)) or 'absent'}"
        )
    _require_present(where, dict(zip(features, parts, strict=True)), inputs[0], lines)
    columns[inputs[0].name] = columns[inputs[0].name].reshape(-1, *inputs[0].sample_shape)
    columns_of = match(where, columns, slots, {}, classes)
    called = dict(columns_of.called)  # as the table has them
    if target is not None:
        called[target.name] = "+".join(targets)
    if len(features) == 1:
        called[inputs[0].name] = features[0]
    return replace(columns_of, called=called, features=tuple(features), targets=tuple(targets), lines=lines)


def _as_in(where: str, features: Sequence[str], like: Samples) -> list[str]:
    """The columns of the training data, in its order. UsageError names the first that only one of the two has."""
    absent = next((name for name in like.features if name not in features), None)
    if absent is not None:
        has = ", ".join(map(printable, features))
        raise UsageError(f"{where}: has no column {printable(absent)!r}, which {like.where} has (it has {has})")
    other = next((name for name in features if name not in like.features), None)
    if other is not None:
        raise UsageError(f"{where}: column {printable(other)!r} is none of {like.where}: leave it out")
    return list(like.features)


def _require_present(where: str, parts: Mapping[str, Array], slot: Slot, lines: Lines) -> None:
    """UsageError for a value that is missing where the model replaces none, named as the table does."""
    if slot.dtype is not DType.F32:
        return
    may_miss = iter(slot.may_miss if len(slot.may_miss) == slot.elements else [bool(slot.may_miss)] * slot.elements)
    for name, part in parts.items():
        allowed = [next(may_miss) for _ in range(part.shape[1])]
        gaps = np.isnan(part) if part.dtype.kind == "f" else np.zeros(part.shape, bool)
        rows = np.flatnonzero((gaps & ~np.asarray(allowed, bool)).any(axis=1))
        if len(rows):
            more = f" (so are {len(rows) - 1} more of the column)" if len(rows) > 1 else ""
            raise UsageError(
                f"{where}: {row_of(int(rows[0]), lines)}, column {name!r} is empty or NaN{more}; the model replaces"
                " no missing values there: fill it in, or leave the row out"
            )


def _target_columns(
    where: str, table: Mapping[str, Cells], target: Slot | None, selection: Mapping[str, str], like: Samples | None
) -> list[str]:
    """The columns of the target: named, or those of the training data, else one with a usual name, else the last."""
    if target is None:
        return []
    names = selection[target.name].split("+") if target.name in selection else list(like.targets) if like else []
    absent = next((name for name in names if name not in table), None)
    if absent is not None:
        of = f", the target in {like.where}" if like is not None and target.name not in selection else ""
        raise UsageError(f"{where}: has no column {absent!r}{of} (it has {', '.join(map(printable, table))})")
    if names:
        return names
    usual = [name for name in (target.name, *TARGET_NAMES) if name in table]
    return usual[:1] if usual and target.elements == 1 else list(table)[-target.elements :]


def _require_fit(
    where: str, table: Mapping[str, Cells], names: Sequence[str], target: Slot, tokens: Slot, lines: Lines
) -> None:
    """UsageError where the columns `names` have another number of elements than the target."""
    wide = sum(np.asarray(table[name][0], object).size for name in names)
    if wide == target.elements:
        return
    place, has = f"{where}: {row_of(0, lines)}", format_count(wide, "number")
    if tokens.dtype is DType.I32 and tokens.limit is not None:
        of = f"and {has} where the target takes {target.elements:,}"
        raise UsageError(f"{place} has neither text, prompt nor messages, {of}")
    columns = ", ".join(repr(printable(name)) for name in names)
    raise UsageError(f"{place} has {has} in {columns}, the target, which takes {target.elements:,}")


def _target(
    where: str, table: Mapping[str, Cells], names: Sequence[str], target: Slot, like: Samples | None, lines: Lines
) -> tuple[Array, tuple[str, ...]]:
    """The target and, where its cells are words, the names of the classes in the order of their numbers."""
    for name in names:  # an empty cell would be a class of its own, which moves the others
        empty = next((row for row, cell in enumerate(table[name]) if isinstance(cell, str) and not cell.strip()), None)
        if empty is not None:
            raise UsageError(f"{where}: {row_of(empty, lines)}, column {name!r} is empty")
    cells = table[names[0]]
    classes = () if like is None else like.classes
    if target.is_class and (classes or _has_words(cells)):
        labels = [str(cell) for cell in cells]
        if like is not None and not classes:
            row = next(row for row, word in enumerate(labels) if _has_words([word]))
            raise UsageError(
                f"{where}: {row_of(row, lines)}, column {names[0]!r}: {printable(labels[row])!r} is a word; the targets"
                f" of {like.where} are numbers"
            )
        classes = classes or tuple(sorted(set(labels)))
        numbers = {word: number for number, word in enumerate(classes)}
        unknown = next((row for row, word in enumerate(labels) if word not in numbers), None)
        if unknown is not None:
            raise UsageError(
                f"{where}: {row_of(unknown, lines)}, column {names[0]!r}: {printable(labels[unknown])!r} is none of the"
                f" classes {', '.join(map(printable, classes))}"
            )
        return np.array([numbers[word] for word in labels], np.int32).reshape(-1, *target.sample_shape), classes
    parts = [_numbers(where, name, table[name], lines).reshape(len(cells), -1) for name in names]
    return np.concatenate(parts, axis=1).reshape(-1, *target.sample_shape), ()


def row_of(row: int, lines: Lines) -> str:
    """Where in the file sample `row` stands."""
    return f"row {row}" if lines is None else f"line {lines[row]}"


def _has_words(cells: Cells) -> bool:
    try:
        np.asarray(cells, np.float64)
    except OverflowError:
        return False
    except (ValueError, TypeError):
        return True
    return False


def _numbers(where: str, name: str, cells: Cells, lines: Lines) -> Array:
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        return cells
    if not isinstance(cells, np.ndarray):
        cells = ["nan" if cell == "" else cell for cell in cells]  # a value that is missing
    try:
        return np.asarray(cells, np.float64)
    except (ValueError, TypeError, OverflowError):
        pass
    for row, cell in enumerate(cells):
        try:
            np.asarray(cell, np.float64)
        except OverflowError:
            raise UsageError(f"{where}: {row_of(row, lines)}, column {name!r} holds too large a number") from None
        except (ValueError, TypeError):
            comma = _DECIMAL_COMMA.fullmatch(cell.strip()) if isinstance(cell, str) else None
            hint = f"; if the comma is a decimal one, write {comma[1]}.{comma[2]}" if comma else ""
            raise UsageError(
                f"{where}: {row_of(row, lines)}, column {name!r}: {printable(str(cell))[:40]!r} is not a number{hint}"
            ) from None
    first = _shape(cells[0])
    row = next((row for row, cell in enumerate(cells) if _shape(cell) != first), 0)
    has = f"{_shape(cells[row])}, unlike {first} of the first one"
    raise UsageError(f"{where}: {row_of(row, lines)}, column {name!r} is of shape {has}")


def _shape(cell: Any) -> str:
    try:
        return str(list(np.shape(cell)))
    except ValueError:
        return "[?]"  # its own parts are of several lengths
