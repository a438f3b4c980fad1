"""The view of `poetc train --watch`: a table that changes in its place; elsewhere than on a terminal, lines."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from poetc.cli._console import LINE_EVERY_S
from poetc.devices import format_bytes

if TYPE_CHECKING:
    from poetc.loop import EpochRow

_REFRESHES = 4  # a second


class LiveView:
    """Loss, validation, rate, speed, time left and RAM of a training that runs."""

    def __init__(self, epochs: int, batches: int | None) -> None:
        self.console = RichConsole(stderr=True)
        self._epochs, self._batches = epochs, batches
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            speed_estimate_period=60.0,
        )
        self._task = self._bar.add_task("", total=None if batches is None else epochs * batches)
        self._rows: dict[str, str] = {}
        self._before = 0  # steps of earlier epochs
        self._is_begun = False
        self._ram_bytes = self._most_bytes = 0
        self._best = ""
        self._said = time.monotonic()
        is_live = sys.stderr.isatty() and not self.console.is_dumb_terminal
        self._live = (
            Live(
                get_renderable=self._shown,
                console=self.console,
                refresh_per_second=_REFRESHES,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            if is_live
            else None
        )
        if self._live is not None:
            self._live.start()

    @property
    def progress(self) -> tuple[float, float | None]:
        """Steps that are done, and all of them where their number is known."""
        return self._bar.tasks[0].completed, self._bar.tasks[0].total

    def on_step(self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float) -> None:
        if not self._is_begun:  # a training that goes on has steps before
            self._is_begun = True
            self._before = (epoch - 1) * self._batches if self._batches else 0
            self._bar.reset(self._task, completed=self._before + batch - 1)
        self._bar.update(self._task, completed=self._before + batch, description=f"epoch {epoch}/{self._epochs}")
        self._rows["loss"] = f"{loss:.4f} in this step, {mean:.4f} in this epoch"
        self._rows["accuracy"] = "" if accuracy is None else f"{accuracy:.1%} in this epoch"
        self._rows["rate"] = f"{rate:.4g}"
        if self._live is None and time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            click.echo(f"poetc: {self._line(batch, mean)}", err=True)

    def on_epoch(self, row: EpochRow, best: bool) -> None:
        self._before += row.steps
        if self._batches is None:  # known once an epoch is over, for those before a training that goes on as well
            self._batches, self._before = row.steps, row.epoch * row.steps
            self._bar.tasks[0].completed = self._before  # not by an update, which would count as speed
            self._bar.update(self._task, total=row.steps * self._epochs)
        if row.validation_loss is not None:
            more = "" if row.validation_accuracy is None else f", accuracy {row.validation_accuracy:.2%}"
            text = f"loss {row.validation_loss:.4f}{more} after epoch {row.epoch}"
            self._best = text if best else self._best
            self._rows["validation"], self._rows["best"] = text, self._best

    def print(self, line: str) -> None:
        """A line that stays, above the table."""
        if self._live is None:
            click.echo(line, err=True)
        else:
            self.console.print(line, highlight=False, markup=False)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _shown(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for name, value in {**self._rows, **self._of_process()}.items():
            if value:
                table.add_row(name, value)
        return Group(table, self._bar.get_renderable())

    def _of_process(self) -> dict[str, str]:
        speed = self._bar.tasks[0].speed
        self._ram_bytes = _resident_bytes()
        self._most_bytes = max(self._most_bytes, self._ram_bytes)
        ram = f"{format_bytes(self._ram_bytes)} of this process with Python, {format_bytes(self._most_bytes)} at most"
        return {"speed": "" if speed is None else f"{speed:.4g} steps/s", "RAM": ram if self._ram_bytes else ""}

    def _line(self, batch: int, mean: float) -> str:
        task, process = self._bar.tasks[0], self._of_process()
        left = task.time_remaining
        parts = [f"{task.description}, step {batch}{f'/{self._batches}' if self._batches else ''}: loss {mean:.4f}"]
        parts += [f"rate {self._rows['rate']}", process["speed"]]
        parts.append("" if left is None else f"{timedelta(seconds=round(left))} left")
        parts.append(f"RAM {format_bytes(self._ram_bytes)}" if self._ram_bytes else "")
        return ", ".join(word for word in parts if word)


def _resident_bytes() -> int:
    """The RAM of this process, as Linux counts it; 0 elsewhere."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
