"""Strategies of a server: an average of checked updates, and SecAgg+'s for changes of weights.

Changes need a smaller clipping range than the weights do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import FitIns, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.logger import log
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from poetc.errors import PoetcError, UsageError, printable
from poetc.fleet import MAX_UPDATE_NORM, UnsoundUpdate, require_sound
from poetc.flower import _messages


class CheckedFedAvg(FedAvg):  # type: ignore[misc]  # mypy reads no flwr
    """Flower's FedAvg that averages sound updates alone: one client that diverges does not end the fleet's training.

    A reply is left out where a weight or the loss is not finite, or names or shapes are not those that were sent. The
    number of samples must be above 0. A reply is left out, too, where the L2 norm of its change is above
    `max_update_norm` (None: no limit). A line of the log names its node and the reason. Clients of poetc get the limit
    and keep to it themselves. With no sound reply a round leaves the weights as they were. The other arguments are
    those of FedAvg.
    """

    def __init__(self, *, max_update_norm: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        if max_update_norm is not None and not 0 < max_update_norm < math.inf:
            raise UsageError(f"max_update_norm {max_update_norm:g}: must be a number above 0")
        self._most_norm = max_update_norm
        self._sent: dict[str, Any] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The requests of a round, with the limit on the norm."""
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        if self._most_norm is not None:
            config[MAX_UPDATE_NORM] = float(self._most_norm)
        asked: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The average of the sound replies."""
        sound = []
        for reply in replies:
            try:
                if not reply.has_error():
                    self._require_sound(reply)
                sound.append(reply)
            except PoetcError as error:
                log(WARNING, "node %d is left out: %s", reply.metadata.src_node_id, printable(str(error)))
        aggregate: tuple[ArrayRecord | None, MetricRecord | None] = super().aggregate_train(server_round, sound)
        return aggregate

    def _require_sound(self, reply: Message) -> None:
        records, metrics = list(reply.content.array_records.values()), list(reply.content.metric_records.values())
        if len(records) != 1 or len(metrics) != 1:
            raise UnsoundUpdate(f"{len(records)} records of arrays and {len(metrics)} of metrics; needed is 1 of each")
        try:
            arrays = {name: array.numpy() for name, array in records[0].items()}
        except (ValueError, TypeError, KeyError, EOFError) as error:
            raise UnsoundUpdate(f"its arrays cannot be read ({type(error).__name__})") from None
        sent = {name: (a.shape, a.dtype) for name, a in self._sent.items()}
        if {name: (a.shape, a.dtype) for name, a in arrays.items()} != sent:
            raise UnsoundUpdate("names, shapes or types of its arrays are not those that were sent")
        for name, value in metrics[0].items():
            if not np.isfinite(value).all():
                raise UnsoundUpdate(f"{name} is {value}: the training diverged")
        samples = metrics[0].get(self.weighted_by_key)
        if not isinstance(samples, int | float) or samples <= 0:
            raise UnsoundUpdate(f"{self.weighted_by_key} is {samples}, not a number above 0")
        require_sound(self._sent, arrays, self._most_norm)


class FedAvgOfChanges(OlderFedAvg):  # type: ignore[misc]  # mypy reads no flwr
    """Flower's FedAvg of its older interface, for `SecAggPlusWorkflow`, with clients that send changes.

    Clients must all be of poetc. The average of the changes is added to the weights that the round began with.
    """

    _weights: Parameters

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        """The requests of a round, which ask for changes."""
        self._weights = parameters
        asked = super().configure_fit(server_round, parameters, client_manager)
        return [(proxy, FitIns(ins.parameters, {**ins.config, _messages.CHANGE: True})) for proxy, ins in asked]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """The weights after a round, from the average of the changes."""
        change, metrics = super().aggregate_fit(server_round, results, failures)
        if change is None:
            return None, metrics
        before, by = parameters_to_ndarrays(self._weights), parameters_to_ndarrays(change)
        if not all(np.isfinite(array).all() for array in by):
            log(WARNING, "round %d: the sum of the changes is not finite; the weights stay as they were", server_round)
            return self._weights, metrics
        pairs = zip(before, by, strict=True)
        return ndarrays_to_parameters([(old + change).astype(old.dtype) for old, change in pairs]), metrics
