"""A line of bytes to a board or a gateway."""

from __future__ import annotations

import os
import select
import time
from typing import Protocol

from poetc.errors import CheckFailed


class Line(Protocol):
    """Bytes in both directions."""

    def write(self, data: bytes, timeout_s: float) -> None:
        """All of `data`. CheckFailed where the other end does not take it in time."""
        ...

    def read(self, size: int, timeout_s: float) -> bytes:
        """At most `size` bytes, at least one; none: nothing came in time."""
        ...

    def close(self) -> None: ...


class Descriptor:
    """A line over a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    def write(self, data: bytes, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while data:
            _, ready, _ = select.select([], [self._descriptor], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise CheckFailed("the other end of the line takes no more bytes")
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise CheckFailed(f"the line ended: {(error.strerror or str(error)).lower()}") from None

    def read(self, size: int, timeout_s: float) -> bytes:
        try:
            return os.read(self._descriptor, size) if self.waits(timeout_s) else b""
        except BlockingIOError:
            return b""
        except OSError as error:
            raise CheckFailed(f"the line ended: {(error.strerror or str(error)).lower()}") from None

    def waits(self, timeout_s: float) -> bool:
        """Whether bytes arrive within the timeout; also true where the other end hangs up."""
        return bool(select.select([self._descriptor], [], [], max(0.0, timeout_s))[0])

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)
