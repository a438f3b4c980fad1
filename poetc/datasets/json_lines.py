"""JSON lines: one object a sample, with a number, a word or a nested list of numbers a key."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from poetc.datasets._columns import Samples
from poetc.datasets._kinds import Request, declare
from poetc.datasets._tables import from_table
from poetc.errors import UsageError, printable
from poetc.files import read_file

LARGEST_BYTES = 1 << 32


def read_json_lines(request: Request) -> Samples:
    """A table as CSV, or with a key for each input: `{"x": [0.5, 1.5], "target": 3}`."""
    path = request.path
    columns: dict[str, list[Any]] = {}
    count = 0
    for number, line in enumerate(read_file(path, LARGEST_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise UsageError(f"{path}: line {number} is not JSON ({error})") from None
        if not isinstance(row, dict) or not row:
            raise UsageError(f"{path}: line {number} is not an object with keys")
        if not columns:
            columns = {name: [] for name in row}
        if row.keys() != columns.keys():
            name = sorted(row.keys() ^ columns.keys())[0]
            has = "has" if name in row else "lacks"
            raise UsageError(f"{path}: line {number} {has} the key {printable(name)!r}, unlike the first one")
        for name, value in row.items():
            if value is None or isinstance(value, dict):
                raise UsageError(f"{path}: line {number}: {printable(name)!r} is neither a number, a word nor a list")
            columns[name].append(value)
        count += 1
    if not count:
        raise UsageError(f"{path}: holds no samples")
    table = {name: _column(values) for name, values in columns.items()}
    return from_table(str(path), table, request.slots, request.selection, request.like, first_row=1)


def _column(values: list[Any]) -> Any:
    if all(isinstance(value, int | float) for value in values):
        return np.asarray(values, np.float64)
    return values


declare("json-lines", "a .jsonl", read_json_lines, ".jsonl", ".ndjson")
