"""The client app: Flower's messages in, rounds of a participant, Flower's messages out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from poetc import artifact
from poetc.errors import PoetcError, UsageError, printable
from poetc.fleet import MAX_UPDATE_NORM, Data, FleetModel, Participant, Source, Trained, read_data
from poetc.flower import _messages, _secagg
from poetc.graph import Array
from poetc.runtime.session import SessionError

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message
    from flwr.clientapp import ClientApp
    from flwr.common.constant import ErrorCode
except ImportError:
    raise UsageError("poetc.flower needs the package flwr: pip install '.[flower]' in the clone") from None

DataOf = Source | Callable[[Context], Source]
Config = str | float | int | bool
_Handler = Callable[[Participant, Message, Context], Message]


def client_app(
    directory: str | Path | Callable[[Context], str | Path],
    data: DataOf,
    *,
    validation: DataOf | None = None,
    validation_split: float | None = None,
    normalize: str | None = None,
    any_range: bool = False,
    seed: int = 0,
    shuffle: bool = True,
    threads: int = 0,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """A Flower client that trains the solved model of `directory`, with the C of this machine.

    `directory`: of `poetc solve`, or a function of Flower's context that returns one, where devices have their own.
    `data` and `validation`: as `poetc train --data`, or arrays by name, or arrays in the order of the inputs and the
    target. A function of Flower's context may return one of these. `validation_split`, `normalize`,
    `any_range`: as of `poetc train`. `threads`: the most that kernels run in, 0: one. `mods` are Flower's.

    A message's config, then the run config, may hold `local-epochs` (default 1), `learning-rate` (default: that of
    `poetc solve`) and `max-update-norm` (default: no limit). A reply holds the weights that training changes and no
    others. It has the metrics `train_loss` and `sent_bytes`, or `eval_loss` and `eval_acc`, and `num-examples`. A fault
    is an error reply of one line.
    """
    participants = _Participants(directory, threads)

    def data_of(participant: Participant, context: Context) -> Data:
        return read_data(
            _given(data, context),
            participant.slots,
            validation=None if validation is None else _given(validation, context),
            validation_split=validation_split,
            normalize=normalize,
            any_range=any_range,
            seed=seed,
            shuffle=shuffle,
        )

    def fit(participant: Participant, message: Message, context: Context, received: Mapping[str, Array]) -> Trained:
        epochs = _messages.integer("local-epochs", 1, message, context)
        return participant.fit(
            received,
            data_of(participant, context),
            epochs=epochs,
            first_epoch=1 + epochs * (max(1, _messages.integer("server-round", 1, message, context)) - 1),
            learning_rate=_messages.number("learning-rate", message, context),
            max_update_norm=_messages.number(MAX_UPDATE_NORM, message, context),
        )

    def train(participant: Participant, message: Message, context: Context) -> Message:
        if _secagg.is_stage(message):
            return _secagg.answer(participant, message, context, fit, seed)
        received = _messages.received(participant.model, message)
        trained = fit(participant, message, context, received)
        return _messages.trained(participant.model, message, trained, participant.state())

    def evaluate(participant: Participant, message: Message, context: Context) -> Message:
        received = _messages.received(participant.model, message)
        return _messages.evaluated(message, participant.evaluate(received, data_of(participant, context)))

    app = ClientApp(mods=list(mods))
    app.train()(participants.handling(train))
    app.evaluate()(participants.handling(evaluate))
    return app


def initial_arrays(directory: str | Path) -> ArrayRecord:
    """The weights that travel, as training starts: the `initial_arrays` of a strategy."""
    model = FleetModel.of(artifact.read(Path(directory)))
    return _messages.array_record(model.initial)


def train_config(directory: str | Path, **values: Config) -> ConfigRecord:
    """The `train_config` and `evaluate_config` of a strategy: `values`, and the fingerprint of the model.

    An underscore in a name stands for a hyphen: `local_epochs=2`. A client with another model answers with an error.
    """
    model = FleetModel.of(artifact.read(Path(directory)))
    settings = {name.replace("_", "-"): value for name, value in values.items()}
    return ConfigRecord({**settings, _messages.FINGERPRINT: model.fingerprint})


def _given(data: Any, context: Context) -> Source:
    source: Source = data(context) if callable(data) else data
    return source


def in_one_line(where: str, message: Message, call: Callable[[], Message]) -> Message:
    """The reply of `call`, or an error reply of one line where it fails by a fault that a user can mend."""
    try:
        return call()
    except (PoetcError, SessionError, ValueError, OSError) as error:
        text = str(error) if str(error).startswith(f"{where}: ") else f"{where}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, printable(text)), reply_to=message)


class _Participants:
    """The participant of each directory, compiled when its first message comes; messages take turns."""

    def __init__(self, directory: str | Path | Callable[[Context], str | Path], threads: int) -> None:
        self._directory, self._threads = directory, threads
        self._ready: dict[Path, Participant] = {}
        self._lock = threading.Lock()

    def handling(self, handler: _Handler) -> Callable[[Message, Context], Message]:
        """The function that Flower calls. An error that a user can mend is a reply of one line."""

        def handle(message: Message, context: Context) -> Message:
            path = Path(self._directory(context) if callable(self._directory) else self._directory)
            with self._lock:
                return in_one_line(str(path), message, lambda: handler(self._participant(path), message, context))

        return handle

    def _participant(self, path: Path) -> Participant:
        if path not in self._ready:
            self._ready[path] = Participant(artifact.read(path), threads=self._threads)
        return self._ready[path]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._directory, self._threads)  # a simulation sends the app to other processes
