"""The display of `poetc train`: a bar while an epoch runs, a row when it is over; and how it is interrupted."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from poetc.cli._console import Console
from poetc.events import Progress

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from poetc.cli._watch import LiveView
    from poetc.loop import EpochRow

_FIRST, _LAST = (("epoch", 7), ("loss", 10), ("val. loss", 10)), (("rate", 10), ("time", 9))
COLUMNS = (*_FIRST, ("val. acc.", 10), *_LAST)
OF_NUMBERS = (*_FIRST, *_LAST)  # without classes, or without validation
OF_TEXTS = (*_FIRST, ("val. perpl.", 12), ("tokens/s", 10), *_LAST)


ROOM_FOR_BAR, ROOM_FOR_ALL = 80, 100  # columns of a terminal that show a bar beside the loss, and the speed as well


class TrainingDisplay:
    """The `Watcher` of the command line, on stderr.

    A bar on a terminal, elsewhere a line an epoch; with `--watch` a table, or a line every few seconds as well.
    """

    def __init__(self, console: Console, *, watch: bool) -> None:
        """`watch`: the table of `--watch` in place of the bar."""
        self._console, self._watch = console, watch
        self._view: LiveView | None = None
        self._stages: AbstractContextManager[Progress] | None = None
        self._say: Progress | None = None
        self._bar: RichProgress | None = None
        self._task: Any = None
        self._has_header = False
        self.epochs = 0
        self.count: int | None = None

    def __enter__(self) -> TrainingDisplay:
        self._stages = self._console.progress("reading the model")
        self._say = self._stages.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_bar()
        self._end_stages()

    def progress(self, text: str) -> None:
        """Show the stage of the command, such as solving or compiling."""
        if self._say is not None:
            self._say(text)

    def on_start(self, epochs: int, batches: int | None) -> None:
        self.epochs, self.count = epochs, batches
        if self._watch:
            from poetc.cli._watch import LiveView

            self._end_stages()
            self._view = LiveView(epochs, batches)
        elif not self._console.quiet and sys.stderr.isatty():
            self._end_stages()
            console = RichConsole(stderr=True)
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                *((BarColumn(bar_width=24), MofNCompleteColumn()) if console.width >= ROOM_FOR_BAR else ()),
                _Speed(is_short=console.width < ROOM_FOR_ALL),
                console=console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.start()

    def on_step(self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float) -> None:
        if self._view is not None:
            self._view.on_step(epoch, batch, loss, mean, accuracy, rate)
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task(
                f"epoch {epoch}/{self.epochs}", total=self.count, completed=batch - 1, epoch=epoch, epochs=self.epochs
            )
        shown = f"epoch {epoch}/{self.epochs}  loss {mean:.4f}" + ("" if accuracy is None else f"  acc. {accuracy:.1%}")
        self._bar.update(self._task, completed=batch, description=shown)

    def on_epoch(self, row: EpochRow, best: bool) -> None:
        if self._console.quiet:
            return
        lines = [_cells(row, self.epochs, best)]
        if not self._has_header:
            lines.insert(0, "".join(f"{name:<{width}}" for name, width in _columns(row)).rstrip())
            self._has_header = True
        if self._view is not None:
            self._view.on_epoch(row, best)
            for line in lines:
                self._view.print(line)
            return
        if self._bar is not None:
            if self._task is not None:
                self._bar.refresh()  # an epoch may be shorter than the time between two drawings
                self._bar.remove_task(self._task)
                self._task = None
            for line in lines:
                self._bar.console.print(line, highlight=False, markup=False)
            return
        for line in lines:
            click.echo(line, err=True)

    def on_end(self) -> None:
        self._end_bar()

    def _end_bar(self) -> None:
        if self._view is not None:
            self._view.stop()
            self._view = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _end_stages(self) -> None:
        if self._stages is not None:
            self._stages.__exit__(None, None, None)
            self._stages = self._say = None


class _Speed(ProgressColumn):
    """Steps a second, unless it is short, and the time that the rest of the training takes at this speed."""

    def __init__(self, *, is_short: bool) -> None:
        super().__init__(Column(no_wrap=True))
        self._is_short = is_short

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        left = task.remaining or 0
        left += (task.total or 0) * max(0, task.fields["epochs"] - task.fields["epoch"])
        speed = "" if self._is_short else f"{task.speed:.1f} steps/s  "
        return Text(f"{speed}{_clock(left / task.speed)} left")


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )


def _columns(row: EpochRow) -> tuple[tuple[str, int], ...]:
    if row.tokens_per_second is not None:
        return OF_TEXTS
    return OF_NUMBERS if row.validation_accuracy is None else COLUMNS


def _cells(row: EpochRow, epochs: int, best: bool) -> str:
    def number(value: float | None, shown: str) -> str:
        return "-" if value is None else format(value, shown)

    speed = row.tokens_per_second
    cells = (
        f"{row.epoch}/{epochs}",
        f"{row.loss:.4f}",
        number(row.validation_loss, ".4f"),
        *(() if row.validation_accuracy is None or speed is not None else (f"{row.validation_accuracy:.2%}",)),
        *(() if speed is None else (number(row.validation.get("perplexity"), ".2f"),)),
        *(() if speed is None else (f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}",)),
        f"{row.rate:.3g}",
        f"{row.seconds:.1f} s",
    )
    text = "".join(f"{cell:<{width - 1}} " for cell, (_, width) in zip(cells, _columns(row), strict=True))
    return f"{text}best" if best else text.rstrip()


class Interruption:
    """While training runs, Ctrl-C and SIGTERM ask it to stop after the step; a second one ends the process at once."""

    def __init__(self) -> None:
        self._signal = 0
        self._is_training = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        handler = self._before[number]
        self._restore()
        if not self._is_training and callable(handler):
            handler(number, frame)

    def asked(self) -> bool:
        """Whether there was a signal. It is asked between steps; before the first one a signal ends the process."""
        self._is_training = True
        return self._signal != 0

    def end(self) -> None:
        """Leave as the signal would have it."""
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self._signal)
