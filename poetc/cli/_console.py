"""The messages of a command while it works (stderr), and its answer (stdout)."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console as RichConsole
from rich.progress import Progress as RichProgress
from rich.progress import ProgressColumn, SpinnerColumn, Task
from rich.table import Column
from rich.text import Text

from poetc.cli._wrapping import columns_of, fitted, hanging
from poetc.errors import printable
from poetc.events import Progress, silent
from poetc.files import finite

SHOW_AFTER_S = 1.0  # a line on a terminal
LINE_EVERY_S = 5.0  # where stderr is a file or a pipe
SAME_LINE_EVERY_S = 60.0  # for a message that has not changed since
NOTE_INDENT = 7  # of its further lines, under the text behind "poetc: "
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # Characters that a terminal obeys, but for tabs and line
# breaks.


class Console:
    """Progress and notes on stderr; on stdout either text or, with --json, exactly one object."""

    def __init__(self, *, as_json: bool, quiet: bool, verbose: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose and not quiet
        self._live: RichProgress | None = None

    @contextmanager
    def progress(self, message: str, limit_s: float | None = None) -> Iterator[Progress]:
        """A live line on a terminal for anything over a second, elsewhere a line every few seconds.

        With -v it is one line a message instead. `limit_s`: the time limit, if there is one; the line says how much is
        left of it.
        """
        if self.verbose:
            _say(message)
            yield _say
        elif self.quiet:
            yield silent
        elif sys.stderr.isatty():
            with _live_line(message, limit_s) as (self._live, progress):
                try:
                    yield progress
                finally:
                    self._live = None
        else:
            with _now_and_then(message, limit_s) as progress:
                yield progress

    def note(self, text: str) -> None:
        """Something that the user should know; not an error."""
        if not self.quiet:
            note = hanging(f"poetc: note: {printable(text)}", columns_of(sys.stderr), NOTE_INDENT, 0)
            if self._live is None:
                click.echo(note, err=True)
            else:  # above the live line, which may be on the screen
                self._live.console.print(note, highlight=False, markup=False, soft_wrap=True)

    def notes(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.note(text)

    def copies(self, names: Sequence[str], out: Path) -> None:
        """Print the new names of the user's files in `out`."""
        if names:
            self.note(f"files in {out} that you had changed are kept as {', '.join(names)}")

    def first(self, text: str) -> None:
        """The part of the answer that is known before the rest, outside `progress`; --json has it in the document."""
        if not self.as_json:
            _show(text)
            sys.stdout.flush()

    def answer(self, document: Mapping[str, Any], text: str) -> None:
        """The result: `document` with --json, else `text`."""
        if self.as_json:
            click.echo(json.dumps(finite(document), indent=2, allow_nan=False))
        else:
            _show(text.rstrip("\n"))


def _show(text: str) -> None:
    shown = _CONTROL.sub(lambda match: printable(match[0]), text)
    click.echo(fitted(shown, columns_of(sys.stdout)))


@contextmanager
def _live_line(message: str, limit_s: float | None) -> Iterator[tuple[RichProgress, Progress]]:
    """One line of a terminal, written anew, gone at the end."""
    with RichProgress(
        SpinnerColumn("line"),
        _Line(limit_s),
        console=RichConsole(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,  # the stream that replaces it says that it is no terminal
        disable=True,
    ) as live:
        task = live.add_task(message)
        live.disable = False
        timer = threading.Timer(SHOW_AFTER_S, live.start)
        timer.daemon = True
        timer.start()
        try:
            yield live, lambda text: live.update(task, description=printable(text))
        finally:
            timer.cancel()
            timer.join()


class _Line(ProgressColumn):
    """The clock and the newest message, cut where the terminal ends."""

    def __init__(self, limit_s: float | None) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._limit_s = limit_s

    def render(self, task: Task) -> Text:
        return Text(f"{clock(task.elapsed or 0.0, self._limit_s)}  {task.description}")


@contextmanager
def _now_and_then(message: str, limit_s: float | None) -> Iterator[Progress]:
    """The newest message every few seconds, for logs; one that stays the same, every minute."""
    newest, ended, started = [message], threading.Event(), time.monotonic()

    def say() -> None:
        said, when = "", started
        while not ended.wait(LINE_EVERY_S):
            now = time.monotonic()
            if newest[0] == said and now - when < SAME_LINE_EVERY_S:
                continue
            said, when = newest[0], now
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more
                _say(f"{clock(now - started, limit_s)}: {said}")

    def update(text: str) -> None:
        newest[0] = text

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield update
    finally:
        ended.set()
        thread.join()


def clock(elapsed_s: float, limit_s: float | None) -> str:
    """Seconds since the start and, of a time limit, those that are left."""
    text = f"{elapsed_s:.0f} s"
    return text if limit_s is None else f"{text}, {max(0.0, limit_s - elapsed_s):.0f} s left"


def _say(message: str) -> None:
    click.echo(f"poetc: {printable(message)}", err=True)
