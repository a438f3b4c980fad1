"""A task in a thread beside the caller's. It gains where HiGHS does the work, since HiGHS lets go of Python's lock.

The caller decides by counted work when to wait for it, so that answers do not depend on the clock.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from poetc.solvers.poetc.settings import BESIDE

T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """A thread that runs `task(stop)` from `start` on. `cancel` sets `stop`; the task should then end soon."""

    _running, _usual_s, _lock = 0, 0.0, threading.Lock()  # how many tasks run, and Python's own interval, s

    def __init__(self, task: Callable[[threading.Event], T]) -> None:
        self._task, self._stop = task, threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._ended: threading.Event | None = None

    def start(self) -> BackgroundTask[T]:
        # An event in place of `join`, which takes the thread for ended when a signal interrupts it (Python 3.11).
        run = contextvars.copy_context().run  # with the handler of MIPs that the caller has
        self._ended, thread = threading.Event(), threading.Thread(target=run, args=(self._run,))
        try:
            thread.start()
        except RuntimeError:  # too many threads: `result` then runs the task, with the same answer
            self._ended = None
        return self

    def _run(self) -> None:
        self._count(1)
        try:
            self._value.append(self._task(self._stop))
        except BaseException as error:  # `result` raises it again
            self._error = error
        finally:
            self._count(-1)
            assert self._ended is not None
            self._ended.set()

    @classmethod
    def _count(cls, more: int) -> None:
        with cls._lock:
            if BackgroundTask._running == 0:
                BackgroundTask._usual_s = sys.getswitchinterval()
            BackgroundTask._running += more
            sys.setswitchinterval(min(BESIDE.switch_s, cls._usual_s) if BackgroundTask._running else cls._usual_s)

    def result(self) -> T:
        """Wait for the result of the task, or raise its error."""
        if self._ended is None:
            return self._task(self._stop)
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._value[0]

    def cancel(self) -> None:
        """End the task, whose result nobody wants. An LP that is being solved comes to its end first."""
        self._stop.set()
        if self._ended is not None:
            self._ended.wait()
