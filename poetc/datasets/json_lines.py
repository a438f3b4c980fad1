"""JSON lines: one object a sample, with a number, a word or a nested list of numbers a key."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from poetc.datasets._columns import Samples
from poetc.datasets._kinds import Request, declare
from poetc.datasets._objects import has_strings, objects
from poetc.datasets._tables import from_table
from poetc.errors import UsageError, printable

_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a word", list: "a list"}


def read_json_lines(request: Request) -> Samples:
    """A table with the columns of a CSV file, or a key for each input: `{"x": [0.5, 1.5], "target": 3}`.

    A key holds one kind of value in all lines. Of a mixture nothing tells which values are classes.
    """
    path = request.path
    columns: dict[str, list[Any]] = {}
    kinds: dict[str, str] = {}
    lines: list[int] = []
    for number, line, row in objects(path):
        if not columns:
            columns = {name: [] for name in row}
            kinds = {name: _KINDS.get(type(value), "") for name, value in row.items()}
        if row.keys() != columns.keys():
            name = sorted(row.keys() ^ columns.keys())[0]
            has = "has" if name in row else "lacks"
            raise UsageError(f"{path}: line {number} {has} the key {printable(name)!r}, unlike the first one")
        holds_others = has_strings(line, row) or b"true" in line or b"false" in line
        for name, value in row.items():
            kind = _KINDS.get(type(value))
            if kind is None:
                raise UsageError(f"{path}: line {number}: {printable(name)!r} is neither a number, a word nor a list")
            if kind != kinds[name]:
                first = f"{kinds[name]} in line {lines[0]}"
                raise UsageError(f"{path}: line {number}: {printable(name)!r} is {kind}, but {first}")
            if holds_others and isinstance(value, list) and (other := _other(value)):
                raise UsageError(f"{path}: line {number}: {printable(name)!r} holds {other}; needed are numbers")
            columns[name].append(value)
        lines.append(number)
    if not lines:
        raise UsageError(f"{path}: holds no samples")
    table = {name: _column(values) for name, values in columns.items()}
    return from_table(str(path), table, request.slots, request.selection, request.like, lines=lines)


def _other(values: list[Any]) -> str:
    """The first kind of value in a nested list that is no number; empty where there is none but numbers and gaps."""
    for value in values:
        if isinstance(value, list):
            if other := _other(value):
                return other
        elif value is not None and _KINDS.get(type(value)) != "a number":
            return _KINDS.get(type(value), "an object")
    return ""


def _column(values: list[Any]) -> Any:
    if all(isinstance(value, int | float) for value in values):
        with suppress(OverflowError):  # whose line is told with the table
            return np.asarray(values, np.float64)
    return values


declare("json-lines", "a .jsonl", read_json_lines, ".jsonl", ".ndjson")
