"""Flower's messages: records of the message API, or those of its older interface, which SecAgg+ still sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common import recorddict_compat as compat

from poetc.errors import UsageError, shortened
from poetc.fleet import Evaluated, FleetModel, Trained
from poetc.graph import Array

FINGERPRINT = "poetc-fingerprint"  # of the model, in the config of a message
CHANGE = "poetc-change"  # in the config of a message: send the change of the weights
_OLDER = ("fitins", "evaluateins")


def array_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """The record of arrays by name, in their order."""
    return ArrayRecord({name: FlowerArray(np.ascontiguousarray(array)) for name, array in arrays.items()})


def received(model: FleetModel, message: Message) -> dict[str, Array]:
    """The weights of a message by the names of the graph. UsageError where they are of another model."""
    fingerprint = _config(message).get(FINGERPRINT)
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise UsageError(f"{FINGERPRINT}: {shortened(fingerprint)} is no text")
    records = message.content.array_records
    older = _older(message)
    if older:
        parameters = compat.arrayrecord_to_parameters(records[f"{older}.parameters"], keep_input=True)
        return model.listed_state(parameters_to_ndarrays(parameters), fingerprint)
    if len(records) != 1:
        raise UsageError(f"the server sends {len(records)} records of arrays; needed is 1, of the weights")
    (record,) = records.values()
    return model.state({name: array.numpy() for name, array in record.items()}, fingerprint)


def trained(model: FleetModel, message: Message, result: Trained, state: Mapping[str, Array]) -> Message:
    """The reply to a message that asked for training, with the weights after it."""
    arrays = model.arrays(state)
    if _older(message):
        fit = FitRes(
            Status(Code.OK, ""), ndarrays_to_parameters(list(arrays.values())), result.samples, {"loss": result.loss}
        )
        return Message(compat.fitres_to_recorddict(fit, keep_input=False), reply_to=message)
    (name,) = message.content.array_records
    sent_bytes = sum(array.nbytes for array in arrays.values())
    metrics = MetricRecord({"train_loss": result.loss, "sent_bytes": sent_bytes, "num-examples": result.samples})
    return Message(RecordDict({name: array_record(arrays), "metrics": metrics}), reply_to=message)


def evaluated(message: Message, result: Evaluated) -> Message:
    """The reply to a message that asked for an evaluation."""
    accuracy = {} if result.accuracy is None else {"eval_acc": result.accuracy}
    if _older(message):
        answer = EvaluateRes(Status(Code.OK, ""), result.loss, result.samples, accuracy)
        return Message(compat.evaluateres_to_recorddict(answer), reply_to=message)
    metrics = MetricRecord({"eval_loss": result.loss, **accuracy, "num-examples": result.samples})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def sends_change(message: Message) -> bool:
    """Whether the server asks for the change of the weights in a round instead of the weights after it."""
    return _config(message).get(CHANGE) is True


def number(name: str, message: Message, context: Context) -> float | None:
    """A setting of the message, or else of the run; None: neither has it."""
    for values in (_config(message), context.run_config):
        if name in values:
            value = values[name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"{name}: {shortened(value)} is no number")
            return float(value)
    return None


def integer(name: str, default: int, message: Message, context: Context) -> int:
    """The whole number called `name` in a message or its context, or `default`. UsageError for a fraction."""
    value = number(name, message, context)
    if value is not None and not value.is_integer():
        raise UsageError(f"{name}: {value:g} is no whole number")
    return default if value is None else int(value)


def _older(message: Message) -> str:
    """The name of the older interface's request that the message is; "" for the message API."""
    return next((name for name in _OLDER if f"{name}.parameters" in message.content.array_records), "")


def _config(message: Message) -> Mapping[str, Any]:
    """The settings of a message: all of its config records, but for those of a protocol of Flower's mods."""
    merged: dict[str, Any] = {}
    for name, record in message.content.config_records.items():
        if not name.startswith("secaggplus"):
            merged.update(record)
    return merged
