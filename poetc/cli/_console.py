"""What a command says while it works (stderr) and what it answers (stdout)."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console as RichConsole
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from poetc.errors import printable

Progress = Callable[[str], None]
SHOW_AFTER_S = 1.0
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what a terminal obeys, but for tabs and line breaks


class Console:
    """Progress and notes on stderr; on stdout either text or, with --json, exactly one object."""

    def __init__(self, *, as_json: bool, quiet: bool, verbose: bool) -> None:
        self._as_json = as_json
        self._quiet = quiet
        self._verbose = verbose and not quiet

    @contextmanager
    def progress(self, message: str) -> Iterator[Progress]:
        """A live line on a terminal for anything over a second; with -v one line a message instead."""
        if self._verbose:
            _say(message)
            yield _say
        elif self._quiet or not sys.stderr.isatty():
            yield _ignore
        else:
            columns = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            with RichProgress(*columns, console=RichConsole(stderr=True), transient=True, disable=True) as live:
                task = live.add_task(message)
                live.disable = False
                timer = threading.Timer(SHOW_AFTER_S, live.start)
                timer.daemon = True
                timer.start()
                try:
                    yield lambda text: live.update(task, description=text)
                finally:
                    timer.cancel()
                    timer.join()

    def note(self, text: str) -> None:
        """Something that the user should know; not an error."""
        if not self._quiet:
            click.echo(f"poetc: note: {printable(text)}", err=True)

    def answer(self, document: Mapping[str, Any], text: str, *, styled: str = "") -> None:
        """The result: `document` with --json, else `text`, on a terminal after what is `styled` for it."""
        if self._as_json:
            click.echo(json.dumps(finite(document), indent=2, allow_nan=False))
        else:
            click.echo(styled + _CONTROL.sub(lambda found: printable(found[0]), text).rstrip("\n"))


def _say(message: str) -> None:
    click.echo(f"poetc: {printable(message)}", err=True)


def _ignore(message: str) -> None:
    del message


def finite(value: Any) -> Any:
    """`value` with what JSON has no word for (infinities, not-a-number) as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(item) for item in value]
    return value
