"""Samples in columns: for each slot one array, or something that is indexed like one."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from poetc.datasets._stored import StoredArray
from poetc.errors import UsageError
from poetc.graph import Array

CHUNK_BYTES = 1 << 24  # that are looked at together


class Column(Protocol):
    """Samples along the first axis: an array, or something that reads its samples from files when asked for them."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Array: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The arrays that a source holds for the slots of a step.

    `columns` are by slot, each [samples, *sample_shape]; `called` names the arrays as the source does. `rows` are the
    samples that belong to this part of the source; None: all. `classes` names the target's classes, if they have names.
    `features` and `targets` name the columns of a table that are joined into the input and into the target, in order.
    `lines` are those of a file of text in which the samples begin, counted from 1; None: it has none.
    `tokens`: the number of each sample's tokens without padding, of a source of texts. `idle`: options of the source's
    kind that were given and do nothing for it, by name, and why.
    """

    where: str
    columns: Mapping[str, Column]
    called: Mapping[str, str]
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    lines: Sequence[int] | None = None
    rows: Array | None = None
    tokens: Array | None = None
    idle: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.rows is None else len(self.rows)

    @property
    def token_count(self) -> int | None:
        """The tokens of all samples; None where it is no source of texts."""
        if self.tokens is None:
            return None
        return int(self.tokens.sum() if self.rows is None else self.tokens[self.rows].sum())

    def take(self, indices: Array) -> dict[str, Array]:
        """Those samples, of each column, in the order of `indices`."""
        rows = indices if self.rows is None else self.rows[indices]
        return {name: np.asarray(column[rows]) for name, column in self.columns.items()}

    def require_unchanged(self) -> None:
        """UsageError where a file that is read sample by sample was written to since it was opened."""
        for column in self.columns.values():
            if isinstance(column, StoredArray):
                column.require_unchanged()

    def digest(self) -> str:
        """SHA-256 of names, shapes and contents: a training that goes on must find the same."""
        total = hashlib.sha256()
        for name, column in sorted(self.columns.items()):
            total.update(f"{name} {column.dtype} {column.shape}".encode())
            fingerprint = getattr(column, "fingerprint", None)
            if fingerprint is not None:
                total.update(fingerprint())
                continue
            for _, part in chunks(column):
                total.update(np.ascontiguousarray(part).tobytes())
        if self.rows is not None:
            total.update(self.rows.tobytes())
        return total.hexdigest()


def chunks(column: Column) -> Sequence[tuple[int, Array]] | Any:
    """Parts of a column with the index of their first sample: a mapped file need not fit in memory."""
    sample_bytes = max(1, int(np.prod(column.shape[1:], dtype=np.int64)) * column.dtype.itemsize)
    count = max(1, CHUNK_BYTES // sample_bytes)
    for first in range(0, len(column), count):
        yield first, np.asarray(column[first : first + count])


def require_equal_lengths(where: str, lengths: Mapping[str, int]) -> None:
    """UsageError where arrays have different numbers of samples, or none."""
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} of {name}" for name, count in lengths.items())
        raise UsageError(f"{where}: its arrays have different numbers of samples: {counts}")
    if not any(lengths.values()):
        raise UsageError(f"{where}: holds no samples")


def require_no_idle(parts: Sequence[Samples], used: Collection[str]) -> None:
    """UsageError for an option that does nothing for any of the parts of the data, unless it is `used` elsewhere."""
    for part in parts[:1]:
        for name, why in part.idle.items():
            if name not in used and all(name in other.idle for other in parts):
                raise UsageError(f"--{name.replace('_', '-')} does nothing: {part.where} {why}; leave it out")
