"""A gateway: the Flower client of a board that is at the other end of a serial line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from poetc import artifact
from poetc.errors import CheckFailed, UsageError
from poetc.fleet import MAX_UPDATE_NORM, Board, BoardError, Trained, UnsoundUpdate
from poetc.fleet.frames import Channel
from poetc.fleet.opening import open_line
from poetc.flower import _messages, _secagg
from poetc.flower.app import in_one_line
from poetc.graph import Array


def gateway_app(
    directory: str | Path,
    emitted: str | Path,
    line: str | Callable[[Context], str],
    *,
    seed: int = 0,
    timeout_s: float = 2.0,
    training_timeout_s: float = 3600.0,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """A Flower client for a board with the firmware that `poetc emit --fleet` wrote to `emitted` from `directory`.

    `line`: a serial device as /dev/ttyACM0, tcp:HOST:PORT or unix:PATH, or a function of Flower's context that returns
    one. The board trains on data of its own and keeps them. The gateway gives it weights and takes its weights, or
    under SecAgg+ its masked words. Settings are those of `client_app`. A board does not evaluate. A board that is
    silent for `timeout_s` seconds is asked again, up to five times, and a training may take `training_timeout_s`.
    Boards at different lines do not wait for each other.
    """
    if not (timeout_s > 0 and training_timeout_s > 0):
        raise UsageError("timeout_s and training_timeout_s: must be above 0")
    gateway = Gateway(Path(directory), Path(emitted), line, timeout_s, training_timeout_s)

    def fit(board: Board, message: Message, context: Context, received: Mapping[str, Array]) -> Trained:
        return board.fit(
            received,
            epochs=_messages.integer("local-epochs", 1, message, context),
            learning_rate=_messages.number("learning-rate", message, context),
            max_update_norm=_messages.number(MAX_UPDATE_NORM, message, context),
        )

    def train(board: Board, message: Message, context: Context) -> Message:
        if _secagg.is_stage(message):
            return _secagg.answer(board, message, context, fit, seed)
        trained = fit(board, message, context, _messages.received(board.model, message))
        return _messages.trained(board.model, message, trained, board.state())

    def evaluate(board: Board, message: Message, context: Context) -> Message:
        raise UsageError("a board does not evaluate; let other clients do it")

    app = ClientApp(mods=list(mods))
    app.train()(gateway.handling(train))
    app.evaluate()(gateway.handling(evaluate))
    return app


class Gateway:
    """The boards of a gateway by line, connected when the first message comes."""

    def __init__(
        self,
        directory: Path,
        emitted: Path,
        line: str | Callable[[Context], str],
        timeout_s: float,
        training_timeout_s: float,
    ) -> None:
        self._directory, self._emitted, self._line = directory, emitted, line
        self._timeouts_s = timeout_s, training_timeout_s
        self._boards: dict[str, Board] = {}
        self._lock = threading.Lock()  # of the locks
        self._locks: dict[str, threading.Lock] = {}

    def handling(self, handler: Callable[[Board, Message, Context], Message]) -> Callable[[Message, Context], Message]:
        """The function that Flower calls. A line that failed is opened anew by the next message."""

        def handle(message: Message, context: Context) -> Message:
            line = self._line(context) if callable(self._line) else self._line
            with self._lock:
                lock = self._locks.setdefault(line, threading.Lock())
            with lock:
                return in_one_line(line, message, lambda: self._ask(line, handler, message, context))

        return handle

    def _ask(
        self, line: str, handler: Callable[[Board, Message, Context], Message], message: Message, context: Context
    ) -> Message:
        if line not in self._boards:
            timeout_s, training_timeout_s = self._timeouts_s
            channel = Channel(open_line(line), line, timeout_s=timeout_s, training_timeout_s=training_timeout_s)
            try:
                self._boards[line] = Board(artifact.read(self._directory), self._emitted, line, channel=channel)
            except BaseException:
                channel.close()
                raise
        try:
            return handler(self._boards[line], message, context)
        except (BoardError, UnsoundUpdate):  # it answers
            raise
        except (CheckFailed, OSError):
            self._boards.pop(line).channel.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._directory, self._emitted, self._line, *self._timeouts_s)
