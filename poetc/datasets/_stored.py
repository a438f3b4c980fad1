"""An array that stays in its file. Samples are read when they are asked for.

A mapped file would be faster by a little. But where another program cuts it off, reading a page of it ends the process
with SIGBUS: nothing can be said or saved any more.
"""

from __future__ import annotations

import math
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array


class StoredArray:
    """Samples along the first axis, in the order of C, from byte `offset_bytes` of the open file `handle`.

    UsageError where the file is shorter than the array, or was written to since it was opened.
    """

    def __init__(
        self, path: Path, handle: int, offset_bytes: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self._handle, self._offset_bytes = os.dup(handle), offset_bytes
        weakref.finalize(self, os.close, self._handle)
        self._sample_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._status = self._look()
        self._require_bytes(offset_bytes + len(self) * self._sample_bytes <= self._status[0])

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, rows: Any, /) -> Array:
        if isinstance(rows, slice):
            first, stop, step = rows.indices(len(self))
            if step == 1:
                return self._read(first, max(0, stop - first))
            rows = range(first, stop, step)
        elif isinstance(rows, int | np.integer):
            return np.asarray(self[[rows]][0])
        indices = np.arange(len(self))[np.asarray(rows)]  # negative ones and masks as numpy takes them
        taken = np.empty((len(indices), *self.shape[1:]), self.dtype)
        for place, row in enumerate(indices):
            self._fill(taken[place : place + 1], int(row))
        return taken

    def reshape(self, *shape: int) -> StoredArray:
        """The same numbers in another shape."""
        assert math.prod(shape) == math.prod(self.shape)
        other = StoredArray(self.path, self._handle, self._offset_bytes, self.dtype, shape)
        other._status = self._status
        return other

    def require_unchanged(self) -> None:
        """UsageError where the file was written to since it was opened. One that was replaced is not."""
        self._require_bytes(self._look() == self._status)

    def _look(self) -> tuple[int, int]:
        status = os.fstat(self._handle)
        return status.st_size, status.st_mtime_ns

    def _read(self, first: int, count: int) -> Array:
        taken = np.empty((count, *self.shape[1:]), self.dtype)
        self._fill(taken, first)
        return taken

    def _fill(self, array: Array, first: int) -> None:
        buffer: memoryview = array.reshape(-1).view(np.uint8).data
        place = self._offset_bytes + first * self._sample_bytes
        while buffer:
            read_bytes = os.preadv(self._handle, [buffer], place)
            self._require_bytes(read_bytes > 0)
            buffer, place = buffer[read_bytes:], place + read_bytes

    def _require_bytes(self, there: bool) -> None:
        if not there:
            raise UsageError(f"{self.path}: was cut off or written to since it was opened; put it back as it was")
