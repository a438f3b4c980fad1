"""CSV: one row a sample, one column a feature. The target is a column by name, or the last."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from typing import TypeAlias

from poetc.datasets._columns import Samples
from poetc.datasets._kinds import Request, declare
from poetc.datasets._tables import from_table
from poetc.errors import UsageError
from poetc.files import read_file

LARGEST_BYTES = 1 << 32
Dialect: TypeAlias = csv.Dialect | type[csv.Dialect]


def read_csv(request: Request) -> Samples:
    """A table with a line of names, or without: then columns are called 1, 2, ..."""
    path = request.path
    try:
        text = read_file(path, LARGEST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text in UTF-8, as CSV is read") from error
    try:
        dialect = csv.Sniffer().sniff(text[:4096], delimiters=",;\t")
    except csv.Error:
        dialect = csv.excel
    rows, lines = _rows(path, text, dialect)
    if not rows:
        raise UsageError(f"{path}: holds no samples")
    has_names = not any(_is_number(cell) for cell in rows[0])
    names = [cell.strip() for cell in rows[0]] if has_names else [str(i + 1) for i in range(len(rows[0]))]
    first = 1 if has_names else 0
    if len(rows) == first:
        raise UsageError(f"{path}: holds no samples")
    for number, row in zip(lines[first:], rows[first:], strict=True):
        if len(row) != len(names):
            raise UsageError(f"{path}: line {number} has {len(row)} cells, the first one {len(names)}")
    columns = {name: [row[i].strip() for row in rows[first:]] for i, name in enumerate(names)}
    if len(columns) != len(names):
        raise UsageError(f"{path}: two columns have the same name")
    return from_table(str(path), columns, request.slots, request.selection, request.like, lines=lines[first:])


def _rows(path: Path, text: str, dialect: Dialect) -> tuple[list[list[str]], list[int]]:
    """The rows that have cells, and the lines in which they begin.

    UsageError for a quote without its end, which takes all that follows for one cell.
    """
    rows, lines, following = [], [], 1
    reader = csv.reader(io.StringIO(text, newline=""), dialect)
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(following)
            following = reader.line_num + 1
    except csv.Error as error:
        why = f"{error}: is a quote opened there, and never closed?"
        raise UsageError(f"{path}: line {following}: {why}") from None
    last = lines[-1] if lines else 1
    try:
        for _ in csv.reader(itertools.islice(io.StringIO(text, newline=""), last - 1, None), dialect, strict=True):
            pass
    except csv.Error as error:
        if "end of data" in str(error):
            raise UsageError(f"{path}: line {last}: a quote is opened there, and never closed") from None
    return rows, lines


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


declare("csv", "a .csv", read_csv, ".csv", ".tsv")
