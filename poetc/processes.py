"""Work in processes of its own: one that is killed takes nothing else along, and all of them go when this one does."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from poetc.errors import PoetcError

ROOM_BYTES = 3 << 30  # of RAM of a machine, for two processes that search for schedules

Task = TypeVar("Task")
Answer = TypeVar("Answer")


class KilledError(PoetcError):
    """A process ended without an answer."""


def in_processes(
    function: Callable[[Task], Answer], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[int, Answer | KilledError]]:
    """`function` of each task, with its index, as they end; at most `jobs` at once.

    Function, tasks and answers are pickled. An exception of `function` is raised again, as a RuntimeError.
    """
    waiting, running = list(enumerate(tasks)), dict[Any, tuple[Worker[Answer], int]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                index, task = waiting.pop(0)
                worker = Worker(function, task)
                running[worker.reader] = worker, index
            ready: list[Any] = multiprocessing.connection.wait(list(running))
            for reader in ready:
                worker, index = running.pop(reader)
                yield index, worker.answer()
    finally:
        for worker, _ in running.values():
            worker.end()


class Worker(Generic[Answer]):
    """`function` of a task in a process of its own, while this one does other work.

    Function, task and answer are pickled.
    """

    def __init__(self, function: Callable[[Task], Answer], task: Task) -> None:
        context = multiprocessing.get_context("spawn")  # solvers have threads, which do not survive a fork
        self.reader, writer = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(function, task, writer), daemon=True)
        with _without_interrupts():
            self._process.start()
        writer.close()

    def answer(self) -> Answer | KilledError:
        """Wait for it. An exception of `function` is raised again, as a RuntimeError."""
        answer: Any = None
        with contextlib.suppress(EOFError, OSError), self.reader:
            answer = self.reader.recv()
        self._process.join()
        if answer is None:
            return KilledError(f"its process was killed (exit code {self._process.exitcode}); out of memory?")
        if isinstance(answer, RuntimeError):
            raise answer
        result: Answer = answer
        return result

    def end(self) -> None:
        """End it, if it still runs."""
        self._process.terminate()
        self._process.join()
        self.reader.close()


def has_room_beside() -> bool:
    """Whether this process may use a second core, and the machine has memory for a process as large as this one."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return len(os.sched_getaffinity(0)) > 1 and memory_bytes >= ROOM_BYTES


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; a process that starts meanwhile never gets it, not even while it loads its modules."""
    multiprocessing.resource_tracker.ensure_running()  # its start would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(function: Callable[[Any], Any], task: Any, answer: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer.send(function(task))
    except Exception as error:  # Not the user's to mend: raised again by the parent, in a form that pickle surely
        # takes.
        again = RuntimeError(f"{type(error).__name__}: {error}")
        again.add_note(traceback.format_exc())
        answer.send(again)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
