"""Flower's SecAgg+ with words made by poetc's C: the server sees the sum of all clients' updates, and no single one.

Flower's own modifier speaks the protocol: keys, shares and masks. Here it gets numbers that it quantises to 0, so that
it answers with the masks alone. The C quantises the client's numbers and adds them to the masks, as integers. A word
takes 4 bytes, where the modifier sends 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    FitRes,
    Status,
    bytes_to_ndarray,
    ndarray_to_bytes,
    ndarrays_to_parameters,
)
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.compat.common import recorddict_compat as compat

from poetc.errors import UsageError
from poetc.fleet import Board, FleetModel, Participant, Quantizer, Trained
from poetc.flower import _messages
from poetc.graph import Array

_LEAST = np.float32(-3e38)  # is clipped, and quantised to 0
_WORD = 0xFFFFFFFF


Client = TypeVar("Client", Participant, Board)


def is_stage(message: Message) -> bool:
    """Whether a message belongs to the protocol, and no modifier of Flower has handled it."""
    return Key.STAGE in message.content.config_records.get(RECORD_KEY_CONFIGS, {})


def answer(
    client: Client,
    message: Message,
    context: Context,
    fit: Callable[[Client, Message, Context, Mapping[str, Array]], Trained],
    seed: int,
) -> Message:
    """The reply to any stage of the protocol; `fit` runs the client's round where the stage asks for it."""
    if message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE] != Stage.COLLECT_MASKED_VECTORS:
        return cast(Message, secaggplus_mod(message, context, _no_training))
    state = context.state.config_records[RECORD_KEY_STATE]
    clip, levels, modulus = (cast(Any, state[name]) for name in ("clipping_range", "target_range", "mod_range"))
    Quantizer(clip=clip, range=levels, modulus=modulus)  # refused before the training
    received = _messages.received(client.model, message)
    trained = fit(client, message, context, received)
    share = round(trained.samples / cast(float, state["max_weight"]) * levels)
    if not 1 <= share <= levels:
        raise UsageError(
            f"SecAgg+: {trained.samples} samples of at most {state['max_weight']} (max_weight) are no weight of 1 to"
            f" {levels} (quantization_range)"
        )
    quantizer = Quantizer(
        clip=clip,
        range=levels,
        modulus=modulus,
        factor=share / levels,
        seed=seed ^ (cast(int, state["nid"]) & _WORD),
        round=int(message.metadata.group_id) if message.metadata.group_id.isdecimal() else 0,
    )
    reply = cast(Message, secaggplus_mod(message, context, lambda asked, _: _masks_alone(client.model, asked, trained)))
    record = reply.content.config_records[RECORD_KEY_CONFIGS]
    weight, *masks = (bytes_to_ndarray(data) for data in cast(list[bytes], record[Key.MASKED_PARAMETERS]))
    change, masked_weights, first = _messages.sends_change(message), [weight], 0
    for travelling, mask in zip(client.model.weights, masks, strict=True):
        terms = (mask & quantizer.mask).astype(np.uint32)
        before = received[travelling.tensor] if change else None
        masked_weights.append(client.masked(quantizer, travelling, before, terms, first))
        first += terms.size
    sent: dict[str, Any] = {**record, Key.MASKED_PARAMETERS: [ndarray_to_bytes(array) for array in masked_weights]}
    reply.content.config_records[RECORD_KEY_CONFIGS] = ConfigRecord(sent)
    return reply


def _masks_alone(model: FleetModel, asked: Message, trained: Trained) -> Message:
    """The client's result in Flower's older interface, with numbers that are quantised to 0."""
    numbers = [np.full(weight.shape, _LEAST, np.float32) for weight in model.weights]
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(numbers), trained.samples, {"loss": trained.loss})
    return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=asked)


def _no_training(_message: Message, _context: Context) -> Message:
    raise AssertionError("a stage without training")
