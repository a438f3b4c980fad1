"""The log of a training while it runs: JSON lines, and events that TensorBoard shows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from poetc.errors import UsageError
from poetc.events import Progress
from poetc.files import finite, lock_folder, read_file, write_text
from poetc.loop.loop import EpochRow, Watcher

LINES = "log.jsonl"
FLUSH_EVERY_S = 2.0
_LARGEST_BYTES = 1 << 30


class _Events(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Log:
    """A `Watcher` that writes its reports to a folder, and passes them on.

    A training that is resumed goes on with the log: lines of steps that are done again are dropped.
    """

    def __init__(self, folder: Path, watcher: Watcher, note: Progress, *, resume: bool, force: bool) -> None:
        """Raises UsageError where the folder cannot be written, or has the log of another training."""
        self._folder, self._watcher, self._resume = folder, watcher, resume
        self._path = folder / LINES
        self._count: int | None = None  # batches of an epoch
        self._step = 0
        self._events: _Events | None = None
        self._flushed = 0.0
        self._begun = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(folder)
        except BlockingIOError:
            raise UsageError(f"--log {folder}: another training writes to it; choose another folder") from None
        except OSError as error:
            raise UsageError(f"--log {folder}: {(error.strerror or str(error)).lower()}") from None
        try:
            if not (resume or force) and self._path.exists() and self._path.stat().st_size:
                raise UsageError(f"--log {folder}: has the log of another training; choose another folder, or --force")
            self._file = self._path.open("a", encoding="utf-8")
        except UsageError:
            os.close(self._lock)
            raise
        except OSError as error:
            os.close(self._lock)
            raise UsageError(f"--log {folder}: {(error.strerror or str(error)).lower()}") from None
        try:
            import tensorboardX  # noqa: F401
        except ImportError:
            note(f"--log {folder}: JSON lines alone; for TensorBoard's events: pip install '.[log]' in the clone")

    def on_start(self, epochs: int, batches: int | None) -> None:
        self._count = batches
        self._watcher.on_start(epochs, batches)

    def on_step(self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float) -> None:
        if not self._begun:
            self._begin(epoch, batch)
        self._step += 1
        row = {"event": "step", "step": self._step, "epoch": epoch, "batch": batch, "loss": loss, "rate": rate}
        self._write(row if accuracy is None else {**row, "accuracy": accuracy})
        self._scalars({"loss/step": loss, "rate/step": rate})
        if time.monotonic() - self._flushed >= FLUSH_EVERY_S:
            self._flush()
        self._watcher.on_step(epoch, batch, loss, mean, accuracy, rate)

    def on_epoch(self, row: EpochRow, best: bool) -> None:
        if not self._begun:
            self._begin(row.epoch + 1, 1)
        self._write({"event": "epoch", "step": self._step, **row.to_json(), "best": best})
        scalars = {"loss/epoch": row.loss, "rate": row.rate, "seconds": row.seconds, "accuracy/training": row.accuracy}
        measured = {f"validation/{name}": value for name, value in row.validation.items()}
        self._scalars({**scalars, **measured})
        self._flush()
        self._watcher.on_epoch(row, best)

    def on_end(self) -> None:
        self.close()
        self._watcher.on_end()

    def close(self) -> None:
        """Write all of it. Nothing is written any more."""
        if not self._file.closed:
            self._flush()
            self._file.close()
            os.close(self._lock)
        if self._events is not None:
            self._events.close()
            self._events = None

    def _begin(self, epoch: int, batch: int) -> None:
        """Before the first step of this process, which may go on with a training."""
        self._begun = True
        if not self._resume:
            for path in self._folder.glob("events.out.tfevents.*"):
                path.unlink()
        known = _lines(self._path)
        kept = [line for line in known if _is_before(line, epoch, batch)] if self._resume else []
        self._step = max((line.get("step", 0) for line in kept), default=0)
        if self._count is not None:
            self._step = (epoch - 1) * self._count + batch - 1
        if len(kept) < len(known):
            self._file.close()
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))
            self._file = self._path.open("a", encoding="utf-8")
        try:
            import tensorboardX
        except ImportError:
            return
        again = self._step + 1 if self._step else None
        suffix = f".{self._step}"  # the name has whole seconds alone
        self._events = tensorboardX.SummaryWriter(
            str(self._folder), purge_step=again, flush_secs=round(FLUSH_EVERY_S), filename_suffix=suffix
        )

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(finite(line), allow_nan=False) + "\n")

    def _scalars(self, values: Mapping[str, Any]) -> None:
        if self._events is None:
            return
        for tag, value in values.items():
            if isinstance(value, int | float):
                self._events.add_scalar(tag, float(value), self._step)

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        self._file.flush()
        if self._events is not None:
            self._events.flush()


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of an earlier log; one that was cut short by an interruption is passed over."""
    documents = []
    for line in read_file(path, _LARGEST_BYTES).splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and isinstance(document.get("epoch"), int):
            documents.append(document)
    return documents


def _is_before(line: Mapping[str, Any], epoch: int, batch: int) -> bool:
    if line["epoch"] != epoch:
        return bool(line["epoch"] < epoch)
    return line.get("event") == "step" and int(line.get("batch", 0)) < batch
