"""Work in processes of its own: one that is killed takes nothing else along, and all of them go when this one does."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from poetc.errors import PoetcError

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
    context = multiprocessing.get_context("spawn")  # solvers have threads, which do not survive a fork
    waiting, running = list(enumerate(tasks)), dict[Any, tuple[Any, int]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                index, task = waiting.pop(0)
                reader, writer = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(function, task, writer), daemon=True)
                process.start()
                writer.close()
                running[reader] = process, index
            ready: list[Any] = multiprocessing.connection.wait(list(running))
            for reader in ready:
                process, index = running.pop(reader)
                answer: Any = None
                with contextlib.suppress(EOFError, OSError), reader:
                    answer = reader.recv()
                process.join()
                if answer is None:
                    answer = KilledError(f"its process was killed (exit code {process.exitcode}); out of memory?")
                elif isinstance(answer, RuntimeError):
                    raise answer
                yield index, answer
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()


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
