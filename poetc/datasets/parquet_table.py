"""Parquet, read by pyarrow (the extra `parquet`): columns of numbers, of words, or of lists of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from poetc.datasets._columns import Samples
from poetc.datasets._kinds import Request, declare
from poetc.datasets._tables import from_table
from poetc.errors import UsageError
from poetc.files import open_file


def read_parquet(request: Request) -> Samples:
    """A table as `poetc.datasets.csv_table` reads one, or with a column of lists for each input."""
    path = request.path
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(f"{path}: Parquet needs pyarrow: pip install '.[parquet]' in the clone") from error
    with open_file(path):
        pass
    try:
        read = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise UsageError(f"{path}: not a Parquet file ({str(error).splitlines()[0][:120]})") from error
    if not read.num_rows:
        raise UsageError(f"{path}: holds no samples")
    table: dict[str, Any] = {}
    for name, column in zip(read.column_names, read.columns, strict=True):
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise UsageError(f"{path}: row {row}, column {name!r} is empty")
        values = column.to_pylist() if arrow.types.is_nested(column.type) else column.to_numpy()
        table[name] = values if isinstance(values, list) or values.dtype.kind not in "fiub" else np.asarray(values)
    return from_table(str(path), table, request.slots, request.selection, request.like)


declare("parquet", "a .parquet", read_parquet, ".parquet")
