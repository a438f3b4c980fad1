"""Work beside the caller's: a task in a thread of its own, which gains where HiGHS does it, since HiGHS lets go of
Python's lock. The caller decides by counted work when to wait for it, so that answers do not depend on the clock.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# How long the caller keeps the lock that a callback of HiGHS waits for, thousands of times. With Python's own 5 ms a
# relaxation takes more than twice as long beside a busy caller as alone, with this as long.
SWITCH_S = 1e-4


class Beside(Generic[T]):
    """Runs `task(stop)` from now on. `stop` is set by `cancel`; the task should then end soon."""

    def __init__(self, task: Callable[[threading.Event], T]) -> None:
        self._task, self._stop = task, threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._usual_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_S, self._usual_s))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._task(self._stop))
        except BaseException as error:  # raised again where it is waited for
            self._error = error

    def _join(self) -> None:
        self._thread.join()
        sys.setswitchinterval(self._usual_s)

    def result(self) -> T:
        """What the task returned, or raised."""
        self._join()
        if self._error is not None:
            raise self._error
        return self._value[0]

    def cancel(self) -> None:
        """Ends the task, whose result nobody wants."""
        self._stop.set()
        self._join()
